"""What `bench` and `compare` share: llama-bench's options, a bar, and where results go."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from onegraph import _native
from onegraph.bench import formats, load, tables
from onegraph.cli.terminal import say
from onegraph.printable import printable

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = [
    "Bar",
    "Output",
    "device",
    "output_options",
    "test_options",
    "warnings",
    "watched",
    "width",
]

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
Record = dict[str, Any]


def test_options(command: Decorated) -> Decorated:
    """Which tests to run, by llama-bench's names."""
    listed: list[tuple[tuple[str, ...], str, str]] = [
        (("-p", "--n-prompt"), "Tokens of the prompt.", "512"),
        (("-n", "--n-gen"), "Tokens to generate.", "128"),
        (("-d", "--n-depth"), "Tokens in the context before the timed part.", "0"),
    ]
    command = click.option(
        "-r",
        "--repetitions",
        type=click.IntRange(1, 1000),
        default=5,
        show_default=True,
        help="Timed repetitions of each test.",
    )(command)
    for flags, said, default in reversed(listed):
        said = f"{said}  [default: {default}]"
        command = click.option(*flags, multiple=True, metavar="N,...", help=said)(command)
    return command


def output_options(command: Decorated) -> Decorated:
    """Where results go: `output` and `plot`."""
    command = click.option(
        "--plot",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Write a chart to this .png, .svg or .pdf file.",
    )(command)
    return click.option(
        "-o",
        "--output",
        type=click.Choice(formats.FORMATS),
        default="md",
        show_default=True,
        help="Output format.",
    )(command)


class Bar:
    """A bar on a terminal's standard error, which is told what goes on. Nothing is printed beside
    it: `hide` comes before each line of output, and it is back when it is told more."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=None)

    def __call__(self, what: str, done: int, total: int | None) -> None:
        said = printable(what)
        self._progress.update(self._task, description=said, completed=done, total=total or None)
        if not self._progress.live.is_started:
            self._progress.start()

    def hide(self) -> None:
        """Erases it, where it is shown."""
        if self._progress.live.is_started:
            self._progress.stop()


@contextmanager
def watched() -> Iterator[Bar | None]:
    """A bar on a terminal's standard error, of bytes while something loads and of repetitions while
    something is timed; None elsewhere, and where the terminal cannot erase a line."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_interactive:
        yield None
        return
    progress = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        # Results are no part of it: standard output may be another file.
        redirect_stdout=False,
    )
    bar = Bar(progress)
    try:
        yield bar
    finally:
        bar.hide()


def width() -> int:
    """Columns that a table may have: the terminal's, or as many as one has by habit."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else tables.WIDTH


def device(wish: str | None) -> str:
    """The device that a model would be on: engines are told the same one."""
    if wish == "cpu":
        return wish
    cards = json.loads(_native.cuda_devices([]))["cards"]
    if wish in (None, "auto"):
        return "cuda:0" if cards else "cpu"
    return "cuda:0" if wish == "cuda" else str(wish)


class Output:
    """Writes records as they come, and a chart of them all. Raises what `charts.check` does, before
    anything is measured."""

    def __init__(self, form: str, plot: Path | None) -> None:
        self._form = form
        self._plot = plot
        if plot is not None:
            from onegraph.bench import charts

            charts.check(plot)

    def write(
        self,
        records: Iterable[Record],
        table: Callable[[list[Record], int], str],
        notes: Callable[[list[Record]], list[str]],
        title: str,
        bar: Bar | None = None,
    ) -> list[Record]:
        """Prints the records; those that were finished.

        A table is printed at the end, with the notes below it; other forms record by record, and
        the notes on standard error. Broken off, by Ctrl-C or an error, the records that are
        finished are written all the same, in whole, and nothing where there are none.
        """
        kept: list[Record] = []
        ended: list[BaseException] = []

        def seen() -> Iterator[Record]:
            try:
                for record in records:
                    kept.append(record)
                    yield record
            except BaseException as e:
                ended.append(e)

        if self._form == "md":
            for _ in seen():
                pass
            if kept:
                _print(bar, "\n".join([table(kept, width()), "", *notes(kept)]))
        else:
            for text in formats.written(self._form, seen()):
                if kept or not ended:
                    _print(bar, text)
            for line in notes(kept):
                _print(bar, line, err=True)
        if self._plot is not None and kept:
            from onegraph.bench import charts

            charts.draw(kept, self._plot, title)
            _print(bar, f"wrote {self._plot}", err=True)
        if ended:
            if kept:
                _print(bar, f"interrupted; wrote the {len(kept)} finished rows", err=True)
            raise ended[0]
        return kept


def _print(bar: Bar | None, text: str, *, err: bool = False) -> None:
    if bar is not None:
        bar.hide()
    say(text, err=err)
    sys.stdout.flush()


def warnings(records: list[Record]) -> list[str]:
    """What is to be said of the load around all records of a run."""
    return [f"WARNING: {said}" for said in load.said(records)]
