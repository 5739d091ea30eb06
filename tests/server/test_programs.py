"""What programs for coding send, three turns with a call each, and what they then find kept.

The shapes of the requests are those of the programs; what they say is made up and short.
"""

from __future__ import annotations

import contextlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from onegraph import LLM
from onegraph.server import asgi
from support import scripted, strict
from support.serving import Served, serving

#: Wants instructions at the beginning alone, as the templates of many models do.
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}{% endfor %}"
) + scripted.HERMES.replace(
    "{{ m.content }}",
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}",
)

RULES = (
    "You help with programs in a terminal. Look before you change a file. Say what you did. " * 8
)

PATCH = "*** Begin Patch\n*** Update File: a.py\n@@ def f\n-x\n+y\n*** End Patch\n"

#: A grammar of patches. It is recursive, so calls are not held to it: this model writes its script.
GRAMMAR = r"""
start: "*** Begin Patch" LF hunks "*** End Patch" LF?
hunks: hunk hunks | hunk
hunk: "*** Update File: " /(.+)/ LF change+
change: ("@@" | "@@ " /(.+)/) LF | ("+" | "-" | " ") /(.*)/ LF -> line
%import common.LF
"""


def schema(**properties: str) -> dict[str, Any]:
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {
            name: {"type": "string", "description": d} for name, d in properties.items()
        },
        "required": [*properties],
        "additionalProperties": False,
    }


class Program(ABC):
    """A program in the middle of its work."""

    path: str
    #: The name of the model's tool and its arguments, a call a turn.
    calls: ClassVar[list[tuple[str, dict[str, Any]]]]
    headers: ClassVar[dict[str, str]] = {}

    def __init__(self) -> None:
        self.turn = 0
        self.begin()

    def answers(self) -> list[str]:
        return [
            f"<think>thought {i}{'abc'[i]}</think>\n\nStep {'xyz'[i]}.\n<tool_call>\n"
            + json.dumps({"name": name, "arguments": arguments})
            + "\n</tool_call>"
            for i, (name, arguments) in enumerate(self.calls)
        ]

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def body(self) -> dict[str, Any]: ...

    @abstractmethod
    def read(self, raw: str) -> tuple[int, int, int]:
        """Takes the stream of an answer, runs what it calls, and goes on; tokens of the prompt,
        those of them that were kept, and tokens of the answer."""


class Codex(Program):
    path = "/v1/responses"
    calls: ClassVar = [
        ("exec_command", {"cmd": "ls -a", "workdir": "/w"}),
        ("apply_patch", {"input": PATCH}),
        ("mcp__notes__find", {"words": "release"}),
    ]

    def begin(self) -> None:
        def text(role: str, said: str) -> dict[str, Any]:
            part = {"type": "input_text", "text": said}
            return {"type": "message", "role": role, "content": [part]}

        self.text = text
        self.items: list[Any] = [
            text("developer", "<permissions>The sandbox may write to /w.</permissions>"),
            text("user", "<environment_context><cwd>/w</cwd></environment_context>"),
            text("user", "Rename x to y in a.py."),
        ]

    def body(self) -> dict[str, Any]:
        grammar = {"type": "grammar", "syntax": "lark", "definition": GRAMMAR}
        return {
            "instructions": RULES,
            "input": self.items,
            "tools": [
                {
                    "type": "function",
                    "name": "exec_command",
                    "description": "Runs a command.",
                    "strict": False,
                    "parameters": schema(cmd="the command", workdir="where"),
                },
                {
                    "type": "custom",
                    "name": "apply_patch",
                    "description": "Edits.",
                    "format": grammar,
                },
                {
                    "type": "namespace",
                    "name": "mcp__notes__",
                    "description": "Notes of the team.",
                    "tools": [
                        {
                            "type": "function",
                            "name": "find",
                            "strict": False,
                            "parameters": schema(words="what to find"),
                        }
                    ],
                },
                {"type": "web_search", "external_web_access": False},
                {"type": "image_generation", "output_format": "png"},
                {"type": "local_shell"},
            ],
            "tool_choice": "auto",
            "parallel_tool_calls": True,
            "reasoning": {"effort": "medium", "summary": "auto"},
            "store": False,
            "stream": True,
            "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": "a-thread",
            "text": {"verbosity": "low"},
            "client_metadata": {"x-codex-installation-id": "i"},
        }

    def read(self, raw: str) -> tuple[int, int, int]:
        events = strict.responses(raw)
        response = events[-1]["response"]
        reasoning, message, call = response["output"]
        kept = {"summary": [], "content": None, "encrypted_content": reasoning["encrypted_content"]}
        self.items += [{"type": "reasoning", "id": reasoning["id"], **kept}, message]
        asked = {
            key: call[key]
            for key in ("type", "call_id", "name", "namespace", "input", "arguments")
            if key in call
        }
        name, given = self.calls[self.turn]
        kinds = [event["type"] for event in events]
        if name == "apply_patch":
            assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", name, PATCH)
            delta, done = (
                kinds.index(f"response.custom_tool_call_input.{k}") for k in ("delta", "done")
            )
            assert delta < done and events[done]["input"] == PATCH
            self.items += [
                asked,
                {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "Done."},
                {
                    "type": "web_search_call",
                    "id": "ws_1",
                    "status": "completed",
                    "action": {"type": "search", "query": "y"},
                },
                self.text("developer", "The sandbox is read-only now."),
            ]
        else:
            assert (call["type"], json.loads(call["arguments"])) == ("function_call", given)
            space = (call.get("namespace") or "") + call["name"]
            assert space == name
            self.items += [
                asked,
                {"type": "function_call_output", "call_id": call["call_id"], "output": "a.py"},
            ]
        usage = response["usage"]
        assert usage["output_tokens"] > usage["output_tokens_details"]["reasoning_tokens"] > 2
        return (
            usage["input_tokens"],
            usage["input_tokens_details"]["cached_tokens"],
            usage["output_tokens"],
        )


@contextlib.contextmanager
def running(folder: Path, program: Program) -> Iterator[Served]:
    """A model that calls what the program expects, and its server."""
    path = folder / f"{type(program).__name__}.gguf"
    scripted.write(path, program.answers(), template=TEMPLATE, n_ctx=16384)
    with LLM(path, device="cpu", max_batch=1) as llm, serving(asgi({"m": llm})) as served:
        yield served


@pytest.mark.parametrize("kind", [Codex])
def test_what_was_read_in_one_turn_is_found_in_the_next(
    kind: type[Program], tmp_path: Path
) -> None:
    program = kind()
    old = 0
    with running(tmp_path, program) as served:
        for _ in program.calls:
            status, raw = served.post(
                program.path, {"model": "m", **program.body()}, **program.headers
            )
            assert status == 200, raw
            read, kept, said = program.read(raw)
            assert kept >= 0.95 * old, (program.turn, read, kept, old)
            old = read + said
            program.turn += 1
