"""What `bench` and `compare` share: llama-bench's options, a bar, and where results go."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from onegraph import _native
from onegraph.bench import formats
from onegraph.cli.terminal import say
from onegraph.printable import printable

__all__ = ["Output", "Told", "device", "output_options", "test_options", "watched"]

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
Told = Callable[[str, int, int | None], None]
Record = dict[str, Any]


def test_options(command: Decorated) -> Decorated:
    """Which tests to run, by llama-bench's names."""
    listed: list[tuple[tuple[str, ...], str, str]] = [
        (("-p", "--n-prompt"), "Tokens of the prompt.", "512"),
        (("-n", "--n-gen"), "Tokens to generate.", "128"),
        (("-d", "--n-depth"), "Tokens before what is timed.", "0"),
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
        help="Draw a chart to this file: .png, .svg or .pdf.",
    )(command)
    return click.option(
        "-o",
        "--output",
        type=click.Choice(formats.FORMATS),
        default="md",
        show_default=True,
        help="Form of the results.",
    )(command)


@contextmanager
def watched() -> Iterator[Told | None]:
    """A bar on a terminal's standard error, of bytes while something loads and of repetitions while
    something is timed."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def tell(what: str, done: int, total: int | None) -> None:
            bar.update(task, description=printable(what), completed=done, total=total or None)

        yield tell


def device(wish: str | None) -> str:
    """The device that a model would be on: engines are told the same one."""
    if wish == "cpu":
        return wish
    cards = json.loads(_native.cuda_devices([]))["cards"]
    if wish in (None, "auto"):
        return "cuda:0" if cards else "cpu"
    return "cuda:0" if wish == "cuda" else str(wish)


class Output:
    """Writes records as they come, and a chart of them all."""

    def __init__(self, form: str, plot: Path | None, title: str) -> None:
        self._form = form
        self._plot = plot
        self._title = title
        if plot is not None:
            from onegraph.bench import charts

            charts.check(plot)  # before minutes of measuring, not after

    def write(
        self,
        records: Iterable[Record],
        table: Callable[[list[Record]], str],
        foot: Callable[[list[Record]], str],
    ) -> list[Record]:
        """Prints the records; those whose output was wrong. A table with its foot is printed at
        the end; other forms record by record, and the foot on standard error."""
        kept: list[Record] = []
        ended: list[BaseException] = []

        def seen() -> Iterator[Record]:
            # Broken off, by Ctrl-C or an error, the rows that are finished are written all the
            # same, in whole.
            try:
                for record in records:
                    kept.append(record)
                    yield record
            except BaseException as e:
                ended.append(e)

        if self._form == "md":
            for _ in seen():
                pass
            if kept or not ended:
                say(f"{table(kept)}\n\n{foot(kept)}")
        else:
            for line in formats.written(self._form, seen()):
                say(line)
                sys.stdout.flush()
            if said := foot(kept):
                say(said, err=True)
        sys.stdout.flush()
        if self._plot is not None and (kept or not ended):
            from onegraph.bench import charts

            charts.draw(kept, self._plot, self._title)
            say(f"drew {self._plot}", err=True)
        if ended:
            if kept:
                say(f"broken off; the {len(kept)} finished rows are written", err=True)
            raise ended[0]
        return [r for r in kept if r.get("check_ok") is False]
