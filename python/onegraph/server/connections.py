"""Connections of clients, good and bad: how many there may be, how long one may say nothing, and
how long the head of a request may be."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["Connection", "Idle", "connection_class"]

#: Seconds that a connection may be open without a whole head of a request, or with something to
#: read of which its client takes nothing. Longer than clients keep one that they may use again:
#: none is closed under a request that is on its way.
IDLE_SECONDS = 60.0

#: Of one that is closing, seconds in which its client takes nothing of what is left after which
#: that is thrown away; of each, seconds in which a client must have taken what is there for it.
LINGER_SECONDS, MOST_LINGER_SECONDS = 5.0, 120.0

#: Bytes of a request's line and headers together.
HEAD_BYTES = 64 << 10


class Idle:
    """The connections without a request, the one that has waited longest first."""

    def __init__(self, most: int) -> None:
        #: Connections that there may be. Beyond them the one that has waited longest gives way.
        self.most = most
        self._since: dict[Connection, float] = {}

    def __contains__(self, connection: Connection) -> bool:
        return connection in self._since

    def add(self, connection: Connection) -> None:
        """It waits from now on."""
        self._since.pop(connection, None)
        self._since[connection] = time.monotonic()

    def remove(self, connection: Connection) -> None:
        """It has a request, or is gone."""
        self._since.pop(connection, None)

    def make_room(self, connections: int) -> None:
        """One more has come."""
        if connections > self.most and self._since:
            self._end(next(iter(self._since)))

    def sweep(self, connections: Iterable[Any]) -> None:
        """Ends those that have waited too long, and those whose clients do not take what is there
        for them."""
        now = time.monotonic()
        for connection in [*connections]:
            if isinstance(connection, Connection) and connection.holds:
                connection.look(now)
        for connection, since in [*self._since.items()]:
            if now - since < IDLE_SECONDS:
                break
            if not connection.holds:
                self._end(connection)

    def _end(self, connection: Connection) -> None:
        # Now, not when the loop comes to it: several may come before then, and each ends one.
        self.remove(connection)
        connection.transport.abort()


class Connection(HttpToolsProtocol):
    """A connection that is watched."""

    idle: ClassVar[Idle]
    #: What its client has not taken, when it last took some, and since when there has been some.
    _left = 0
    _taking = _since = 0.0
    _closing = False
    _head = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.idle.add(self)
        self.idle.make_room(len(self.connections))

    def connection_lost(self, exc: Exception | None) -> None:
        self.idle.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self in self.idle:
            self._head += len(data)
        super().data_received(data)
        if self in self.idle and self._head > HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"the head of a request has at most {HEAD_BYTES} bytes")

    def resume_writing(self) -> None:
        super().resume_writing()
        self._since = 0.0  # what comes now is another matter

    @property
    def holds(self) -> bool:
        """Whether there is something that its client has not taken, or had not when last seen."""
        return bool(self._left or self.transport.get_write_buffer_size() or self._since)

    def look(self, now: float) -> None:
        """Ends it where its client does not take what is there for it: it goes on as long as the
        client reads."""
        left, before = self.transport.get_write_buffer_size(), self._left
        closing, was_closing = self.transport.is_closing(), self._closing
        self._left, self._closing = left, closing
        waits = self in self.idle
        # Of an answer that is being made more may come meanwhile, unless it waits for its client.
        if not closing and not (left and (waits or self.flow.write_paused)):
            self._since = 0.0
            if before and waits:
                self.idle.add(self)  # who has read an answer only now may ask on as late as others
            return
        if not self._since or closing != was_closing:
            self._since = self._taking = now
        elif left < before:
            self._taking = now
        patience = LINGER_SECONDS if closing else IDLE_SECONDS
        if now - self._taking > patience or now - self._since > MOST_LINGER_SECONDS:
            self.transport.abort()

    def on_message_begin(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            # Nobody asks on while an answer is made; uvicorn would not read on until it is, and so
            # not see that such a client leaves.
            self.transport.abort()
            raise ValueError("a request before the answer to the one before it")
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head = 0
        self.idle.remove(self)
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        if not self.transport.is_closing():
            self.idle.add(self)
        super().on_response_complete()


def connection_class(idle: Idle) -> type[Connection]:
    """The connections of one server."""
    return type("Connection", (Connection,), {"idle": idle})
