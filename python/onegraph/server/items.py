"""The items that a response of OpenAI's is made of: each thing is added, filled and done."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from onegraph.answers import (
    ReasoningDelta,
    ToolCallBegun,
    ToolCallDelta,
    ToolCallEnded,
    ToolCallFailed,
)
from onegraph.results import TokenLogprob
from onegraph.server import frames
from onegraph.server.events import Event, Finish, Text
from onegraph.server.tools import Named

__all__ = ["Items", "hidden", "shown"]

#: An event of a stream: its name and fields.
Told = tuple[str, dict[str, Any]]

#: A call of a tool that takes a text.
CUSTOM = "custom_tool_call"

#: The name of an item's events, of its kind, and the start of its id.
NAMES = {"message": "output_text", "reasoning": "reasoning_text"}
PREFIXES = {"message": "msg_", "reasoning": "rs_", "function_call": "fc_", CUSTOM: "ctc_"}

#: What a reasoning begins with that a client keeps without reading it.
HIDDEN = "onegraph:"


def hidden(reasoning: str) -> str:
    """A reasoning as a client keeps it: no secret, but a text that it need not understand."""
    return HIDDEN + base64.b64encode(reasoning.encode()).decode()


def shown(kept: str) -> str | None:
    """The reasoning that a client kept; None for what another server hid."""
    if not kept.startswith(HIDDEN):
        return None
    try:
        return base64.b64decode(kept.removeprefix(HIDDEN), validate=True).decode()
    except ValueError:  # what is no UTF-8 is one too
        return None


class Items:
    """The items of one response as its answer comes.

    named: of the names that the model was shown, those that are something else here
    hides: whether a reasoning has a text too that a client keeps without reading it
    """

    def __init__(self, named: Mapping[str, Named], *, hides: bool) -> None:
        self._named = named
        self._hides = hides
        #: Those that have ended, less calls that went wrong: what the model wrote of one is text.
        self.done: list[dict[str, Any]] = []
        self._item: dict[str, Any] | None = None
        #: How many have ended, those calls too.
        self._n_ended = 0
        #: What the open item has so far.
        self._texts: list[str] = []
        self._input = _Input()
        #: How probable tokens are, of the open item, and of those that no text was told of yet.
        self._scores: list[dict[str, Any]] = []
        self._untold: list[dict[str, Any]] = []

    def event(self, event: Event) -> Iterator[Told]:
        """What is told of an event; all of it is to be taken."""
        return iter(list(self._event(event)))

    def _event(self, event: Event) -> Iterator[Told]:
        if isinstance(event, Text):
            self._untold += map(_scored, event.logprobs or [])
            if event.text:
                yield from self._more("message", event.text)
        elif isinstance(event, ReasoningDelta):
            yield from self._more("reasoning", event.text)
        elif isinstance(event, ToolCallBegun):
            yield from self._begin_call(event)
        elif isinstance(event, ToolCallDelta):
            if self._is_custom():
                yield from self._more_input(self._input.push(event.arguments))
                return
            self._texts.append(event.arguments)
            yield "response.function_call_arguments.delta", self._at(delta=event.arguments)
        elif isinstance(event, ToolCallEnded):
            if self._is_custom():
                text, said = _input_of(event.call.arguments), "".join(self._texts)
                if text.startswith(said):
                    yield from self._more_input(text[len(said) :])
                self._texts = [text]
            yield from self._end("completed")
        elif isinstance(event, ToolCallFailed):
            yield from self._end("incomplete")
            self.done.pop()
        else:
            yield from self._finish(event)

    def _begin_call(self, event: ToolCallBegun) -> Iterator[Told]:
        named = self._named.get(event.name, Named(event.name))
        call: dict[str, Any] = {"call_id": event.id, "name": named.name}
        if named.namespace is not None:
            call["namespace"] = named.namespace
        if named.is_custom:
            yield from self._begin(CUSTOM, {**call, "input": ""})
            self._input = _Input()
        else:
            yield from self._begin("function_call", {**call, "arguments": ""})

    def _more_input(self, text: str) -> Iterator[Told]:
        if text:
            self._texts.append(text)
            yield "response.custom_tool_call_input.delta", self._at(delta=text)

    def _is_custom(self) -> bool:
        return self._item is not None and self._item["type"] == CUSTOM

    def _finish(self, event: Finish) -> Iterator[Told]:
        if self._item is None and not self.done:
            # An answer of nothing is an empty one.
            yield from self._begin("message", {"role": "assistant", "content": []})
        yield from self._end(
            "incomplete" if event.result.finish_reason == "length" else "completed"
        )

    def _at(self, **more: Any) -> dict[str, Any]:
        assert self._item is not None
        return {"item_id": self._item["id"], "output_index": self._n_ended, **more}

    def _more(self, kind: str, text: str) -> Iterator[Told]:
        if self._item is None or self._item["type"] != kind:
            empty: dict[str, Any] = {"role": "assistant"} if kind == "message" else {"summary": []}
            yield from self._begin(kind, {**empty, "content": []})
        self._texts.append(text)
        more = self._told() if kind == "message" else {}
        yield f"response.{NAMES[kind]}.delta", self._at(content_index=0, delta=text, **more)

    def _told(self) -> dict[str, Any]:
        """What is told of the tokens that came."""
        told, self._untold = self._untold, []
        self._scores += told
        return {"logprobs": told}

    def _begin(self, kind: str, fields: dict[str, Any]) -> Iterator[Told]:
        yield from self._end("completed")
        id = frames.identifier(PREFIXES[kind])
        self._item = {"id": id, "type": kind, "status": "in_progress", **fields}
        added = {"output_index": self._n_ended, "item": self._item}
        yield "response.output_item.added", added
        if kind in NAMES:
            part = _part(kind, "")
            yield "response.content_part.added", self._at(content_index=0, part=part)

    def _end(self, status: str) -> Iterator[Told]:
        if self._item is None:
            return
        kind, text = self._item["type"], "".join(self._texts)
        item = {**self._item, "status": status}
        if kind in NAMES:
            part, more = _part(kind, text), {}
            if kind == "message":
                self._told()
                part["logprobs"] = more["logprobs"] = self._scores
            said = self._at(content_index=0, text=text, **more)
            yield f"response.{NAMES[kind]}.done", said
            yield "response.content_part.done", self._at(content_index=0, part=part)
            item["content"] = [part]
            if kind == "reasoning" and self._hides:
                item["encrypted_content"] = hidden(text)
        elif kind == CUSTOM:
            yield "response.custom_tool_call_input.done", self._at(input=text)
            item["input"] = text
        else:
            said = self._at(name=item["name"], arguments=text)
            yield "response.function_call_arguments.done", said
            item["arguments"] = text
        yield "response.output_item.done", {"output_index": self._n_ended, "item": item}
        self.done.append(item)
        self._n_ended += 1
        self._item, self._texts, self._scores = None, [], []


#: How the arguments of a tool that takes a text begin, and whole characters of a string in JSON.
_OPENS = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_WHOLE = re.compile(
    r'(?:[^"\\]|\\["\\/bfnrt]|\\u(?![dD][89a-fA-F])[0-9a-fA-F]{4}'
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})*"
)


#: Characters that wait at most: those before the text, or those of one that is escaped.
MOST_REST = 64


class _Input:
    """The text in the arguments of a call, as they come."""

    def __init__(self) -> None:
        #: What was not read yet, and whether that is within the text.
        self._rest = ""
        self._is_open = False

    def push(self, arguments: str) -> str:
        """The text that these complete."""
        if len(self._rest) > MOST_REST:
            return ""  # it is behind its end, or is none
        self._rest += arguments
        if not self._is_open:
            if (opens := _OPENS.match(self._rest)) is None:
                return ""
            self._is_open, self._rest = True, self._rest[opens.end() :]
        whole = _WHOLE.match(self._rest)
        assert whole is not None  # which may be of nothing
        self._rest = self._rest[whole.end() :]
        text: str = json.loads(f'"{whole[0]}"', strict=False)
        return text


def _input_of(arguments: dict[str, Any]) -> str:
    """The text that a call gives a tool; where it gives none, its arguments as JSON."""
    given = arguments.get("input")
    return given if isinstance(given, str) else json.dumps(arguments, ensure_ascii=False)


def _scored(token: TokenLogprob) -> dict[str, Any]:
    """A token as this dialect writes it; of one that is no whole character no bytes are told."""
    found = token.to_openai()
    for each in (found, *found["top_logprobs"]):
        each["bytes"] = each["bytes"] or []
    return found


def _part(kind: str, text: str) -> dict[str, Any]:
    """A part of an item."""
    more: dict[str, Any] = {"annotations": [], "logprobs": []} if kind == "message" else {}
    return {"type": NAMES[kind], "text": text, **more}
