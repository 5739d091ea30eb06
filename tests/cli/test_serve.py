"""`onegraph serve`, as a process."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from onegraph.cli.serve import name_of
from support.serving import http, rest

Start = Callable[..., "Process"]


class Process:
    """A server that was started."""

    def __init__(self, args: list[str], log: Path, env: dict[str, str]) -> None:
        self.log = log
        self.process = subprocess.Popen(
            args, stderr=log.open("w"), stdin=subprocess.DEVNULL, env=os.environ | env
        )
        end = time.monotonic() + 60
        while not (found := re.search(r"on http://(\S+):(\d+)$", log.read_text(), flags=re.M)):
            assert self.process.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.02)
        self.host, self.port = found[1], int(found[2])

    def get(self, path: str, body: Any = None, **headers: str) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://{self.host}:{self.port}{path}", data, headers)
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.loads(response.read())

    def connect(self) -> socket.socket:
        return socket.create_connection((self.host.strip("[]"), self.port), timeout=60)


@pytest.fixture
def start(command: list[str], tmp_path: Path, interruptible: None) -> Iterator[Start]:
    """`start(MODEL, ...)` serves on a port of its own."""
    started = []

    def run(*args: object, env: dict[str, str] | None = None) -> Process:
        words = [*command, "serve", *map(str, args), "--device", "cpu"]
        if "--port" not in args:
            words += ["--port", "0"]
        log = tmp_path / f"log{len(started)}"
        started.append(Process(words, log, env or {}))
        return started[-1]

    yield run
    for each in started:
        with contextlib.suppress(ProcessLookupError):
            each.process.kill()
        each.process.wait()


LONG = {"prompt": "tea", "max_tokens": 300, "ignore_eos": True, "stream": True}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_what_runs_end(number: int, start: Start, tiny: Path) -> None:
    served = start(tiny)
    assert served.get("/v1/models")["data"][0]["id"] == "tiny"
    running = served.connect()
    running.sendall(http("/v1/completions", LONG))
    begun = running.recv(4096)
    served.process.send_signal(number)
    time.sleep(0.2)
    with pytest.raises(OSError):
        served.connect()
    assert (begun + rest(running)).rstrip().endswith(b"0")
    assert served.process.wait(30) == 0
    (line,) = [json.loads(x) for x in served.log.read_text().splitlines() if "completions" in x]
    assert (line["status"], line["completion_tokens"], line["finish"]) == (200, 300, "length")


def test_what_does_not_end_in_time_is_cut(start: Start, smollm2: Path) -> None:
    served = start(smollm2, "--drain", "1", "--n-ctx", "2048")
    running = served.connect()
    running.sendall(http("/v1/completions", {**LONG, "max_tokens": 2000}))
    running.recv(4096)
    began = time.monotonic()
    served.process.terminate()
    assert served.process.wait(30) == 0
    assert time.monotonic() - began < 15
    said = rest(running)
    assert b"[DONE]" not in said and b"the server is shutting down" in said


def test_a_second_signal_ends_it_at_once(start: Start, smollm2: Path) -> None:
    served = start(smollm2, "--n-ctx", "2048")
    running = served.connect()
    running.sendall(http("/v1/completions", {**LONG, "max_tokens": 2000}))
    running.recv(4096)
    served.process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert served.process.poll() is None
    began = time.monotonic()
    served.process.send_signal(signal.SIGINT)
    assert served.process.wait(30) == 0 and time.monotonic() - began < 10


def test_the_port_of_ollama_is_taken_where_it_is_free(start: Start, tiny: Path) -> None:
    with contextlib.ExitStack() as stack:
        for port in (11434, 8080):
            probe = stack.enter_context(socket.socket())
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                pytest.skip(f"port {port} is taken on this machine")
    first = start(tiny, "--port", "11434")
    assert first.port == 11434
    log = first.log.with_name("second")
    words = [*first.process.args[:3], "--device", "cpu"]  # type: ignore[index]
    second = Process(words, log, {})
    try:
        assert second.port == 8080
    finally:
        second.process.kill()
        second.process.wait()


def test_models_of_a_folder_are_loaded_when_they_are_asked_for(
    start: Start, tiny: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    for name in ("a.gguf", "b.gguf", "c-00001-of-00002.gguf", "c-00002-of-00002.gguf", "d.txt"):
        (folder / name).symlink_to(tiny)
    (folder / "broken.gguf").write_bytes(b"GGUF")
    served = start("--models-dir", folder, "--alias", "gpt-4o", "--max-batch", "2")
    assert [each["id"] for each in served.get("/v1/models")["data"]] == ["a", "b", "broken", "c"]
    asked = {"prompt": "tea", "max_tokens": 1}
    assert served.get("/v1/completions", {**asked, "model": "b"})["model"] == "b"
    assert served.get("/v1/completions", {**asked, "model": "gpt-4o"})["model"] == "a"
    listed = served.get("/v1/models")["data"]
    assert [each["id"] for each in listed if "max_model_len" in each] == ["a", "b"]
    with pytest.raises(urllib.error.HTTPError) as refused:
        served.get("/v1/completions", {**asked, "model": "broken"})
    assert refused.value.code == 503 and "broken cannot be loaded" in refused.value.read().decode()


def test_keys_come_from_the_environment_too(start: Start, tiny: Path) -> None:
    served = start(tiny, "--host", "0.0.0.0", "--quiet", env={"ONEGRAPH_API_KEY": "one two"})
    with pytest.raises(urllib.error.HTTPError, match="401"):
        served.get("/v1/models")
    for key in ("one", "two"):
        assert served.get("/v1/models", authorization=f"Bearer {key}")["data"]
    assert served.log.read_text().count("\n") == 1


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "give a MODEL, or a folder of models with --models-dir"),
        (["smollm2", "--host", "0.0.0.0"], "give --api-key, or --no-auth"),
        (["smollm2", "--host", "::"], "give --api-key, or --no-auth"),
        (["smollm2", "--timeout", "0"], "--timeout"),
        (["smollm2", "smollm2", "--port", "0", "--device", "cpu"], "two models have the name"),
    ],
)
def test_wrong_use_is_said(args: list[str], said: str, cli: Any, smollm2: Path) -> None:
    done = cli("serve", *args)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in " ".join(done.stderr.split())


def test_a_port_that_is_taken_is_said_before_a_model_is_loaded(cli: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = cli("serve", "nowhere.gguf", "--port", port)
    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in done.stderr


def test_a_folder_without_models_is_said(cli: Any, tmp_path: Path) -> None:
    done = cli("serve", "--models-dir", tmp_path, "--port", 0)
    assert done.returncode == 2 and "contains no .gguf file" in done.stderr


@pytest.mark.parametrize(
    ("ref", "name"),
    [
        ("smollm2", "smollm2"),
        ("path/to/Some-Model.Q4_K_M.gguf", "Some-Model.Q4_K_M"),
        ("big-00001-of-00003.gguf", "big"),
        ("ollama:qwen2.5:1.5b", "qwen2.5:1.5b"),
        ("hf:user/repo:Q4_K_M", "hf:user/repo:Q4_K_M"),
        ("hf:user/repo/file.gguf", "hf:user/repo/file.gguf"),
    ],
)
def test_a_model_is_called_as_it_was_named(ref: str, name: str) -> None:
    assert name_of(ref) == name


@pytest.mark.parametrize("missing", ["starlette", "uvicorn", "httptools"])
def test_what_is_not_installed_is_said(missing: str) -> None:
    code = f"import sys; sys.modules['{missing}'] = None\n"
    code += "from onegraph.cli import main; sys.exit(main(['serve', 'smollm2']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "pip install httptools starlette uvicorn" in done.stderr
    if missing == "starlette":
        code = code.replace("main(['serve', 'smollm2'])", "__import__('onegraph').asgi({'a': 1})")
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert "ImportError: the server needs more packages" in done.stderr
