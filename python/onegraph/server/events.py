"""What a dialect is told of an answer while it is made.

`Reading` is the place where the text of the model is read for what it means: the engine's pieces go
in, events come out, and every dialect writes events and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from onegraph.results import Piece, Result, TokenLogprob

__all__ = ["Event", "Finish", "Reading", "Text"]


@dataclass(frozen=True, slots=True)
class Text:
    """More of the answer's text, whole characters."""

    text: str
    #: One for each token where they were asked for.
    logprobs: list[TokenLogprob] | None


@dataclass(frozen=True, slots=True)
class Finish:
    """The end; nothing comes behind it."""

    result: Result


Event = Text | Finish


class Reading:
    """Reads one answer, piece by piece."""

    def push(self, piece: Piece) -> Iterator[Event]:
        """The events that a piece completes."""
        if piece.text or piece.logprobs:
            yield Text(piece.text, piece.logprobs)

    def finish(self, result: Result) -> Iterator[Event]:
        """What was held back, and the end."""
        yield Finish(result)
