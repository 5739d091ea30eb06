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

import anthropic
import openai
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
            deltas = [e["delta"] for e in events[delta:done] if e["type"] == kinds[delta]]
            assert "".join(deltas) == PATCH and len(deltas) > 9
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


class ClaudeCode(Program):
    path = "/v1/messages?beta=true"
    headers: ClassVar = {
        "anthropic_version": "2023-06-01",
        "anthropic_beta": "claude-code-20250219,mid-conversation-system-2026-04-07",
    }
    calls: ClassVar = [
        ("Bash", {"command": "ls -a", "description": "Lists files"}),
        ("Read", {"file_path": "/w/a.py"}),
        ("Edit", {"file_path": "/w/b.py", "old_string": "x = 1", "new_string": "y = 1"}),
    ]

    def begin(self) -> None:
        reminder = "<system-reminder>The date is 2026-11-28.</system-reminder>"
        self.turns: list[Any] = [
            {"role": "user", "content": [_text(reminder), _text("Rename x to y in a.py.")]},
            {"role": "system", "content": "Tools of the editor are connected."},
        ]

    def body(self) -> dict[str, Any]:
        kept = {"cache_control": {"type": "ephemeral"}}
        billed = f"x-anthropic-billing-header: cc_version=2.1.200; cch={self.turn * 7919:05x};"
        described = {
            "Bash": schema(command="the command", description="what it does"),
            "Read": schema(file_path="the file"),
            "Edit": schema(file_path="the file", old_string="what", new_string="by what"),
        }
        return {
            "max_tokens": 8000,
            "stream": True,
            "system": [_text(billed), {**_text("You are a helper."), **kept}, _text(RULES) | kept],
            "messages": self.turns,
            "tools": [
                *(
                    {"name": name, "description": f"{name} of the program.", "input_schema": of}
                    for name, of in described.items()
                ),
                {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
            ],
            "thinking": {"type": "adaptive"},
            "output_config": {"effort": "medium"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "metadata": {"user_id": "user_1_account__session_2"},
        }

    def read(self, raw: str) -> tuple[int, int, int]:
        events = strict.messages(raw)
        blocks: list[dict[str, Any]] = []
        for event in events:
            if event["type"] == "content_block_start":
                blocks.append({**event["content_block"], "said": ""})
            elif event["type"] == "content_block_delta":
                blocks[-1]["said"] += [*event["delta"].values()][1]
        thinking, text, call = blocks
        name, given = self.calls[self.turn]
        assert (call["type"], call["name"], json.loads(call["said"])) == ("tool_use", name, given)
        used = {"type": "tool_use", "id": call["id"], "name": name, "input": given}
        thought = {"type": "thinking", "thinking": thinking["said"], "signature": ""}
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": "a.py"}
        self.turns += [
            {"role": "assistant", "content": [thought, _text(text["said"]), used]},
            {"role": "user", "content": [{**result, "cache_control": {"type": "ephemeral"}}]},
            {"role": "system", "content": [_text(f"{self.turn + 1} files have changed.")]},
        ]
        usage = events[-2]["usage"]
        read = usage["input_tokens"] + usage["cache_read_input_tokens"]
        return read, usage["cache_read_input_tokens"], usage["output_tokens"]


def _text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


class ByChat(Program):
    """A program that speaks OpenAI's chat."""

    path = "/v1/chat/completions"
    #: Whether texts come as parts, and the fields beside the conversation and its tools.
    in_parts = False
    more: ClassVar[dict[str, Any]] = {}

    def begin(self) -> None:
        self.messages: list[Any] = [
            {"role": "system", "content": self.said(RULES)},
            {"role": "user", "content": self.said("Rename x to y in a.py.")},
        ]

    def said(self, text: str) -> Any:
        return [_text(text)] if self.in_parts else text

    def body(self) -> dict[str, Any]:
        tools = []
        for name, given in self.calls:
            of = schema(**{each: f"the {each}" for each in given})
            function = {"name": name, "description": f"{name} of the program.", "parameters": of}
            tools.append({"type": "function", "function": function})
        usage = {"stream_options": {"include_usage": True}}
        return {"messages": self.messages, "tools": tools, "stream": True, **usage, **self.more}

    def read(self, raw: str) -> tuple[int, int, int]:
        events = strict.chunks(raw)
        text = reasoning = arguments = ""
        call: dict[str, Any] = {}
        for delta in (event["choices"][0]["delta"] for event in events if event["choices"]):
            text += delta.get("content") or ""
            reasoning += delta.get("reasoning_content") or ""
            for part in delta.get("tool_calls", []):
                call |= {key: part[key] for key in ("id", "type") if key in part}
                call["name"] = call.get("name", "") + part["function"].get("name", "")
                arguments += part["function"].get("arguments", "")
        name, given = self.calls[self.turn]
        assert (call["type"], call["name"], json.loads(arguments)) == ("function", name, given)
        function = {"name": name, "arguments": arguments}
        answer = {"role": "assistant", "content": text, "reasoning_content": reasoning}
        called = {"id": call["id"], "type": "function", "function": function}
        self.messages += [
            {**answer, "tool_calls": [called]},
            {"role": "tool", "tool_call_id": call["id"], "content": self.said("a.py")},
            *self.behind(),
        ]
        usage = events[-1]["usage"]
        kept = usage["prompt_tokens_details"]["cached_tokens"]
        return usage["prompt_tokens"], kept, usage["completion_tokens"]

    def behind(self) -> list[dict[str, Any]]:
        """What the program says beside what a tool gave back."""
        return []


class OpenCode(ByChat):
    calls: ClassVar = [
        ("bash", {"command": "ls -a", "description": "Lists"}),
        ("read", {"filePath": "/w/a.py"}),
        ("edit", {"filePath": "/w/b.py", "oldString": "x = 1", "newString": "y = 1"}),
    ]
    more: ClassVar = {
        "max_tokens": 8000,
        "temperature": 0,
        "top_p": 1,
        "tool_choice": "auto",
        "reasoning_effort": "medium",
    }


class Zed(ByChat):
    in_parts = True
    calls: ClassVar = [
        ("terminal", {"command": "ls -a", "cd": "w"}),
        ("read_file", {"path": "w/a.py"}),
        ("edit_file", {"path": "w/b.py", "mode": "edit", "display_description": "Rename it"}),
    ]
    more: ClassVar = {
        "stop": [],
        "temperature": 1.0,
        "max_completion_tokens": 8000,
        "parallel_tool_calls": True,
        "prompt_cache_key": "a-thread",
        "reasoning_effort": "low",
    }


class Copilot(ByChat):
    calls: ClassVar = [
        ("run_in_terminal", {"command": "ls -a", "explanation": "Lists"}),
        ("read_file", {"filePath": "/w/a.py"}),
        ("replace_string", {"filePath": "/w/b.py", "oldString": "x = 1", "newString": "y = 1"}),
    ]
    more: ClassVar = {
        "max_tokens": 8000,
        "temperature": 0.1,
        "top_p": 1,
        "n": 1,
        "tool_choice": "auto",
        "prediction": {"type": "content", "content": "y = 1"},
        "store": False,
        "metadata": {"intent": "agent"},
        "service_tier": "auto",
    }

    def behind(self) -> list[dict[str, Any]]:
        return [{"role": "system", "content": f"{self.turn + 1} files are open."}]


class QwenCode(ByChat):
    in_parts = True
    calls: ClassVar = [
        ("run_shell_command", {"command": "ls -a", "directory": "w"}),
        ("read_file", {"absolute_path": "/w/a.py"}),
        ("edit", {"file_path": "/w/b.py", "old_string": "x = 1", "new_string": "y = 1"}),
    ]
    more: ClassVar = {
        "max_tokens": 8000,
        "temperature": 0.3,
        "metadata": {"sessionId": "s", "promptId": "s########1"},
        "vl_high_resolution_images": True,
    }

    def said(self, text: str) -> Any:
        return [{**_text(text), "cache_control": {"type": "ephemeral"}}]


@contextlib.contextmanager
def running(folder: Path, program: Program) -> Iterator[Served]:
    """A model that calls what the program expects, and its server."""
    path = folder / f"{type(program).__name__}.gguf"
    scripted.write(path, program.answers(), template=TEMPLATE, n_ctx=16384)
    with LLM(path, device="cpu", max_batch=1) as llm, serving(asgi({"m": llm})) as served:
        yield served


@pytest.mark.parametrize("kind", [ClaudeCode, Codex, OpenCode, Zed, Copilot, QwenCode])
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


def test_the_clients_of_all_three_read_a_turn(tmp_path: Path) -> None:
    """Their own streams, which put an answer together, and end in the same calls."""
    given: Any
    for program in (ClaudeCode(), Codex(), OpenCode()):
        with running(tmp_path, program) as served:
            body = {"model": "m", **program.body()}
            del body["stream"]
            key: dict[str, Any] = {"api_key": "any", "max_retries": 0}
            if isinstance(program, ClaudeCode):
                by_anthropic = anthropic.Anthropic(base_url=served.url, **key)
                more = {name: body.pop(name) for name in ("context_management",)}
                with by_anthropic.messages.stream(**body, extra_body=more) as messages:
                    given = messages.get_final_message().content[-1].input  # type: ignore[union-attr]
            elif isinstance(program, Codex):
                by_openai = openai.OpenAI(base_url=f"{served.url}/v1", **key)
                more = {"client_metadata": body.pop("client_metadata")}
                with by_openai.responses.stream(**body, extra_body=more) as responses:
                    output: Any = responses.get_final_response().output
                    given = json.loads(output[-1].arguments)
            else:
                by_openai = openai.OpenAI(base_url=f"{served.url}/v1", **key)
                with by_openai.chat.completions.stream(**body) as chat:
                    (call,) = chat.get_final_completion().choices[0].message.tool_calls or []
                    given = json.loads(call.function.arguments)
            assert given == program.calls[0][1]
