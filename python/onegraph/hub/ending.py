"""Leaving nothing behind when the process is told to end."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

__all__ = ["orderly_end"]


class _Ended(BaseException):
    """The process was told to end; not an `Exception`, so that nothing on the way takes it."""


@contextlib.contextmanager
def orderly_end() -> Iterator[Callable[[], None]]:
    """Gives a function to call every so often: once SIGTERM or SIGHUP came, it leaves the block, so
    that children and files are seen to, and then the process ends by that signal after all.

    A flag, not an exception out of the handler: that could fall between the start of a child and
    the note that there is one. Nothing changes where a program handles or ignores the signal
    itself, or outside of the main thread, where Python lets nobody handle signals.
    """
    came: list[int] = []
    taken: list[int] = []
    if threading.current_thread() is threading.main_thread():
        ends = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
        taken = [number for number in ends if signal.getsignal(number) is signal.SIG_DFL]

    def look() -> None:
        if came:
            raise _Ended

    for number in taken:
        signal.signal(number, lambda number, _: came.append(number))
    try:
        yield look
    except _Ended:
        pass
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)
        if came:
            os.kill(os.getpid(), came[0])
