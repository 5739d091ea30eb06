"""Calls that are held to a form: what is drawn under it is read as a call whose arguments fit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import onegraph
import pytest
from onegraph import LLM
from support import scripted

MARKERS = {
    "hermes": ["<tool_call>", "</tool_call>"],
    "llama3": ["<|python_tag|>"],
    "mistral": ["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"],
    "harmony": ["<|channel|>", "<|constrain|>", "<|message|>", "<|call|>", "<|end|>", "<|start|>"],
}
#: Of these each is a text to the one model, and a control token to the other.
SPELLED = [(name, special) for name in MARKERS for special in (False, True)]

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Rome", "Oslo"]},
        "days": {"type": "array", "items": {"type": "integer", "maximum": 99}, "maxItems": 2},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
NOW = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "now", "parameters": NOW}},
]
STRICT = [{**tool, "function": {**tool["function"], "strict": True}} for tool in TOOLS]
ASKED: list[Any] = [{"role": "user", "content": "What is the weather?"}]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[bool, LLM]]:
    """Models that say "hm" if they are let."""
    every = sorted({marker for markers in MARKERS.values() for marker in markers})
    folder = tmp_path_factory.mktemp("held")
    plain = scripted.write(folder / "plain.gguf", ["hm"])
    special = scripted.write(folder / "special.gguf", ["hm"], markers=every)
    with LLM(plain, device="cpu") as one, LLM(special, device="cpu") as other:
        yield {False: one, True: other}


def valid(call: onegraph.ToolCall) -> None:
    assert call.name in ("weather", "now")
    jsonschema.validate(call.arguments, PARAMETERS if call.name == "weather" else NOW)


@pytest.mark.parametrize(("name", "special"), SPELLED)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_call_that_is_required(
    models: dict[bool, LLM], name: str, special: bool, seed: int
) -> None:
    options: dict[str, Any] = {"tool_format": name, "tools": TOOLS, "max_tokens": 1500}
    options |= {"seed": seed, "temperature": 1.0, "top_k": 0, "min_p": 0.0, "top_p": 1.0}
    llm = models[special]
    result = llm.chat(ASKED, tool_choice="required", parallel_tool_calls=False, **options)
    assert (result.finish_reason, result.text) == ("tool_calls", "")
    (call,) = result.tool_calls
    valid(call)
    one = {"type": "function", "function": {"name": "now"}}
    (call,) = llm.chat(ASKED, tool_choice=one, **options).tool_calls
    assert (call.name, call.arguments) == ("now", {})


@pytest.mark.parametrize("special", [False, True])
def test_strict_holds_calls_alone(models: dict[bool, LLM], special: bool) -> None:
    options: dict[str, Any] = {"tools": STRICT, "tool_format": "hermes", "max_tokens": 1500}
    llm = models[special]
    free = llm.chat(ASKED, temperature=0.0, **options)
    assert (free.text, free.tool_calls, free.finish_reason) == ("hm", [], "stop")
    # As if the model had begun a call of its own.
    begun = [*ASKED, {"role": "assistant", "content": "I look.<tool_call>"}]
    for seed in range(3):
        result = llm.chat(
            begun, continue_final_message=True, parse_special=True, seed=seed, **options
        )
        for call in result.tool_calls:
            valid(call)


def test_a_text_of_a_form_or_a_call(models: dict[bool, LLM]) -> None:
    kinds = set()
    for seed in range(40):
        result = models[True].chat(
            ASKED,
            tools=STRICT,
            tool_format="hermes",
            regex="[0-9]{3}",
            max_tokens=1500,
            temperature=1.5,
            seed=seed,
        )
        kinds.add(result.finish_reason)
        if result.tool_calls:
            valid(result.tool_calls[0])
        else:
            assert len(result.text) == 3 and result.text.isdecimal()
    assert kinds == {"stop", "tool_calls"}


def test_reasoning_comes_before_a_form(tmp_path: Path) -> None:
    path = scripted.write(
        tmp_path / "thinks.gguf",
        ["<think>so</think>\n\nhm"],
        markers=["<think>", "</think>"],
        template=scripted.HERMES.replace("<|im_start|>assistant", "</think><|im_start|>assistant"),
    )
    with LLM(path, device="cpu") as llm:
        result = llm.chat(ASKED, schema={"enum": ["yes", "no"]}, temperature=0.0, max_tokens=200)
    assert result.reasoning == "so"
    assert result.parsed in ("yes", "no") and json.loads(result.text) == result.parsed


@pytest.mark.parametrize("name", ["qwen_xml", "gemma4", "lfm"])
def test_formats_whose_arguments_are_no_json_refuse(models: dict[bool, LLM], name: str) -> None:
    with pytest.raises(onegraph.ArgumentError, match=f"tool_choice = {name}: calls in this format"):
        models[False].chat(ASKED, tools=TOOLS, tool_format=name, tool_choice="required")


def test_a_choice_that_is_none_is_refused(models: dict[bool, LLM]) -> None:
    for choice, said in [
        ("maybe", 'must be "auto", "none", "required"'),
        ({"type": "function", "function": {"name": "sub"}}, "no tool is called 'sub'"),
    ]:
        with pytest.raises(onegraph.ArgumentError, match=said):
            models[False].chat(ASKED, tools=TOOLS, tool_format="hermes", tool_choice=choice)
    with pytest.raises(onegraph.ArgumentError, match="no tools are offered"):
        models[False].chat(ASKED, tool_choice="required")
    with pytest.raises(onegraph.ArgumentError, match="and a text of a form too"):
        models[False].chat(
            ASKED, tools=TOOLS, tool_format="hermes", tool_choice="required", regex="a"
        )
