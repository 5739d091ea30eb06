"""llama.cpp in the Python package `llama-cpp-python`, in a process of its own.

It has no clock: each token is timed when the package yields it.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from typing import IO, Any

from onegraph.bench import engines
from onegraph.bench.engines import MissingError, Prompt, Settings, Setup
from onegraph.bench.engines.llama_server import said, stop
from onegraph.bench.measurement import EngineError, Measurement

__all__ = ["LlamaCppPython", "find"]

NAME = "llama-cpp-python"

#: Loads argv[1] with argv[2] threads, a context of argv[3] and argv[4] layers on a GPU; then, for
#: each line with a prompt and a length, generates and writes a line with tokens and times.
WORKER = """
import json, os, sys, time
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
import llama_cpp
model = llama_cpp.Llama(
    model_path=sys.argv[1], n_threads=int(sys.argv[2]), n_threads_batch=int(sys.argv[2]),
    n_ctx=int(sys.argv[3]), n_gpu_layers=int(sys.argv[4]), flash_attn=True, verbose=False,
)
gpu = bool(llama_cpp.llama_supports_gpu_offload())
print(json.dumps({"gpu": gpu, "version": llama_cpp.__version__}), file=out, flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    tokens, times = [], []
    model.reset()
    begin = time.perf_counter()
    for token in model.generate(asked["prompt"], top_k=1, temp=0.0, repeat_penalty=1.0):
        tokens.append(int(token))
        times.append(time.perf_counter() - begin)
        if len(tokens) == asked["n"]:
            break
    print(json.dumps({"tokens": tokens, "times": times}), file=out, flush=True)
"""


class LlamaCppPython:
    """The package, installed beside onegraph."""

    name = NAME

    def start(self, setup: Setup) -> Running:
        return Running(setup)


class Running(engines.Running):
    """The package with a model."""

    def __init__(self, setup: Setup) -> None:
        wants_gpu = setup.device != "cpu"
        options = [setup.model, setup.threads, setup.n_ctx, -1 if wants_gpu else 0]
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        self._process = subprocess.Popen(
            [sys.executable, "-c", WORKER, *map(str, options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=setup.environment,
        )
        try:
            told = self._answer()
        except BaseException:
            stop(self._process, self._log)
            raise
        on_gpu = bool(told["gpu"]) and wants_gpu
        warnings: tuple[str, ...] = ()
        if wants_gpu and not on_gpu:
            warnings = (
                "llama.cpp runs on the CPU against our GPU: this llama-cpp-python was built "
                'without CUDA; reinstall it with CMAKE_ARGS="-DGGML_CUDA=on"',
            )
        self.settings = Settings(
            name=NAME,
            version=str(told["version"]),
            device="gpu" if on_gpu else "cpu",
            options={"flash_attn": "1"},
            warnings=warnings,
            clock="none of its own; sampling included, text not",
        )

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            raise EngineError(
                f"{NAME} exited with code {self._process.returncode}: {said(self._log)}"
            )
        answer: dict[str, Any] = json.loads(line)
        return answer

    def generate(self, prompt: Prompt, n: int) -> Measurement:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"prompt": prompt.tokens, "n": n}) + "\n")
            self._process.stdin.flush()
        except OSError as e:
            raise EngineError(f"{NAME} has died: {e}: {said(self._log)}") from e
        answer = self._answer()
        times = answer["times"]
        return Measurement(
            n_prompt=len(prompt.tokens),
            n_cached=0,
            n_generated=len(times),
            # The first token is chosen in no time beside the prompt's.
            prompt_seconds=times[0] if times else None,
            decode_seconds=None,
            first_token_seconds=times[0] if times else None,
            wall_decode_seconds=times[-1] - times[0] if len(times) > 1 else None,
            tokens=tuple(answer["tokens"]),
            text=None,
        )

    def close(self) -> None:
        stop(self._process, self._log)


def find() -> LlamaCppPython:
    """The package, where it is installed."""
    if importlib.util.find_spec("llama_cpp") is None:
        raise MissingError(
            f"{NAME} is not installed: run `pip install llama-cpp-python`, on a GPU with "
            'CMAKE_ARGS="-DGGML_CUDA=on"'
        )
    return LlamaCppPython()
