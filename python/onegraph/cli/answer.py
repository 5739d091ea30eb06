"""An answer on its way to the screen, and what is said of it afterwards."""

from __future__ import annotations

import sys
from typing import Literal

import click

from onegraph.cli.options import flag
from onegraph.printable import printable
from onegraph.results import Result
from onegraph.streams import Stream

__all__ = ["cut_by", "note_cut", "report", "show"]


def show(stream: Stream, heard: list[str] | None = None) -> None:
    """Prints a stream as it comes, and ends the last line; `heard` collects the text, for when it
    does not end. A terminal shows what the model thinks too, dimmed and above the text."""
    terminal = sys.stdout.isatty()
    last: str | None = None
    thinking = False
    try:
        for piece in stream:
            last = piece.text or last or ""
            if terminal and piece.reasoning:
                sys.stdout.write(click.style(printable(piece.reasoning), dim=True))
                thinking = True
            if thinking and piece.text:
                sys.stdout.write("\n\n")
                thinking = False
            if heard is not None:
                heard.append(piece.text)
            # What goes to a file or another program is the text, byte for byte.
            sys.stdout.write(printable(piece.text) if terminal else piece.text)
            sys.stdout.flush()
    finally:
        # A terminal's next prompt, and a shell's `read`, want a whole line. What failed before it
        # had a text has no line either, nor has an answer that is calls alone.
        calls = stream.result is not None and bool(stream.result.tool_calls)
        is_text = last is not None and not (calls and not last)
        if ((terminal and not calls) or thinking or is_text) and not (last or "").endswith("\n"):
            click.echo()


def cut_by(result: Result) -> Literal["max_tokens", "n_ctx"] | None:
    """The option that would have let a cut text go on."""
    return "n_ctx" if result.cut == "context" else result.cut


def note_cut(result: Result, max_tokens: int | None) -> None:
    """Says on standard error where a text was cut at a length that nobody asked for."""
    made = result.usage.completion_tokens
    if made != max_tokens and (limit := cut_by(result)):
        click.echo(f"cut after {made} tokens; {flag(limit)} allows more", err=True)


def report(result: Result) -> None:
    """How a generation went, on standard error."""
    used, took = result.usage, result.timings
    cached = f" ({used.cached_tokens} cached)" if used.cached_tokens else ""
    drafted = ""
    if used.drafted_tokens:
        drafted = f", {used.accepted_tokens} of {used.drafted_tokens} drafted were right"
    for line in [
        f"prompt: {used.prompt_tokens} tokens{cached}, {took.prefill_seconds:.2f} s, "
        f"{took.prefill_tokens_per_second:.1f} tokens/s",
        f"output: {used.completion_tokens} tokens, {took.decode_seconds:.2f} s, "
        f"{took.decode_tokens_per_second:.1f} tokens/s "
        f"({took.decode_tokens_per_second_without_sampling:.1f} without sampling){drafted}",
        f"seed {result.seed}, finish reason {result.finish_reason}",
    ]:
        click.echo(line, err=True)
