"""A running ollama server, by its HTTP API.

Its clock: `eval_duration` (ns) starts when the first token is there and `eval_count` counts that
token, so N tokens are N - 1 steps of that duration. `prompt_eval_count` counts the whole prompt and
`prompt_eval_duration` only what was not kept from an earlier one. A field that is zero is left out
of the answer.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.parse
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from onegraph.bench import engines, stream
from onegraph.bench.engines import MissingError, Prompt, Settings, Setup
from onegraph.bench.measurement import EarlyEnd, EngineError, Measurement, seconds

__all__ = ["Ollama", "address", "find", "measurement"]

DEFAULT_PORT = 11434
#: How long the server keeps the model after a call, in seconds: a round of the others is shorter.
KEEP_SECONDS = 1800


def address() -> str:
    """The server's address, from OLLAMA_HOST as ollama itself reads it."""
    given = (os.environ.get("OLLAMA_HOST") or "").strip().strip("\"'")
    scheme, mark, rest = given.partition("://")
    if not mark:
        scheme, rest = "http", given
    netloc, slash, path = rest.partition("/")
    default = {"http": 80, "https": 443}.get(scheme, DEFAULT_PORT) if mark else DEFAULT_PORT
    try:
        parsed = urllib.parse.urlsplit(f"//{netloc}")
        host, port = parsed.hostname or "127.0.0.1", parsed.port or default
    except ValueError as e:
        raise MissingError(
            f"OLLAMA_HOST is {given!r}: {e}; write it as host:port, such as 127.0.0.1:11434"
        ) from e
    # What a server listens on is no address to call.
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    if ":" in host:
        host = f"[{host}]"
    return f"{scheme}://{host}:{port}{slash}{path.rstrip('/')}"


def measurement(lines: Iterable[stream.Line], n_kept: int = 0) -> Measurement:
    """What the lines of a streamed `/api/generate` say.

    `n_kept` is how many tokens of the prompt the server may have kept from earlier prompts: it
    does not say, and with more than the one that begins every prompt its prompt rate means nothing.

    Raises `EngineError` for an error in mid-stream, an answer without its last line, and one whose
    first token ended the text.
    """
    parts: list[tuple[float, str]] = []
    pieces: list[bytes] = []
    last: dict[str, Any] | None = None
    for line in lines:
        said = stream.json_object(line.text, "ollama")
        if "error" in said:
            raise EngineError(
                f"ollama failed after {len(parts)} parts of its answer: {said['error']}; "
                "see the log of its server"
            )
        if text := str(said.get("response", "")):
            parts.append((line.at, text))
        pieces += [bytes(token.get("bytes") or []) for token in said.get("logprobs") or []]
        if said.get("done") is True:
            last = said
    if last is None:
        raise EngineError(
            f"ollama's answer ended after {len(parts)} parts: the server may have died, see its log"
        )
    if not last.get("eval_count"):
        raise EarlyEnd(
            "ollama generated no tokens (its answer has no eval_count): the first one ended the "
            "text; use another prompt or model"
        )
    n_prompt = last.get("prompt_eval_count")
    if not isinstance(n_prompt, int):
        raise EngineError(
            "ollama does not say how many tokens the prompt had (prompt_eval_count): this version "
            "is not supported"
        )
    prompt_ns = last.get("prompt_eval_duration")
    fresh = prompt_ns is not None and n_kept <= 1
    return Measurement(
        n_prompt=n_prompt,
        n_cached=None,
        n_generated=int(last["eval_count"]),
        prompt_seconds=seconds(prompt_ns, "prompt_eval_duration") if fresh else None,
        decode_seconds=seconds(last.get("eval_duration", 0), "eval_duration"),
        first_token_seconds=parts[0][0] if parts else None,
        wall_decode_seconds=parts[-1][0] - parts[0][0] if len(parts) > 1 else None,
        tokens=None,
        text="".join(text for _, text in parts),
        pieces=tuple(pieces) if pieces else None,
    )


class Ollama:
    """An ollama server that answers."""

    name = "ollama"

    def __init__(self, address: str, version: str) -> None:
        self.address = address
        self.version = version

    def start(self, setup: Setup) -> Running:
        """Loads the model in the server: `ollama:NAME` from its store, else a copy of the file that
        is removed afterwards where `setup.copy` allows that."""
        if setup.reference.startswith("ollama:"):
            return Running(self, setup, setup.reference.removeprefix("ollama:"), created=False)
        if not setup.copy:
            raise EngineError(
                f"ollama only runs models from its store: name the model ollama:NAME, or use "
                f"--create to copy {setup.model.name} ({setup.model.stat().st_size / 1e6:.0f} MB) "
                "there during the comparison"
            )
        return Running(self, setup, create(self.address, setup.model), created=True)

    def ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """The answer to a request. Raises `EngineError` with what the server said."""
        status, answer = stream.request_json(self.address, method, path, body, "ollama")
        if status >= 400:
            raise EngineError(
                f"ollama refused {path} with status {status}: "
                f"{answer.get('error', 'no reason given')}"
            )
        return answer


def create(address: str, model: Path) -> str:
    """Gives the server a copy of a GGUF file and makes a model of it; its name."""
    if shards := sorted(model.parent.glob("*-of-*.gguf")) if "-of-" in model.name else []:
        raise EngineError(
            f"{model.name} is one of {len(shards)} parts, which ollama does not support; join them "
            "with llama-gguf-split --merge"
        )
    with model.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    blob = f"/api/blobs/sha256:{digest}"
    status, _ = stream.request_json(address, "HEAD", blob, None, "ollama")
    if status != 200:
        with model.open("rb") as file:
            status, said = stream.request_json(address, "POST", blob, file, "ollama")
        if status not in (200, 201):
            raise EngineError(f"ollama refused the model's bytes with status {status}: {said}")
    name = f"onegraph-race-{digest[:12]}"
    body = {"model": name, "files": {model.name: f"sha256:{digest}"}}
    for line in stream.lines(address, "/api/create", body, "ollama"):
        said = stream.json_object(line.text, "ollama")
        if "error" in said:
            raise EngineError(f"ollama cannot make a model of {model.name}: {said['error']}")
    return name


class Running(engines.Running):
    """A model in an ollama server."""

    #: There is no option that lets a text run on behind its end.
    ignores_end = False

    def __init__(self, server: Ollama, setup: Setup, model: str, *, created: bool) -> None:
        self._server = server
        self._setup = setup
        self._model = model
        self._created = created
        self._seen: list[tuple[int, ...]] = []
        #: Pinned: it chooses its context by the card's memory otherwise, and penalizes repetition.
        self._options = {
            "num_ctx": setup.n_ctx,
            "temperature": 0,
            "seed": 1,
            "repeat_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
        }
        if setup.device == "cpu":
            self._options |= {"num_gpu": 0, "num_thread": setup.threads}
        try:
            self._load()
            self.settings = self._ask_settings()
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        """Of the server."""
        return self._server.address

    @property
    def model(self) -> str:
        """What the server calls the model."""
        return self._model

    @property
    def options(self) -> dict[str, object]:
        """What it is told with each request."""
        return dict(self._options)

    def _body(self, **more: object) -> dict[str, object]:
        return {"model": self._model, "options": self._options, "keep_alive": KEEP_SECONDS, **more}

    def _load(self) -> None:
        self._server.ask("POST", "/api/generate", self._body(stream=False))

    def _ask_settings(self) -> Settings:
        listed = self._server.ask("GET", "/api/ps").get("models") or []
        mine = [m for m in listed if m.get("name", "").removesuffix(":latest") == self._plain()]
        if not mine:
            raise EngineError(
                f"ollama loaded {self._model} and does not list it in /api/ps; see its log"
            )
        size, on_card = int(mine[0].get("size", 0)), int(mine[0].get("size_vram", 0))
        warnings = []
        if self._setup.device != "cpu" and on_card < size:
            where = "on the CPU alone" if on_card == 0 else f"only {on_card / size:.0%} on the GPU"
            warnings.append(
                f"ollama runs {where}: its GPU library is missing or the card is full; see "
                "the log of its server"
            )
        if self._setup.device == "cpu" and on_card:
            warnings.append(f"ollama keeps {on_card / 2**20:.0f} MiB on a GPU, onegraph nothing")
        context = mine[0].get("context_length")
        if context not in (None, 0, self._setup.n_ctx):
            warnings.append(f"ollama's context is {context}, onegraph's {self._setup.n_ctx}")
        return Settings(
            name="ollama",
            version=self._server.version,
            device="cpu" if on_card == 0 else f"gpu ({on_card / max(size, 1):.0%})",
            options={k: str(v) for k, v in self._options.items()} | {"raw": "true"},
            warnings=tuple(warnings),
            clock="sampling left out; N-1 tokens counted for its N",
        )

    def _plain(self) -> str:
        return self._model.removesuffix(":latest")

    def generate(self, prompt: Prompt, n: int) -> Measurement:
        return self._generate(prompt, n)

    def answer(self, prompt: Prompt, n: int) -> Measurement:
        # Its text may encode to other tokens than it was made of.
        return self._generate(prompt, n, logprobs=True)

    def _generate(self, prompt: Prompt, n: int, **more: object) -> Measurement:
        kept = max((_shared(prompt.tokens, earlier) for earlier in self._seen), default=0)
        self._seen.append(prompt.tokens)
        options = self._options | {"num_predict": n}
        more |= {"raw": True, "stream": True, "truncate": False, "shift": False}
        body = self._body(prompt=prompt.text, **more)
        sent = stream.lines(
            self._server.address, "/api/generate", body | {"options": options}, "ollama"
        )
        found = measurement(sent, kept)
        return found if kept > 1 else replace(found, n_cached=0)

    def close(self) -> None:
        try:
            body = {"model": self._model, "keep_alive": 0}
            stream.request_json(self._server.address, "POST", "/api/generate", body, "ollama")
            if self._created:
                body = {"model": self._model}
                stream.request_json(self._server.address, "DELETE", "/api/delete", body, "ollama")
        except (EngineError, http.client.HTTPException):
            pass  # a server that died needs no clearing up


def _shared(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """Length of the common start."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))


def find() -> Ollama:
    """The server that OLLAMA_HOST names; none is started."""
    where = address()
    try:
        status, answer = stream.request_json(where, "GET", "/api/version", None, "ollama")
    except stream.Refused as e:
        raise MissingError(
            f"{e}; install it from https://ollama.com, start it with `ollama serve`, and set "
            "OLLAMA_HOST if it does not listen on 127.0.0.1:11434"
        ) from e
    if status != 200 or "version" not in answer:
        raise MissingError(f"{where} is not an ollama server (status {status}); set OLLAMA_HOST")
    return Ollama(where, str(answer["version"]))
