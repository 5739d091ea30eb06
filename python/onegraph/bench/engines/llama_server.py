"""llama.cpp's own server, by its HTTP API: `llama-server` on PATH.

Its clock: `predicted_ms` starts when the first token is there and `predicted_n` counts that token,
so N tokens are N - 1 steps of that duration; `prompt_ms` ends there, and `cache_n` are the tokens
of the prompt that it did not have to read again.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable
from typing import IO, Any

from onegraph.bench import engines, stream
from onegraph.bench.engines import MissingError, Prompt, Settings, Setup
from onegraph.bench.measurement import EngineError, Measurement

__all__ = ["LlamaServer", "Running", "find", "find_server", "measurement"]

NAME = "llama-server"
#: Longest wait for a model to be loaded, in seconds.
PATIENCE = 600.0


def find_server(name: str) -> engines.Adapter:
    """The engine of that name, or with `llama-server=PATH` llama.cpp's server in that program.

    Raises as `engines.find`.
    """
    engine, _, program = name.partition("=")
    return LlamaServer(program) if program else engines.find(engine)


def measurement(lines: Iterable[stream.Line], who: str = NAME) -> Measurement:
    """What the lines of a streamed `/completion` say.

    Raises `EngineError` for an error in mid-stream and for an answer without its last line.
    """
    parts: list[float] = []
    tokens: list[int] = []
    text = ""
    timings: dict[str, Any] | None = None
    for line in lines:
        kind, _, rest = line.text.partition(":")
        if kind == "error":
            raise EngineError(
                f"{who} failed after {len(parts)} parts of its answer: {rest.strip()}"
            )
        if kind != "data" or rest.strip() == "[DONE]":
            continue
        said = stream.json_object(rest, who)
        if "error" in said:
            error = said["error"]
            message = error.get("message", error) if isinstance(error, dict) else error
            raise EngineError(f"{who} failed after {len(parts)} parts of its answer: {message}")
        new = [int(t) for t in said.get("tokens") or []]
        if new or said.get("content"):
            parts.append(line.at)
            tokens += new
            text += str(said.get("content", ""))
        if said.get("stop") is True:
            timings = said.get("timings")
    if timings is None:
        raise EngineError(
            f"{who}'s answer ended after {len(parts)} parts: the server may have died"
        )
    n, cached = int(timings["predicted_n"]), int(timings.get("cache_n", 0))
    return Measurement(
        n_prompt=int(timings["prompt_n"]) + cached,
        n_cached=cached,
        n_generated=n,
        prompt_seconds=float(timings["prompt_ms"]) / 1e3,
        decode_seconds=float(timings["predicted_ms"]) / 1e3,
        first_token_seconds=parts[0] if parts else None,
        wall_decode_seconds=parts[-1] - parts[0] if len(parts) > 1 else None,
        tokens=tuple(tokens) if len(tokens) == n else None,
        text=text,
    )


class Running(engines.Running):
    """A llama.cpp server process with a model."""

    def __init__(
        self, process: subprocess.Popen[Any], log: IO[bytes], address: str, settings: Settings
    ) -> None:
        self._process = process
        self._log = log
        self.address = address
        self.settings = settings

    @property
    def process_id(self) -> int:
        """Of the server."""
        return self._process.pid

    def body(self, prompt: Prompt, n: int) -> dict[str, object]:
        """What is asked: greedy, to the full length, with nothing kept."""
        return {
            "prompt": list(prompt.tokens),
            "n_predict": n,
            "temperature": 0.0,
            "top_k": 1,
            "repeat_penalty": 1.0,
            "seed": 1,
            "ignore_eos": True,
            "cache_prompt": False,
            "return_tokens": True,
            "stream": True,
        }

    def generate(self, prompt: Prompt, n: int) -> Measurement:
        body = self.body(prompt, n)
        who = self.settings.name
        return measurement(stream.lines(self.address, "/completion", body, who), who)

    def answer(self, prompt: Prompt, n: int) -> Measurement:
        # A stream leaves out the tokens of a character that is not whole yet.
        body = self.body(prompt, n) | {"stream": False}
        who = self.settings.name
        status, said = stream.request_json(self.address, "POST", "/completion", body, who)
        if status != 200:
            raise EngineError(f"{who} refused /completion with status {status}: {said}")
        return measurement([stream.Line(0.0, f"data: {json.dumps(said)}")], who)

    def close(self) -> None:
        stop(self._process, self._log)


def stop(process: subprocess.Popen[Any], log: IO[bytes]) -> None:
    """Ends a server that was started here."""
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    log.close()


def said(log: IO[bytes]) -> str:
    """The last words of a server's log, those about errors before others."""
    log.seek(0)
    lines = [line.strip() for line in log.read().decode(errors="replace").splitlines()]
    about = [line for line in lines if "error" in line.lower() or "failed" in line.lower()]
    return " | ".join((about or lines)[-3:]) or "nothing"


class LlamaServer:
    """llama.cpp's server program."""

    name = NAME

    def __init__(self, program: str) -> None:
        self.program = program

    def start(self, setup: Setup) -> Running:
        on_gpu = setup.device != "cpu"
        port = free_port()
        options = [
            *("--model", str(setup.model), "--host", "127.0.0.1", "--port", str(port)),
            # It shares its context out among the sequences.
            *("--ctx-size", str(setup.n_ctx * setup.slots), "--parallel", str(setup.slots)),
            *("--threads", str(setup.threads)),
            *("--n-gpu-layers", "999" if on_gpu else "0", "--flash-attn", "on"),
        ]
        log = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the server)
        process = subprocess.Popen(
            [self.program, *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=setup.environment,
        )
        address = f"http://127.0.0.1:{port}"
        try:
            wait(process, log, address, self.name)
            device = "gpu" if on_gpu and gpus(self.program) else "cpu"
            warnings: tuple[str, ...] = ()
            if on_gpu and device == "cpu":
                warnings = ("llama.cpp runs on the CPU: this llama-server has no GPU library",)
            settings = Settings(
                self.name, version(self.program), device, {"flash-attn": "on"}, warnings
            )
        except BaseException:
            stop(process, log)
            raise
        return Running(process, log, address, settings)


def wait(process: subprocess.Popen[Any], log: IO[bytes], address: str, who: str) -> None:
    """Returns when the server has its model. Raises `EngineError` where it ends before."""
    until = time.monotonic() + PATIENCE
    while True:
        if process.poll() is not None:
            raise EngineError(f"{who} exited with code {process.returncode}: {said(log)}")
        try:
            if stream.request_json(address, "GET", "/health", None, who)[0] == 200:
                return
        except EngineError:
            pass
        if time.monotonic() > until:
            raise EngineError(f"{who} did not load the model in {PATIENCE:.0f} s: {said(log)}")
        time.sleep(0.05)


def free_port() -> int:
    """A port that nothing listens on."""
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def version(program: str) -> str:
    """What `--version` says of a program of llama.cpp."""
    done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60)
    for line in (done.stderr + done.stdout).splitlines():
        if line.startswith("version:"):
            return line.removeprefix("version:").strip()
    return "not told"


def gpus(program: str) -> bool:
    """Whether a program of llama.cpp sees a GPU."""
    done = subprocess.run([program, "--list-devices"], capture_output=True, text=True, timeout=60)
    _, _, listed = (done.stdout + done.stderr).partition("Available devices:")
    return any(line.strip() and "none" not in line.lower() for line in listed.splitlines())


def find() -> LlamaServer:
    """The program on PATH."""
    program = shutil.which(NAME)
    if program is None:
        raise MissingError(
            "llama-server is not on PATH: get llama.cpp from "
            "https://github.com/ggml-org/llama.cpp/releases and add its folder to PATH"
        )
    return LlamaServer(program)
