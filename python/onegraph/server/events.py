"""What a dialect is told of an answer while it is made.

The engine's pieces go in, events come out, and every dialect writes events and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from onegraph.answers import (
    AnswerEvent,
    ReasoningDelta,
    TextDelta,
    ToolCall,
    ToolCallBegun,
    ToolCallDelta,
    ToolCallEnded,
    ToolCallFailed,
)
from onegraph.results import Piece, Result, TokenLogprob

__all__ = ["Event", "Finish", "Reading", "Said", "Text", "said"]


@dataclass(frozen=True, slots=True)
class Text:
    """More of the answer's text, whole characters."""

    text: str
    #: One for each token where they were asked for.
    logprobs: list[TokenLogprob] | None = None


@dataclass(frozen=True, slots=True)
class Finish:
    """The end; nothing comes behind it."""

    result: Result


Event = (
    Text | ReasoningDelta | ToolCallBegun | ToolCallDelta | ToolCallEnded | ToolCallFailed | Finish
)


class Reading:
    """Reads one answer, piece by piece. No dialect has a word for a call that went wrong: what the
    model wrote of it comes as text behind its end."""

    def push(self, piece: Piece) -> Iterator[Event]:
        """The events that a piece completes."""
        logprobs = piece.logprobs or None
        events = piece.events
        if not events and (piece.text or logprobs):
            events = [TextDelta(piece.text)]
        if logprobs and not any(isinstance(event, TextDelta) for event in events):
            yield Text("", logprobs)
            logprobs = None
        yield from self.more(events, logprobs)

    def more(
        self, events: list[AnswerEvent], logprobs: list[TokenLogprob] | None = None
    ) -> Iterator[Event]:
        """The events that parts of an answer are; the first text has the tokens."""
        for event in _joined(events) if len(events) > 1 else events:
            if isinstance(event, TextDelta):
                yield Text(event.text, logprobs)
                logprobs = None
            else:
                yield event
            if isinstance(event, ToolCallFailed):
                yield Text(event.call.text)

    def finish(self, result: Result) -> Iterator[Event]:
        """The end."""
        yield Finish(result)

    def whole(self, result: Result) -> Iterator[Event]:
        """All events of an answer that is there: what it thought, said, and asks for."""
        if result.reasoning:
            yield ReasoningDelta(result.reasoning)
        if result.text or result.logprobs:
            yield Text(result.text, result.logprobs)
        for index, call in enumerate(result.tool_calls):
            yield ToolCallBegun(index, call.id, call.name)
            yield ToolCallDelta(index, call.to_openai()["function"]["arguments"])
            yield ToolCallEnded(index, call)
        for invalid in result.invalid_tool_calls:
            yield Text(invalid.text)
        yield Finish(result)


def _joined(events: list[AnswerEvent]) -> list[AnswerEvent]:
    """The same with what belongs together in one: a client that is slow gets several at once."""
    found: list[AnswerEvent] = []
    for _, several in groupby(events, type):
        run = [*several]
        first = run[0]
        if isinstance(first, TextDelta):
            found.append(TextDelta("".join([e.text for e in run if isinstance(e, TextDelta)])))
        elif isinstance(first, ReasoningDelta):
            texts = [e.text for e in run if isinstance(e, ReasoningDelta)]
            found.append(ReasoningDelta("".join(texts)))
        elif isinstance(first, ToolCallDelta):
            texts = [e.arguments for e in run if isinstance(e, ToolCallDelta)]
            found.append(replace(first, arguments="".join(texts)))
        else:
            found += run
    return found


@dataclass(frozen=True, slots=True)
class Said:
    """An answer as a whole."""

    text: str
    reasoning: str
    calls: list[ToolCall]
    logprobs: list[TokenLogprob] | None
    result: Result


def said(events: list[Event]) -> Said:
    """What the events of an answer are together."""
    texts = [event for event in events if isinstance(event, Text)]
    asked = any(text.logprobs is not None for text in texts)
    logprobs = [each for text in texts for each in text.logprobs or []]
    last = events[-1]
    assert isinstance(last, Finish)
    return Said(
        text="".join(text.text for text in texts),
        reasoning="".join(event.text for event in events if isinstance(event, ReasoningDelta)),
        calls=[event.call for event in events if isinstance(event, ToolCallEnded)],
        logprobs=logprobs if asked else None,
        result=last.result,
    )
