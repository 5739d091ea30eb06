"""A conversation with calls of a function, in every dialect, and a model that makes such calls."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from onegraph import LLM

from support import scripted
from support.scripted import asked
from support.serving import Served

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 31, "b": 8}}\n</tool_call>'
ASKED: list[Any] = [{"role": "user", "content": "What is 31 plus 8?"}]
#: The first and the second answer.
ANSWERS = (f"<think>so</think>\n\nI add.\n{CALL}\n", "31 plus 8 is 39.")

#: Shows all that a message may have but the ids of calls: what gets lost on the way is seen.
TEMPLATE = scripted.HERMES.replace(
    "{{ m.role }}\n",
    "{{ m.role }} {{ m.name }} {{ m.tool_call_id }}\n"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}{{ m.thinking }}</think>"
    "{% endif %}",
).replace("<|im_start|>assistant", "{{ enable_thinking }}<|im_start|>assistant")

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}
FUNCTION = {"name": "add", "description": "Adds two numbers.", "parameters": SCHEMA}
#: As OpenAI's chat and ollama have it, as OpenAI's responses have it, as Anthropic has it.
ADD = {"type": "function", "function": FUNCTION}
ADD_FLAT = {"type": "function", **FUNCTION, "strict": False}
ADD_ANTHROPIC = {"name": "add", "description": "Adds two numbers.", "input_schema": SCHEMA}


class Recorded(LLM):
    """A model that keeps the prompts that it was given."""

    prompts: list[list[int]]

    def _conversations(self, *args: Any, **more: Any) -> Any:
        job = super()._conversations(*args, **more)
        self.prompts.append(job.asks[0].ids)
        return job


@dataclass(frozen=True)
class Scripted:
    """A server of a model that gives `ANSWERS`."""

    llm: Recorded
    served: Served

    def expected(self, messages: list[dict[str, Any]], **more: Any) -> list[int]:
        """The prompt that the engine makes of a conversation in Python, with the tool."""
        made = asked(self.llm, messages, [ADD], more or None)
        return made.asks[0].ids


IDS = ("abcdefghi", "bcdefghij")
GIVEN = ({"a": 31, "b": 8}, {"a": 1, "b": 2})
RESULTS = ("39", "3")

#: As Python's `chat` takes it.
PLAIN: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    *ASKED,
    {
        "role": "assistant",
        "content": "I add.",
        "reasoning_content": "so",
        "tool_calls": [
            {"id": id, "type": "function", "function": {"name": "add", "arguments": given}}
            for id, given in zip(IDS, GIVEN, strict=True)
        ],
    },
    *(
        {"role": "tool", "tool_call_id": id, "name": "add", "content": result}
        for id, result in zip(IDS, RESULTS, strict=True)
    ),
]

OPENAI: list[Any] = [
    *PLAIN[:2],
    {
        **PLAIN[2],
        "tool_calls": [
            {
                "id": id,
                "type": "function",
                "function": {"name": "add", "arguments": json.dumps(given)},
            }
            for id, given in zip(IDS, GIVEN, strict=True)
        ],
    },
    *(
        {"role": "tool", "tool_call_id": id, "content": [{"type": "text", "text": result}]}
        for id, result in zip(IDS, RESULTS, strict=True)
    ),
]

#: Behind instructions that it has as a field.
ANTHROPIC: list[Any] = [
    *ASKED,
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "so", "signature": ""},
            {"type": "text", "text": "I add."},
            *(
                {"type": "tool_use", "id": id, "name": "add", "input": given}
                for id, given in zip(IDS, GIVEN, strict=True)
            ),
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": IDS[0], "content": RESULTS[0]},
            {
                "type": "tool_result",
                "tool_use_id": IDS[1],
                "content": [{"type": "text", "text": RESULTS[1]}],
            },
        ],
    },
]

RESPONSES: list[Any] = [
    *ASKED,
    {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "so"}],
    },
    {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "I add.", "annotations": []}],
    },
    *(
        {"type": "function_call", "call_id": id, "name": "add", "arguments": json.dumps(given)}
        for id, given in zip(IDS, GIVEN, strict=True)
    ),
    {"type": "function_call_output", "call_id": IDS[0], "output": RESULTS[0]},
    {
        "type": "function_call_output",
        "call_id": IDS[1],
        "output": [{"type": "input_text", "text": RESULTS[1]}],
    },
]

OLLAMA: list[Any] = [
    *PLAIN[:2],
    {
        "role": "assistant",
        "content": "I add.",
        "thinking": "so",
        "tool_calls": [{"function": {"name": "add", "arguments": given}} for given in GIVEN],
    },
    *({"role": "tool", "tool_name": "add", "content": result} for result in RESULTS),
]
