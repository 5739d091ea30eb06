"""Clients that leave: what they asked for ends within a step, in whichever phase they do."""

import asyncio
import contextlib
import json
import logging
import time
from typing import Any

import pytest
from onegraph import LLM
from onegraph.server import asgi
from support.serving import Served, http, prompt, rest, runs, serving, until

LOGGER = "onegraph.server"

LONG: dict[str, Any] = {"prompt": "tea", "max_tokens": 500, "ignore_eos": True}


def test_a_client_that_leaves_a_stream_ends_it(served: Served, llm: LLM) -> None:
    before = llm.stats().generated_tokens
    connection = served.connect()
    connection.sendall(http("/v1/completions", {**LONG, "stream": True}))
    assert connection.recv(4096).startswith(b"HTTP/1.1 200")
    connection.close()
    until(lambda: runs(llm) == 0)
    made = llm.stats().generated_tokens - before
    assert made < 300
    prompt(served)


def test_a_client_that_leaves_a_whole_answer_ends_it(served: Served, llm: LLM) -> None:
    before = llm.stats().generated_tokens
    connection = served.connect()
    connection.sendall(http("/v1/completions", LONG))
    until(lambda: llm.stats().generated_tokens > before)
    connection.close()
    until(lambda: runs(llm) == 0)
    assert llm.stats().generated_tokens - before < 400
    prompt(served)


def test_clients_that_leave_the_queue_are_not_served(served: Served, llm: LLM) -> None:
    running = []
    for _ in range(llm.max_batch):
        connection = served.connect()
        connection.sendall(http("/v1/completions", {**LONG, "stream": True}))
        connection.recv(4096)
        running.append(connection)
    before = llm.stats().requests
    waiting = []
    for _ in range(20):
        connection = served.connect()
        connection.sendall(http("/v1/completions", {**LONG, "stream": True}))
        waiting.append(connection)
    until(lambda: runs(llm) > llm.max_batch or llm.stats().requests > before)
    made = llm.stats().generated_tokens
    for connection in [*waiting, *running]:
        connection.close()
    until(lambda: runs(llm) == 0)
    # Those that waited would have made 10,000.
    assert llm.stats().generated_tokens - made < 4_000
    prompt(served)


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"POST /v1/comp",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nff\r\n{",
        http("/v1/completions", {**LONG, "stream": True}),
        http("/v1/completions", LONG),
        http("/v1/completions", {**LONG, "stream": True}) * 3,
        http("/tokenize", {"content": "tea " * 1000}),
    ],
)
def test_a_client_may_leave_in_every_phase(sent: bytes, served: Served, llm: LLM) -> None:
    before = llm.stats().generated_tokens
    for wait in (0.0, 0.002, 0.02):
        for _ in range(5):
            connection = served.connect()
            connection.sendall(sent)
            time.sleep(wait)
            connection.close()
    prompt(served)
    until(lambda: runs(llm) == 0)
    until(lambda: served.app.state.service.models.find(None).line.inside == 0)
    # 7,500, had they stayed.
    assert llm.stats().generated_tokens - before < 4_000


def test_a_client_that_leaves_its_body_is_gone_and_no_failure(
    llm: LLM, caplog: pytest.LogCaptureFixture
) -> None:
    whole = http("/v1/completions", LONG)
    with serving(asgi(llm)) as served, caplog.at_level(logging.INFO, LOGGER):
        with served.connect() as connection:
            connection.sendall(whole[:-5])
            time.sleep(0.1)
        until(lambda: len(caplog.records) > 0)
        assert 'method="POST",status="gone"} 1' in served.get("/metrics")[1]
    first = caplog.records[0]
    assert first.levelno == logging.INFO and json.loads(first.getMessage())["status"] is None


def test_the_end_of_a_server_is_not_taken_for_that_of_a_client(served: Served, llm: LLM) -> None:
    """A task that is cancelled from outside says so: the canceller waits for that."""

    async def run() -> None:
        async def receive() -> Any:
            if sent:
                return {"type": "http.request", "body": sent.pop()}
            await asyncio.Event().wait()

        async def send(message: Any) -> None:
            begun.set()

        sent = [json.dumps({**LONG, "stream": True}).encode()]
        begun = asyncio.Event()
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/completions",
            "query_string": b"",
            "headers": [],
            "scheme": "http",
            "server": ("x", 80),
            "root_path": "",
        }
        task = asyncio.create_task(served.app(scope, receive, send))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    before = llm.stats().generated_tokens
    asyncio.run(run())
    until(lambda: runs(llm) == 0)
    assert llm.stats().generated_tokens - before < 400


SAID = [{"role": "user", "content": "tea"}]


@pytest.mark.parametrize(
    ("path", "asked", "refused", "broken_off"),
    [
        ("/v1/completions", LONG, b'{"error":{"message":"the', b'\ndata: {"error":{"message":"the'),
        (
            "/v1/messages",
            {**LONG, "messages": SAID},
            b'{"type":"error"',
            b'\nevent: error\ndata: {"type":"error"',
        ),
        ("/v1/responses", {"input": "tea"}, b'{"error":{"mess', b"\nevent: response.failed\ndata"),
        (
            "/api/chat",
            {"messages": SAID},
            b'{"error":"the server is shutting down',
            b'{"error":"the server is shutting down',
        ),
    ],
)
def test_what_the_end_of_a_server_cuts_says_so(
    path: str,
    asked: dict[str, Any],
    refused: bytes,
    broken_off: bytes,
    llm: LLM,
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = asgi(llm)
    limits = app.state.service.limits
    app.state.service.limits = type(limits)(patience=0.01)
    with contextlib.ExitStack() as stack, caplog.at_level(logging.INFO, LOGGER):
        # Those before it have all of the engine until the server has ended.
        for _ in range(120):
            before = llm.generate("tea", stream=True, max_tokens=480, ignore_eos=True)
            stack.callback(before.close)
        with serving(app) as served:
            served.server.config.timeout_graceful_shutdown = 0  # type: ignore[assignment]
            whole, stream = served.connect(), served.connect()
            whole.sendall(http(path, {**asked, "stream": False}))
            stream.sendall(http(path, {**asked, "stream": True}))
            # Its head comes although it waits.
            assert stream.recv(65536).startswith(b"HTTP/1.1 200")
            served.server.should_exit = True
            head, _, body = rest(whole).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 503") and b"retry-after: 1" in head
            assert body.startswith(refused)
            said = rest(stream)
            assert broken_off in said and said.endswith(b"\r\n0\r\n\r\n")
    lines = [json.loads(each.getMessage()) for each in caplog.records if each.name == LOGGER]
    assert sorted((line["status"], line["error"]) for line in lines) == [(200, 503), (503, 503)]
    until(lambda: runs(llm) == 0)
