"""Tools and reasoning in Anthropic's dialect, with its own client."""

from typing import Any

import anthropic
import pytest
from support.calls import ADD_ANTHROPIC, ANTHROPIC, ASKED, CALL, PLAIN, Scripted

ASK: dict[str, Any] = {"model": "adder", "max_tokens": 200, "tools": [ADD_ANTHROPIC]}


@pytest.fixture(scope="module")
def client(adder: Scripted) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=adder.served.url, api_key="any", max_retries=0)


def called(message: anthropic.types.Message) -> anthropic.types.ToolUseBlock:
    thinking, text, call = message.content
    assert thinking.type == "thinking" and thinking.thinking == "so"
    assert text.type == "text" and text.text == "I add."
    assert call.type == "tool_use" and (call.name, call.input) == ("add", {"a": 31, "b": 8})
    assert (message.stop_reason, message.stop_sequence) == ("tool_use", None)
    return call


def test_a_call_its_result_and_the_answer(client: anthropic.Anthropic) -> None:
    made = client.messages.create(messages=ASKED, **ASK)
    call = called(made)
    result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": "39"}
    messages: list[Any] = [
        *ASKED,
        {"role": "assistant", "content": made.content},
        {"role": "user", "content": [result]},
    ]
    again = client.messages.create(messages=messages, **ASK)
    (text,) = again.content
    assert text.type == "text" and text.text == "31 plus 8 is 39."
    assert again.stop_reason == "end_turn"


def test_a_stream_has_the_same(client: anthropic.Anthropic) -> None:
    with client.messages.stream(messages=ASKED, **ASK) as stream:
        events = list(stream)
        called(stream.get_final_message())
    starts = [each for each in events if each.type == "content_block_start"]
    assert [(each.index, each.content_block.type) for each in starts] == [
        (0, "thinking"),
        (1, "text"),
        (2, "tool_use"),
    ]
    assert [each.index for each in events if each.type == "content_block_stop"] == [0, 1, 2]
    assert sum(each.type == "input_json" for each in events) >= 1


def test_what_went_wrong_with_a_call_is_text(client: anthropic.Anthropic) -> None:
    ask = {**ASK, "max_tokens": 24}
    made = client.messages.create(messages=ASKED, **ask)
    thinking, text = made.content
    assert (thinking.type, text.type, made.stop_reason) == ("thinking", "text", "max_tokens")
    assert text.type == "text" and f"I add.{CALL}".startswith(text.text)
    with client.messages.stream(messages=ASKED, **ask) as stream:
        streamed = stream.get_final_message()
    assert [block.type for block in streamed.content] == ["thinking", "text", "tool_use", "text"]
    texts = [block.text for block in streamed.content if block.type == "text"]
    assert "".join(texts) == text.text and streamed.stop_reason == "max_tokens"


def test_a_conversation_with_calls_reaches_the_template(
    client: anthropic.Anthropic, adder: Scripted
) -> None:
    made = client.messages.create(system="Be brief.", messages=ANTHROPIC, **ASK)
    expected = adder.expected(PLAIN)
    assert adder.llm.prompts[-1] == expected
    assert made.content[0].text == "31 plus 8 is 39."  # type: ignore[union-attr]
    ask = {name: of for name, of in ASK.items() if name != "max_tokens"}
    counted = client.messages.count_tokens(system="Be brief.", messages=ANTHROPIC, **ask)
    assert counted.input_tokens == len(expected)
    # What a user says beside a result comes behind it.
    beside: list[Any] = [*ANTHROPIC[:-1], {**ANTHROPIC[-1]}, {"role": "user", "content": "Go on."}]
    client.messages.create(
        system="Be brief.", messages=beside, thinking={"type": "disabled"}, **ASK
    )
    plain = [*PLAIN, {"role": "user", "content": "Go on."}]
    assert adder.llm.prompts[-1] == adder.expected(plain, enable_thinking=False)
    parts = [{"type": "text", "text": "Go on."}, *ANTHROPIC[-1]["content"]]
    within: list[Any] = [*ANTHROPIC[:-1], {"role": "user", "content": parts}]
    client.messages.create(system="Be brief.", messages=within, **ASK)
    assert adder.llm.prompts[-1] == adder.expected(plain)


def test_one_call_alone_and_none(client: anthropic.Anthropic) -> None:
    made = client.messages.create(
        messages=ASKED, tool_choice={"type": "auto", "disable_parallel_tool_use": True}, **ASK
    )
    # Not all of the script's tokens are allowed in JSON: a draw may lead away from a whole call.
    kinds = [block.type for block in made.content]
    assert kinds in (["thinking", "text"], ["thinking", "text", "tool_use"])
    made = client.messages.create(messages=ASKED, tool_choice={"type": "none"}, **ASK)
    assert [block.type for block in made.content] == ["thinking", "text"]
