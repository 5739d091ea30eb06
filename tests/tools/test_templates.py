"""Which of the published templates write calls in a format that is known, and that what they write
is read back."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import gguf
import onegraph
import pytest
from onegraph import _native
from support import published
from support.conversations import TOOL, user

#: Of each template the format of its calls; "" where it is none of those, and the prompt with tools
#: is refused.
FORMATS = {
    "Apertus-8B-Instruct": "",
    "Apriel-1.6-15b-Thinker-fixed": "",
    "Bielik-11B-v3.0-Instruct": "hermes",
    "ByteDance-Seed-OSS": "",
    "Cohere2MoE": "",
    "CohereForAI-c4ai-command-r-plus-tool_use": "",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "",
    "GLM-4.6": "",
    "GLM-4.7-Flash": "",
    "GigaChat3-10B-A1.8B": "",
    "GigaChat3.1-10B-A1.8B": "",
    "HuggingFaceTB-SmolLM3-3B": "",
    "Kimi-K2-Instruct": "",
    "Kimi-K2-Thinking": "",
    "Kimi-K3": "",
    "LFM2-8B-A1B": "lfm",
    "LFM2.5-8B-A1B": "lfm",
    "LFM2.5-Instruct": "",
    "MiMo-VL": "hermes",
    "MiniMax-M1": "",
    "MiniMax-M2": "",
    "MiniMax-M3": "",
    "Mistral-Small-3.2-24B-Instruct-2506": "mistral",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "qwen_xml",
    "NVIDIA-Nemotron-Nano-v2": "",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": "hermes",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "hermes",
    "Qwen-QwQ-32B": "hermes",
    "Qwen-Qwen2.5-7B-Instruct": "hermes",
    "Qwen-Qwen3-0.6B": "hermes",
    "Qwen3-Coder": "qwen_xml",
    "Qwen3.5-4B": "qwen_xml",
    "Reka-Edge": "hermes",
    "Spark2.5": "",
    "StepFun3.5-Flash": "qwen_xml",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": "",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "",
    "deepseek-ai-DeepSeek-V3.1": "",
    "deepseek-ai-DeepSeek-V3.2": "",
    "deepseek-ai-DeepSeek-V4": "",
    "deepseek-ai-DeepSeek-V4-Flash-0731": "",
    "fireworks-ai-llama-3-firefunction-v2": "",
    "google-gemma-2-2b-it": "",
    "google-gemma-4-31B-it": "gemma4",
    "google-gemma-4-31B-it-interleaved": "gemma4",
    "ibm-granite-granite-3.3-2B-Instruct": "",
    "ibm-granite-granite-4.0": "hermes",
    "ibm-granite-granite-4.1": "hermes",
    "inclusionai-ling-3.0-flash": "",
    "llama-cpp-deepseek-r1": "",
    "llama-cpp-rwkv-world": "",
    "meetkai-functionary-medium-v3.1": "",
    "meetkai-functionary-medium-v3.2": "",
    "meta-llama-Llama-3.1-8B-Instruct": "llama3",
    "meta-llama-Llama-3.2-3B-Instruct": "llama3",
    "meta-llama-Llama-3.3-70B-Instruct": "llama3",
    "microsoft-Phi-3.5-mini-instruct": "",
    "mistralai-Ministral-3-14B-Reasoning-2512": "mistral",
    "mistralai-Mistral-Nemo-Instruct-2407": "mistral",
    "moonshotai-Kimi-K2": "",
    "muse-glimmer": "",
    "openai-gpt-oss-120b": "harmony",
    "openbmb-MiniCPM5-1B": "",
    "poolside-Laguna-S-2.1": "",
    "poolside-Laguna-XS-2.1": "",
    "poolside-Laguna-XS.2": "",
    "tencent-Hy3": "",
    "unsloth-Apriel-1.5": "",
    "unsloth-mistral-Devstral-Small-2507": "mistral",
    "upstage-Solar-Open-100B": "",
}
#: Those whose template leaves out the calls of a conversation, which are written for it.
LEAVES_OUT = {"LFM2-8B-A1B"}

#: Arguments that a call is read back with.
ARGUMENTS: list[dict[str, Any]] = [
    {"city": "Zürich"},
    {"city": "a } ] \"b\", 'c' <d> & \\ 東京 🌍\n\tx", "days": -3},
    {"city": "", "limit": 1.5e-07, "detail": ["a", 'b"'], "extra": {"k": [1, {"x": "y"}]}},
    {"city": "7", "days": 10**15, "detail": [], "extra": {}},
    {},
]
#: Python's quotes are not escaped by the template, so these come back changed in every reader.
AMBIGUOUS = {"lfm": [1, 2]}

QUESTION = "Weather of which city?"

each_template = pytest.mark.parametrize("name", FORMATS)


def source_of(vectors: Path, name: str) -> str:
    return published.template(vectors, name)


def test_every_template_that_is_there_has_a_row(vectors: Path) -> None:
    there = {path.stem for path in (vectors / "templates").glob("*.jinja")}
    assert there and there <= FORMATS.keys()


def check_refused(template: onegraph.ChatTemplate) -> None:
    with pytest.raises(onegraph.ModelError) as caught:
        _native.Reading.with_tools(template, None)
    said = str(caught.value)
    assert "so its call format is unknown" in said and "tool_format=" in said
    for known, looks in _native.tool_formats():
        assert known in said and looks in said


def read_back(
    template: onegraph.ChatTemplate, reading: _native.Reading, arguments: dict[str, Any]
) -> list[tuple[str, Any]]:
    """Name and arguments of each call that is read from what the template writes for one."""
    function = {"name": "get_weather", "arguments": arguments}
    call = {"id": "abcdef123", "type": "function", "function": function}
    asked = [user(QUESTION), {"role": "assistant", "content": "", "tool_calls": [call]}]
    prompt = template.rendering([user(QUESTION)], [TOOL], True)
    written = template.rendering(asked, [TOOL], False).text.rpartition(QUESTION)[2]
    begun = prompt.text.rpartition(QUESTION)[2]
    shared = next(
        (i for i, (a, b) in enumerate(zip(begun, written, strict=False)) if a != b),
        min(len(begun), len(written)),
    )
    if shared < len(begun):
        shared = max(begun.rfind("<", 0, shared), begun.rfind(">", 0, shared) + 1)
    answer = reading.answer(prompt, json.dumps([TOOL]), continues=False, seed=1)
    return called(answer, written[shared:])


def called(answer: _native.Answer, text: str) -> list[tuple[str, Any]]:
    events = [*answer.push(text), *answer.finish()]
    assert [event for event in events if event[0] == "failed"] == []
    found = []
    for event in events:
        if event[0] == "begun":
            found.append((event[3], ""))
        elif event[0] == "arguments":
            found[-1] = (found[-1][0], found[-1][1] + event[2])
        elif event[0] == "text" and not found:
            assert not event[1].strip(), f"text before the call: {event[1]!r}"
    return [(name, json.loads(said)) for name, said in found]


@each_template
def test_a_call_is_read_back_or_tools_are_refused(vectors: Path, name: str) -> None:
    template = onegraph.ChatTemplate(source_of(vectors, name))
    if not FORMATS[name]:
        return check_refused(template)
    reading = _native.Reading.with_tools(template, None)
    assert (reading.format, reading.writes) == (FORMATS[name], name not in LEAVES_OUT)
    if not reading.writes:
        return
    for i, arguments in enumerate(ARGUMENTS):
        if i not in AMBIGUOUS.get(FORMATS[name], []):
            found = read_back(template, reading, arguments)
            assert found == [("get_weather", arguments)], (name, arguments)


def test_a_call_behind_words_of_another_format_is_of_none() -> None:
    """As ByteDance-Seed-OSS has it."""
    written = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}{% for c in m.tool_calls %}"
        "BEGIN<tool_call><function={{ c.function.name }}>"
        "{% for k, v in c.function.arguments.items() %}"
        "<parameter={{ k }}>{{ v }}</parameter>{% endfor %}</function></tool_call>{% endfor %}"
        "{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
    )
    check_refused(onegraph.ChatTemplate(written))
    plain = onegraph.ChatTemplate(written.replace("BEGIN", ""))
    assert _native.Reading.with_tools(plain, None).format == "qwen_xml"


def test_the_template_in_the_vocabulary_of_gemma_4(vectors: Path) -> None:
    fields = gguf.GGUFReader(published.vocabulary(vectors, "gemma-4")).fields
    template = onegraph.ChatTemplate(fields["tokenizer.chat_template"].contents())
    reading = _native.Reading.with_tools(template, None)
    assert reading.format == "gemma4"
    for arguments in ARGUMENTS:
        assert read_back(template, reading, arguments) == [("get_weather", arguments)]


@each_template
def test_a_format_that_is_named_needs_no_template(vectors: Path, name: str) -> None:
    template = onegraph.ChatTemplate(source_of(vectors, name))
    reading = _native.Reading.with_tools(template, "hermes")
    assert reading.format == "hermes"


def test_control_tokens_of_markers_are_found_in_the_vocabulary(vectors: Path) -> None:
    tokenizer = onegraph.Tokenizer(published.vocabulary(vectors, "gemma-4"))
    fields = gguf.GGUFReader(published.vocabulary(vectors, "gemma-4")).fields
    template = onegraph.ChatTemplate(fields["tokenizer.chat_template"].contents())
    shown = _native.Reading.with_tools(template, None).shown(tokenizer)
    spelled = functools.partial(map, tokenizer.token_text)
    assert set(spelled(shown)) <= {
        *("<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>")
    }
    markers = ["<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>"]
    special = [m for m in markers if tokenizer.is_special(tokenizer.token_id(m) or 0)]
    assert sorted(spelled(shown)) == sorted(special)
