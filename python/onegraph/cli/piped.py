"""What standard input carries: a prompt, or what a prompt is about."""

from __future__ import annotations

import codecs
import os
import select
import stat
import sys
import threading

import click

from onegraph.printable import printable

__all__ = ["check_utf8", "decoded", "joined", "needed"]

#: What text of other encodings begins with.
MARKS = [
    ("UTF-32", codecs.BOM_UTF32_LE),
    ("UTF-32", codecs.BOM_UTF32_BE),
    ("UTF-16", codecs.BOM_UTF16_LE),
    ("UTF-16", codecs.BOM_UTF16_BE),
]

#: Seconds after which somebody who gave a PROMPT is told what is waited for.
PATIENCE = 2.0


def needed(what: str = "PROMPT") -> str:
    """The text of standard input, which is the prompt, or what else the command calls it."""
    if sys.stdin is None:
        raise click.UsageError(f"standard input is closed: give a {what}")
    text = _read()
    if not text:
        raise click.UsageError(f"standard input is empty: give a {what}, or pipe one in")
    return text


def check_utf8(text: str | None) -> None:
    """Refuses an argument whose bytes are no text."""
    try:
        (text or "").encode()
    except UnicodeEncodeError as e:
        raise click.UsageError(f"{printable(ascii(text))} is not UTF-8: {e.reason}") from e


def joined(prompt: str) -> str:
    """What was piped in, an empty line and the prompt; the prompt alone where nothing was.

    Read are pipes, sockets and files: not a terminal, which is somebody's keyboard, nor a device
    such as /dev/null. A pipe ends when all who could write to it have closed it; one that a
    program merely inherited may never end, and so the wait is said.
    """
    if not _carries_text():
        return prompt

    def say() -> None:
        click.echo(
            "waiting for the end of standard input, which goes before PROMPT; "
            "`< /dev/null` skips it",
            err=True,
        )

    patience = threading.Timer(PATIENCE, say)
    patience.daemon = True
    patience.start()
    try:
        text = _read()
    finally:
        patience.cancel()
    return f"{text}\n\n{prompt}" if text else prompt


def _carries_text() -> bool:
    if sys.stdin is None:
        return False
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):  # closed, or none of the system's
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISREG(mode)


def _read() -> str:
    try:
        raw = _bytes(sys.stdin.fileno())
    except OSError as e:  # open for writing alone, a folder
        raise click.UsageError(
            f"cannot read standard input: {e.strerror}; `< /dev/null` skips it"
        ) from e
    return decoded(raw, "standard input", "iconv -f {} -t UTF-8 FILE | onegraph run ...")


def decoded(raw: bytes, what: str, convert: str) -> str:
    """The text of bytes in UTF-8, without the line feed at its end; `what` they are, and the
    command that would `convert` them from an encoding, are for the error."""
    # The longer first: one mark begins with another.
    for encoding, mark in MARKS:
        if raw.startswith(mark):
            raise click.UsageError(
                f"{what} is {encoding}, by its byte order mark, not UTF-8: "
                f"convert it, as in `{convert.format(encoding)}`"
            )
    # A mark of UTF-8 is no text.
    raw = raw.removeprefix(codecs.BOM_UTF8)
    try:
        text = raw.decode()
    except UnicodeDecodeError as e:
        raise click.UsageError(
            f"{what} is not UTF-8: byte {raw[e.start]:#04x} at offset {e.start}"
        ) from e
    # The line feed that ends a line is not part of the question.
    return text.removesuffix("\n")


def _bytes(descriptor: int) -> bytes:
    """All of it, also where another program left it in non-blocking mode."""
    pieces: list[bytes] = []
    while True:
        try:
            piece = os.read(descriptor, 1 << 20)
        except BlockingIOError:
            select.select([descriptor], [], [])
            continue
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)
