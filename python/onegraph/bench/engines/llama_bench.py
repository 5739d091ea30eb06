"""llama.cpp's own benchmark: `llama-bench` on PATH.

It times a prompt of random tokens and steps behind it, without sampling and without text: there is
no first token to wait for and no output to check. Each round is a process that loads the model.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from onegraph.bench import engines
from onegraph.bench.engines import MissingError, Prompt, Settings, Setup
from onegraph.bench.measurement import EngineError, Measurement

__all__ = ["LlamaBench", "find", "rows"]

NAME = "llama-bench"
#: Longest run of the program, in seconds.
PATIENCE = 3600.0


def rows(
    program: str, model: Path, options: list[str], environment: dict[str, str] | None = None
) -> list[dict[str, Any]]:
    """What llama-bench says, as its JSON.

    Raises `EngineError` where it fails.
    """
    command = [program, "-m", str(model), *options, "-o", "json"]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE,
            env=environment,
        )
    except subprocess.TimeoutExpired as e:
        raise EngineError(f"{NAME} did not finish in {e.timeout:.0f} s; reduce -p or -n") from e
    if done.returncode != 0:
        said = " | ".join(done.stderr.strip().splitlines()[-3:])
        raise EngineError(f"{NAME} exited with code {done.returncode}: {said}")
    try:
        found = json.loads(done.stdout)
        return [dict(row) for row in found]
    except (ValueError, TypeError) as e:
        raise EngineError(
            f"{NAME} printed {done.stdout[:80]!r}, which is not JSON: {e}; this version is not "
            "supported"
        ) from e


class LlamaBench:
    """llama.cpp's benchmark program."""

    name = NAME

    def __init__(self, program: str) -> None:
        self.program = program

    def start(self, setup: Setup) -> Running:
        return Running(self.program, setup)


class Running(engines.Running):
    """The program with a model; nothing runs between rounds."""

    def __init__(self, program: str, setup: Setup) -> None:
        self._program = program
        self._model = setup.model
        self._environment = setup.environment
        self._on_gpu = setup.device != "cpu"
        layers = "999" if self._on_gpu else "0"
        self._options = ["-t", str(setup.threads), "-ngl", layers, "-fa", "1", "-r", "1"]
        said = self._test("-p", "8", "-n", "0")
        backends = str(said.get("backends", "not told"))
        on_card = self._on_gpu and bool(said.get("gpu_info"))
        warnings: tuple[str, ...] = ()
        if self._on_gpu and not on_card:
            warnings = (
                "llama.cpp runs on the CPU against our GPU: this llama-bench has no GPU library",
            )
        self.settings = Settings(
            name=NAME,
            version=f"{said.get('build_number', '')} ({said.get('build_commit', 'not told')})",
            device="gpu" if on_card else "cpu",
            options={"flash_attn": "1", "backends": backends},
            warnings=warnings,
            clock="sampling and text left out",
        )

    def _test(self, *options: str) -> dict[str, Any]:
        found = rows(self._program, self._model, [*self._options, *options], self._environment)
        if len(found) != 1:
            raise EngineError(f"{NAME} ran {len(found)} tests where one was asked for")
        return found[0]

    def generate(self, prompt: Prompt, n: int) -> Measurement:
        """Times a prompt of as many tokens, and the `n - 1` steps behind it."""
        length = str(len(prompt.tokens))
        read = self._test("-p", length, "-n", "0")
        steps = self._test("-p", "0", "-n", str(n - 1), "-d", length)
        if (read["n_prompt"], steps["n_gen"]) != (len(prompt.tokens), n - 1):
            raise EngineError(
                f"{NAME} timed {read['n_prompt']} and {steps['n_gen']} tokens, not {length} and "
                f"{n - 1}; this version is not supported"
            )
        return Measurement(
            n_prompt=len(prompt.tokens),
            n_cached=0,
            n_generated=n,
            prompt_seconds=read["samples_ns"][0] / 1e9,
            decode_seconds=steps["samples_ns"][0] / 1e9,
            first_token_seconds=None,
            wall_decode_seconds=None,
            tokens=None,
            text=None,
        )


def find() -> LlamaBench:
    """The program on PATH."""
    program = shutil.which(NAME)
    if program is None:
        raise MissingError(
            "llama-bench is not on PATH: get llama.cpp from "
            "https://github.com/ggml-org/llama.cpp/releases and add its folder to PATH"
        )
    return LlamaBench(program)
