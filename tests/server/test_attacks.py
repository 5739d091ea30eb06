"""What hostile clients do: the next one is answered within a second, and memory stays as it was.
Everything here is on the loopback, and bounded."""

import contextlib
import json
import os
import random
import re
import resource
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import psutil
import pytest
from onegraph import LLM
from onegraph.server import asgi, connections, limits, work
from support.serving import Served, http, prompt, rest, runs, serving, until

HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n"
LONG: dict[str, Any] = {"prompt": "tea", "max_tokens": 500, "ignore_eos": True, "stream": True}


@contextlib.contextmanager
def memory_stays(most: int) -> Iterator[None]:
    """Resident memory grows by no more bytes than `most`."""
    process = psutil.Process()
    before = process.memory_info().rss
    yield
    grown = process.memory_info().rss - before
    assert grown <= most, f"{grown / 2**20:.0f} MiB"


def open_connections(served: Served) -> int:
    return len(served.server.server_state.connections)


def flood(connection: socket.socket, part: bytes, most: int) -> int:
    """Sends until the other side has had enough; the bytes that went out, at most `most`."""
    sent = 0
    with contextlib.suppress(OSError):
        while sent < most:
            sent += connection.send(part)
    return sent


def test_half_open_connections_are_closed_for_those_with_a_request(llm: LLM) -> None:
    with serving(asgi(llm)) as served:
        served.server.idle.most = 100
        with contextlib.ExitStack() as stack:
            for i in range(400):
                connection = stack.enter_context(served.connect())
                connection.sendall([b"", b"POST", HEAD][i % 3])
                if i % 50 == 0:
                    prompt(served)
            prompt(served)
            assert open_connections(served) <= 101
        until(lambda: open_connections(served) == 0)


#: Opens argv[2] connections to the port argv[1], begins a request on most, says so, and holds them
#: until its input ends.
CROWD = """
import resource, socket, sys
port, n = map(int, sys.argv[1:])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
held = []
for i in range(n):
    one = socket.create_connection(("127.0.0.1", port), timeout=60)
    one.sendall([b"", b"POST /v1/comp", b"GET /health HTTP/1.1\\r\\nhost: x\\r\\n"][i % 3])
    held.append(one)
    if i % 1000 == 999:
        print(i + 1, flush=True)
sys.stdin.read()
"""


@pytest.mark.thorough
def test_ten_thousand_connections_delay_no_request(command: list[str], tiny: Path) -> None:
    """A server as it is started, and a client in a process of its own: each has its own files."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < 11_000:
        pytest.skip(f"a process may have {hard} files here (`ulimit -Hn`), which are too few")
    words = [*command, "serve", str(tiny), "--device", "cpu", "--port", "0", "--quiet"]
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(subprocess.Popen(words, stderr=subprocess.PIPE, text=True))
        stack.callback(server.kill)
        assert server.stderr is not None
        port = int(server.stderr.readline().rpartition(":")[2])
        process = psutil.Process(server.pid)

        def ask() -> float:
            """Seconds that an answer takes; the machine may be busy: the best of three."""
            took = []
            for _ in range(3):
                began = time.monotonic()
                body = json.dumps({"prompt": "tea", "max_tokens": 2}).encode()
                to = f"http://127.0.0.1:{port}/v1/completions"
                with urllib.request.urlopen(urllib.request.Request(to, body), timeout=30) as found:
                    assert found.status == 200
                took.append(time.monotonic() - began)
            return min(took)

        ask()
        before = process.memory_info().rss
        crowd = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", CROWD, str(port), "10000"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        stack.callback(crowd.kill)
        assert crowd.stdout is not None and crowd.stdin is not None
        for line in crowd.stdout:
            assert ask() < 1.0
            if line.strip() == "10000":
                break
        else:
            raise AssertionError("the crowd did not come in")
        grown = process.memory_info().rss - before
        # Some kilobytes each.
        assert grown < 200 << 20, f"{grown / 2**20:.0f} MiB"
        crowd.stdin.close()
        crowd.wait(30)
        until(lambda: process.num_fds() < 200)
        assert ask() < 1.0


def test_a_connection_that_is_served_stays_open(llm: LLM) -> None:
    with serving(asgi(llm)) as served:
        served.server.idle.most = 20
        running = served.connect()
        asked = {**LONG, "stream": False, "max_tokens": 400, "seed": 5}
        running.sendall(http("/v1/completions", asked, connection="close"))
        until(lambda: runs(llm) == 1)
        with contextlib.ExitStack() as stack:
            for _ in range(100):
                stack.enter_context(served.connect()).sendall(HEAD)
            answer = rest(running)
        assert answer.startswith(b"HTTP/1.1 200")
        assert b'"completion_tokens":400' in answer


def test_connections_that_say_nothing_are_ended(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "IDLE_SECONDS", 0.3)
    with serving(asgi(llm)) as served:
        begun = [served.connect() for _ in range(30)]
        for connection in begun[::2]:
            connection.sendall(HEAD)
        until(lambda: open_connections(served) == 0)
        for connection in begun:
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(10) == b""
            connection.close()
        prompt(served)


@pytest.mark.parametrize("part", [b"x: y\r\n" * 1000, b"x" * 6000, b"GET /" + b"a" * 5000])
def test_a_flood_of_headers_is_cut(part: bytes, llm: LLM) -> None:
    with serving(asgi(llm)) as served, memory_stays(32 << 20):
        for _ in range(5):
            connection = served.connect()
            connection.sendall(HEAD)
            # What the system keeps between the two counts too.
            assert flood(connection, part, 64 << 20) < 32 << 20
            connection.close()
        prompt(served)


@pytest.mark.parametrize("head", [b"content-length: 1000000000", b"transfer-encoding: chunked"])
def test_a_huge_body_is_refused_and_not_kept(head: bytes, served: Served) -> None:
    with memory_stays(48 << 20):
        connection = served.connect()
        connection.sendall(HEAD + head + b"\r\n\r\n")
        part = bytes(1 << 20)
        if b"chunked" in head:
            part = b"100000\r\n" + part + b"\r\n"
        assert flood(connection, part, 1_000_000_000) < 200 << 20
        prompt(served)
        connection.close()


def test_a_large_body_is_told_that_it_is(served: Served) -> None:
    """Where it ends at all, its client reads why it was refused; who asks first sends none."""
    for size in (17 << 20, 60 << 20):
        status, body = served.post("/v1/completions", bytes(size))
        assert status == 413 and "--max-body" in body["error"]["message"]
    with served.connect() as connection:
        asks = b"content-length: 1000000000\r\nexpect: 100-continue\r\n\r\n"
        connection.sendall(HEAD + asks)
        assert connection.recv(4096).startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/v1/completions", {}, 401),
        ("/v1/completions", {"origin": "http://evil.example"}, 403),
        ("/v1/nothing", {"x-api-key": "right"}, 404),
        ("/v1/models", {"x-api-key": "right"}, 405),
        ("/api/pull", {"x-api-key": "right"}, 501),
        ("/v1/completions", {"x-api-key": "right"}, 413),
    ],
)
def test_a_body_that_is_not_read_hides_no_answer(
    path: str, headers: dict[str, str], status: int, llm: LLM
) -> None:
    with serving(asgi(llm, api_keys=["right"], max_body=1000)) as served:
        connection = HTTPConnection("127.0.0.1", served.port, timeout=30)
        for size in (2_000, 8_000_000):
            connection.request("POST", path, bytes(size), headers)
            answer = connection.getresponse()
            assert answer.status == status and json.loads(answer.read())["error"]
        # All of it was read, so that the next request is one.
        connection.request("GET", "/health")
        assert connection.getresponse().status == 200
        connection.close()


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"content-length: 5000\r\nexpect: 100-continue", 413),
        (b"content-length: 500\r\nexpect: 100-continue\r\nx-api-key: wrong", 401),
        (b"content-length: 500", 408),
    ],
)
def test_a_body_that_did_not_come_ends_the_connection(head: bytes, status: int, llm: LLM) -> None:
    """What is sent next would be taken for it."""
    app = asgi(llm, api_keys=["right"])
    app.state.service.limits = limits.Limits(body_seconds=0.3, body_bytes=1000)
    with serving(app) as served, served.connect() as connection:
        connection.sendall(HEAD + head + b"\r\nx-api-key: right\r\n\r\n")
        answer = rest(connection)
        assert answer.startswith(b"HTTP/1.1 %d" % status)
        assert b"\r\nconnection: close\r\n" in answer


def test_a_body_that_drips_is_refused(llm: LLM) -> None:
    app = asgi(llm)
    app.state.service.limits = limits.Limits(body_seconds=0.3)
    with serving(app) as served:
        connection = served.connect()
        connection.sendall(HEAD + b"content-length: 1000\r\nconnection: close\r\n\r\n")
        begun = time.monotonic()
        with contextlib.suppress(OSError):
            while time.monotonic() - begun < 5:
                connection.sendall(b" ")
                time.sleep(0.05)
        assert time.monotonic() - begun < 3
        answer = rest(connection)
        assert answer.startswith(b"HTTP/1.1 408") and b"send it whole" in answer


def test_bodies_that_are_held_have_a_bound_over_all_clients(llm: LLM) -> None:
    most = 1 << 20
    with serving(asgi(llm, max_body=most)) as served, contextlib.ExitStack() as stack:
        whole = b'{"prompt": "tea", "max_tokens": 1, "user": "' + b"x" * (most - 100) + b'"}'
        head = HEAD + b"content-length: %d\r\n\r\n" % len(whole)
        bodies = served.app.state.service._bodies
        bound = work.MOST_BODIES * most
        for _ in range(bound // (most - work.FREE)):
            stack.enter_context(served.connect()).sendall(head + whole[:-10])
        until(lambda: bodies.held > bound - most)
        with served.connect() as connection:
            connection.sendall(HEAD + b"connection: close\r\n" + head.removeprefix(HEAD) + whole)
            refused = rest(connection)
            assert refused.startswith(b"HTTP/1.1 429") and b"retry-after: 1\r\n" in refused
            assert f"have {bound} bytes".encode() in refused
        assert bodies.held <= bound
        prompt(served)  # who sends little is not refused because of them
        stack.close()
        until(lambda: bodies.held == 0)
        assert served.post("/v1/completions", whole)[0] == 200
        until(lambda: bodies.held == 0)


def test_a_client_that_never_reads_is_dropped(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "LINGER_SECONDS", 0.5)
    # Of an answer whose end the server itself still holds.
    monkeypatch.setattr(connections, "IDLE_SECONDS", 1.0)
    # Frames with log-probabilities are large: all that lies between is full at once.
    asked = {**LONG, "logprobs": 100}
    with serving(asgi(llm, timeout=5.0), send_bytes=4096) as served:
        begun = []
        for _ in range(llm.max_batch + 2):
            connection = served.connect(receive_bytes=4096)
            connection.sendall(http("/v1/completions", asked))
            begun.append(connection)
        prompt(served)
        until(lambda: served.app.state.service.models.find(None).line.inside == 0)
        until(lambda: open_connections(served) == 0)
        until(lambda: runs(llm) == 0)
        prompt(served)
        for connection in begun:
            connection.close()


def test_a_pipelining_client_that_never_reads_is_dropped(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short answers too, which have no time of their own, wait for a client that does not read."""
    monkeypatch.setattr(connections, "IDLE_SECONDS", 2.0)
    with serving(asgi(llm), send_bytes=4096) as served:
        state = served.server.server_state
        connection = served.connect(receive_bytes=4096)

        def paused() -> bool:
            return any(each.flow.write_paused for each in state.connections)

        def ask() -> None:
            ended = state.total_requests + 1
            connection.sendall(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")
            until(lambda: paused() or state.total_requests == ended)

        while not paused():
            ask()
        if not state.tasks:
            ask()
        until(lambda: len(state.tasks) == 1)
        until(lambda: not state.tasks and not state.connections, seconds=10)
        connection.close()


@pytest.mark.parametrize("keeps", [True, False])
def test_a_slow_reader_gets_the_whole_answer(
    keeps: bool, llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "IDLE_SECONDS", 1.2)
    monkeypatch.setattr(connections, "LINGER_SECONDS", 1.2)
    asked = {**LONG, "stream": False, "max_tokens": 400, "logprobs": 20}
    more = {} if keeps else {"connection": "close"}
    with serving(asgi(llm), send_bytes=4096) as served:
        with served.connect(receive_bytes=4096) as connection:
            connection.sendall(http("/v1/completions", asked, **more))
            found = connection.recv(1)
            made = time.monotonic()
            length = 1 << 20
            while len(found) < length:
                part = connection.recv(1024)
                assert part, f"{len(found)} of {length} bytes"
                found += part
                if said := re.search(rb"content-length: (\d+)\r\n(?:.+\r\n)*\r\n", found):
                    length = said.end() + int(said[1])
                time.sleep(0.03)
            assert time.monotonic() - made > 3
            if keeps:  # it may ask on as long as others
                time.sleep(0.2)
                connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
                assert connection.recv(100).startswith(b"HTTP/1.1 200")
        until(lambda: open_connections(served) == 0)


def test_a_hundred_clients_that_leave_at_once(served: Served, llm: LLM) -> None:
    with memory_stays(48 << 20):
        for _ in range(3):
            begun = []
            for i in range(100):
                connection = served.connect()
                connection.sendall(http("/v1/completions", {**LONG, "seed": i}))
                begun.append(connection)
            for connection in begun:
                connection.close()
            prompt(served)
        until(lambda: runs(llm) == 0)
        until(lambda: served.app.state.service.models.find(None).line.inside == 0)


def test_noise_is_no_request(served: Served) -> None:
    random.seed(1)
    for i in range(60):
        with served.connect() as connection:
            noise = random.randbytes(random.randrange(1, 3000))
            connection.sendall(noise if i % 2 else HEAD + noise)
            if i % 3 == 0:
                connection.shutdown(socket.SHUT_WR)
                with contextlib.suppress(ConnectionResetError):
                    rest(connection)
    prompt(served)


def test_an_upgrade_is_not_made(served: Served) -> None:
    with served.connect() as connection:
        connection.sendall(
            b"GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
            b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n"
        )
        assert not connection.recv(4096).startswith(b"HTTP/1.1 101")
    prompt(served)


def test_wrong_keys_open_nothing(llm: LLM) -> None:
    with serving(asgi(llm, api_keys=["right"])) as served:
        before = llm.stats().requests
        for i in range(200):
            key = ["righ", "rightt", "RIGHT", "", "r" * 5000, os.urandom(8).hex()][i % 6]
            asked = {"prompt": "tea", "max_tokens": 1}
            status, _ = served.post("/v1/completions", asked, authorization=f"Bearer {key}")
            assert status == 401
        assert llm.stats().requests == before
        asked = {"prompt": "tea", "max_tokens": 1}
        assert served.post("/v1/completions", asked, authorization="Bearer right")[0] == 200


def test_no_client_sees_anothers_text(served: Served, llm: LLM) -> None:
    prompts = [f"tea {i}" for i in range(24)]
    plain = [llm.generate(p, max_tokens=30, seed=i).text for i, p in enumerate(prompts)]
    found: dict[int, str] = {}

    def ask(i: int) -> None:
        asked = {"prompt": prompts[i], "max_tokens": 30, "seed": i}
        found[i] = served.post("/v1/completions", asked)[1]["choices"][0]["text"]

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(prompts))]
    for thread in threads:
        thread.start()
    for _ in range(20):  # others come and go meanwhile
        with served.connect() as connection:
            connection.sendall(http("/v1/completions", LONG))
    for thread in threads:
        thread.join(60)
    assert [found[i] for i in range(len(prompts))] == plain


def test_work_on_one_request_does_not_hold_up_another(served: Served) -> None:
    """A prompt of a megabyte is tokenized, and a large body parsed, beside the loop."""
    done = threading.Event()

    def large() -> None:
        served.post("/tokenize", {"content": "tea and toast " * 100_000})
        done.set()

    thread = threading.Thread(target=large)
    thread.start()
    slowest = 0.0
    while not done.is_set():
        began = time.monotonic()
        assert served.get("/health")[0] == 200
        slowest = max(slowest, time.monotonic() - began)
    thread.join()
    assert slowest < 1.0


SAID = [{"role": "user", "content": "tea"}]


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/chat/completions", lambda deep: {"messages": [{"role": "user", "content": deep}]}),
        ("/v1/chat/completions", lambda deep: {"messages": SAID, "chat_template_kwargs": deep}),
        (
            "/v1/chat/completions",
            lambda deep: {"messages": [*SAID, {"role": "tool", "content": "x", "more": deep}]},
        ),
        (
            "/v1/chat/completions",
            lambda deep: {
                "messages": SAID,
                "tools": [{"type": "function", "function": {"name": "f", "parameters": deep}}],
            },
        ),
        ("/v1/chat/completions", lambda deep: {"messages": SAID, "response_format": deep}),
        ("/v1/chat/completions", lambda deep: {"messages": SAID, "logit_bias": deep}),
        ("/v1/completions", lambda deep: {"prompt": deep}),
        ("/v1/completions", lambda deep: {"prompt": "tea", "stop": deep}),
        ("/v1/responses", lambda deep: {"input": deep}),
        ("/v1/responses", lambda deep: {"input": [{"role": "user", "content": deep}]}),
        (
            "/v1/messages",
            lambda deep: {"messages": SAID, "tools": [{"name": "f", "input_schema": deep}]},
        ),
        ("/api/chat", lambda deep: {"messages": SAID, "format": deep, "stream": False}),
        ("/api/generate", lambda deep: {"prompt": "tea", "options": deep, "stream": False}),
        ("/tokenize", lambda deep: {"messages": [{"role": "user", "content": deep}]}),
    ],
)
def test_depth_in_a_field_breaks_nothing(path: str, asked: Any, served: Served) -> None:
    """As deep as a body may be, wherever that is read: it is answered or refused, never a failure
    of the server's own."""
    for depth in (60, 400, 900, 3000, 30_000):
        # Written by hand: Python's own writer does not go so deep.
        body = json.dumps({"max_tokens": 1, **asked("DEEP")}).encode()
        deep = b'{"a":' * depth + b"1" + b"}" * depth
        status, found = served.post(path, body.replace(b'"DEEP"', deep))
        assert status in (200, 400, 501), (depth, found)
    prompt(served)


def test_slow_readers_delay_no_request_and_get_whole_answers(llm: LLM) -> None:
    asked = {**LONG, "max_tokens": 110, "logprobs": 20}
    answers: dict[socket.socket, bytes] = {}
    made = threading.Event()

    def read() -> None:
        """A little of each in turn until all have long been made, then the rest."""
        left, since, size = [*answers], 0.0, 8
        while left:
            for connection in [*left]:
                part = connection.recv(size)
                answers[connection] += part
                if not part:
                    left.remove(connection)
            if made.is_set():
                since, size = since or time.monotonic(), 120
                if time.monotonic() - since > 1.2 * connections.LINGER_SECONDS:
                    size = 1 << 16
            time.sleep(0.015)

    with serving(asgi(llm), send_bytes=4096) as served, memory_stays(64 << 20):
        for i in range(16):
            connection = served.connect(receive_bytes=4096)
            connection.sendall(http("/v1/completions", {**asked, "seed": i}, connection="close"))
            answers[connection] = b""
        reader = threading.Thread(target=read)
        reader.start()
        until(lambda: runs(llm) == 0, 300)
        assert reader.is_alive()
        made.set()
        prompt(served)
        reader.join()
        assert all(b"[DONE]" in answer for answer in answers.values())
        for connection in answers:
            connection.close()
