"""What a reader makes of a text in one of the formats of calls, without a model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from onegraph import ChatTemplate
from onegraph._native import Reading

__all__ = ["Said", "read"]

#: The prompt of an answer, which opens nothing.
TEMPLATE = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")
PROMPT = TEMPLATE.rendering([{"role": "user", "content": "tea"}], None, True)


class Said(NamedTuple):
    """An answer taken apart."""

    text: str
    calls: list[tuple[str, dict[str, Any]]]
    #: Texts of calls that went wrong.
    invalid: list[str]


def read(format: str, text: str, tools: Sequence[dict[str, Any]] = (), *, every: int = 0) -> Said:
    """Takes a text apart, whole or in pieces of so many characters."""
    answer = Reading.with_tools(TEMPLATE, format).answer(
        PROMPT, json.dumps(list(tools)), continues=False, seed=0
    )
    size = every or len(text) or 1
    events = [
        event for at in range(0, len(text), size) for event in answer.push(text[at : at + size])
    ]
    events += answer.finish()
    said, invalid = "", []
    calls: list[tuple[str, dict[str, Any]]] = []
    name = arguments = ""
    for kind, *what in events:
        if kind == "text":
            said += what[0]
        elif kind == "begun":
            name, arguments = what[2], ""
        elif kind == "arguments":
            arguments += what[1]
        elif kind == "ended":
            calls.append((name, json.loads(arguments)))
        elif kind == "failed":
            invalid.append(what[1])
    return Said(said, calls, invalid)
