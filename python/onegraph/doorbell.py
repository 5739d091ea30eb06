"""How tasks of an event loop wait for the engine: no thread stands between them.

The engine's own thread rings a bell that the loop watches, as it watches its sockets: once a step,
for all that it gave the loop's tasks. A thread that waited in the engine for each request would
have to be waited for when the program ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import TypeVar
from weakref import WeakValueDictionary

from onegraph import _native

__all__ = ["News", "Visitor", "visiting"]

T = TypeVar("T")

#: Seconds between two looks of an event loop at a full queue.
QUEUE_POLL = 0.02


class News:
    """Whether a request may have something new. One task waits for it, once a token: what
    `asyncio.Event` does for several would cost as much as the token's text."""

    __slots__ = ("_there", "_waiting")

    def __init__(self) -> None:
        self._there = False
        self._waiting: asyncio.Future[None] | None = None

    def tell(self) -> None:
        """There may be some."""
        self._there = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def wait(self) -> None:
        """Until there may be something that was not there when this was left before."""
        if not self._there:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        self._there = False


#: By engine and priority: held by the task that waits for room in the engine's queue, first come,
#: first served. A line is there as long as somebody stands in it, and so is its engine.
Lines = WeakValueDictionary[tuple[int, int], asyncio.Lock]


@dataclass
class _Door:
    """What the waiting tasks of one loop share."""

    bell: _native.Doorbell = field(default_factory=_native.Doorbell)
    lines: Lines = field(default_factory=WeakValueDictionary)
    visitors: dict[int, News] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=count)

    def answer(self) -> None:
        for number in self.bell.answer():
            if news := self.visitors.get(number):  # else it has left already
                news.tell()


@dataclass(frozen=True)
class Visitor:
    """A task that waits for one request."""

    number: int
    bell: _native.Doorbell
    lines: Lines
    news: News

    async def queued(
        self, engine: _native.Engine, priority: int, offer: Callable[[float], T | None]
    ) -> T:
        """What `offer` gives once the engine's queue has room. It is told the seconds since this
        was called; of the tasks of one engine and priority the first to come asks first."""
        came = time.monotonic()
        async with self.lines.setdefault((id(engine), priority), asyncio.Lock()):
            while (found := offer(time.monotonic() - came)) is None:
                await asyncio.sleep(QUEUE_POLL)
            return found


#: The loops in which somebody waits.
_doors: dict[asyncio.AbstractEventLoop, _Door] = {}


@contextlib.contextmanager
def visiting() -> Iterator[Visitor]:
    """A place at the running loop's door."""
    loop = asyncio.get_running_loop()
    door = _doors.get(loop)
    if door is None:
        door = _Door()
        loop.add_reader(door.bell.fileno(), door.answer)
        _doors[loop] = door
    visitor = Visitor(next(door.numbers), door.bell, door.lines, News())
    door.visitors[visitor.number] = visitor.news
    try:
        yield visitor
    finally:
        del door.visitors[visitor.number]
        if not door.visitors:
            del _doors[loop]
            loop.remove_reader(door.bell.fileno())
