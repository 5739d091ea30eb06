"""Text files that are named on the command line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from onegraph.cli.piped import decoded
from onegraph.errors import ArgumentError, FileError
from onegraph.hub.cache import open_regular

__all__ = ["before", "text_of"]

#: Bytes of a file. The longest contexts hold some megabytes of text.
MOST_BYTES = 8 << 20

#: What files begin with that are no text, and what to do about it.
KINDS = [
    (b"%PDF-", "a PDF: convert it to text, as with `pdftotext FILE FILE.txt`"),
    (b"PK\x03\x04", "a ZIP archive or an office document: save it as plain text"),
    (b"\x89PNG", "an image: onegraph only supports text"),
    (b"\xff\xd8\xff", "an image: onegraph only supports text"),
    (b"GIF8", "an image: onegraph only supports text"),
    (b"GGUF", "a model: pass it as MODEL"),
]


def text_of(path: Path) -> str:
    """The text of a file. Raises `FileError` where it cannot be read, `ArgumentError` where it is
    too large or no text."""
    try:
        with open_regular(path) as file:
            raw = file.read(MOST_BYTES + 1)
            size = path.stat().st_size
    except FileError as e:
        raise ArgumentError(f"--file {path}: {e}") from e
    except (OSError, ValueError) as e:
        reason = getattr(e, "strerror", None) or e
        raise FileError(f"cannot read --file {path}: {reason}; give another path") from e
    for begin, what in KINDS:
        if raw.startswith(begin):
            raise ArgumentError(f"--file {path} is {what}")
    if len(raw) > MOST_BYTES:
        raise ArgumentError(
            f"--file {path} has {size:,} bytes; the limit is {MOST_BYTES:,}: pass the relevant part"
        )
    if (at := raw.find(b"\0")) >= 0 and raw[:2] not in (b"\xff\xfe", b"\xfe\xff", b"\0\0"):
        raise ArgumentError(
            f"--file {path} is binary: byte 0x00 at offset {at:,}; give a text file"
        )
    return decoded(raw, f"--file {path}", "iconv -f {} -t UTF-8 FILE > FILE.txt")


def before(prompt: str, paths: Sequence[Path]) -> str:
    """A prompt behind files, each as its name, a colon, and its text between fences that are longer
    than any in it."""
    blocks = []
    for path in paths:
        text = text_of(path)
        fence = "`" * max([3, *(len(ticks) + 1 for ticks in re.findall("`{3,}", text))])
        blocks.append(f"{path.name}:\n{fence}\n{text}\n{fence}\n\n")
    return "".join(blocks) + prompt
