"""Conversations in which tools were called, in the one form that templates know."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from typing import Any

__all__ = ["History", "Unanswered", "called", "with_reasoning"]


def called(id: str | None, name: str | None, arguments: Any) -> dict[str, Any]:
    """A call; the arguments as an object, or as its JSON."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def with_reasoning(message: dict[str, Any], reasoning: str | None) -> dict[str, Any]:
    """The message of an assistant that thought before, as `Result.message` has it."""
    if not reasoning:
        return message
    found = {**message, "reasoning_content": reasoning}
    # The other name that templates have for it; where there are calls, in place of a text.
    if not (found.get("content") and found.get("tool_calls")):
        found["thinking"] = reasoning
    return found


class Unanswered:
    """Calls of a message whose results are to come."""

    def __init__(self, calls: list[dict[str, Any]]) -> None:
        self._calls = calls
        self._taken: set[int] = set()
        #: Those of an id and a name, of either, and all of them: the first one first.
        self._of: defaultdict[tuple[str | None, str | None], deque[int]] = defaultdict(deque)
        for i, call in enumerate(calls):
            for id in (None, call["id"]):
                for name in (None, call["function"]["name"]):
                    self._of[id, name].append(i)

    def take(self, id: str | None, name: str | None) -> dict[str, Any] | None:
        """The first that has this id and name, where they are given, and no result yet."""
        waiting = self._of.get((id, name))
        while waiting:
            if (i := waiting.popleft()) not in self._taken:
                self._taken.add(i)
                return self._calls[i]
        return None


class History:
    """The messages of a conversation whose dialect has calls and results as parts of others."""

    def __init__(self) -> None:
        # Contents and reasoning as parts: to join them one by one takes the square of their number.
        self._messages: list[dict[str, Any]] = []
        #: Names of the functions that calls were of.
        self._names: dict[str | None, str | None] = {}
        #: What the assistant thought before what comes next.
        self._thought: list[str] = []

    def instruct(self, text: str | None) -> None:
        """A message to the model from who set it up; what comes at once behind one is part of it:
        many templates have a place for one, and refuse two."""
        last = self._messages[-1]["role"] if self._messages else None
        self.say("system", text, joins=last == "system")

    def say(self, role: str | None, text: str | None, *, joins: bool = False) -> None:
        """A message of text; one that `joins` is part of the one before."""
        if joins:
            self._messages[-1]["content"] += ["\n", str(text)]
        else:
            self._messages.append({"role": role, "content": [text or ""]})
        if role == "assistant":
            self._reason()

    def think(self, text: str) -> None:
        """Reasoning that belongs to what the assistant does next."""
        self._thought.append(text)

    def answer(
        self, text: str, calls: Iterable[dict[str, Any]] = (), *, joins: bool = False
    ) -> None:
        """A message of the assistant."""
        self.say("assistant", text, joins=joins)
        for call in calls:
            self.call(call)

    def call(self, call: dict[str, Any]) -> None:
        """A call, which belongs to the message before if that is the assistant's."""
        if not self._messages or self._messages[-1]["role"] != "assistant":
            self._messages.append({"role": "assistant", "content": []})
        self._reason()
        self._messages[-1].setdefault("tool_calls", []).append(call)
        self._names[call["id"]] = call["function"]["name"]

    def _reason(self) -> None:
        if self._thought:
            self._messages[-1].setdefault("reasoning_content", []).extend(self._thought)
            self._thought = []

    def returned(self, id: str | None, text: str | None) -> None:
        """What a call gave back."""
        message: dict[str, Any] = {"role": "tool", "tool_call_id": id, "content": [text or ""]}
        if (name := self._names.get(id)) is not None:
            message["name"] = name
        self._messages.append(message)

    def messages(self) -> list[dict[str, Any]]:
        """All of it."""
        found = []
        for each in self._messages:
            reasoning = "".join(each.pop("reasoning_content", []))
            found.append(with_reasoning({**each, "content": "".join(each["content"])}, reasoning))
        return found
