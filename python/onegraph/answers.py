"""An answer taken apart: its text, its reasoning and the calls of tools in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from onegraph import _native
from onegraph.errors import ArgumentError

if TYPE_CHECKING:
    from onegraph.functions import Offered

__all__ = [
    "AnswerEvent",
    "InvalidToolCall",
    "ReasoningDelta",
    "TextDelta",
    "ToolCall",
    "ToolCallBegun",
    "ToolCallDelta",
    "ToolCallEnded",
    "ToolCallFailed",
]


@dataclass(frozen=True)
class ToolCall:
    """A model's call of a tool."""

    #: Nine letters and digits; the reply refers to it.
    id: str
    #: The tool's name. A model may name one that was not offered.
    name: str
    #: As the model wrote them; only `run` checks them against the tool.
    arguments: dict[str, Any]

    #: Of the function that was offered under this name.
    _function: ClassVar[Callable[..., Any] | None] = None

    def run(self) -> Any:
        """Calls the function offered under this name, with the arguments converted to the types of
        its annotations, and returns its result; for an async function, an awaitable.

        Raises `ArgumentError` if no such function was offered or the arguments do not fit it, and
        whatever the function raises.
        """
        if self._function is None:
            raise ArgumentError(
                f"tool {self.name!r}: no function of this name was offered; tell the model "
                "with reply(), or run it yourself if it was offered as a dict"
            )
        from onegraph.functions import call

        return call(self._function, self.arguments)

    def reply(self, result: Any) -> dict[str, Any]:
        """The message with the result of this call, to append after the message that made it: a
        string as it is, anything else as JSON. Report an error as a string.

        Raises `ArgumentError` for a result that JSON cannot represent.
        """
        from onegraph.functions import content

        said = content(result)
        return {"role": "tool", "tool_call_id": self.id, "name": self.name, "content": said}

    def __reduce__(self) -> tuple[type[ToolCall], tuple[str, str, dict[str, Any]]]:
        # A function, which may be local, does not go to another process.
        return ToolCall, (self.id, self.name, self.arguments)

    def to_openai(self) -> dict[str, Any]:
        """The call in the OpenAI API's form, with the arguments as a string."""
        said = json.dumps(self.arguments, ensure_ascii=False)
        function = {"name": self.name, "arguments": said}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(frozen=True)
class InvalidToolCall:
    """A call that started but is invalid: it runs no tool."""

    id: str
    name: str
    #: What the model wrote, markers included.
    text: str
    #: What is wrong with it.
    reason: str


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More text."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallBegun:
    """A call has started. Calls are numbered from 0 and follow one another."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """More of a call's arguments: concatenated, those of a call are a JSON object."""

    index: int
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolCallEnded:
    """A complete call."""

    index: int
    call: ToolCall


@dataclass(frozen=True, slots=True)
class ToolCallFailed:
    """A call that started but failed."""

    index: int
    call: InvalidToolCall


AnswerEvent = (
    TextDelta | ReasoningDelta | ToolCallBegun | ToolCallDelta | ToolCallEnded | ToolCallFailed
)


@dataclass(frozen=True)
class Reader:
    """How the answers to one prompt are read."""

    reading: _native.Reading
    prompt: _native.Rendering
    offered: Offered
    #: Whether the answer goes on with a message of the conversation.
    continues: bool
    #: Control tokens whose spelling is part of the text.
    shown: list[int]
    #: What ids of calls depend on beside the seed: the prompt, so that no two turns have the same.
    salt: int

    def begin(self, seed: int) -> Answer:
        mixed = hash((seed, self.salt)) % 2**64
        native = self.reading.answer(
            self.prompt, self.offered.json, continues=self.continues, seed=mixed
        )
        return Answer(native, self.offered.functions)


class Answer:
    """One answer as it comes."""

    def __init__(self, native: _native.Answer, functions: Mapping[str, Callable[..., Any]]) -> None:
        self._native = native
        self._functions = functions
        self._text: list[str] = []
        self._reasoning: list[str] = []
        #: Id and name of the call that is open, and its arguments.
        self._open = ("", "")
        self._arguments: list[str] = []
        self.calls: list[ToolCall] = []
        self.invalid: list[InvalidToolCall] = []

    @property
    def text(self) -> str:
        return "".join(self._text)

    @property
    def reasoning(self) -> str | None:
        return "".join(self._reasoning) or None

    def push(self, text: str, last: bool) -> list[AnswerEvent]:
        """What more of the text makes certain; of the `last`, all that is left."""
        said = self._native.push(text)
        if last:
            said += self._native.finish()
        return [self._event(*each) for each in said]

    def _event(self, kind: str, *what: Any) -> AnswerEvent:
        if kind == "text":
            self._text.append(what[0])
            return TextDelta(what[0])
        if kind == "reasoning":
            self._reasoning.append(what[0])
            return ReasoningDelta(what[0])
        index: int = what[0]
        if kind == "begun":
            self._open, self._arguments = (what[1], what[2]), []
            return ToolCallBegun(*what)
        if kind == "arguments":
            self._arguments.append(what[1])
            return ToolCallDelta(*what)
        if kind == "ended":
            return ToolCallEnded(index, self._ended())
        invalid = InvalidToolCall(*self._open, *what[1:])
        self.invalid.append(invalid)
        return ToolCallFailed(index, invalid)

    def _ended(self) -> ToolCall:
        id, name = self._open
        call = ToolCall(id, name, json.loads("".join(self._arguments)))
        if name in self._functions:
            object.__setattr__(call, "_function", self._functions[name])
        self.calls.append(call)
        return call
