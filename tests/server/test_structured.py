"""Texts and calls of a form over HTTP, in every dialect, by the clients that people have."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import ollama
import openai
import pytest
from onegraph import LLM
from onegraph.server import asgi
from pydantic import BaseModel
from support import calls, scripted
from support.calls import ADD, ADD_ANTHROPIC, ADD_FLAT, ASKED, Scripted
from support.serving import Served, serving

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:pydantic")


class Pet(BaseModel):
    name: str
    legs: int


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "legs": {"enum": [2, 4]}},
    "required": ["name", "legs"],
    "additionalProperties": False,
}
CAT: list[Any] = [{"role": "user", "content": "Describe a cat as JSON."}]


def fits(text: str) -> bool:
    found = json.loads(text)
    return found.keys() == {"name", "legs"} and len(found["name"]) <= 8 and found["legs"] in (2, 4)


def test_openai_parses_models_of_pydantic(smol_served: Served) -> None:
    client = openai.OpenAI(base_url=f"{smol_served.url}/v1", api_key="any", max_retries=0)
    made = client.chat.completions.parse(
        model="smollm2", messages=CAT, response_format=Pet, max_tokens=80, temperature=0.0
    )
    assert isinstance(made.choices[0].message.parsed, Pet)
    response = client.responses.parse(
        model="smollm2", input=CAT, text_format=Pet, max_output_tokens=80, temperature=0.0
    )
    assert isinstance(response.output_parsed, Pet)


def test_every_dialect_holds_a_text_to_a_schema(smol_served: Served) -> None:
    line = ollama.Client(smol_served.url).chat(
        "smollm2", CAT, format=SCHEMA, options={"num_predict": 80, "temperature": 0}
    )
    assert fits(line.message.content or "")
    claude = anthropic.Anthropic(base_url=smol_served.url, api_key="any", max_retries=0)
    message = claude.messages.create(
        model="smollm2",
        messages=CAT,
        max_tokens=80,
        extra_body={"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    )
    assert fits(message.content[0].text)  # type: ignore[union-attr]
    client = openai.OpenAI(base_url=f"{smol_served.url}/v1", api_key="any", max_retries=0)
    stream = client.chat.completions.create(
        model="smollm2",
        messages=CAT,
        max_tokens=80,
        stream=True,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "pet", "schema": SCHEMA, "strict": True},
        },
    )
    assert fits("".join(chunk.choices[0].delta.content or "" for chunk in stream))


@pytest.mark.parametrize(
    ("asked", "allowed"),
    [
        ({"response_format": {"type": "json_object"}}, None),
        ({"structured_outputs": {"choice": ["tea", "milk"]}}, {"tea", "milk"}),
        ({"guided_choice": ["tea", "milk"]}, {"tea", "milk"}),
        ({"guided_regex": "tea|milk"}, {"tea", "milk"}),
        ({"grammar": 'root ::= "tea" | "milk"'}, {"tea", "milk"}),
        ({"json_schema": {"enum": ["tea"]}}, {'"tea"'}),
    ],
)
def test_completions_take_what_other_servers_take(
    smol_served: Served, asked: dict[str, Any], allowed: set[str] | None
) -> None:
    status, found = smol_served.post(
        "/v1/completions", {"prompt": "A drink: ", "max_tokens": 60, "temperature": 0, **asked}
    )
    assert status == 200
    (choice,) = found["choices"]
    assert choice["finish_reason"] == "stop"
    if allowed is None:
        assert isinstance(json.loads(choice["text"]), dict)
    else:
        assert choice["text"] in allowed


@pytest.mark.parametrize(
    ("path", "asked", "field", "said"),
    [
        ("chat/completions", {"response_format": {"type": "xml"}}, "response_format.type", "json_"),
        (
            "chat/completions",
            {"response_format": {"type": "json_schema"}},
            "response_format.json_schema",
            "missing",
        ),
        (
            "chat/completions",
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "x"}}}},
            "response_format.json_schema.schema",
            'type "x" is not supported',
        ),
        ("chat/completions", {"guided_regex": "("}, "guided_regex", "unclosed group"),
        ("chat/completions", {"guided_regex": "a", "grammar": "b"}, "grammar", "sets two"),
        ("chat/completions", {"guided_choice": "a", "guided_regex": 5}, "guided_regex", "string"),
        ("responses", {"text": {"format": {"type": "x"}}}, "text.format.type", "must be one of"),
    ],
)
def test_a_form_that_is_none_is_refused_by_its_field(
    served: Served, path: str, asked: dict[str, Any], field: str | None, said: str
) -> None:
    begun = {"messages": CAT} if path.startswith("chat") else {"input": CAT}
    status, found = served.post(f"/v1/{path}", {**begun, **asked})
    assert (status, found["error"]["param"]) == (400, field)
    assert said in found["error"]["message"]


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A model that thinks; its markers are tokens, so that nothing of them is forced."""
    path = tmp_path_factory.mktemp("caller") / "caller.gguf"
    markers = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
    scripted.write(path, ["<think>so</think>hm"], template=calls.TEMPLATE, markers=markers)
    with LLM(path, device="cpu") as llm, serving(asgi({"adder": llm})) as served:
        yield served


def test_a_call_that_is_required_is_made(caller: Served) -> None:
    client = openai.OpenAI(base_url=f"{caller.url}/v1", api_key="any", max_retries=0)
    for choice in ("required", {"type": "function", "function": {"name": "add"}}):
        made = client.chat.completions.create(
            model="adder",
            messages=ASKED,
            tools=[ADD],  # type: ignore[list-item]
            tool_choice=choice,  # type: ignore[arg-type]
            parallel_tool_calls=False,
            max_tokens=1500,
            temperature=0.0,
        )
        message = made.choices[0].message
        assert made.choices[0].finish_reason == "tool_calls" and not message.content
        (call,) = message.tool_calls or []
        given = json.loads(call.function.arguments)  # type: ignore[union-attr]
        assert given.keys() == {"a", "b"} and all(type(n) is int for n in given.values())
    response = client.responses.create(
        model="adder",
        input=ASKED,
        tools=[{**ADD_FLAT, "strict": True}],  # type: ignore[list-item]
        tool_choice={"type": "function", "name": "add"},
        max_output_tokens=1500,
        temperature=0.0,
    )
    assert [item.type for item in response.output][-1] == "function_call"
    claude = anthropic.Anthropic(base_url=caller.url, api_key="any", max_retries=0)
    message = claude.messages.create(
        model="adder",
        messages=ASKED,
        tools=[ADD_ANTHROPIC],  # type: ignore[list-item]
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        max_tokens=1500,
        extra_body={"temperature": 0.0},
    )
    assert [block.type for block in message.content][-1] == "tool_use"


def test_strict_alone_holds_calls_that_begin_without_a_marker(tmp_path: Path) -> None:
    template = calls.TEMPLATE.replace("<tool_call>\n", "").replace("\n</tool_call>", "")
    call = '{"name": "add", "parameters": {"a": "many", "b": []}}'
    path = scripted.write(
        tmp_path / "bare.gguf",
        [call, "hm"],
        template=template.replace('"arguments"', '"parameters"'),
    )
    with LLM(path, device="cpu") as llm, serving(asgi({"adder": llm})) as served:
        options = {"tools": [{**ADD_FLAT, "strict": True}], "parallel_tool_calls": False}
        options |= {"temperature": 0, "max_output_tokens": 1500}
        turns = [ASKED, [*ASKED, {"role": "assistant", "content": "I add."}, *ASKED]]
        made = [served.post("/v1/responses", {"input": turn, **options})[1] for turn in turns]
    (called,), (said,) = (response["output"] for response in made)
    given = json.loads(called["arguments"])
    assert given.keys() == {"a", "b"} and all(type(n) is int for n in given.values())
    assert [part["text"] for part in said["content"]] == ["hm"]


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ("maybe", 'must be "auto", "none", "required"'),
        ({"type": "function"}, "tool_choice.function: missing"),
        ({"type": "function", "function": {"name": "sub"}}, "no tool is named 'sub'"),
    ],
)
def test_a_choice_that_is_none_is_refused(adder: Scripted, choice: Any, said: str) -> None:
    status, found = adder.served.post(
        "/v1/chat/completions", {"messages": ASKED, "tools": [ADD], "tool_choice": choice}
    )
    assert status == 400 and said in found["error"]["message"]


CHOICE = {"type": "json_schema", "schema": {"enum": ["tea"]}}
ENUM = {"name": "drink", "schema": CHOICE["schema"]}
CALL = {"tools": [ADD], "tool_choice": "required"}
THOUGHT = "<think>\n\n</think>"


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/chat/completions", {"response_format": {"type": "json_schema", "json_schema": ENUM}}),
        ("/v1/chat/completions", {"guided_choice": ['"tea"'], "tools": [ADD]}),
        ("/v1/chat/completions", {**CALL, "parallel_tool_calls": False}),
        ("/v1/responses", {"text": {"format": {**CHOICE, "name": "drink"}}}),
        ("/v1/messages", {"output_config": {"format": CHOICE}}),
        ("/api/chat", {"format": CHOICE["schema"], "stream": False}),
    ],
)
def test_a_form_binds_from_the_first_token_behind_reasoning_that_the_prompt_closed(
    tmp_path: Path, path: str, asked: dict[str, Any]
) -> None:
    """The model itself would think again."""
    template = scripted.HERMES.split("<|turn")[0] + THOUGHT + "{% endif %}"
    scripted.write(
        tmp_path / "again.gguf",
        ["<think>hm"],
        template=template,
        begins=["</think>"],
        markers=["<think>"],
    )
    said = {"input" if path == "/v1/responses" else "messages": ASKED, "temperature": 0}
    with LLM(tmp_path / "again.gguf", device="cpu") as llm, serving(asgi(llm)) as served:
        status, found = served.post(path, {**said, "max_tokens": 90, **asked})
        assert status == 200, found
        assert "hm" not in json.dumps(found)
        free = {"messages": ASKED, "max_tokens": 90, "temperature": 0}
        _, found = served.post("/v1/chat/completions", free)
        assert found["choices"][0]["message"]["reasoning_content"] == "hm"
