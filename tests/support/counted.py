"""Work counted, so that what grows faster than what it is done for is found without a clock."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["Counted", "is_linear", "work"]

T = TypeVar("T")


class Counted(str):
    """A text that counts how often it is compared, and the characters that joining it copies."""

    work = 0

    def __eq__(self, other: object) -> bool:
        Counted.work += 1
        return str.__eq__(self, other)

    def __hash__(self) -> int:
        return str.__hash__(self)

    def _joined(self, text: str) -> Counted:
        Counted.work += len(text)
        return Counted(text)

    def __add__(self, other: str) -> Counted:
        return self._joined(str.__add__(self, other))

    def __radd__(self, other: str) -> Counted:
        return self._joined(str.__add__(other, self))


def work(do: Callable[[], object], only: str | None = None) -> int:
    """Calls, of C functions too, that something takes, and what its texts count; or only calls of
    native functions of a name."""
    calls = 0

    def called(frame: Any, event: str, given: Any) -> None:
        nonlocal calls
        if only is None:
            calls += event in ("call", "c_call")
        else:
            calls += event == "c_call" and given.__name__ == only

    before = Counted.work
    sys.setprofile(called)
    try:
        do()
    finally:
        sys.setprofile(None)
    return calls if only else calls + Counted.work - before


def is_linear(made: Callable[[int], T], do: Callable[[T], object], n: int) -> bool:
    """Whether twice as much takes about twice the work: something is done with what is made of
    n parts and of 2n."""

    def of(n: int) -> int:
        given = made(n)
        return work(lambda: do(given))

    once, twice = of(n), of(2 * n)
    assert once > 0
    return twice <= 2.5 * once + 1000
