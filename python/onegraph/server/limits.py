"""How much of the server one client, or all of them together, may take."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

from onegraph.server.refusals import Refused

__all__ = ["Limits", "Line"]


@dataclass(frozen=True)
class Limits:
    """What `onegraph.asgi` and `onegraph serve` are told."""

    #: Requests of one model that may wait for their turn; further ones are refused with 429.
    max_queue: int = 128
    #: Most tokens of one answer, whatever is asked for; None: as many as the context has.
    max_tokens: int | None = None
    #: Seconds that a request may take from when its body is there to the last byte of the answer.
    seconds: float = 600.0
    #: Bytes that the body of a request may have.
    body_bytes: int = 16 << 20
    #: Seconds in which all of the body must come.
    body_seconds: float = 60.0
    #: Seconds after which a client that waits for the first token is told that it is not forgotten.
    patience: float = 10.0

    def tokens(self, asked: int | None) -> int | None:
        """Tokens of one answer where so many were asked for."""
        limits = [n for n in (asked, self.max_tokens) if n is not None]
        return min(limits) if limits else None


class Line:
    """Requests of one model that are on their way: those that run and those that wait."""

    def __init__(self, slots: int, max_queue: int) -> None:
        self.slots = slots
        self.max_queue = max_queue
        self.inside = 0
        #: Seconds that a request takes, over the last ones.
        self._seconds = 1.0

    @contextlib.contextmanager
    def place(self, began: float) -> Iterator[None]:
        """A place in it for what began at that second of `time.monotonic`; raises 429 where the
        queue is full."""
        self.enter()
        try:
            yield
        finally:
            self.leave(time.monotonic() - began)

    def enter(self) -> None:
        """Raises 429 where the queue is full."""
        waiting = self.inside - self.slots
        if waiting >= self.max_queue:
            turns = (waiting + 1) / self.slots
            raise Refused(
                429,
                f"{self.inside} requests are active; {self.slots} run at once and "
                f"{self.max_queue} may wait; try again later, or start the server with a larger "
                "--max-queue or --max-batch",
                code="queue_full",
                retry_after=min(60, max(1, math.ceil(turns * self._seconds))),
            )
        self.inside += 1

    def leave(self, seconds: float) -> None:
        """It took so long."""
        self.inside -= 1
        self._seconds += (seconds - self._seconds) / 8
