"""The end of a server, as a process: nothing that a thread has in hand holds it up."""

import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.serving import http, rest

#: Serves the model argv[1] as "loaded", and as "slow" with a load that takes argv[2] seconds.
SERVER = """
import logging, sys, time
from pathlib import Path
from onegraph import LLM
from onegraph.server.app import build
from onegraph.server.limits import Limits
from onegraph.server.models import Models
from onegraph.server.running import bind, run
from onegraph.server.service import Service

class Told(LLM):
    def close(self):
        super().close()
        print("closed", flush=True)

path, seconds, drain = Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])

def load():
    time.sleep(seconds)
    return Told(path, device="cpu")

logging.basicConfig(level=logging.WARNING)
given = Told(path, device="cpu")
models = Models({"loaded": given}, max_queue=8, folder={"slow": (path, load)})
listener = bind("127.0.0.1", 0)
app = build(Service(models, Limits()))
said = lambda: print(listener.getsockname()[1], flush=True)
run(app, listener, drain=drain, started=said)
print("left", flush=True)
"""


class Serving:
    """A server as a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.process = process
        self.port = int(process.stdout.readline())

    def ask(self, model: str) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        asked = {"model": model, "prompt": "tea", "max_tokens": 1}
        connection.sendall(http("/v1/completions", asked, connection="close"))
        return connection

    def end(self) -> tuple[int, list[str], str]:
        """Status, and what it wrote, once it has ended."""
        out, err = self.process.communicate(timeout=30)
        return self.process.returncode, out.split(), err


@contextlib.contextmanager
def serving(path: Path, seconds: float, drain: float) -> Iterator[Serving]:
    words = [sys.executable, "-c", SERVER, str(path), str(seconds), str(drain)]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield Serving(process)
        finally:
            process.kill()


@pytest.mark.parametrize(("drain", "signals"), [(1, 1), (60, 2)])
def test_a_load_in_hand_does_not_hold_up_the_end(drain: int, signals: int, tiny: Path) -> None:
    with serving(tiny, 60, drain) as served, served.ask("slow"):
        time.sleep(0.5)  # its load has begun
        began = time.monotonic()
        for _ in range(signals):
            served.process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
        status, out, err = served.end()
        assert time.monotonic() - began < 6
        assert (status, out) == (0, ["closed"])
        assert "ended while onegraph-load_0 was still working" in err


def test_an_end_with_nothing_in_hand_is_an_ordinary_one(tiny: Path) -> None:
    with serving(tiny, 0, 30) as served:
        for model in ("loaded", "slow"):
            with served.ask(model) as connection:
                assert rest(connection).startswith(b"HTTP/1.1 200")
        served.process.send_signal(signal.SIGTERM)
        assert served.end() == (0, ["closed", "closed", "left"], "")
