"""A bar on a terminal for what takes long: fetching a model, loading it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from onegraph.printable import printable

__all__ = ["Told", "shown"]

#: Called with what is going on, how much is done, and how much there is (None: not known).
Told = Callable[[str, int, int | None], None]


@contextlib.contextmanager
def shown(wish: bool | Told | None, *, counts: bool = False) -> Iterator[Told | None]:
    """Someone to tell: the caller's own function, a bar on standard error, or nobody.

    None shows the bar where standard error is a terminal. What is told `counts` things, not bytes.
    """
    if callable(wish):
        yield wish
        return
    if not (sys.stderr.isatty() if wish is None else wish):
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

    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn() if counts else DownloadColumn(binary_units=True),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task("", total=None)

        def tell(what: str, done: int, total: int | None) -> None:
            if what.startswith("capture"):
                # Counts, where the bar shows bytes.
                what, done, total = f"{what} ({done + 1} of {total})", 0, None
            bar.update(task, description=printable(what), completed=done, total=total or None)

        yield tell
