"""Tools and reasoning in OpenAI's newer dialect, with its own client."""

import json
from typing import Any

import openai
import pytest
from support.calls import ADD_FLAT, ASKED, CALL, PLAIN, RESPONSES, Scripted

ASK: dict[str, Any] = {"model": "adder", "tools": [ADD_FLAT]}


@pytest.fixture(scope="module")
def client(adder: Scripted) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{adder.served.url}/v1", api_key="any", max_retries=0)


def called(made: Any) -> str:
    reasoning, message, call = made.output
    assert (reasoning.type, reasoning.content[0].text) == ("reasoning", "so")
    assert (message.type, made.output_text, made.status) == ("message", "I add.", "completed")
    assert (call.type, call.name, call.status) == ("function_call", "add", "completed")
    assert json.loads(call.arguments) == {"a": 31, "b": 8}
    return str(call.call_id)


def test_a_call_its_result_and_the_answer(client: openai.OpenAI) -> None:
    made = client.responses.create(input=ASKED, **ASK)
    id = called(made)
    items = [*ASKED, *made.output]
    items.append({"type": "function_call_output", "call_id": id, "output": "39"})
    again = client.responses.create(input=items, **ASK)
    assert again.output_text == "31 plus 8 is 39." and len(again.output) == 1


def test_a_stream_has_the_same(client: openai.OpenAI) -> None:
    with client.responses.stream(input=ASKED, **ASK) as stream:
        events: list[Any] = list(stream)
        called(stream.get_final_response())
    assert [event.sequence_number for event in events] == list(range(len(events)))
    said: dict[str, str] = {}
    for event in events:
        if event.type.endswith(".delta"):
            said[event.type] = said.get(event.type, "") + event.delta
    assert said.pop("response.function_call_arguments.delta") == '{"a": 31, "b": 8}'
    assert said == {
        "response.reasoning_text.delta": "so",
        "response.output_text.delta": "I add.",
    }
    for kind in ("added", "done"):
        items = [e for e in events if e.type == f"response.output_item.{kind}"]
        assert [(e.output_index, e.item.type) for e in items] == [
            (0, "reasoning"),
            (1, "message"),
            (2, "function_call"),
        ]


def test_what_went_wrong_with_a_call_is_text(client: openai.OpenAI) -> None:
    made = client.responses.create(input=ASKED, max_output_tokens=24, **ASK)
    assert [item.type for item in made.output] == ["reasoning", "message"]
    assert made.status == "incomplete" and f"I add.{CALL}".startswith(made.output_text)
    with client.responses.stream(input=ASKED, max_output_tokens=24, **ASK) as stream:
        events: list[Any] = list(stream)
    # Of the stream the call is a part that did not come to its end; of the answer it is none.
    added = [each for each in events if each.type == "response.output_item.added"]
    assert [(each.output_index, each.item.type) for each in added] == [
        (0, "reasoning"),
        (1, "message"),
        (2, "function_call"),
        (3, "message"),
    ]
    streamed = events[-1].response
    assert [(item.type, item.status) for item in streamed.output] == [
        ("reasoning", "completed"),
        ("message", "completed"),
        ("message", "incomplete"),
    ]
    assert streamed.output_text == made.output_text


def test_a_conversation_with_calls_reaches_the_template(
    client: openai.OpenAI, adder: Scripted
) -> None:
    made = client.responses.create(instructions="Be brief.", input=RESPONSES, **ASK)
    assert adder.llm.prompts[-1] == adder.expected(PLAIN)
    assert made.output_text == "31 plus 8 is 39."


def test_all_that_is_said_to_the_model_before_is_one_message(
    client: openai.OpenAI, adder: Scripted
) -> None:
    """Templates that have a place for one refuse two."""
    before: list[Any] = [
        {"role": "developer", "content": "Add."},
        {"role": "system", "content": "Say so."},
    ]
    client.responses.create(instructions="Be brief.", input=before + ASKED, **ASK)
    joined = {"role": "system", "content": "Be brief.\nAdd.\nSay so."}
    assert adder.llm.prompts[-1] == adder.expected([joined, *ASKED])
