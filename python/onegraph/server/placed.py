"""Instructions in the middle of a conversation, where many templates have no place for them.

They stay where they are: what was read before them is found again, and what they say of is what
stands around them. A template that takes none there gets them as part of the turn of the user.
"""

from __future__ import annotations

import itertools
from typing import Any
from weakref import WeakKeyDictionary

from onegraph.errors import ModelError
from onegraph.llm import LLM

__all__ = ["placed"]

#: Of each model, whether its template takes instructions anywhere.
_takes_them: WeakKeyDictionary[LLM, bool] = WeakKeyDictionary()

#: Instructions behind a turn of the user's, behind one of the model's, and at the end.
_ROLES = ("system", "user", "system", "assistant", "system", "user", "system")


def placed(llm: LLM, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same conversation as the model's template takes it."""
    behind = itertools.dropwhile(lambda message: message.get("role") == "system", messages)
    if all(message.get("role") != "system" for message in behind):
        return messages
    if llm not in _takes_them:
        _takes_them[llm] = _shows_all(llm)
    return messages if _takes_them[llm] else _folded(messages)


def _shows_all(llm: LLM) -> bool:
    """Whether the template shows instructions wherever they stand, and there."""
    if llm.chat_template is None:
        return True  # what is asked is refused for that
    marks = [f"mark{i}" for i in range(len(_ROLES))]
    said = [{"role": role, "content": mark} for role, mark in zip(_ROLES, marks, strict=True)]
    try:
        text = llm.chat_template.rendering(said, None, True).text
    except ModelError:
        return False
    found = [text.find(mark) for mark in marks]
    return found[0] >= 0 and found == sorted(found)


def _folded(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those at the beginning are one message; those behind are part of the user's turn before
    them, else of the one behind: `<system>`, the text and `</system>`, on lines of their own."""
    # Contents as parts: to join them one by one takes the square of their number.
    found: list[tuple[dict[str, Any], list[str]]] = []
    goes_on = False  # whether what the user says next is part of the last turn
    for message in messages:
        role, text = message.get("role"), message.get("content")
        before = found[-1][0].get("role") if found else None
        if role == "system" and before not in (None, "system"):
            text = f"<system>\n{text}\n</system>"
            message = {"role": "user", "content": text}
            joins, goes_on = before == "user", True
        elif role == "user":
            joins, goes_on = goes_on, False
        else:
            joins, goes_on = role == before == "system", False
        if joins:
            found[-1][1].append(str(text))
        else:
            found.append((message, []))
    return [
        {**message, "content": "\n".join([message["content"], *parts])} if parts else message
        for message, parts in found
    ]
