"""llama.cpp in the Python package `xllamacpp`, through the server that it holds."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys
import tempfile
from typing import IO

from onegraph.bench.engines import MissingError, Settings, Setup
from onegraph.bench.engines.llama_server import Running, said, stop
from onegraph.bench.measurement import EngineError

__all__ = ["XLlamaCpp", "find"]

NAME = "xllamacpp"

#: Serves argv[1] with argv[2] threads, a context of argv[3], argv[4] layers on a GPU and argv[5]
#: sequences that share the context, until its standard input ends: a process of its own, so that it
#: dies alone.
SERVE = """
import sys, xllamacpp
kinds = {str(device["type"]) for device in xllamacpp.get_device_info()}
print("GPU", int(any("GPU" in kind for kind in kinds)), flush=True)
params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(sys.argv[2])
params.n_ctx = int(sys.argv[3])
params.n_gpu_layers = int(sys.argv[4])
params.n_parallel = int(sys.argv[5])
params.port = 0
server = xllamacpp.Server(params)
print("ADDRESS", server.listening_address, flush=True)
sys.stdin.read()
"""


class XLlamaCpp:
    """The package, installed beside onegraph."""

    name = NAME

    def start(self, setup: Setup) -> Running:
        wants_gpu = setup.device != "cpu"
        context = setup.n_ctx * setup.slots
        options = [setup.model, setup.threads, context, 999 if wants_gpu else 0, setup.slots]
        log = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the server)
        process = subprocess.Popen(
            [sys.executable, "-c", SERVE, *map(str, options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=setup.environment,
        )
        try:
            has_gpu, address = _greeting(process, log)
        except BaseException:
            stop(process, log)
            raise
        on_gpu = wants_gpu and has_gpu
        warnings: tuple[str, ...] = ()
        if wants_gpu and not has_gpu:
            warnings = (
                "llama.cpp runs on the CPU against our GPU: this xllamacpp has no GPU library; "
                "put a llama-server with CUDA on PATH for a fair race",
            )
        version = importlib.metadata.version(NAME)
        device = "gpu" if on_gpu else "cpu"
        return Running(process, log, address, Settings(NAME, version, device, {}, warnings))


def _greeting(process: subprocess.Popen[str], log: IO[bytes]) -> tuple[bool, str]:
    assert process.stdout is not None
    has_gpu = False
    for line in process.stdout:
        word, _, rest = line.strip().partition(" ")
        if word == "GPU":
            has_gpu = rest == "1"
        if word == "ADDRESS":
            return has_gpu, rest
    process.wait()
    raise EngineError(f"xllamacpp did not start: {said(log)}")


def find() -> XLlamaCpp:
    """The package, where it is installed."""
    if importlib.util.find_spec(NAME) is None:
        raise MissingError("xllamacpp is not installed: run `pip install xllamacpp`")
    return XLlamaCpp()
