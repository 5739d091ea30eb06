"""What requests have the server do beside its event loop: in threads, in turn, and only as long as
somebody wants it."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from starlette.types import Scope

from onegraph import _native

__all__ = ["LARGE", "SMALL", "Bodies", "Lanes", "Work", "of"]

T = TypeVar("T")

#: Bytes of a body up to which the event loop reads it itself, in a few milliseconds at most; and
#: from which threads of their own work for it.
SMALL, LARGE = 1 << 14, 1 << 18

#: Bodies of the largest size whose bytes all clients together may have the server hold, from their
#: first byte until their tokens are made. The first `FREE` of each are free: who sends no more is
#: not refused because of those who do.
MOST_BODIES, FREE = 8, 1 << 17

#: Threads for requests of an ordinary size, for large ones, and for those whose answer is held to a
#: form, which is compiled. Of large ones few, since each takes many times its size.
SHORT, LONG, FORMS = 8, 2, 4


#: Of glibc, where this is the C library.
_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)


class Lanes:
    """The threads of a server."""

    def __init__(self) -> None:
        self.short = ThreadPoolExecutor(SHORT, "onegraph-short")
        self.long = ThreadPoolExecutor(LONG, "onegraph-long")
        self.forms = ThreadPoolExecutor(FORMS, "onegraph-forms")
        self._gives = False

    def give_back(self) -> None:
        """Gives memory that nobody uses back to the system, which keeps large requests' otherwise
        for the next ones."""
        if _trim is not None and not self._gives:
            self._gives = True
            with contextlib.suppress(RuntimeError):  # the server has ended
                self.long.submit(self._give)

    def _give(self) -> None:
        self._gives = False
        assert _trim is not None
        _trim(0)

    def end(self) -> None:
        """No more is begun; what is being done goes on."""
        for lane in (self.short, self.long, self.forms):
            lane.shutdown(wait=False, cancel_futures=True)


class Bodies:
    """The bodies that a server has in hand."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        #: Bytes of all of them, without those that are free.
        self.held = 0


class Work:
    """That of one request, and what its body has of the bytes that there may be."""

    def __init__(self, lanes: Lanes, bodies: Bodies, most: int, seconds: float) -> None:
        """`most` bytes may all bodies have; `seconds` may it take once its body is there."""
        self._lanes = lanes
        self._bodies = bodies
        self._most = most
        self._seconds = seconds
        self._size = self._taken = 0
        #: What threads do for it, and whether no more is to come.
        self._working = 0
        self._ended = False
        #: When it must have been answered, on the clock of the loop.
        self.until: float | None = None

    def take(self, size: int) -> bool:
        """Its body has grown to so many bytes; whether it may."""
        self._size = size
        more = max(0, size - FREE) - self._taken
        with self._bodies.lock:
            if more and self._bodies.held + more > self._most:
                return False
            self._taken += more
            self._bodies.held += more
        return True

    def begin(self) -> None:
        """Its body is there."""
        self.until = asyncio.get_running_loop().time() + self._seconds

    @property
    def is_small(self) -> bool:
        """Whether the event loop may read it."""
        return self._size <= SMALL

    async def run(self, work: Callable[[], T], *, compiles: bool = False) -> T:
        """Has a thread do some work, which ends early where this task does. It may wait for its
        turn, with others of its kind; `compiles` says that a form is compiled."""
        lanes = self._lanes
        lane = lanes.forms if compiles else lanes.short
        stop = _native.Stop()

        def working() -> T:
            with stop:
                try:
                    _native.go_on()
                    return work()
                except BaseException as e:
                    # They hold what is as large as the request, and live as long as the error.
                    traceback.clear_frames(e.__traceback__)
                    raise

        with self._bodies.lock:
            self._working += 1
        future = (lanes.long if self._size > LARGE else lane).submit(working)
        future.add_done_callback(lambda _: self._over())
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            stop.tell()
            raise
        finally:
            # It holds what was raised, which holds this frame, which holds all of the request.
            del future

    def _over(self) -> None:
        with self._bodies.lock:
            self._working -= 1
            self._free()

    def end(self) -> None:
        """What it made of its body is all that is left of it. May be called again."""
        with self._bodies.lock:
            self._ended = True
            self._free()

    def _free(self) -> None:
        # A thread that nobody waits for any more may still hold all of it.
        if self._ended and not self._working and self._taken:
            self._bodies.held -= self._taken
            self._taken = 0
            self._lanes.give_back()


def of(scope: Scope) -> Work:
    """The work of a request whose body was read."""
    found: Work = scope["onegraph.work"]
    return found
