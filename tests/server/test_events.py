"""What each dialect's stream says of an answer, however that was cut into pieces."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onegraph import Piece, Result, TextDelta
from onegraph.server import anthropic, ollama, openai, responses
from onegraph.server.answers import Asked
from onegraph.server.events import Event, Reading, said
from onegraph.server.fields import Fields
from support.calls import ADD, ADD_ANTHROPIC, ADD_FLAT, ANSWERS, ASKED, CALL, Scripted
from support.scripted import asked

BROKEN = '<tool_call>\n{"name": "add", "arguments": {"a": 31, b: 8}}\n</tool_call>'
TEXTS = [
    ANSWERS[0],
    "plain text, ümläuts and a 🦙",
    "<think>only thoughts, cut",
    f"<think>so</think>two {CALL}\n{CALL}",
    f"before {BROKEN} behind",
    f"{CALL}\n{BROKEN}",
    f"cut {CALL[:40]}",
    "a <tool_call> that is none </think>",
    "",
]

#: Text, reasoning, and the arguments of each call by its id and name.
Read = tuple[str, str, dict[tuple[str, str], str]]


def lines(raw: bytes) -> list[dict[str, Any]]:
    """The objects of a stream, of whichever kind."""
    found = (line.removeprefix("data: ") for line in raw.decode().split("\n"))
    return [json.loads(line) for line in found if line.startswith("{")]


def of_openai(raw: bytes) -> Read:
    text = reasoning = ""
    ids: dict[int, tuple[str, str]] = {}
    calls: dict[tuple[str, str], str] = {}
    for line in lines(raw):
        delta = line["choices"][0]["delta"]
        text += delta.get("content") or ""
        reasoning += delta.get("reasoning_content", "")
        for call in delta.get("tool_calls", []):
            if "id" in call:
                ids[call["index"]] = (call["id"], call["function"]["name"])
                calls[ids[call["index"]]] = ""
            calls[ids[call["index"]]] += call["function"]["arguments"]
    return text, reasoning, calls


def of_anthropic(raw: bytes) -> Read:
    blocks: list[dict[str, Any]] = []
    is_open = False
    for line in lines(raw):
        if line["type"] == "content_block_start":
            assert not is_open and line["index"] == len(blocks)
            is_open = True
            blocks.append({**line["content_block"], "said": ""})
        elif line["type"] == "content_block_delta":
            assert is_open and line["index"] == len(blocks) - 1
            delta = {k: v for k, v in line["delta"].items() if k != "type"}
            blocks[-1]["said"] += "".join(delta.values())
        elif line["type"] == "content_block_stop":
            assert is_open and line["index"] == len(blocks) - 1
            is_open = False
    assert not is_open

    def of(kind: str) -> str:
        return "".join(block["said"] for block in blocks if block["type"] == kind)

    calls = {(b["id"], b["name"]): b["said"] for b in blocks if b["type"] == "tool_use"}
    return of("text"), of("thinking"), calls


def of_ollama(raw: bytes) -> Read:
    messages = [line["message"] for line in lines(raw)]
    calls = {
        (call["id"], call["function"]["name"]): json.dumps(call["function"]["arguments"])
        for message in messages
        for call in message.get("tool_calls", [])
    }
    text = "".join(message["content"] for message in messages)
    return text, "".join(message.get("thinking", "") for message in messages), calls


WRONG = ("function_call", "incomplete")


def of_responses(raw: bytes) -> Read:
    found = lines(raw)
    items = [line["item"] for line in found if line["type"] == "response.output_item.done"]
    # A call that went wrong has an end, and is no part of the answer: its text is.
    kept = [item for item in items if (item["type"], item["status"]) != WRONG]
    assert kept == found[-1]["response"]["output"]
    deltas: dict[str, str] = {item["id"]: "" for item in items}
    for line in found:
        if line["type"].endswith(".delta"):
            deltas[line["item_id"]] += line["delta"]
    texts = {"message": "", "reasoning": ""}
    calls = {}
    for item in items:
        if item["type"] == "function_call":
            calls[item["call_id"], item["name"]] = item["arguments"]
            assert deltas[item["id"]] == item["arguments"]
        else:
            (part,) = item["content"]
            texts[item["type"]] += part["text"]
            assert deltas[item["id"]] == part["text"]
    return texts["message"], texts["reasoning"], calls


def asked_of_openai(service: Any) -> Asked:
    return openai._chat(service, Fields({"messages": ASKED, "tools": [ADD], "stream": True}))


def asked_of_anthropic(service: Any) -> Asked:
    body = {"messages": ASKED, "tools": [ADD_ANTHROPIC], "stream": True, "max_tokens": 9}
    return anthropic._asked(service, Fields(body))


def asked_of_ollama(service: Any) -> Asked:
    asked = ollama._chat(service, Fields({"messages": ASKED, "tools": [ADD]}))
    assert isinstance(asked, Asked)
    return asked


def asked_of_responses(service: Any) -> Asked:
    body = {"input": ASKED, "tools": [ADD_FLAT], "stream": True}
    return responses._asked(service, Fields(body))


DIALECTS: dict[str, tuple[Callable[[Any], Asked], Callable[[bytes], Read]]] = {
    "openai": (asked_of_openai, of_openai),
    "anthropic": (asked_of_anthropic, of_anthropic),
    "ollama": (asked_of_ollama, of_ollama),
    "responses": (asked_of_responses, of_responses),
}


@pytest.fixture(scope="module")
def result(adder: Scripted) -> Result:
    return adder.llm.chat(ASKED, tools=[ADD], seed=1)


def events(adder: Scripted, result: Result, parts: list[str]) -> list[Event]:
    """The events of an answer that comes in these pieces."""
    job = asked(adder.llm, ASKED, [ADD])
    answer = job.asks[0].answer(1)
    assert answer is not None
    reading = Reading()
    found: list[Event] = []
    for i, part in enumerate(parts):
        new = answer.push(part, last=i == len(parts) - 1)
        shown = "".join(each.text for each in new if isinstance(each, TextDelta))
        found += reading.push(Piece(shown, [], None, None, events=new))
    ended = dataclasses.replace(
        result,
        text=answer.text,
        reasoning=answer.reasoning,
        tool_calls=answer.calls,
        invalid_tool_calls=answer.invalid,
        finish_reason="tool_calls" if answer.calls else "stop",
    )
    return [*found, *reading.finish(ended)]


@settings(max_examples=60, deadline=None)
@given(text=st.sampled_from(TEXTS), cuts=st.lists(st.integers(0, 200), max_size=12))
def test_any_cut_says_the_same_in_every_dialect(
    text: str, cuts: list[int], adder: Scripted, result: Result
) -> None:
    at = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    parts = [text[a:b] for a, b in itertools.pairwise(at)]
    uncut = said(events(adder, result, [text]))
    found = events(adder, result, parts)
    whole = said(found)
    assert (whole.text, whole.reasoning, whole.calls) == (uncut.text, uncut.reasoning, uncut.calls)
    # Of a call that went wrong nothing is lost.
    assert all(invalid.text in whole.text for invalid in whole.result.invalid_tool_calls)
    service = adder.served.app.state.service
    for asked_of, read in DIALECTS.values():
        asked = asked_of(service)
        (writer,) = asked.writers
        raw = b"".join(writer.event(event) for event in found)
        said_text, reasoning, calls = read(raw)
        assert (said_text, reasoning) == (uncut.text, uncut.reasoning)
        for call in uncut.calls:
            assert json.loads(calls.pop((call.id, call.name))) == call.arguments
        # What is left has begun and went wrong.
        wrong = {(each.id, each.name) for each in whole.result.invalid_tool_calls}
        assert calls.keys() <= wrong


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_whole_answer_has_what_a_stream_has(
    dialect: str, text: str, adder: Scripted, result: Result
) -> None:
    streamed = events(adder, result, [text])
    whole = list(Reading().whole(said(streamed).result))
    one, other = said(streamed), said(whole)
    assert (one.reasoning, one.calls) == (other.reasoning, other.calls)
    # Only a text that stands behind a call that went wrong has another place.
    assert sorted(one.text) == sorted(other.text)
    document = DIALECTS[dialect][0](adder.served.app.state.service).document([whole])
    told = json.dumps(document)
    for call in one.calls:
        assert call.id in told
    assert json.dumps(one.reasoning)[1:-1] in told
