"""Tools and reasoning in ollama's dialect, with its own client."""

from typing import Any

import ollama
import pytest
from support.calls import ADD, ASKED, OLLAMA, PLAIN, Scripted

TOOLS: list[Any] = [ADD]


@pytest.fixture(scope="module")
def client(adder: Scripted) -> ollama.Client:
    return ollama.Client(adder.served.url)


def test_a_call_its_result_and_the_answer(client: ollama.Client, adder: Scripted) -> None:
    made = client.chat("adder", ASKED, tools=TOOLS)
    assert (made.message.content, made.message.thinking) == ("I add.", "so")
    assert (made.done, made.done_reason) == (True, "stop")
    (call,) = made.message.tool_calls or []
    assert (call.function.name, call.function.arguments) == ("add", {"a": 31, "b": 8})
    messages = [*ASKED, made.message, {"role": "tool", "tool_name": "add", "content": "39"}]
    again = client.chat("adder", messages, tools=TOOLS)
    assert (again.message.content, again.message.tool_calls) == ("31 plus 8 is 39.", None)


def test_a_stream_has_the_same(client: ollama.Client) -> None:
    lines = list(client.chat("adder", ASKED, tools=TOOLS, stream=True))
    assert "".join(line.message.content or "" for line in lines) == "I add."
    assert "".join(line.message.thinking or "" for line in lines) == "so"
    (call,) = [call for line in lines for call in line.message.tool_calls or []]
    assert (call.function.name, call.function.arguments) == ("add", {"a": 31, "b": 8})
    assert [line.done for line in lines] == [False] * (len(lines) - 1) + [True]


def test_what_went_wrong_with_a_call_is_text(client: ollama.Client) -> None:
    options = {"num_predict": 24}
    made = client.chat("adder", ASKED, tools=TOOLS, options=options)
    assert (made.done_reason, made.message.tool_calls) == ("length", None)
    assert (made.message.content or "").startswith("I add.<tool_call>")
    lines = client.chat("adder", ASKED, tools=TOOLS, options=options, stream=True)
    assert "".join(line.message.content or "" for line in lines) == made.message.content


def test_reasoning_of_a_prompt_is_set_apart(client: ollama.Client) -> None:
    made = client.generate("adder", "tea")
    assert made.thinking == "so" and (made.response or "").startswith("I add.\n<tool_call>")


def test_a_conversation_with_calls_reaches_the_template(adder: Scripted) -> None:
    for think in (True, False):
        # By hand: its client has another order for the fields of a schema.
        asked = {"messages": OLLAMA, "tools": TOOLS, "think": think, "stream": False}
        status, made = adder.served.post("/api/chat", asked)
        # Calls have no ids of their own here: they get some, by their places.
        ids = {"abcdefghi": "c00002000", "bcdefghij": "c00002001"}
        plain = [
            {**each, "tool_call_id": ids[each["tool_call_id"]]} if each["role"] == "tool" else each
            for each in PLAIN
        ]
        assert adder.llm.prompts[-1] == adder.expected(plain, enable_thinking=think)
        assert status == 200 and made["message"]["content"] == "31 plus 8 is 39."


def test_results_go_to_the_calls_that_they_name(adder: Scripted) -> None:
    calls = [
        {"id": "abcdefghi", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}},
        {"id": "bcdefghij", "function": {"name": "subtract", "arguments": {}}},
    ]
    results: list[dict[str, Any]] = [
        {"role": "tool", "tool_name": "subtract", "content": "0"},
        {"role": "tool", "tool_call_id": "abcdefghi", "content": "3"},
        {"role": "tool", "tool_name": "multiply", "content": "?"},
    ]
    said = {"role": "assistant", "content": "", "tool_calls": calls}
    asked = {"messages": [*ASKED, said, *results], "tools": TOOLS, "stream": False}
    assert adder.served.post("/api/chat", asked)[0] == 200
    named = [
        {"role": "tool", "tool_call_id": "bcdefghij", "name": "subtract", "content": "0"},
        {"role": "tool", "tool_call_id": "abcdefghi", "name": "add", "content": "3"},
        {"role": "tool", "name": "multiply", "content": "?"},
    ]
    assert adder.llm.prompts[-1] == adder.expected([*ASKED, said, *named])


def test_what_a_model_can_do_is_shown(client: ollama.Client) -> None:
    assert client.show("adder").capabilities == ["completion", "tools", "thinking"]
