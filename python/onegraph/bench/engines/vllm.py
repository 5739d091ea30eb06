"""A running vLLM server, by the completions API that it shares with others.

It has no clock in its answers: each part is timed when it comes. The server was started by its user
with a model of its own, so the name of that model is told with the numbers.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from onegraph.bench import engines, stream
from onegraph.bench.engines import MissingError, Prompt, Settings, Setup
from onegraph.bench.measurement import EngineError, Measurement

__all__ = ["Vllm", "find", "measurement"]

NAME = "vllm"
DEFAULT = "http://127.0.0.1:8000"
START = "`pip install vllm`, then `vllm serve FILE.gguf`, and set VLLM_HOST where it is elsewhere"


def measurement(lines: Iterable[stream.Line]) -> Measurement:
    """What the lines of a streamed `/v1/completions` with its usage say.

    Raises `EngineError` for an error in mid-stream and for an answer without its usage.
    """
    parts: list[tuple[float, str]] = []
    usage: dict[str, Any] | None = None
    for line in lines:
        kind, _, rest = line.text.partition(":")
        if kind != "data" or rest.strip() == "[DONE]":
            continue
        answer = stream.json_object(rest, NAME)
        if "error" in answer:
            raise EngineError(f"{NAME} failed after {len(parts)} parts: {answer['error']}")
        for choice in answer.get("choices") or []:
            if text := choice.get("text"):
                parts.append((line.at, str(text)))
        usage = answer.get("usage") or usage
    if usage is None:
        raise EngineError(
            f"{NAME}'s answer ended after {len(parts)} parts, without its usage: the server "
            "may have died, see its log"
        )
    return Measurement(
        n_prompt=int(usage["prompt_tokens"]),
        n_cached=None,
        n_generated=int(usage["completion_tokens"]),
        prompt_seconds=None,
        decode_seconds=None,
        first_token_seconds=parts[0][0] if parts else None,
        wall_decode_seconds=parts[-1][0] - parts[0][0] if len(parts) > 1 else None,
        tokens=None,
        text="".join(text for _, text in parts),
    )


class Vllm:
    """A server that answers."""

    name = NAME

    def __init__(self, address: str, model: str, version: str) -> None:
        self.address = address
        self.model = model
        self.version = version

    def start(self, setup: Setup) -> Running:
        return Running(self, setup)


class Running(engines.Running):
    """The server's model."""

    def __init__(self, server: Vllm, setup: Setup) -> None:
        self._server = server
        warnings: tuple[str, ...] = ()
        if setup.model.stem not in server.model:
            warnings = (
                f"the server runs {server.model}, onegraph {setup.model.name}: start it as "
                f"`vllm serve {setup.model}` for the same file",
            )
        self.settings = Settings(
            name=NAME,
            version=server.version,
            device="as its server was started",
            options={"model": server.model},
            warnings=warnings,
            clock="none of its own",
        )

    def generate(self, prompt: Prompt, n: int) -> Measurement:
        body = {
            "model": self._server.model,
            "prompt": list(prompt.tokens),
            "max_tokens": n,
            "temperature": 0.0,
            "seed": 1,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return measurement(stream.lines(self._server.address, "/v1/completions", body, NAME))


def find() -> Vllm:
    """The server that VLLM_HOST names; none is started."""
    given = (os.environ.get("VLLM_HOST") or DEFAULT).strip().rstrip("/")
    address = given if "://" in given else f"http://{given}"
    try:
        status, answer = stream.request_json(address, "GET", "/v1/models", None, NAME)
    except stream.Refused as e:
        raise MissingError(f"{e}; run {START}") from e
    models = answer.get("data") or []
    if status != 200 or not models:
        raise MissingError(f"{address} lists no models (status {status}); run {START}")
    try:
        status, told = stream.request_json(address, "GET", "/version", None, NAME)
    except EngineError:
        told = {}
    return Vllm(address, str(models[0].get("id")), str(told.get("version", "not told")))
