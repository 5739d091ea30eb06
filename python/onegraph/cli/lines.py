"""What a person types into a chat: lines, several at a time between quotes, and their history."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import click

from onegraph.cli.state import state_dir
from onegraph.errors import FileError
from onegraph.hub.cache import kind

__all__ = ["Entry", "Lines"]

QUOTES = '"""'
#: Lines that are remembered from one chat to the next.
REMEMBERED = 1000

logger = logging.getLogger("onegraph")


class Entry(NamedTuple):
    """What was typed: after a slash command, or for the model."""

    #: "/system" of `/system TEXT`; None where all of it is for the model.
    command: str | None
    text: str


class Lines:
    """Reads entries until Ctrl-D. `hint` is said at a Ctrl-C."""

    def __init__(self, hint: str) -> None:
        self._hint = hint
        self._readline: Any = None
        self._history: Path | None = None
        self._kept = 0
        if sys.stdout.isatty():
            with contextlib.suppress(ImportError):
                import readline  # gives `input` line editing

                self._readline = readline
                self._remember()

    def next(self) -> Entry | None:
        """The next entry; None where there will be none."""
        while True:
            try:
                line = self._line(">>> ")
                if line is None or not line.strip():
                    if line is None:
                        return None
                    continue
                before, quotes, first = line.partition(QUOTES)
                if quotes and (not before.strip() or _is_command(before)):
                    text = self._quoted(first)
                    return None if text is None else Entry(before.strip() or None, text)
                return _entry(line)
            except KeyboardInterrupt:
                click.echo(f"\n{self._hint}", err=True)
            except UnicodeError as e:
                click.echo(f"that line is not text and was not sent: {_reason(e)}", err=True)

    def _quoted(self, first: str) -> str | None:
        """Lines up to one that ends with quotes; None where Ctrl-D came first."""
        lines = [first]
        while not lines[-1].rstrip().endswith(QUOTES):
            line = self._line("... ")
            if line is None:
                return None
            lines.append(line)
        lines[-1] = lines[-1].rstrip().removesuffix(QUOTES)
        return "\n".join(lines).strip("\n")

    def _line(self, prompt: str) -> str | None:
        if sys.stdout.isatty():
            try:
                line = input(prompt)
            except EOFError:
                click.echo(err=True)
                return None
            self._keep()
        else:
            # `input` would write its prompt into the text.
            sys.stderr.write(prompt)
            sys.stderr.flush()
            whole = sys.stdin.readline()
            if not whole:
                return None
            line = whole.removesuffix("\n")
        line.encode()  # in some locales bytes that are no text come as halves of surrogates
        return line

    def _remember(self) -> None:
        """Takes up the history of earlier chats, where it can be kept."""
        try:
            path = state_dir() / "history"
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Made for its owner alone before a line is in it; never through a link.
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
            descriptor = os.open(path, flags, 0o600)
            with os.fdopen(descriptor, "rb") as file:
                if other := kind(os.fstat(file.fileno()).st_mode):
                    raise FileError(f"{path} is {other}")
                os.fchmod(file.fileno(), 0o600)
            self._readline.read_history_file(path)
            self._readline.set_history_length(REMEMBERED)
            if self._readline.get_current_history_length() > 2 * REMEMBERED:
                self._readline.write_history_file(path)
        except (OSError, FileError, ValueError) as e:
            logger.info("typed lines are not kept: %s", e)
            return
        self._kept = self._readline.get_current_history_length()
        self._history = path

    def _keep(self) -> None:
        """Adds the last line to the history's file at once: a terminal may be closed at any time,
        and two chats may run."""
        if self._history is None:
            return
        try:
            if hasattr(self._readline, "append_history_file"):
                # readline leaves an empty line out, and then nothing is new.
                n = self._readline.get_current_history_length()
                if n > self._kept:
                    self._readline.append_history_file(n - self._kept, self._history)
                self._kept = n
            else:
                self._readline.write_history_file(self._history)
        except OSError as e:
            logger.info("typed lines are no longer kept: %s", e)
            self._history = None


def _is_command(before: str) -> bool:
    return before.startswith("/") and not before.startswith("//") and len(before.split()) == 1


def _entry(line: str) -> Entry:
    """`/system TEXT` is a command and its text; `//text` is the text "/text"."""
    if not line.startswith("/"):
        return Entry(None, line)
    if line.startswith("//"):
        return Entry(None, line[1:])
    command, _, text = line.strip().partition(" ")
    return Entry(command, text.strip())


def _reason(e: UnicodeError) -> str:
    if isinstance(e, UnicodeDecodeError):
        return f"byte {e.object[e.start]:#04x} is not {e.encoding.upper()}"
    assert isinstance(e, UnicodeEncodeError)
    return f"byte {ord(e.object[e.start]) & 0xFF:#04x} is not UTF-8"
