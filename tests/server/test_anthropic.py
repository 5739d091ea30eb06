"""Anthropic's dialect, spoken by its own client."""

from typing import Any

import anthropic
import pytest
from onegraph import LLM
from onegraph.server import asgi
from support.serving import Served, serving

SAID: list[Any] = [{"role": "user", "content": "Why is the sky blue?"}]
#: The client has no word for the temperature any more; the dialect has.
GREEDY: dict[str, Any] = {
    "model": "smollm2",
    "max_tokens": 12,
    "extra_body": {"temperature": 0.0},
}


@pytest.fixture(scope="module")
def client(smol_served: Served) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=smol_served.url, api_key="any", max_retries=0)


def test_a_message_is_what_the_model_says(client: anthropic.Anthropic, smol: LLM) -> None:
    plain = smol.chat(SAID, temperature=0.0, max_tokens=12)
    made = client.messages.create(messages=SAID, **GREEDY)
    (block,) = made.content
    assert block.type == "text" and block.text == plain.text
    assert (made.role, made.model, made.stop_reason) == ("assistant", "smollm2", "max_tokens")
    assert made.usage.output_tokens == 12
    read = made.usage.input_tokens + (made.usage.cache_read_input_tokens or 0)
    assert read == plain.usage.prompt_tokens


def test_a_stream_is_the_same_in_pieces(client: anthropic.Anthropic, smol: LLM) -> None:
    plain = smol.chat(SAID, temperature=0.0, max_tokens=12)
    with client.messages.stream(messages=SAID, **GREEDY) as stream:
        kinds = []
        text = ""
        for event in stream:
            kinds.append(event.type)
            if event.type == "content_block_delta" and event.delta.type == "text_delta":
                text += event.delta.text
        final = stream.get_final_message()
    assert text == plain.text == final.content[0].text  # type: ignore[union-attr]
    told = [kind for kind in kinds if kind not in ("text", "ping")]
    assert told[:2] == ["message_start", "content_block_start"]
    assert told[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(told[2:-3]) == {"content_block_delta"}
    assert final.stop_reason == "max_tokens" and final.usage.output_tokens == 12
    assert final.usage.cache_read_input_tokens


def test_instructions_blocks_and_turns_reach_the_template(
    client: anthropic.Anthropic, smol: LLM
) -> None:
    plain = smol.chat(
        [
            {"role": "system", "content": "Be brief.Speak English."},
            {"role": "user", "content": "Hi\nWhy is the sky blue?"},
        ],
        temperature=0.0,
        max_tokens=12,
    )
    blocks = [{"type": "text", "text": "Why is the sky "}, {"type": "text", "text": "blue?"}]
    made = client.messages.create(
        system=[
            {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "Speak English."},
        ],
        messages=[{"role": "user", "content": "Hi"}, {"role": "user", "content": blocks}],  # type: ignore[typeddict-item]
        **GREEDY,
    )
    assert made.content[0].text == plain.text  # type: ignore[union-attr]


@pytest.mark.parametrize("content", ["", []])
def test_an_answer_that_is_begun_with_nothing_is_a_new_one(content: Any, served: Served) -> None:
    more = {"role": "assistant", "content": content}
    bodies: list[Any] = [{"max_tokens": 4, "messages": [*SAID, *m]} for m in ([], [more])]
    plain, found = (served.post("/v1/messages", {**b, "temperature": 0})[1] for b in bodies)
    assert found["content"] == plain["content"]


def test_a_begun_answer_is_gone_on_with(client: anthropic.Anthropic, smol: LLM) -> None:
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "x"}
    begun: list[Any] = [
        *SAID,
        {"role": "assistant", "content": [thought, {"type": "text", "text": "Because"}]},
    ]
    plain = smol.chat(
        [*SAID, {"role": "assistant", "content": "Because"}],
        continue_final_message=True,
        temperature=0.0,
        max_tokens=12,
    )
    made = client.messages.create(messages=begun, **GREEDY)
    assert made.content[0].text == plain.text  # type: ignore[union-attr]


def test_why_it_ended_is_said(client: anthropic.Anthropic, smol: LLM) -> None:
    plain = smol.chat(SAID, temperature=0.0, max_tokens=12)
    word = plain.text.split()[3]
    made = client.messages.create(messages=SAID, stop_sequences=["nowhere", word], **GREEDY)
    assert (made.stop_reason, made.stop_sequence) == ("stop_sequence", word)
    assert made.content[0].text == plain.text.partition(word)[0]  # type: ignore[union-attr]
    ended = client.messages.create(
        model="smollm2",
        max_tokens=200,
        extra_body={"temperature": 0},
        messages=[{"role": "user", "content": "Say hi."}],
    )
    assert (ended.stop_reason, ended.stop_sequence) == ("end_turn", None)


def test_tokens_are_counted_as_they_are_read(client: anthropic.Anthropic, smol: LLM) -> None:
    counted = client.messages.count_tokens(model="smollm2", messages=SAID, system="Be brief.")
    said = [{"role": "system", "content": "Be brief."}, *SAID]
    assert counted.input_tokens == smol.chat(said, max_tokens=1).usage.prompt_tokens


ASKED: dict[str, Any] = {"max_tokens": 2, "messages": [{"role": "user", "content": "tea"}]}


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("max_tokens", None),
        ("max_tokens", "x"),
        ("temperature", -1),
        ("top_k", "x"),
        ("stop_sequences", [1]),
        ("messages", None),
        ("messages[0].role", [{"role": "developer", "content": "tea"}]),
        ("messages[0].content", [{"role": "system"}]),
        ("messages[0].content", [{"role": "user"}]),
        (
            "messages[0].content[0].type",
            [{"role": "user", "content": [{"type": "image", "source": {}}]}],
        ),
        (
            "messages[0].content[0].tool_use_id",
            [{"role": "user", "content": [{"type": "tool_result"}]}],
        ),
        (
            "messages[0].content[0].type",
            [{"role": "user", "content": [{"type": "tool_use", "id": "x", "name": "y"}]}],
        ),
        (
            "messages[0].content[0].type",
            [{"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "x"}]}],
        ),
        ("system[0].text", [{"type": "text"}]),
        ("tools", [{"name": "x", "input_schema": {}}]),
        ("tools[0].input_schema", [{"name": "x"}]),
        ("tools[0].type", [{"type": "widget_20250305", "name": "widget"}]),
        ("tool_choice.type", {"type": "some"}),
        ("tool_choice.name", {"type": "tool"}),
        ("thinking.type", {"type": "deep"}),
        ("output_config.format.type", {"format": {"type": "xml", "schema": {}}}),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_wrong_field_is_named(field: str, wrong: Any, stream: bool, served: Served) -> None:
    name = field.partition(".")[0].partition("[")[0]
    status, body = served.post("/v1/messages", {**ASKED, "stream": stream, name: wrong})
    assert (status, body["type"]) == (400, "error")
    assert body["error"]["type"] == "invalid_request_error"
    assert body["error"]["message"].startswith(field)


def test_refusals_are_the_clients_exceptions(llm: LLM) -> None:
    with serving(asgi({"tiny": llm}, api_keys=["k"], max_queue=0, max_body=2000)) as served:
        wrong = anthropic.Anthropic(base_url=served.url, api_key="x", max_retries=0)
        with pytest.raises(anthropic.AuthenticationError):
            wrong.messages.create(model="tiny", **ASKED)
        client = anthropic.Anthropic(base_url=served.url, api_key="k", max_retries=0)
        with pytest.raises(anthropic.NotFoundError, match="claude"):
            client.messages.create(model="claude-fable", **ASKED)
        with pytest.raises(anthropic.APIStatusError) as large:
            client.messages.create(model="tiny", system="x" * 3000, **ASKED)
        assert large.value.status_code == 413
        made = client.messages.create(model="tiny", **ASKED)
        assert made.usage.output_tokens <= 2


def test_an_answer_without_text_has_no_block(served: Served, llm: LLM) -> None:
    end = llm.tokenizer.eos_id
    assert end is not None
    first = llm.chat(ASKED["messages"], temperature=0, max_tokens=1).text
    asked = {**ASKED, "temperature": 0, "stop_sequences": [first]}
    status, body = served.post("/v1/messages", asked)
    assert status == 200 and body["content"] == [] and body["stop_reason"] == "stop_sequence"
    status, raw = served.post("/v1/messages", {**asked, "stream": True})
    assert "content_block" not in raw and "event: message_stop" in raw
