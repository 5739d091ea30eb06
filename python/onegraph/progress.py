"""A bar on a terminal or in a notebook for what takes long: fetching a model, loading it."""

from __future__ import annotations

import contextlib
import io
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from onegraph.printable import printable

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["Told", "shown"]

#: Called with what is going on, how much is done, and how much there is (None: not known).
Told = Callable[[str, int, int | None], None]

#: Seconds between two states of a bar in a notebook, each a message to the browser.
CELL_PAUSE = 0.1

#: Columns of a bar in a notebook, which has no width of its own.
CELL_WIDTH = 90


class _Said:
    """What is said each time that a bar is drawn."""

    def __init__(self, said: Callable[[], str]) -> None:
        self._said = said

    def __str__(self) -> str:
        return self._said()


@contextlib.contextmanager
def shown(
    wish: bool | Told | None,
    *,
    counts: bool = False,
    beside: Callable[[], Callable[[], str]] | None = None,
) -> Iterator[Told | None]:
    """Someone to tell: the caller's own function, a bar, or nobody.

    None shows the bar where standard error is a terminal, and in a notebook. There it is in the
    cell's output, elsewhere on standard error; it is gone in the end. What is told `counts` things,
    not bytes. Where a bar is drawn, `beside` is called once and gives what is asked, in a thread of
    the bar's, for the text next to it: that moves while nothing is told.
    """
    if callable(wish):
        yield wish
        return
    notebook = wish is not False and _in_notebook()
    if wish is None:
        wish = notebook or (sys.stderr is not None and sys.stderr.isatty())
    if not wish:
        yield None
        return
    # Not at import: most programs draw no bar.
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
    )
    from rich.table import Column

    columns = [
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn() if counts else DownloadColumn(binary_units=True),
    ]
    said = None if beside is None else _Said(beside())
    if said:
        column = Column(no_wrap=True)
        columns.append(TextColumn("{task.fields[said]!s}", markup=False, table_column=column))

    if notebook:
        # In a notebook rich draws through ipywidgets, and warns where there are none.
        console = Console(
            file=io.StringIO(), width=CELL_WIDTH, force_jupyter=False, color_system=None
        )
    else:
        console = Console(stderr=True)
        if not console.is_interactive:  # it cannot erase a line
            yield None
            return
    bar = Progress(*columns, console=console, transient=True)
    task = bar.add_task("", total=None, said=said)

    def tell(what: str, done: int, total: int | None) -> None:
        if what.startswith("capture"):
            # Counts, where the bar shows bytes.
            what, done, total = f"{what} ({done + 1} of {total})", 0, None
        bar.update(task, description=printable(what), completed=done, total=total or None)

    if not notebook:
        with bar:
            yield tell
        return
    with _in_cell(bar) as draw:

        def tell_and_draw(what: str, done: int, total: int | None) -> None:
            tell(what, done, total)
            draw(what)

        yield tell_and_draw


def _in_notebook() -> bool:
    if "IPython" not in sys.modules:
        return False
    from rich.console import Console

    return Console().is_jupyter


@contextlib.contextmanager
def _in_cell(bar: Progress) -> Iterator[Callable[[str], None]]:
    """A place in the output of the running cell; gives a function that draws the bar there, less
    often than it is called while it is called with the same text."""
    from IPython.display import display

    place = display(  # type: ignore[no-untyped-call,unused-ignore]
        {"text/plain": ""}, raw=True, display_id=True
    )
    before: tuple[str, float] | None = None

    def draw(what: str) -> None:
        nonlocal before
        now = time.monotonic()
        if before is None or before[0] != what or now - before[1] >= CELL_PAUSE:
            before = what, now
            with bar.console.capture() as capture:
                bar.console.print(bar.get_renderable())
            place.update({"text/plain": capture.get().strip()}, raw=True)

    try:
        yield draw
    finally:
        place.update({"text/plain": ""}, raw=True)
