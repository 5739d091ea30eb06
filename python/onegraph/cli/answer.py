"""An answer on its way to the screen, and what is said of it afterwards."""

from __future__ import annotations

import sys

import click

from onegraph.printable import printable
from onegraph.results import Result
from onegraph.sampling import DEFAULTS
from onegraph.streams import Stream

__all__ = ["messages", "note_cut", "report", "show"]


def messages(system: str | None, *turns: str) -> list[dict[str, str]]:
    """A conversation: instructions, then turns of user and assistant, the user first."""
    first = [] if system is None else [{"role": "system", "content": system}]
    roles = ["user", "assistant"]
    return first + [{"role": roles[i % 2], "content": text} for i, text in enumerate(turns)]


def show(stream: Stream, heard: list[str] | None = None) -> None:
    """Prints a stream as it comes; `heard` collects the text, for when it does not end."""
    terminal = sys.stdout.isatty()
    try:
        for piece in stream:
            if heard is not None:
                heard.append(piece.text)
            # What goes to a file or another program is the text, byte for byte.
            sys.stdout.write(printable(piece.text) if terminal else piece.text)
            sys.stdout.flush()
    finally:
        if terminal:
            click.echo()


def note_cut(result: Result, max_tokens: int | None) -> None:
    """Says on standard error where a text was cut at a length that nobody asked for."""
    made = result.usage.completion_tokens
    if result.finish_reason == "length" and made != max_tokens:
        option = "--max-tokens" if made == DEFAULTS["max_tokens"] else "--n-ctx"
        click.echo(f"cut after {made} tokens; {option} allows more", err=True)


def report(result: Result) -> None:
    """How a generation went, on standard error."""
    used, took = result.usage, result.timings
    for line in [
        f"prompt: {used.prompt_tokens} tokens, {took.prefill_seconds:.2f} s, "
        f"{took.prefill_tokens_per_second:.1f} tokens/s",
        f"output: {used.completion_tokens} tokens, {took.decode_seconds:.2f} s, "
        f"{took.decode_tokens_per_second:.1f} tokens/s "
        f"({took.decode_tokens_per_second_without_sampling:.1f} without sampling)",
        f"seed {result.seed}, finish reason {result.finish_reason}",
    ]:
        click.echo(line, err=True)
