"""Names that are none here. Of those of other programs, the page for those who come from there says
what to take; of those of earlier versions, `MOVED` and `RENAMED` do."""

from __future__ import annotations

import functools
import inspect
import re
from abc import ABCMeta
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

__all__ = ["Answering", "answer", "keywords", "options", "unknown"]

PAGE = Path(__file__).parent / "pages" / "coming-from.md"

#: Keywords that `LLM` had, and what they are now.
MOVED = {
    "cuda_graph": "graph=GraphOptions(mode=...)",
    "graph_batch_sizes": "graph=GraphOptions(batch_sizes=...)",
    "graph_max_batch": "graph=GraphOptions(max_batch=...)",
    "graph_padding": "graph=GraphOptions(padding=...)",
    "pdl": "graph=GraphOptions(pdl=...)",
}

#: Attributes that a class had, and what they are now.
RENAMED = {
    ("Stats", "aside"): "preempted",
    ("Stats", "pages_aside"): "pages_swapped_out",
}

P = ParamSpec("P")
T = TypeVar("T")


def answer(name: str, *, is_keyword: bool) -> str | None:
    """What the tables of the page say of a keyword, or of a function or an attribute; None where
    they do not have it."""
    name = re.escape(name)
    found = rf"\b{name}=|^{name}$" if is_keyword else rf"(?:^|\.){name}(?:\(|$)"
    for program, theirs, ours in _rows():
        for written in re.findall(r"`([^`]+)`", theirs):
            if re.search(found, written):
                return f"{program}'s `{written}` is {ours} here, see `onegraph help coming-from`"
    return None


def _rows() -> Iterator[tuple[str, str, str]]:
    """Of each table that says what is what in Python: the program, its words, and ours."""
    for table in re.findall(r"(?:^\|.*\n)+", PAGE.read_text(encoding="utf-8"), re.MULTILINE):
        head, _, *rows = [[cell.strip() for cell in line.split("|")] for line in table.splitlines()]
        if head[2] == "onegraph":
            yield from ((head[1], row[1], row[2]) for row in rows)


def keywords(requested: Collection[str] = ()) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Lets a function answer for keywords that it has not, in its `TypeError`. Those `requested`
    belong to a request."""

    def decorated(function: Callable[P, T]) -> Callable[P, T]:
        known = inspect.signature(function).parameters

        @functools.wraps(function)
        def called(*args: P.args, **given: P.kwargs) -> T:
            for name in given:
                if name not in known and (said := _instead(name, requested)):
                    raise TypeError(f"unexpected keyword argument {name!r}: {said}")
            return function(*args, **given)

        return called

    return decorated


def _instead(name: str, requested: Collection[str]) -> str | None:
    if now := MOVED.get(name):
        return f"use {now} instead"
    if name in requested:
        return f"pass it to a request, such as llm.generate(..., {name}=...)"
    return answer(name, is_keyword=True)


def options(of: type[T]) -> type[T]:
    """Lets a class of options answer for keywords that it has not."""
    of.__init__ = keywords()(of.__init__)  # type: ignore[method-assign]
    return of


class Answering(ABCMeta):
    """Lets a class answer for attributes of other programs, in its `AttributeError`."""

    if not TYPE_CHECKING:  # a type checker knows what there is

        def __getattr__(cls, name):
            raise unknown(cls, cls, name)


def unknown(of: object, owner: type, name: str) -> AttributeError:
    """The error for an attribute that is none."""
    if now := RENAMED.get((owner.__name__, name)):
        said: str | None = f"use {now} instead"
    else:
        said = None if name.startswith("_") else answer(name, is_keyword=False)
    text = f"{owner.__name__} has no attribute {name!r}" + (f": {said}" if said else "")
    return AttributeError(text, name=name, obj=of)
