"""Requests are read in work that grows as they do, beside the event loop where they are large, and
only as long as somebody wants it."""

import asyncio
import contextlib
import functools
import gc
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import onegraph
import psutil
import pytest
from onegraph import LLM, _native, conversations
from onegraph.answers import TextDelta
from onegraph.functions import MOST_TOOLS, offered
from onegraph.server import (
    anthropic,
    asgi,
    conversation,
    events,
    ollama,
    responses,
    sampling,
    tools,
)
from onegraph.server import work as works
from onegraph.server.conversation import MOST_MESSAGES
from onegraph.server.fields import Fields
from onegraph.server.models import Models
from onegraph.server.refusals import MOST_SAID, Refused, refusal
from onegraph.server.requests import fields_of
from onegraph.server.service import Service
from starlette.requests import Request
from support.counted import Counted, is_linear, work
from support.serving import Served, http, until

TEXT = "x" * 20


def called(i: int) -> dict[str, Any]:
    return {"id": Counted(f"a{i}"), "function": {"name": Counted("f")}}


def of_calls(n: int, results: list[str]) -> Fields:
    asks = {"role": "assistant", "content": "", "tool_calls": [called(i) for i in range(n)]}
    answers = [{"role": "tool", "content": "", "tool_call_id": Counted(id)} for id in results]
    return Fields({"messages": [asks, *answers]})


def conversed(messages: list[dict[str, Any]]) -> Fields:
    return Fields({"messages": messages})


def itemized(items: list[dict[str, Any]]) -> Fields:
    return Fields({"input": [*items, *said("user", 1)]})


def said(role: str, n: int) -> list[dict[str, Any]]:
    return [{"role": role, "content": Counted(TEXT)} for _ in range(n)]


def thought(n: int) -> list[dict[str, Any]]:
    parts = [{"type": "thinking", "thinking": Counted(TEXT)} for _ in range(n)]
    return [{"role": "assistant", "content": parts}]


def used(n: int) -> list[dict[str, Any]]:
    parts = [{"type": "tool_use", "id": Counted(i), "name": "f", "input": {}} for i in range(n)]
    return [{"role": "assistant", "content": parts}]


def reasoned(n: int) -> list[dict[str, Any]]:
    part = {"type": "reasoning_text", "text": Counted(TEXT)}
    return [{"type": "reasoning", "summary": [], "content": [part]} for _ in range(n)]


def alternating(n: int) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for i in range(n):
        use = {"type": "tool_use", "id": Counted(f"a{i}"), "name": "f", "input": {}}
        result = {"type": "tool_result", "tool_use_id": Counted(f"a{i}"), "content": TEXT}
        messages.append({"role": "assistant", "content": [use]})
        messages.append({"role": "user", "content": [result]})
    return messages


def answered(n: int) -> list[dict[str, Any]]:
    return [
        item
        for i in range(n)
        for item in (
            {"type": "function_call", "call_id": Counted(f"a{i}"), "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": Counted(f"a{i}"), "output": TEXT},
        )
    ]


def replied(n: int) -> list[dict[str, Any]]:
    return [
        message
        for i in range(n)
        for message in (
            {"role": "assistant", "content": "", "tool_calls": [called(i)]},
            {"role": "tool", "content": TEXT, "tool_call_id": Counted(f"a{i}")},
        )
    ]


#: What of each dialect was read in the square of its length, or could be: what it is made of, and
#: how it is read.
BODIES: dict[str, tuple[Callable[[int], Any], Callable[[Any], object]]] = {
    "ollama, results of no call": (lambda n: of_calls(n, ["z"] * n), ollama._messages),
    "ollama, results in reverse": (
        lambda n: of_calls(n, [f"a{i}" for i in reversed(range(n))]),
        ollama._messages,
    ),
    "anthropic, one side": (lambda n: conversed(said("user", n)), anthropic._messages),
    "anthropic, other side": (lambda n: conversed(said("assistant", n)), anthropic._messages),
    "anthropic, thinking": (lambda n: conversed(thought(n)), anthropic._messages),
    "anthropic, tool_use": (lambda n: conversed(used(n)), anthropic._messages),
    "anthropic, calls and results": (lambda n: conversed(alternating(n)), anthropic._messages),
    "responses, calls and results": (lambda n: itemized(answered(n)), responses._messages),
    "ollama, calls and results": (lambda n: conversed(replied(n)), ollama._messages),
    "responses, reasoning": (lambda n: itemized(reasoned(n)), responses._messages),
    "responses, developer": (lambda n: itemized(said("developer", n)), responses._messages),
    "responses, assistant": (lambda n: itemized(said("assistant", n)), responses._messages),
    "pieces of an answer": (
        lambda n: [TextDelta(Counted(TEXT)) for _ in range(n)],
        lambda pieces: [*events.Reading().more(pieces)],
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_what_a_request_says_is_read_in_work_that_grows_as_it_does(name: str) -> None:
    assert is_linear(*BODIES[name], 300)


def test_messages_of_one_side_are_joined_as_before() -> None:
    messages = [*said("user", 2), *said("assistant", 2), *thought(2), *said("user", 1)]
    found, continues = anthropic._messages(Fields({"system": "s", "messages": messages}))
    assert [(each["role"], each["content"]) for each in found] == [
        ("system", "s"),
        ("user", f"{TEXT}\n{TEXT}"),
        ("assistant", f"{TEXT}\n{TEXT}\n"),
        ("user", TEXT),
    ]
    assert found[2]["reasoning_content"] == 2 * TEXT and not continues


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        # By id, by name, by both, in order, and of no call at all.
        ([("b", None), ("a", None)], ["b", "a"]),
        ([(None, "g"), (None, "f"), (None, "f")], ["b", "a", "c"]),
        ([("c", "f"), ("c", "f"), (None, None)], ["c", "c", "a"]),
        ([(None, None)] * 4, ["a", "b", "c", None]),
        ([("a", "g"), ("z", None)], ["a", "z"]),
    ],
)
def test_results_find_their_calls(results: list[Any], expected: list[Any]) -> None:
    calls = [{"id": id, "function": {"name": n}} for id, n in (("a", "f"), ("b", "g"), ("c", "f"))]
    given = [
        {"role": "tool", "content": "", "tool_call_id": id, "tool_name": name}
        for id, name in results
    ]
    messages = [{"role": "assistant", "content": "", "tool_calls": calls}, *given]
    found = ollama._messages(Fields({"messages": messages}))[1:]
    assert [each.get("tool_call_id") for each in found] == expected


class Untouched(list[Any]):
    """A list that nobody looks into."""

    def __iter__(self) -> Any:
        raise AssertionError("it was looked into")


def test_parts_and_stops_are_counted_before_they_are_read() -> None:
    parts = Untouched([{"type": "text", "text": "x"}] * (MOST_MESSAGES + 1))
    text = Fields({"content": parts})
    with pytest.raises(Refused, match=r"content: 100001 parts; send at most 100000"):
        conversation.text_of(text, "content")
    # In all messages together, and within results.
    half = [{"type": "text", "text": "x"}] * (MOST_MESSAGES // 2)
    result = {"type": "tool_result", "tool_use_id": "a", "content": half}
    for messages in ([{"content": half}] * 3, [{"content": [result]}] * 3):
        with pytest.raises(Refused, match=r"messages: 15000[03] parts of contents; send at most"):
            next(conversation.messages(Fields({"messages": messages})))
    stops = Fields({"stop_token_ids": Untouched([1] * 900_000)})
    with pytest.raises(Refused, match=r"= 900000 tokens: at most 1024 are allowed"):
        sampling._ids(stops, "stop_token_ids")


def test_a_models_name_that_is_far_from_all_is_compared_with_none(llm: LLM) -> None:
    models = Models({"tiny": llm}, max_queue=1)

    def ask(name: str) -> None:
        with pytest.raises(Refused, match="not on this server"):
            models.find(name)

    assert work(lambda: ask("tin" * 100_000)) < 1000
    with pytest.raises(Refused, match="did you mean 'tiny'"):
        models.find("tinny")


def test_tools_are_looked_at_once_and_there_are_not_too_many() -> None:
    def described(n: int) -> list[dict[str, Any]]:
        return [
            {"type": "function", "function": {"name": Counted(f"f{i}"), "parameters": {}}}
            for i in range(n)
        ]

    assert is_linear(described, offered, MOST_TOOLS // 2)
    said = r"tools: 513 of them; at most 512 are allowed"
    with pytest.raises(onegraph.ArgumentError, match=said):
        offered(described(MOST_TOOLS + 1))
    for read in (tools.nested, tools.flat, tools.anthropic):
        with pytest.raises(Refused, match=r"tools: 513 of them; the limit is 512"):
            read(Fields({"tools": described(MOST_TOOLS + 1)}))
    with pytest.raises(onegraph.ArgumentError, match=r"^tools: 2 of them have the name 'f'$"):
        offered([*described(3), *[{"name": "f"}] * 2])


def test_a_conversations_calls_are_written_in_one_go() -> None:
    """By the reading of a model whose template leaves them out."""
    template = onegraph.ChatTemplate("{% for m in messages %}[{{ m.content }}]{% endfor %}")
    reading = _native.Reading.with_tools(template, "hermes")

    def calls(n: int) -> list[dict[str, Any]]:
        function = {"name": "f", "arguments": {"a": 1}}
        asks = [
            {"role": "assistant", "content": f"{i} ", "tool_calls": [{"function": function}]}
            for i in range(n)
        ]
        return conversations.conversation("messages", asks)

    written = conversations.render(
        template, calls(3), None, {}, name="messages", continues=False, calls=reading
    )
    one = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    assert written.text.replace("\n", "") == "".join(f"[{i} {one}]" for i in range(3)).replace(
        "\n", ""
    )
    # What came with the messages stays plain text, and what marks a call may be a control token.
    given = [written.text[start:stop] for start, stop in written.given]
    assert any("0 " in part for part in given) and not any("<tool_call>" in part for part in given)

    def write(messages: list[dict[str, Any]]) -> object:
        return conversations.render(
            template, messages, None, {}, name="messages", continues=False, calls=reading
        )

    for n in (4, 8):
        messages = calls(n)
        assert work(functools.partial(write, messages), only="with_parts") == 1


def test_a_reason_repeats_no_more_than_a_page_of_what_was_sent() -> None:
    for raised in (Refused(400, "x" * 10**6), refusal(onegraph.ModelError("x" * 10**6))):
        assert len(raised.message) < MOST_SAID + 40 and "1000000 characters" in raised.message


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"logit_bias": {str(i): 1 for i in range((1 << 19) + 1)}}, "at most 524288 are taken"),
        ({"stop": ["s"] * 400_000}, "stop = 400000 strings: at most 64 are allowed"),
        ({"stop_token_ids": [1] * 900_000}, "at most 1024 are allowed"),
        ({"model": "a" * 3_000_000}, "not on this server"),
        ({"cache_salt": "a" * 3_000_000}, "cache_salt = a text of 3000000 bytes: at most 1024"),
    ],
)
def test_what_is_too_much_of_a_field_is_said_in_few_words(
    asked: dict[str, Any], said: str, served: Served
) -> None:
    _, body = served.post("/v1/completions", {"prompt": "tea", "max_tokens": 1, **asked})
    message = body["error"]["message"]
    assert said in message and len(message) < 300, message


def requested(body: bytes, leaves: threading.Event | None = None) -> Request:
    """A POST to no app; its client leaves once that is set."""
    sent = iter([{"type": "http.request", "body": body}])

    async def receive() -> Any:
        for each in sent:
            return each
        while leaves is None or not leaves.is_set():
            await asyncio.sleep(0.001)
        return {"type": "http.disconnect"}

    return Request({"type": "http", "method": "POST", "headers": []}, receive)


@pytest.fixture
def service(llm: LLM) -> Iterator[Service]:
    found: Service = asgi(llm).state.service
    yield found
    found._lanes.end()


def body_of(size: int) -> bytes:
    return json.dumps({"user": "x" * size}).encode()


@pytest.mark.parametrize(
    ("size", "thread"),
    [
        (1, "MainThread"),
        (works.SMALL, "onegraph-short"),
        (works.LARGE, "onegraph-long"),
    ],
)
def test_bodies_are_read_where_their_size_says(size: int, thread: str, service: Service) -> None:
    def made(service: Service, fields: Fields) -> str:
        return threading.current_thread().name

    found = asyncio.run(service.read(requested(body_of(size)), made))
    assert found.startswith(thread)


@pytest.mark.parametrize("size", [works.SMALL, works.LARGE])
def test_the_loop_goes_on_while_a_body_is_read(size: int, service: Service) -> None:
    ticked = threading.Event()

    def made(service: Service, fields: Fields) -> bool:
        # Only the loop sets it: on the loop this would wait in vain.
        return ticked.wait(30)

    async def run() -> bool:
        reading = asyncio.ensure_future(service.read(requested(body_of(size)), made))
        await asyncio.sleep(0.01)
        ticked.set()
        return await reading

    assert asyncio.run(run())


def test_smaller_bodies_do_not_wait_for_larger_ones(service: Service) -> None:
    done = threading.Event()

    def waits(service: Service, fields: Fields) -> bool:
        return done.wait(30)

    def made(service: Service, fields: Fields) -> str:
        return "made"

    async def run() -> None:
        large = [
            asyncio.ensure_future(service.read(requested(body_of(works.LARGE)), waits))
            for _ in range(20)
        ]
        await asyncio.sleep(0.01)
        for size in (1, works.SMALL):
            assert await service.read(requested(body_of(size)), made) == "made"
        assert not any(each.done() for each in large)
        done.set()
        assert all(await asyncio.gather(*large))

    asyncio.run(run())


class Endless:
    """Reading that ends only where it is not wanted any more."""

    def __init__(self) -> None:
        self.begun, self.ended = threading.Event(), threading.Event()

    def __call__(self, service: Service, fields: Fields) -> None:
        self.begun.set()
        try:
            while True:
                _native.go_on()
                time.sleep(0.001)
        finally:
            self.ended.set()


def test_reading_that_takes_too_long_ends(llm: LLM) -> None:
    endless = Endless()
    found: Service = asgi(llm, timeout=0.05).state.service
    with pytest.raises(TimeoutError):
        asyncio.run(found.read(requested(body_of(works.LARGE)), endless))
    assert endless.ended.wait(30)
    found._lanes.end()


def test_reading_for_a_client_that_left_ends_and_frees_its_room(service: Service) -> None:
    endless, leaves = Endless(), threading.Event()

    async def run() -> None:
        request = requested(body_of(1 << 20), leaves)
        reading = asyncio.ensure_future(service.read(request, endless))
        while not endless.begun.is_set():
            await asyncio.sleep(0.001)
        assert service._bodies.held > 0
        leaves.set()
        with contextlib.suppress(Exception):
            await reading
        request.scope["onegraph.work"].end()

    asyncio.run(run())
    assert endless.ended.wait(30)
    until(lambda: service._bodies.held == 0)


def test_the_room_of_a_body_is_taken_until_its_tokens_are_made(service: Service) -> None:
    def made(service: Service, fields: Fields) -> int:
        return service._bodies.held

    async def run() -> None:
        request = requested(body_of(1 << 20))
        held = await service.read(request, made)
        assert held == len(body_of(1 << 20)) - works.FREE == service._bodies.held
        works.of(request.scope).end()
        assert service._bodies.held == 0

    asyncio.run(run())


def test_work_that_is_not_wanted_any_more_ends_in_the_engine_too(llm: LLM) -> None:
    stop = _native.Stop()
    with stop:
        _native.go_on()
        ids = llm.tokenize("tea")
        stop.tell()
        with pytest.raises(onegraph.CancelledError):
            _native.go_on()
        with pytest.raises(onegraph.CancelledError):
            llm.tokenize("tea " * 100_000)
        endless = onegraph.ChatTemplate("{% for i in range(99999) %}{{ messages }}{% endfor %}")
        with pytest.raises(onegraph.CancelledError):
            endless.render([{"role": "user", "content": "tea" * 1000}])
        with pytest.raises(onegraph.CancelledError):
            conversations.conversation("messages", [{"role": "user", "content": "tea"}])
    # It is of this thread's work within it alone.
    assert llm.tokenize("tea") == ids


def test_large_prompts_at_once_take_little_memory_and_leave_none(served: Served) -> None:
    body = json.dumps({"prompt": "a" * 15_900_000, "max_tokens": 1}).encode()
    sent = http("/v1/completions", body, connection="close")
    process = psutil.Process()
    before, peak = process.memory_info().rss, 0
    with contextlib.ExitStack() as stack:
        asked = [stack.enter_context(served.connect()) for _ in range(6)]
        threads = [threading.Thread(target=each.sendall, args=(sent,)) for each in asked]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            peak = max(peak, process.memory_info().rss)
            time.sleep(0.01)
        for each in asked:
            assert b"context_length_exceeded" in b"".join(iter(lambda e=each: e.recv(65536), b""))
    # 3.8 GB, when each was made tokens.
    assert peak - before < 600 << 20, f"{(peak - before) >> 20} MiB"
    until(lambda: process.memory_info().rss - before < 100 << 20)
    assert fields_of(b'{"a": 1}').values == {"a": 1}


def test_nothing_of_a_request_that_was_refused_is_kept_in_a_circle(served: Served) -> None:
    """Nobody looks for circles as long as there is little to look at, however large it is."""
    text = "b" * 400_000
    asked = {
        "/v1/completions": {"prompt": text},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": text}]},
        "/v1/embeddings": {"input": text},
        "/tokenize": {"content": text, "messages": [{"role": "user", "content": text}]},
    }
    bodies = {path: json.dumps({**body, "max_tokens": 1}).encode() for path, body in asked.items()}
    del asked

    def held() -> bool:
        dicts = [each for each in gc.get_objects() if type(each) is dict]
        values = [value for each in dicts for value in [*each.values()] if type(value) is str]
        return any(value == text for value in values if value is not text)

    gc.collect()
    gc.disable()
    try:
        for path, body in bodies.items():
            assert served.post(path, body)[0] == 400
        until(lambda: not held())
    finally:
        gc.enable()
