"""What one client may take: bodies, places in the queue, tokens and time."""

import asyncio
import json
import re
import threading
import time
from typing import Any

import pytest
from onegraph import LLM
from onegraph.server import asgi, conversation
from onegraph.server.limits import Line
from onegraph.server.refusals import Refused
from support.serving import Served, events, http, in_process, rest, runs, serving, until

LONG: dict[str, Any] = {"prompt": "tea", "max_tokens": 400, "ignore_eos": True}


def begin(served: Served, **asked: Any) -> Any:
    """A stream that runs, and whose first frames came."""
    connection = served.connect()
    connection.sendall(http("/v1/completions", {**LONG, "stream": True, **asked}))
    assert connection.recv(4096).startswith(b"HTTP/1.1 200")
    return connection


def test_a_full_queue_is_said_with_when_to_come_again(llm: LLM) -> None:
    with serving(asgi(llm, max_queue=0)) as served:
        running = [begin(served) for _ in range(llm.max_batch)]
        connection = served.connect()
        asked = {"prompt": "tea", "max_tokens": 1}
        connection.sendall(http("/v1/completions", asked, connection="close"))
        refused = rest(connection).decode()
        assert refused.startswith("HTTP/1.1 429")
        found = re.search(r"^retry-after: (\d+)\r$", refused, flags=re.M)
        assert found and 1 <= int(found[1]) <= 60
        body = json.loads(refused.partition("\r\n\r\n")[2])
        assert body["error"]["code"] == "queue_full" and "--max-queue" in body["error"]["message"]
        for each in running:
            each.close()
        until(lambda: runs(llm) == 0)
        assert served.post("/v1/completions", {"prompt": "tea", "max_tokens": 1})[0] == 200


def test_waiting_requests_are_served_in_turn(llm: LLM) -> None:
    with serving(asgi(llm, max_queue=20)) as served:
        statuses = []

        def ask() -> None:
            asked = {"prompt": "tea", "max_tokens": 20, "ignore_eos": True}
            statuses.append(served.post("/v1/completions", asked)[0])

        threads = [threading.Thread(target=ask) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert statuses == [200] * 20


def test_a_line_says_how_long_it_is() -> None:
    line = Line(slots=2, max_queue=3)
    for _ in range(5):
        line.enter()
    for _ in range(40):
        with pytest.raises(Refused) as refused:
            line.enter()
        line.inside += 1
        line.leave(10.0)
    # Two turns of ten seconds until the fourth that waits begins.
    assert refused.value.status == 429 and 18 <= (refused.value.retry_after or 0) <= 20
    line.leave(10.0)
    line.enter()


def test_more_tokens_than_allowed_are_not_made(llm: LLM) -> None:
    with serving(asgi(llm, max_tokens_limit=5)) as served:
        for asked in ({"max_tokens": 400}, {"max_tokens": None}):
            body = {**LONG, **asked}
            if body["max_tokens"] is None:
                body = {"messages": [{"role": "user", "content": "tea"}], "ignore_eos": True}
            path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
            status, made = served.post(path, body)
            assert status == 200 and made["usage"]["completion_tokens"] == 5
            assert made["choices"][0]["finish_reason"] == "length"
        assert (
            served.post("/v1/completions", {**LONG, "max_tokens": 3})[1]["usage"][
                "completion_tokens"
            ]
            == 3
        )


def test_an_answer_that_takes_too_long_ends(llm: LLM) -> None:
    with serving(asgi(llm, timeout=0.02)) as served:
        status, body = served.post("/v1/completions", LONG)
        assert (status, body["error"]["type"]) == (504, "server_error")
        until(lambda: runs(llm) == 0)


@pytest.mark.parametrize(
    ("path", "asked", "said"),
    [
        ("/v1/completions", {"prompt": "tea"}, b'data: {"error":{"message":"the answer took'),
        ("/v1/messages", {"max_tokens": 400}, b'event: error\ndata: {"type":"error","error":{"ty'),
        ("/v1/responses", {"input": "tea"}, b"event: response.failed\n"),
        ("/api/chat", {}, b'{"error":"the answer took'),
    ],
)
def test_a_stream_that_takes_too_long_breaks_off_in_its_own_words(
    path: str, asked: dict[str, Any], said: bytes, llm: LLM
) -> None:
    bodies: list[bytes] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            bodies.append(message["body"])
            if len(bodies) == 1:
                await asyncio.sleep(5)

    messages = [{"role": "user", "content": "tea"}]
    asked = {"messages": messages, "stream": True, "ignore_eos": True, **asked}
    in_process(asgi(llm, timeout=1.0), path, asked, send)
    assert len(bodies) == 2 and bodies[1].startswith(said)
    until(lambda: runs(llm) == 0)


def test_a_body_that_is_too_large_is_refused_by_its_length_or_as_it_comes(llm: LLM) -> None:
    with serving(asgi(llm, max_body=1000)) as served:
        small = {"prompt": "tea", "max_tokens": 1}
        assert served.post("/v1/completions", small)[0] == 200
        status, body = served.post("/v1/completions", {**small, "user": "x" * 1000})
        assert status == 413 and "1000 bytes" in body["error"]["message"]
        connection = served.connect()
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        connection.sendall(head + b"400\r\n" + b"x" * 1024 + b"\r\n0\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 413")
        assert served.post("/v1/completions", small)[0] == 200


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "empty"),
        (b"tea", "not JSON"),
        (b"[1]", "not an object"),
        (b'"tea"', "not an object"),
        (b'{"prompt": "tea"', "not JSON"),
        (b"\xff\xfe{", "not JSON"),
        (b'{"temperature": NaN}', "not a JSON number"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "too deeply"),
        (b'{"a": ' * 50_000 + b"1" + b"}" * 50_000, "too deeply"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "not JSON"),
    ],
)
def test_a_body_that_is_no_object_is_refused(body: bytes, said: str, served: Served) -> None:
    status, found = served.post("/v1/completions", body)
    assert status == 400 and said in found["error"]["message"]


def test_a_body_of_more_values_than_any_needs_is_refused(served: Served) -> None:
    """Python would read them without a break for others."""
    for value in (b"[]", b"1", b'""', b'{"a":1}', b'"\\\\\\""'):
        many = b'{"prompt": "tea", "user": [' + b",".join([value] * 2_100_000) + b"]}"
        status, found = served.post("/v1/completions", many[: 16 << 20])
        message = found["error"]["message"]
        assert status == 400 and f"takes at most {1 << 21}" in message, message
    # Signs in a text are no values, whatever is escaped before them.
    text = '\\"' + '[{"a": 1}, "\\\\"],' * 400_000
    asked = {"prompt": "tea", "max_tokens": 1, "user": text}
    assert served.post("/v1/completions", asked)[0] == 200
    ids = [[5] * (1 << 17)] * 8
    status, found = served.post("/v1/completions", {"prompt": ids, "max_tokens": 1})
    assert status == 400 and found["error"]["code"] == "context_length_exceeded"


def test_a_large_body_is_read_beside_the_loop(served: Served) -> None:
    text = "x" * 300_000
    status, body = served.post("/v1/completions", {"prompt": "tea", "max_tokens": 1, "user": text})
    assert status == 200 and body["usage"]["prompt_tokens"] < 5


def test_a_slow_reader_is_sent_joined_frames(llm: LLM) -> None:
    plain = llm.generate("tea", max_tokens=200, seed=1, ignore_eos=True)
    bodies: list[bytes] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            bodies.append(message["body"])
            if len(bodies) == 2:
                # It reads nothing until all of it is made.
                for _ in range(2000):
                    await asyncio.sleep(0.005)
                    if runs(llm) == 0:
                        break

    app = asgi(llm)
    asked = {"prompt": "tea", "max_tokens": 200, "seed": 1, "ignore_eos": True, "stream": True}
    in_process(app, "/v1/completions", asked, send)
    assert len(bodies) <= 4
    found = events(b"".join(bodies).decode())
    assert "".join(each["choices"][0]["text"] for each in found) == plain.text


def test_a_client_that_waits_is_told_so(llm: LLM) -> None:
    app = asgi(llm)
    limits = app.state.service.limits
    app.state.service.limits = type(limits)(patience=0.02)
    blocker = [llm.generate("tea", stream=True, max_tokens=500, ignore_eos=True) for _ in range(4)]
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)
        if len(messages) == 4:
            for each in blocker:
                each.close()

    asked = {"prompt": "tea", "max_tokens": 2, "stream": True, "ignore_eos": True}
    in_process(app, "/v1/completions", asked, send)
    assert messages[0]["status"] == 200
    bodies = [message["body"] for message in messages[1:]]
    assert bodies[:3] == [b": still waiting\n\n"] * 3
    assert bodies[-1].endswith(b"data: [DONE]\n\n")


def test_nothing_is_said_before_there_is_a_prompt(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokens of a long prompt may take longer than the patience: that is no failure."""
    app = asgi(llm)
    limits = app.state.service.limits
    app.state.service.limits = type(limits)(patience=0.01)
    prepare = llm._prompts

    def slow(*given: Any) -> Any:
        time.sleep(0.2)
        return prepare(*given)

    monkeypatch.setattr(llm, "_prompts", slow)
    monkeypatch.setattr(conversation, "QUICK", 0)
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    asked = {"prompt": "tea", "max_tokens": 2, "stream": True, "ignore_eos": True}
    in_process(app, "/v1/completions", asked, send)
    assert messages[0]["status"] == 200
    assert messages[-1]["body"].endswith(b"data: [DONE]\n\n")


def test_more_prompts_than_go_together_are_refused(served: Served, llm: LLM) -> None:
    before = llm.stats().requests
    for many in (["a"] * 2049, [[5]] * 2049):
        status, body = served.post("/v1/completions", {"prompt": many, "max_tokens": 1})
        assert status == 400 and body["error"]["param"] == "prompt"
        assert body["error"]["message"] == "prompt: 2049 prompts; the limit is 2048"
    # Tokens of one prompt are another matter.
    status, body = served.post("/v1/completions", {"prompt": [5] * 2049, "max_tokens": 1})
    assert status == 400 and body["error"]["code"] == "context_length_exceeded"
    assert llm.stats().requests == before


#: What is asked of a model without its engine, where that takes long.
ASIDE = [
    ("/tokenize", {"messages": [{"role": "user", "content": "tea"}]}),
    ("/tokenize", {"content": "tea " * 1000}),
    ("/detokenize", {"tokens": [5] * 2000}),
    ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "tea"}]}),
]


@pytest.fixture
def slowly(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Tokens take until this is set."""
    done = threading.Event()

    def slow(name: str) -> None:
        does = getattr(llm, name)

        def late(*given: Any, **more: Any) -> Any:
            done.wait(10)
            return does(*given, **more)

        monkeypatch.setattr(llm, name, late)

    for name in ("_tokens", "detokenize", "_conversations"):
        slow(name)
    return done


@pytest.mark.parametrize(("path", "asked"), ASIDE)
def test_tokens_too_are_made_in_time_and_in_line(
    path: str, asked: dict[str, Any], llm: LLM, slowly: threading.Event
) -> None:
    with serving(asgi(llm, timeout=0.5)) as served:
        began = time.monotonic()
        status, body = served.post(path, asked)
        assert status == 504 and "--timeout" in json.dumps(body)
        assert time.monotonic() - began < 5
        line = served.app.state.service.models.find(None).line
        until(lambda: line.inside == 0)
        line.inside = llm.max_batch + line.max_queue
        assert served.post(path, asked)[0] == 429
        line.inside = 0
        slowly.set()
        assert served.post(path, asked)[0] == 200


def test_a_client_that_leaves_gives_up_its_place_in_line_for_tokens(
    llm: LLM, slowly: threading.Event
) -> None:
    with serving(asgi(llm)) as served:
        line = served.app.state.service.models.find(None).line
        with served.connect() as connection:
            connection.sendall(http(*ASIDE[0]))
            until(lambda: line.inside == 1)
        until(lambda: line.inside == 0, seconds=5)
        slowly.set()


def test_few_tokens_do_not_wait_for_many(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    long, done = "tea " * 1000, threading.Event()
    tokens = llm._tokens

    def slow(text: str, add_special: bool, most: int) -> list[int]:
        if text == long:
            done.wait(10)
        return tokens(text, add_special, most)

    monkeypatch.setattr(llm, "_tokens", slow)
    with serving(asgi(llm)) as served:
        # More than there are threads.
        held = [served.connect() for _ in range(40)]
        for connection in held:
            connection.sendall(http("/tokenize", {"content": long}))
        line = served.app.state.service.models.find(None).line
        until(lambda: line.inside == len(held))
        began = time.monotonic()
        assert served.post("/tokenize", {"content": "tea"})[1]["count"] >= 1
        ids = served.post("/tokenize", {"content": "tea"})[1]["tokens"]
        assert "tea" in served.post("/detokenize", {"tokens": ids})[1]["content"]
        assert time.monotonic() - began < 5
        done.set()
        for connection in held:
            connection.close()
