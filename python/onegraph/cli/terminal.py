"""What the commands share of a terminal: safe text, tables, progress, numbers, common options."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from onegraph.cli.spelling import spelled
from onegraph.printable import printable
from onegraph.progress import Told

if TYPE_CHECKING:
    from rich.table import Table

__all__ = [
    "Printable",
    "count",
    "debug_option",
    "json_option",
    "progress",
    "say",
    "show_table",
    "size",
]


Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class Printable(logging.Formatter):
    """Log records as a terminal may have them: they may quote a file, or a name of one, and they
    name arguments as Python does."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(spelled(super().format(record)))


def say(text: object, *, err: bool = False) -> None:
    """Prints a line: as it is to a file or another program, `printable` on a terminal."""
    line = str(text)
    stream = sys.stderr if err else sys.stdout
    click.echo(printable(line) if stream.isatty() else line, err=err)


def size(n: float) -> str:
    """Bytes for people: `92.1 MiB`."""
    for unit in ["B", "KiB", "MiB", "GiB"]:
        if n < 1024 or unit == "GiB":
            break
        n /= 1024
    return f"{n:.0f} B" if unit == "B" else f"{n:.1f} {unit}"


def count(n: float) -> str:
    """A number for people: `134.5 M`."""
    for unit in ["", " K", " M", " B"]:
        if n < 1000 or unit == " B":
            break
        n /= 1000
    return f"{n:.0f}" if not unit else f"{n:.1f}{unit}"


def show_table(table: Table) -> None:
    """Prints a table: as wide as the terminal; elsewhere unwrapped, for `grep`."""
    from rich.console import Console

    if sys.stdout.isatty():
        Console().print(table, highlight=False)
        return
    console = Console(width=10_000)
    with console.capture() as capture:
        console.print(table, highlight=False)
    for line in capture.get().splitlines():
        click.echo(line.rstrip())


def progress() -> bool | Told:
    """What to pass as `progress`: a bar on a terminal; elsewhere, a line for each download."""
    if sys.stderr.isatty():
        return True
    said: set[str] = set()

    def line(what: str, done: int, total: int | None) -> None:
        if what not in said and what.startswith("downloading"):
            say(what, err=True)
        said.add(what)

    return line


def debug_option(command: Decorated) -> Decorated:
    """`--debug`, which `onegraph.cli.main` reads itself: it must work before options are parsed."""
    return click.option(
        "--debug", is_flag=True, expose_value=False, help="Show the traceback of an error."
    )(command)


def json_option(command: Decorated) -> Decorated:
    """`--json`, passed as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)
