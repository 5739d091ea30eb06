"""Markdown as a terminal shows it. Importing this takes a while: rich comes with it."""

from __future__ import annotations

from typing import ClassVar

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Markdown, TableElement

__all__ = ["render"]


class Folding(TableElement):
    """A table whose long words go on in the next line: rich's own cuts them."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for table in super().__rich_console__(console, options):
            for column in getattr(table, "columns", []):
                column.overflow = "fold"
            yield table


class Document(Markdown):
    """Markdown with such tables."""

    elements: ClassVar = {**Markdown.elements, "table_open": Folding}


def render(text: str, width: int) -> str:
    """Markdown, `width` columns wide, in colours where the terminal and `NO_COLOR` allow it."""
    console = Console(width=width)
    # Links are spelled out: not every terminal, and no pager, can follow one.
    markdown = Document(text, code_theme="ansi_dark", hyperlinks=False)
    with console.capture() as capture:
        console.print(markdown)
    return "".join(line.rstrip() + "\n" for line in capture.get().splitlines())
