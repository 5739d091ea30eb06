"""Clients that ask on before they are answered, and clients that send no more: each is answered, in
order; who has gone is not waited for."""

import json
import re
import socket
from typing import Any

import pytest
from onegraph import LLM
from support.serving import Served, http, prompt, rest, runs, until

LONG: dict[str, Any] = {"prompt": "tea", "max_tokens": 500, "ignore_eos": True}

BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "tea", "max_tokens": 9, "seed": 1, "ignore_eos": True}),
    ("/v1/completions", {"prompt": "tea", "max_tokens": 2, "seed": 2, "stream": True}),
    ("/tokenize", {"content": "tea"}),
    ("/v1/completions", {"prompt": "tea", "max_tokens": -2}),
    ("/nowhere", {}),
    ("/api/generate", {"prompt": "tea", "raw": True, "options": {"num_predict": 3}}),
]


def get(path: str, **headers: str) -> bytes:
    lines = [f"GET {path} HTTP/1.1", "host: localhost"]
    return "\r\n".join([*lines, *(f"{k}: {v}" for k, v in headers.items()), "", ""]).encode()


def answers(raw: bytes) -> list[tuple[int, bytes]]:
    """Status and body of each answer; chunks stay as they are."""
    found = []
    while raw:
        head, _, raw = raw.partition(b"\r\n\r\n")
        status = int(re.match(rb"HTTP/1\.1 (\d+) ", head + b" ")[1])  # type: ignore[index]
        if said := re.search(rb"content-length: (\d+)", head):
            length = int(said[1])
        else:
            assert b"transfer-encoding: chunked" in head
            length = raw.index(b"0\r\n\r\n") + 5
        found.append((status, raw[:length]))
        raw = raw[length:]
    return found


@pytest.mark.parametrize("in_parts", [False, True])
def test_pipelined_requests_are_answered_in_order(in_parts: bool, served: Served) -> None:
    sent = b"".join(http(path, body) for path, body in BODIES) + get("/ready", connection="close")
    with served.connect() as connection:
        for at in range(0, len(sent), step := 40 if in_parts else len(sent)):
            connection.sendall(sent[at : at + step])
        found = answers(rest(connection))
    assert [status for status, _ in found] == [200, 200, 200, 400, 404, 200, 200]
    assert json.loads(found[0][1])["usage"]["completion_tokens"] == 9
    assert b"data: [DONE]" in found[1][1] and json.loads(found[2][1])["count"] >= 1
    assert b'"done":true' in found[5][1] and json.loads(found[6][1]) == {"status": "ready"}


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_a_client_that_sends_no_more_is_answered(
    path: str, body: dict[str, Any], served: Served
) -> None:
    with served.connect() as connection:
        connection.sendall(http(path, body))
        connection.shutdown(socket.SHUT_WR)
        raw = rest(connection)
    (answer,) = answers(raw)
    assert answer[0] == served.post(path, body)[0] and raw.startswith(b"HTTP/1.1 ")


def test_pipelined_requests_of_a_client_that_sends_no_more_are_answered_in_order(
    served: Served, llm: LLM
) -> None:
    running = [served.connect() for _ in range(llm.max_batch)]
    for connection in running:
        connection.sendall(http("/v1/completions", {**LONG, "stream": True}))
        connection.recv(4096)
    with served.connect() as connection:
        # The first waits for its turn when its client is through.
        connection.sendall(b"".join(http(path, body) for path, body in BODIES))
        connection.shutdown(socket.SHUT_WR)
        found = answers(rest(connection))
    assert [status for status, _ in found] == [200, 200, 200, 400, 404, 200]
    for connection in running:
        connection.close()
    until(lambda: runs(llm) == 0)


def test_more_requests_at_once_than_may_wait_are_all_answered(served: Served) -> None:
    n = 2000
    with served.connect() as connection:
        connection.sendall(http(*BODIES[0]) + get("/health") * n + get("/ready"))
        connection.shutdown(socket.SHUT_WR)
        found = answers(rest(connection))
    assert len(found) == n + 2 and all(status == 200 for status, _ in found)
    assert json.loads(found[-1][1]) == {"status": "ready"}


@pytest.mark.parametrize(
    ("behind", "said"),
    [
        (b"nonsense\r\n\r\n", b"Invalid HTTP"),
        (b"GET /health HTTP/1.1\r\n" + b"x: y\r\n" * 20_000, b"head of a request"),
        (b"POST /tokenize HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", b"Inv"),
    ],
)
def test_what_is_no_request_is_said_behind_the_answers_before_it(
    behind: bytes, said: bytes, served: Served
) -> None:
    with served.connect() as connection:
        connection.sendall(http(*BODIES[0]) + http(*BODIES[1]) + behind)
        found = answers(rest(connection))
    assert [status for status, _ in found] == [200, 200, 400]
    assert b"data: [DONE]" in found[1][1] and said in found[2][1]


def test_half_a_request_behind_others_is_none(served: Served) -> None:
    half = http(*BODIES[2])[:-3]
    with served.connect() as connection:
        connection.sendall(http(*BODIES[0]) + half)
        connection.shutdown(socket.SHUT_WR)
        assert [status for status, _ in answers(rest(connection))] == [200]
    with served.connect() as connection:
        connection.sendall(half)
        connection.shutdown(socket.SHUT_WR)
        assert rest(connection) == b""


def test_a_client_that_asks_on_and_leaves_ends_all_that_it_asked_for(
    served: Served, llm: LLM
) -> None:
    for stream in (True, False):
        before = llm.stats()
        connection = served.connect()
        connection.sendall(http("/v1/completions", {**LONG, "stream": stream}) * 5)
        until(lambda before=before: llm.stats().generated_tokens > before.generated_tokens)
        connection.close()
        until(lambda: runs(llm) == 0)
        until(lambda: served.app.state.service.models.find(None).line.inside == 0)
        after = llm.stats()
        # All of it is 2,500 tokens of five requests.
        assert after.generated_tokens - before.generated_tokens < 500
        assert after.requests - before.requests <= 2
    prompt(served)
