"""Messages without a text, and what is asked for that no answer has."""

from __future__ import annotations

from typing import Any

import pytest
from support.calls import ADD, ADD_ANTHROPIC, ADD_FLAT, ASKED, Scripted

USER = ASKED[0]
EMPTY: dict[str, Any] = {"role": "assistant", "content": None}
PLAIN: dict[str, Any] = {"role": "assistant", "content": ""}
THOUGHT = {**PLAIN, "reasoning_content": "so", "thinking": "so"}


def prompt(adder: Scripted, path: str, tool: dict[str, Any], **asked: Any) -> list[int]:
    more = {"max_tokens": 1} if path == "/v1/messages" else {}
    body = {"model": "adder", "stream": False, "tools": [tool], **more, **asked}
    status, said = adder.served.post(path, body)
    assert status == 200, said
    return adder.llm.prompts[-1]


@pytest.mark.parametrize(
    ("message", "meant"),
    [
        (EMPTY, PLAIN),
        ({**EMPTY, "tool_calls": []}, PLAIN),
        ({**EMPTY, "tool_calls": None}, PLAIN),
        ({"role": "assistant", "tool_calls": []}, PLAIN),
        ({**EMPTY, "reasoning_content": "so"}, THOUGHT),
        ({**EMPTY, "reasoning_content": "so", "tool_calls": []}, THOUGHT),
    ],
)
def test_a_message_of_no_text_in_openais_dialect(
    message: dict[str, Any], meant: dict[str, Any], adder: Scripted
) -> None:
    asked = [USER, message, USER]
    found = prompt(adder, "/v1/chat/completions", ADD, messages=asked)
    assert found == adder.expected([USER, meant, USER])


@pytest.mark.parametrize(
    ("message", "meant"),
    [
        ({**EMPTY, "tool_calls": []}, PLAIN),
        ({**EMPTY, "tool_calls": None}, PLAIN),
        ({"role": "assistant", "thinking": "so"}, THOUGHT),
        ({**EMPTY, "thinking": "so", "tool_calls": []}, THOUGHT),
        ({**EMPTY, "thinking": "so", "images": []}, THOUGHT),
    ],
)
def test_a_message_of_no_text_in_ollamas_dialect(
    message: dict[str, Any], meant: dict[str, Any], adder: Scripted
) -> None:
    found = prompt(adder, "/api/chat", ADD, messages=[USER, message, USER])
    assert found == adder.expected([USER, meant, USER])


def test_reasoning_alone_in_anthropics_dialect_and_in_responses(adder: Scripted) -> None:
    meant = adder.expected([USER, THOUGHT, USER])
    thinking = [{"type": "thinking", "thinking": "so", "signature": ""}]
    messages = [USER, {"role": "assistant", "content": thinking}, USER]
    assert prompt(adder, "/v1/messages", ADD_ANTHROPIC, messages=messages) == meant
    # An empty answer is one of no text; reasoning of others may have no content.
    nothing = [USER, {"role": "assistant", "content": []}, USER]
    plain = adder.expected([USER, PLAIN, USER])
    assert prompt(adder, "/v1/messages", ADD_ANTHROPIC, messages=nothing) == plain
    hidden = {"type": "reasoning", "id": "rs_1", "summary": [], "content": None}
    said = {"type": "message", "role": "assistant", "content": []}
    found = prompt(adder, "/v1/responses", ADD_FLAT, input=[USER, hidden, said, USER])
    assert found == plain
    assert prompt(adder, "/v1/responses", ADD_FLAT, input=[USER, EMPTY, USER]) == plain
    assert prompt(adder, "/v1/messages", ADD_ANTHROPIC, messages=[USER, EMPTY, USER]) == plain


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/api/chat"])
@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"role": "user", "content": None}, "content: missing"),
        ({"role": "assistant"}, "content: missing"),
        ({**USER, "images": ["aGk="]}, "only text is supported"),
    ],
)
def test_a_message_that_is_none(
    path: str, message: dict[str, Any], why: str, adder: Scripted
) -> None:
    body = {"model": "adder", "messages": [message], "stream": False}
    status, said = adder.served.post(path, body)
    assert status == 400 and why in str(said)


@pytest.mark.parametrize("field", ["images", "image", "audio", "videos", "video", "files"])
@pytest.mark.parametrize(
    ("path", "list_of"),
    [
        ("/v1/chat/completions", "messages"),
        ("/v1/responses", "input"),
        ("/v1/messages", "messages"),
        ("/api/chat", "messages"),
    ],
)
def test_no_dialect_drops_what_a_message_has_beside_its_text(
    path: str, list_of: str, field: str, adder: Scripted
) -> None:
    more = {"max_tokens": 1} if path == "/v1/messages" else {}
    body = {"model": "adder", "stream": False, **more}
    status, said = adder.served.post(path, {**body, list_of: [USER, {**USER, field: ["aGk="]}]})
    assert status == 400
    assert f"{list_of}[1].{field}: only text is supported" in str(said)
    # Nothing of it is nothing.
    assert adder.served.post(path, {**body, list_of: [{**USER, field: []}]})[0] == 200


def test_hidden_reasoning_in_a_users_message_is_refused_as_reasoning_is(adder: Scripted) -> None:
    parts = [{"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "tea"}]
    body = {"model": "adder", "max_tokens": 1, "messages": [{"role": "user", "content": parts}]}
    status, said = adder.served.post("/v1/messages", body)
    assert status == 400 and "only allowed in assistant messages" in str(said)


@pytest.mark.parametrize("logprobs", [0, 2])
def test_echoed_prompts_have_log_probabilities(logprobs: int, adder: Scripted) -> None:
    body = {"model": "adder", "prompt": "tea", "max_tokens": 1, "echo": True, "logprobs": logprobs}
    status, said = adder.served.post("/v1/completions", body)
    assert status == 200 and len(said["choices"][0]["logprobs"]["tokens"]) > 1
    status, said = adder.served.post("/v1/completions", {**body, "stream": True})
    assert status == 400 and said["error"]["param"] == "stream"
    for one in ({"logprobs": None}, {"echo": False}):
        assert adder.served.post("/v1/completions", {**body, **one, "stream": True})[0] == 200
