"""What prompts and texts may be given as, and where they are prepared."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from onegraph import arguments
from onegraph.errors import ArgumentError

__all__ = ["Prompt", "Prompts", "batch", "is_short", "preparing"]

#: A text, or token ids.
Prompt = str | Sequence[int]
Prompts = list[str] | tuple[str, ...] | Sequence[Sequence[int]]

R = TypeVar("R")

#: Characters of a prompt up to which an event loop may wait for its tokens: some milliseconds.
SHORT_PROMPT = 1 << 14


def preparing(
    prepare: Callable[[], R], given: Any, compiles: bool = False
) -> Callable[[], Awaitable[R]]:
    """Prepares a job, beside the event loop where it may take long: a long prompt, or a constraint
    that is compiled."""

    async def prepared() -> R:
        # Most programs have no event loop, and this is half of their import.
        import asyncio

        if not compiles and is_short(given):
            return prepare()
        return await asyncio.get_running_loop().run_in_executor(None, prepare)

    return prepared


def is_short(given: Any, most: int = SHORT_PROMPT) -> bool:
    """Whether the texts in it are short together, as far as a look says."""
    left, room = [given], most
    while left and room >= 0:
        one = left.pop()
        if isinstance(one, str):
            room -= len(one)
        elif isinstance(one, Mapping):
            left += one.values()
        elif isinstance(one, list | tuple):
            room -= len(one)
            left += one
    return room >= 0


def batch(name: str, given: Any) -> list[Any] | None:
    """The texts of a batch, each a string or token ids; None where there is one."""
    if isinstance(given, str):
        return None
    parts = arguments.items(name, given, f"token ids or {name}s, or a str")
    if not parts:
        raise ArgumentError(f"{name} = []: pass a str, token ids, or a list of such {name}s")
    # Of a long prompt's ids one look at each is more than a few milliseconds.
    if set(map(type, parts)) == {int}:
        return None
    is_text = [isinstance(part, str) or arguments.is_sequence(part) for part in parts]
    if not any(is_text):
        return None
    if not all(is_text):
        raise ArgumentError(
            f"{name}: tokens and {name}s are mixed; pass one {name}, or a list of them"
        )
    return parts
