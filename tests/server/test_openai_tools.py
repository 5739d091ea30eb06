"""Tools and reasoning in OpenAI's dialect, with its own client."""

import json
from typing import Any

import openai
import pytest
from support.calls import ADD, ASKED, CALL, OPENAI, PLAIN, Scripted

TOOLS: list[Any] = [ADD]


@pytest.fixture(scope="module")
def client(adder: Scripted) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{adder.served.url}/v1", api_key="any", max_retries=0)


def test_a_call_its_result_and_the_answer(client: openai.OpenAI, adder: Scripted) -> None:
    messages: list[Any] = list(ASKED)
    made = client.chat.completions.create(model="adder", messages=messages, tools=TOOLS)
    (choice,) = made.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I add.")
    assert choice.message.reasoning_content == "so"  # type: ignore[attr-defined]
    (call,) = choice.message.tool_calls or []
    assert call.type == "function" and call.function.name == "add"
    assert json.loads(call.function.arguments) == {"a": 31, "b": 8}
    messages += [
        choice.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "39"},
    ]
    again = client.chat.completions.create(model="adder", messages=messages, tools=TOOLS)
    assert again.choices[0].message.content == "31 plus 8 is 39."
    assert again.choices[0].message.tool_calls is None
    assert again.choices[0].finish_reason == "stop"


def test_a_stream_has_the_same(client: openai.OpenAI) -> None:
    text = reasoning = arguments = ""
    ids, names, reasons = [], [], []
    for chunk in client.chat.completions.create(
        model="adder", messages=ASKED, tools=TOOLS, stream=True
    ):
        (choice,) = chunk.choices
        text += choice.delta.content or ""
        reasoning += getattr(choice.delta, "reasoning_content", None) or ""
        for call in choice.delta.tool_calls or []:
            assert call.index == 0 and call.function is not None
            ids += [call.id] * (call.id is not None)
            names += [call.function.name] * (call.function.name is not None)
            arguments += call.function.arguments or ""
        reasons += [choice.finish_reason] * (choice.finish_reason is not None)
    assert (text, reasoning, json.loads(arguments)) == ("I add.", "so", {"a": 31, "b": 8})
    assert (names, reasons, len(ids)) == (["add"], ["tool_calls"], 1)


def test_what_went_wrong_with_a_call_is_text(client: openai.OpenAI) -> None:
    made = client.chat.completions.create(model="adder", messages=ASKED, tools=TOOLS, max_tokens=24)
    (choice,) = made.choices
    assert choice.finish_reason == "length" and choice.message.tool_calls is None
    content = choice.message.content or ""
    assert content.startswith("I add.<tool_call>")
    assert f"I add.{CALL}".startswith(content)
    pieces = client.chat.completions.create(
        model="adder", messages=ASKED, tools=TOOLS, max_tokens=24, stream=True
    )
    assert "".join(each.choices[0].delta.content or "" for each in pieces) == content


def test_without_a_choice_a_call_is_text(client: openai.OpenAI) -> None:
    made = client.chat.completions.create(
        model="adder", messages=ASKED, tools=TOOLS, tool_choice="none", parallel_tool_calls=False
    )
    # None were offered, so that there was nothing to be called.
    assert CALL in (made.choices[0].message.content or "")


def test_one_call_alone(client: openai.OpenAI) -> None:
    # Not all of the script's tokens are allowed in JSON: this seed's draws make a whole call.
    made = client.chat.completions.create(
        model="adder", messages=ASKED, tools=TOOLS, parallel_tool_calls=False, seed=0
    )
    assert len(made.choices[0].message.tool_calls or []) == 1


def test_a_conversation_with_calls_reaches_the_template(
    client: openai.OpenAI, adder: Scripted
) -> None:
    made = client.chat.completions.create(model="adder", messages=OPENAI, tools=TOOLS)
    # Results have no name here; ids say which call they are of.
    plain = [{k: v for k, v in each.items() if k != "name"} for each in PLAIN]
    assert adder.llm.prompts[-1] == adder.expected(plain)
    assert made.choices[0].message.content == "31 plus 8 is 39."
