"""Tools and reasoning in conversations, with models that say what a test wants."""

from __future__ import annotations

import asyncio
import json
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onegraph
import pytest
from onegraph import LLM
from support import published, scripted
from support.scripted import asked

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 31, "b": 8}}\n</tool_call>'
ASKED = [{"role": "user", "content": "What is 31 plus 8?"}]
#: Opens the reasoning of every answer.
OPENED = re.sub(r"<\|turn.*?\|>", "<think>", scripted.HERMES)


def add(a: int, b: int) -> int:
    """Adds two numbers.

    a: the first
    b: the second
    """
    return a + b


Script = Callable[..., LLM]


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Script]:
    """`script("first answer", "second answer")` loads a model that gives them."""
    opened: list[LLM] = []

    def load(*answers: str, **more: Any) -> LLM:
        path = tmp_path_factory.mktemp("scripted") / "scripted.gguf"
        opened.append(LLM(scripted.write(path, answers, **more), device="cpu", max_batch=4))
        return opened[-1]

    yield load
    for llm in opened:
        llm.close()


@pytest.fixture(scope="module")
def adder(script: Script) -> LLM:
    return script(f"I add.\n{CALL}\n", "31 plus 8 is 39.")


def kinds(events: list[Any]) -> list[str]:
    """Names of events in order, each once where it comes several times in a row."""
    names = [type(event).__name__ for event in events]
    return [name for i, name in enumerate(names) if i == 0 or names[i - 1] != name]


def test_a_model_calls_a_function_and_uses_its_answer(adder: LLM) -> None:
    messages = list(ASKED)
    result = adder.chat(messages, tools=[add])
    (call,) = result.tool_calls
    assert (call.name, call.arguments) == ("add", {"a": 31, "b": 8})
    assert (result.text, result.finish_reason, result.reasoning) == ("I add.", "tool_calls", None)
    assert call.run() == 39
    assert pickle.loads(pickle.dumps(result)) == result
    messages += [result.message, call.reply(call.run())]
    assert messages[-1] == {
        "role": "tool",
        "tool_call_id": call.id,
        "name": "add",
        "content": "39",
    }
    result = adder.chat(messages, tools=[add])
    assert (result.text, result.tool_calls) == ("31 plus 8 is 39.", [])
    assert result.finish_reason == "stop"


def test_a_stream_tells_of_a_call_as_it_comes(adder: LLM) -> None:
    with adder.chat(ASKED, tools=[add], stream=True) as stream:
        pieces = list(stream)
    result = stream.result
    assert result is not None
    events = [event for piece in pieces for event in piece.events]
    assert kinds(events) == ["TextDelta", "ToolCallBegun", "ToolCallDelta", "ToolCallEnded"]
    begun = next(e for e in events if isinstance(e, onegraph.ToolCallBegun))
    said = "".join(e.arguments for e in events if isinstance(e, onegraph.ToolCallDelta))
    assert (begun.index, begun.name, json.loads(said)) == (0, "add", {"a": 31, "b": 8})
    assert sum(isinstance(e, onegraph.ToolCallDelta) for e in events) > 3
    assert events[-1] == onegraph.ToolCallEnded(0, result.tool_calls[0])
    assert begun.id == result.tool_calls[0].id
    assert "".join(map(str, pieces)) == result.text == "I add."
    assert pieces[-1].finish_reason == result.finish_reason == "tool_calls"
    whole = adder.chat(ASKED, tools=[add], seed=stream.seed)
    assert whole.tool_calls == result.tool_calls and whole.token_ids == result.token_ids


def test_an_event_loop_gets_the_same(adder: LLM) -> None:
    async def both() -> tuple[onegraph.Result, list[onegraph.Piece]]:
        whole = await adder.achat(ASKED, tools=[add], seed=3)
        return whole, [piece async for piece in adder.achat(ASKED, tools=[add], seed=3)]

    whole, pieces = asyncio.run(both())
    assert whole.tool_calls == adder.chat(ASKED, tools=[add], seed=3).tool_calls
    (ended,) = [e for p in pieces for e in p.events if isinstance(e, onegraph.ToolCallEnded)]
    assert ended.call == whole.tool_calls[0]
    assert pieces[-1].finish_reason == "tool_calls"


def test_ids_of_calls_are_of_the_seed_and_the_prompt(adder: LLM) -> None:
    def id_of(seed: int, text: str) -> str:
        messages = [{"role": "user", "content": text}]
        return adder.chat(messages, tools=[add], seed=seed).tool_calls[0].id

    assert id_of(1, "x") == id_of(1, "x")
    ids = {id_of(seed, text) for seed in range(3) for text in ("x", "y")}
    assert len(ids) == 6
    assert all(len(each) == 9 and each.isalnum() for each in ids)
    several = adder.chat(ASKED, tools=[add], n=3, seed=1)
    assert len({result.tool_calls[0].id for result in several}) == 3
    batch = adder.chat([ASKED, ASKED], tools=[add])
    assert [result.tool_calls[0].arguments for result in batch] == [{"a": 31, "b": 8}] * 2


def test_without_tools_a_call_is_text(adder: LLM) -> None:
    for options in ({}, {"tools": [add], "tool_choice": "none"}, {"tools": []}):
        result = adder.chat(ASKED, **options)  # type: ignore[arg-type]
        assert (result.text, result.tool_calls) == (f"I add.\n{CALL}\n", [])
        assert result.finish_reason == "stop"
    with adder.chat(ASKED, stream=True) as stream:
        events = [event for piece in stream for event in piece.events]
    assert kinds(events) == ["TextDelta"]


def test_a_result_is_what_openai_gives(adder: LLM) -> None:
    made = adder.chat(ASKED, tools=[add]).to_openai()["choices"][0]
    assert made["finish_reason"] == "tool_calls"
    (call,) = made["message"]["tool_calls"]
    assert call["function"] == {"name": "add", "arguments": '{"a": 31, "b": 8}'}
    # And the message goes back into a conversation as it is.
    again = [*ASKED, made["message"], {"role": "tool", "tool_call_id": call["id"], "content": "39"}]
    assert adder.chat(again, tools=[add]).text == "31 plus 8 is 39."


def test_arguments_given_as_text_reach_the_template_as_a_dict(adder: LLM) -> None:
    template = "{% for m in messages %}{% for c in m.tool_calls %}"
    template += "{{ c.function.name }}{{ c.function.arguments.a }}"
    template += "{% endfor %}{% endfor %}{{ tools[0].function.name if tools }}<|turn1|>"
    said = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 5}'}}
    messages = [*ASKED, {"role": "assistant", "tool_calls": [said]}]
    options: dict[str, Any] = {"chat_template": template, "tool_format": "hermes"}
    first = adder.chat(messages, tools=[add], **options)
    call = onegraph.ToolCall("1", "add", {"a": 5})
    messages[-1] = {"role": "assistant", "tool_calls": [call]}
    second = adder.chat(messages, tools=[add], **options)
    assert first.usage.prompt_tokens == second.usage.prompt_tokens == len("add5add") + 1
    # A template that joins them to text gets the text.
    template = template.replace("c.function.arguments.a", "'' + c.function.arguments")
    third = adder.chat(messages, tools=[add], tool_format="hermes", chat_template=template)
    assert third.usage.prompt_tokens == len("add{}add") + len('"a": 5') + 1


def test_reasoning_is_set_apart(script: Script) -> None:
    thinks: dict[str, Any] = {"template": OPENED, "begins": ["<think>"]}
    llm = script("let me see\n</think>\n\nIt is 39.", **thinks)
    result = llm.chat(ASKED)
    assert (result.reasoning, result.text) == ("let me see", "It is 39.")
    assert result.message == {
        "role": "assistant",
        "content": "It is 39.",
        "reasoning_content": "let me see",
        "thinking": "let me see",
    }
    assert result.to_openai()["choices"][0]["message"]["reasoning_content"] == "let me see"
    with llm.chat(ASKED, stream=True) as stream:
        pieces = list(stream)
    assert "".join(piece.reasoning for piece in pieces) == "let me see"
    assert "".join(piece.text for piece in pieces) == "It is 39."
    events = [event for piece in pieces for event in piece.events]
    assert kinds(events) == ["ReasoningDelta", "TextDelta"]
    again = script("so\n</think>\n\n" + CALL, **thinks).chat(ASKED, tools=[add])
    assert (again.reasoning, again.text, again.tool_calls[0].run()) == ("so", "", 39)
    # What is generated without a conversation stays as it is.
    ids = llm.tokenizer.encode("<think>", parse_special=True)
    assert llm.generate(ids).text == "let me see\n</think>\n\nIt is 39."


def test_an_answer_that_goes_on_within_reasoning_does_so(script: Script) -> None:
    template = "{# <think> #}{% for m in messages %}{{ m.content }}{% endfor %}"
    llm = script("let me see</think>It is 39.", template=template)
    start = llm.tokenizer.token_id("<|turn0|>")
    assert start is not None
    for content, reasoning in (("<think>", "let me see"), ("<think>a</think>", None)):
        said = {"role": "assistant", "content": content + "<|turn0|>"}
        result = llm.chat(
            [*ASKED, said], continue_final_message=True, parse_special=True, temperature=0
        )
        assert result.reasoning == reasoning
        expected = "It is 39." if reasoning else "let me see</think>It is 39."
        assert result.text == expected


FORMATS = {
    "mistral": (
        "mistralai-Ministral-3-14B-Reasoning-2512",
        ["[THINK]", "[/THINK]", "[TOOL_CALLS]", "[ARGS]"],
        '[THINK]so it is[/THINK][TOOL_CALLS]add[ARGS]{"a": 31, "b": 8}',
    ),
    "harmony": (
        "openai-gpt-oss-120b",
        ["<|channel|>", "<|message|>", "<|call|>", "<|start|>", "<|end|>"],
        "<|channel|>analysis<|message|>so it is",
    ),
    "gemma4": (
        "google-gemma-4-31B-it",
        ["<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>"],
        "<|channel>thought\nso it is\n<channel|><|tool_call>call:add{a:31,b:8}<tool_call|>",
    ),
    "lfm": (
        "LFM2.5-8B-A1B",
        ["<|tool_call_start|>", "<|tool_call_end|>"],
        "<think>so it is</think><|tool_call_start|>[add(a=31, b=8)]<|tool_call_end|>",
    ),
}


@pytest.mark.parametrize("name", FORMATS)
def test_markers_that_are_control_tokens_are_seen(script: Script, vectors: Path, name: str) -> None:
    template_name, markers, answer = FORMATS[name]
    source = published.template(vectors, template_name) + "<|turn0|>"
    llm = script(answer, markers=markers, template=source)
    result = llm.chat(ASKED, tools=[add])
    assert result.reasoning == "so it is"
    if name != "harmony":  # whose two messages have the same markers
        assert [(c.name, c.arguments) for c in result.tool_calls] == [("add", {"a": 31, "b": 8})]
    assert result.text == "" and result.invalid_tool_calls == []
    # They are no part of a text that nobody takes apart.
    ids = llm.tokenizer.encode("<|turn0|>", parse_special=True)
    assert not any(marker in llm.generate(ids).text for marker in markers)


def test_calls_that_a_template_leaves_out_are_written_for_it(script: Script, vectors: Path) -> None:
    source = published.template(vectors, "LFM2-8B-A1B") + "<|turn0|>"
    markers = ["<|tool_call_start|>", "<|tool_call_end|>"]
    llm = script("It is 39.", markers=markers, template=source)
    call = onegraph.ToolCall("1", "add", {"a": 31, "text": "<|tool_call_end|>"})
    messages: list[dict[str, Any]] = [*ASKED, {"role": "assistant", "tool_calls": [call]}]
    messages.append(call.reply(39))
    job = asked(llm, messages, [add])
    ids = job.asks[0].ids
    start, end = (llm.tokenizer.token_id(marker) for marker in markers)
    assert (ids.count(start or 0), ids.count(end or 0)) == (1, 1)  # what is given spells none
    written = llm.tokenizer.decode(ids[ids.index(start or 0) :], skip_special=False)
    assert written.startswith(
        '<|tool_call_start|>[add(a=31, text="<|tool_call_end|>")]<|tool_call_end|><|im_end|>\n'
        "<|im_start|>tool\n"
    )
    assert llm.chat(messages, tools=[add]).text == "It is 39."


def test_a_call_that_went_wrong_is_told(script: Script) -> None:
    broken = '<tool_call>\n{"name": "add", "arguments": {"a": 31, b: 8}}\n</tool_call>'
    llm = script(broken, "Well: <tool_call> is a marker.")
    result = llm.chat(ASKED, tools=[add])
    (call,) = result.invalid_tool_calls
    assert (call.name, call.text) == ("add", broken)
    assert call.reason == "a key of an object must be in double quotes"
    assert (result.tool_calls, result.text, result.finish_reason) == ([], "", "stop")
    again = llm.chat([*ASKED, {"role": "assistant", "content": "?"}, *ASKED], tools=[add])
    assert (again.text, again.invalid_tool_calls) == ("Well: <tool_call> is a marker.", [])


def test_a_call_that_is_cut_is_none(adder: LLM) -> None:
    result = adder.chat(ASKED, tools=[add], max_tokens=20)
    assert (result.finish_reason, result.tool_calls) == ("length", [])
    (call,) = result.invalid_tool_calls
    assert (call.name, call.reason) == ("add", "the text ended within the call")
    assert CALL.startswith(call.text)
    with adder.chat(ASKED, tools=[add], max_tokens=20, stream=True) as stream:
        events = [event for piece in stream for event in piece.events]
    assert events[-1] == onegraph.ToolCallFailed(0, stream.result.invalid_tool_calls[0])  # type: ignore[union-attr]


def test_a_tool_that_was_not_offered_cannot_be_run(adder: LLM) -> None:
    schema = {"name": "add", "parameters": {"type": "object", "properties": {}}}
    (call,) = adder.chat(ASKED, tools=[schema]).tool_calls
    with pytest.raises(onegraph.ArgumentError, match="tool 'add': no function of this name"):
        call.run()

    def other(x: int) -> int:
        return x

    (call,) = adder.chat(ASKED, tools=[other]).tool_calls
    with pytest.raises(onegraph.ArgumentError, match="tool 'add': no function of this name"):
        call.run()


def refused(llm: LLM, kind: type[onegraph.Error] = onegraph.ArgumentError, **options: Any) -> str:
    with pytest.raises(kind) as caught:
        llm.chat(ASKED, **options)
    with pytest.raises(kind) as again:
        asyncio.run(_awaited(llm, options))
    assert str(again.value) == str(caught.value)
    return str(caught.value)


async def _awaited(llm: LLM, options: dict[str, Any]) -> Any:
    return await llm.achat(ASKED, **options)


def test_what_cannot_be_is_refused_with_what_can(adder: LLM) -> None:
    said = refused(adder, tools=[add], tool_choice="maybe")
    assert said.startswith('tool_choice = \'maybe\': must be "auto", "none", "required"')
    said = refused(adder, tools=[add], tool_format="yaml")
    assert said.startswith("tool_format = 'yaml': must be one of hermes, qwen_xml, llama3")
    said = refused(adder, tools=[add], chat_template="{{ messages[0].content }}")
    assert said.startswith("tools = 1 tools: the chat template has no place for them")
    shown = "{{ tools | tojson }}{{ messages[0].content }}"
    said = refused(adder, onegraph.ModelError, tools=[add], chat_template=shown)
    assert said.startswith("chat template: does not write calls, so its call format")
    assert "hermes (<tool_call>" in said and "set tool_format=" in said
    named = adder.chat(ASKED, tools=[add], tool_format="hermes", chat_template=shown + "<|turn0|>")
    assert named.tool_calls[0].arguments == {"a": 31, "b": 8}
