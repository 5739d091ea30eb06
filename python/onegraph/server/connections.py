"""Connections of clients, good and bad: how many there may be, how long one may say nothing, and
how long the head of a request may be. Who asks on before it is answered, or sends no more, is
answered in order all the same."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterable
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

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

#: Requests of a connection that wait for the answer before them. What comes behind them is read
#: once there are fewer, in parts of so many bytes.
MOST_WAITING, PART = 16, 4096

#: What every answer begins with, whatever it is.
BEGINNING = b"HTTP/1.1 "

#: Seconds between two looks at whether a client that sends no more is still there, at first and
#: at most.
LOOK_SECONDS, MOST_LOOK_SECONDS = 0.002, 0.1


class Idle:
    """The connections without a request, the one that has waited longest first."""

    def __init__(self, most: int) -> None:
        #: Connections that there may be. Beyond them the one that has waited longest is closed.
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
    #: Bytes of a head that is not whole, and whether what comes next is of one.
    _head = 0
    _in_head = True
    #: Whose answer is made; those behind it are in uvicorn's `pipeline`, the last one first.
    _running: RequestResponseCycle | None = None
    #: What came and is still to be read.
    _unread = memoryview(b"")
    #: What is wrong with what came behind requests that are still to be answered.
    _wrong: str | None = None
    #: Whether its client sends no more.
    _ended = False
    _looking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.idle.add(self)
        self.idle.make_room(len(self.connections))

    def connection_lost(self, exc: Exception | None) -> None:
        self.idle.remove(self)
        if self._looking is not None:
            self._looking.cancel()
        # uvicorn tells the one that came last.
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
        self.pipeline.clear()
        self._unread = memoryview(b"")
        super().connection_lost(exc)

    @property
    def _is_busy(self) -> bool:
        """Whether an answer is to come."""
        running = self._running is not None and not self._running.response_complete
        return running or bool(self.pipeline)

    def data_received(self, data: bytes) -> None:
        self._unread = memoryview(bytes(self._unread) + data if self._unread else data)
        self._read()

    def _read(self) -> None:
        """Reads what came, up to as many requests as may wait."""
        while self._unread and self._wrong is None and not self.transport.is_closing():
            if len(self.pipeline) >= MOST_WAITING:
                self.flow.pause_reading()
                return
            part, self._unread = self._unread[:PART], self._unread[PART:]
            if self._in_head:
                self._head += len(part)
            super().data_received(part)  # type: ignore[arg-type]
            if self._in_head and self._head > HEAD_BYTES and not self.transport.is_closing():
                self.send_400_response(f"the head of a request has at most {HEAD_BYTES} bytes")
        if self._ended and self._wrong is None and not self._has_answers():
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Answers what is no request, in its turn."""
        if self.cycle is not None and self.cycle.more_body and self._is_busy:
            if self.cycle is not self._running:
                self.pipeline.popleft()
            elif self.cycle.response_started:
                self.transport.close()  # in the middle of its answer there is no place for another
                return
            else:
                super().send_400_response(msg)
                return
        if self._is_busy:
            self._wrong = msg
        else:
            super().send_400_response(msg)

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Its client sends no more. It may wait for its answers; it may also have gone, and then
        has no use for them: the system says that to who writes to it."""
        self._ended = True
        if not self._unread and not self._has_answers():
            return None
        if self._looking is None:
            self._look_after(LOOK_SECONDS)
        return True

    def _has_answers(self) -> bool:
        """All that its client sent was read: whether answers to it are to come."""
        if self.cycle is not None and self.cycle.more_body and self._is_busy:
            if self.cycle is self._running:
                return False
            self.pipeline.popleft()  # half a request
        if not self._is_busy or self.transport.is_closing():
            return False
        last = self.pipeline[0][0] if self.pipeline else self._running
        assert last is not None
        last.keep_alive = False
        return True

    def _look_after(self, wait: float) -> None:
        """Ends it where its client has gone, now or when it turns out."""
        if self.transport.is_closing():
            return
        if self.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()
            return
        running = self._running
        if running is not None and not running.response_started:
            _Begun.begin(running)
        self._looking = self.loop.call_later(
            wait, self._look_after, min(2 * wait, MOST_LOOK_SECONDS)
        )

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

    def on_headers_complete(self) -> None:
        self._head, self._in_head = 0, False
        self.idle.remove(self)
        is_next = not self._is_busy
        super().on_headers_complete()
        if is_next:
            self._running = self.cycle
        else:
            # uvicorn would not read on, and so not see that such a client leaves.
            self.flow.resume_reading()

    def on_message_complete(self) -> None:
        self._in_head = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._running = self.pipeline[-1][0] if self.pipeline else None
        if not self.transport.is_closing() and not self.pipeline:
            self.idle.add(self)
        super().on_response_complete()
        self._read()
        if self._wrong is not None and not self._is_busy and not self.transport.is_closing():
            super().send_400_response(self._wrong)


class _Begun:
    """The transport of an answer whose `BEGINNING` is sent already."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._transport = cycle.transport

    @classmethod
    def begin(cls, cycle: RequestResponseCycle) -> None:
        """Sends it, once."""
        if not isinstance(cycle.transport, cls):
            cycle.transport.write(BEGINNING)
            cycle.transport = cls(cycle)  # type: ignore[assignment]

    def write(self, data: bytes) -> None:
        self._cycle.transport = self._transport
        self._transport.write(data.removeprefix(BEGINNING))

    def close(self) -> None:
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()


def connection_class(idle: Idle) -> type[Connection]:
    """The connections of one server."""
    return type("Connection", (Connection,), {"idle": idle})
