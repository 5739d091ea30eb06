"""OpenAI's newer dialect, spoken by its own client."""

from typing import Any

import openai
import pytest
from onegraph import LLM
from support.serving import Served

SAID = "Why is the sky blue?"
GREEDY: dict[str, Any] = {"model": "smollm2", "temperature": 0.0, "max_output_tokens": 12}


@pytest.fixture(scope="module")
def client(smol_served: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{smol_served.url}/v1", api_key="any", max_retries=0)


def test_a_response_is_what_the_model_says(client: openai.OpenAI, smol: LLM) -> None:
    plain = smol.chat([{"role": "user", "content": SAID}], temperature=0.0, max_tokens=12)
    made = client.responses.create(input=SAID, **GREEDY)
    assert made.output_text == plain.text and made.error is None
    assert made.status == "incomplete" and made.incomplete_details is not None
    assert made.incomplete_details.reason == "max_output_tokens"
    assert made.usage is not None
    assert made.usage.input_tokens == plain.usage.prompt_tokens
    assert made.usage.output_tokens == 12
    short = [{"role": "user", "content": "Say hi."}]
    ended = client.responses.create(
        model="smollm2",
        input=short,  # type: ignore[arg-type]
        temperature=0,
    )
    assert ended.status == "completed" and ended.incomplete_details is None


def test_a_stream_is_the_same_in_pieces(client: openai.OpenAI, smol: LLM) -> None:
    plain = smol.chat([{"role": "user", "content": SAID}], temperature=0.0, max_tokens=12)
    told = list(client.responses.create(input=SAID, stream=True, **GREEDY))
    assert [event.sequence_number for event in told] == list(range(len(told)))
    kinds = [event.type for event in told]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    deltas = [event.delta for event in told if event.type == "response.output_text.delta"]
    assert "".join(deltas) == plain.text and len(deltas) > 6
    last = told[-1]
    assert last.type == "response.incomplete" and last.response.output_text == plain.text
    with client.responses.stream(input=SAID, **GREEDY) as stream:
        for _ in stream:
            pass


def test_logprobs_are_the_engines(client: openai.OpenAI, smol: LLM) -> None:
    plain = smol.chat(
        [{"role": "user", "content": SAID}], temperature=0.0, max_tokens=12, logprobs=2
    )
    assert plain.logprobs is not None
    expected = [(each.text, each.logprob, [t.text for t in each.top]) for each in plain.logprobs]

    def found(told: Any) -> list[Any]:
        return [(t.token, t.logprob, [b.token for b in t.top_logprobs or []]) for t in told]

    asked: Any = {"input": SAID, "top_logprobs": 2, **GREEDY}
    made = client.responses.create(include=["message.output_text.logprobs"], **asked)
    assert found(made.output[0].content[0].logprobs) == expected  # type: ignore[union-attr]
    told = list(client.responses.create(stream=True, **asked))
    deltas = [event for event in told if event.type == "response.output_text.delta"]
    assert found(each for delta in deltas for each in delta.logprobs) == expected
    (done,) = (event for event in told if event.type == "response.output_text.done")
    assert found(done.logprobs) == expected
    (part,) = (event.part for event in told if event.type == "response.content_part.done")
    assert found(part.logprobs) == expected  # type: ignore[union-attr]


def test_an_input_of_items_is_a_conversation(client: openai.OpenAI, smol: LLM) -> None:
    plain = smol.chat(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello"},
            {"role": "user", "content": SAID},
        ],
        temperature=0.0,
        max_tokens=12,
    )
    items: list[Any] = [
        {"role": "user", "content": "Hi"},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Hello", "annotations": []}],
        },
        {"role": "user", "content": [{"type": "input_text", "text": SAID}]},
    ]
    made = client.responses.create(instructions="Be brief.", input=items, store=False, **GREEDY)
    assert made.output_text == plain.text and made.instructions == "Be brief."


CUSTOM: dict[str, Any] = {"type": "custom", "name": "x"}
GBNF = {"type": "grammar", "syntax": "gbnf", "definition": "root ::= x"}


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("input", None),
        ("input", 5),
        ("input[0].call_id", [{"type": "function_call", "name": "x"}]),
        ("input[0].name", [{"type": "function_call", "call_id": "x"}]),
        ("input[0].output", [{"type": "function_call_output", "call_id": "x"}]),
        ("input[0].type", [{"type": "item_reference", "id": "x"}]),
        ("input[0].role", [{"content": "x"}]),
        (
            "input[0].content[0].type",
            [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}],
        ),
        ("tools", [{"type": "function", "name": "x"}]),
        ("tools[0].strict", [{"type": "function", "name": "x", "strict": 5}]),
        ("tools[0].type", [{"type": "widget"}]),
        ("tools[0].format.syntax", [CUSTOM | {"format": GBNF}]),
        (
            "tools[0].format.definition",
            [CUSTOM | {"format": {"type": "grammar", "syntax": "lark"}}],
        ),
        (
            "tools[0].tools[0].name",
            [{"type": "namespace", "name": "n", "tools": [{"type": "custom"}]}],
        ),
        ("tool_choice.mode", {"type": "allowed_tools", "tools": []}),
        ("tool_choice.tools", {"type": "allowed_tools", "mode": "auto", "tools": []}),
        ("input[0].input", [{"type": "custom_tool_call", "call_id": "x", "name": "y"}]),
        ("tool_choice", "maybe"),
        ("tool_choice.name", {"type": "function"}),
        ("text.format.type", {"format": {"type": "xml", "name": "x", "schema": {}}}),
        ("text.format.schema", {"format": {"type": "json_schema", "name": "x"}}),
        ("previous_response_id", "resp_1"),
        ("top_logprobs", 21),
        ("background", True),
        ("max_output_tokens", -1),
        ("temperature", "x"),
    ],
)
def test_a_wrong_field_is_named(field: str, wrong: Any, served: Served) -> None:
    name = field.partition(".")[0].partition("[")[0]
    asked = {"input": "tea", "max_output_tokens": 2, name: wrong}
    status, body = served.post("/v1/responses", asked)
    assert (status, body["error"]["param"]) == (400, field)
