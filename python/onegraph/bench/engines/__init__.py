"""The engines that can be measured: one file each, and one row of `ENGINES`.

An engine's file has a function `find(name)`, which gives an `Adapter` or raises `MissingError` with
how to get the engine. Nothing of an engine is imported until it is asked for.
"""

from __future__ import annotations

import importlib
import os
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from onegraph import arguments
from onegraph.bench.measurement import Measurement
from onegraph.errors import ArgumentError, Error

__all__ = [
    "ENGINES",
    "Adapter",
    "MissingError",
    "Prompt",
    "Row",
    "Running",
    "Settings",
    "Setup",
    "find",
    "names",
]


class MissingError(Error, RuntimeError):
    """An engine is not on this machine; the message says how to get it."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What every engine is given alike."""

    #: The GGUF file.
    model: Path
    #: As the user named it, for engines with a store of their own.
    reference: str
    #: "cpu" or "cuda:N".
    device: str
    #: Tokens that a sequence may have.
    n_ctx: int
    #: CPU threads.
    threads: int
    #: Whether an engine with a store of its own may copy the file there for the time of the race.
    copy: bool = False
    #: Sequences that run together, for engines that are told so.
    slots: int = 1

    @property
    def name(self) -> str:
        """What the user calls the model: a file's name, or a name that stands for one."""
        return self.model.name if self.model.name in self.reference else self.reference

    @property
    def ordinal(self) -> int | None:
        """Number of the card, of several the first; None on the CPU."""
        return next(iter(arguments.cards(self.device)), None)

    @property
    def environment(self) -> dict[str, str]:
        """Of a process that is to see those cards alone: llama.cpp spreads over all it sees."""
        if self.ordinal is None:
            return dict(os.environ)
        seen = os.environ.get("CUDA_VISIBLE_DEVICES")
        listed = seen.split(",") if seen else []
        cards = arguments.cards(self.device)
        names = [listed[n] if n < len(listed) else str(n) for n in cards]
        return os.environ | {"CUDA_VISIBLE_DEVICES": ",".join(names)}


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt, as text and as its tokens: the text encodes to the tokens, the special ones that
    the model expects in front among them."""

    text: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Settings:
    """What a running engine says of itself."""

    name: str
    version: str
    #: "cpu", or what it says of its GPU.
    device: str
    #: Further settings that matter to speed.
    options: dict[str, str] = field(default_factory=dict)
    #: What a reader of the numbers must know; empty where all is alike.
    warnings: tuple[str, ...] = ()
    #: What the engine's own clock counts beside the model's work.
    clock: str = "sampling and text included"


class Running(ABC):
    """An engine with the model loaded. A context manager: leaving it frees what it holds."""

    #: Whether it goes on behind a token that ends a text.
    ignores_end = True

    settings: Settings

    @abstractmethod
    def generate(self, prompt: Prompt, n: int) -> Measurement:
        """Goes on from `prompt` greedily for `n` tokens, with nothing kept from earlier calls.

        Raises `EngineError` where the engine fails or does other work.
        """

    def answer(self, prompt: Prompt, n: int) -> Measurement:
        """The same for a check of the output, not of the speed: it may cost time to say more."""
        return self.generate(prompt, n)

    def close(self) -> None:  # noqa: B027 (most hold something, one nothing)
        """Frees what it holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Adapter(Protocol):
    """An engine that was found on this machine."""

    @property
    def name(self) -> str: ...

    def start(self, setup: Setup) -> Running: ...


@dataclass(frozen=True, slots=True)
class Row:
    """Where an engine's adapter is, what it is, and the other names it goes by."""

    module: str
    summary: str
    #: A name that several rows share takes the first of them that is there.
    family: str | None = None


ENGINES = {
    "ollama": Row("onegraph.bench.engines.ollama", "a running ollama server, by OLLAMA_HOST"),
    "llama-server": Row(
        "onegraph.bench.engines.llama_server", "llama.cpp's server on PATH", "llama.cpp"
    ),
    "llama-cpp-python": Row(
        "onegraph.bench.engines.llama_cpp_python", "llama.cpp's Python package", "llama.cpp"
    ),
    "xllamacpp": Row(
        "onegraph.bench.engines.xllamacpp", "llama.cpp in the Python package xllamacpp", "llama.cpp"
    ),
    "llama-bench": Row(
        "onegraph.bench.engines.llama_bench", "llama.cpp's benchmark on PATH", "llama.cpp"
    ),
    "vllm": Row("onegraph.bench.engines.vllm", "a running vLLM server, by VLLM_HOST"),
}


def names() -> list[str]:
    """What `find` takes."""
    families = {row.family for row in ENGINES.values() if row.family}
    return sorted({*ENGINES, *families})


def find(name: str) -> Adapter:
    """The engine of that name; of a family such as llama.cpp, the first that is there.

    Raises `ArgumentError` for a name that is not known, `MissingError` where it is not here.
    """
    rows = [n for n, row in ENGINES.items() if name in (n, row.family)]
    if not rows:
        raise ArgumentError(f"unknown engine {name!r}; known are {', '.join(names())}")
    missing = []
    for one in rows:
        try:
            adapter: Adapter = importlib.import_module(ENGINES[one].module).find()
        except MissingError as e:
            missing.append(str(e))
        else:
            return adapter
    raise MissingError("; ".join(missing))
