"""Bytes of answers: JSON, events and lines of it.

A frame of text is made for every token, so its constant parts are encoded once an answer: what is
left is to spell one string.
"""

from __future__ import annotations

import json
import secrets
import time
from json.encoder import encode_basestring
from typing import Any

__all__ = ["MARK", "around", "data", "encoded", "event", "identifier", "line", "now", "spelled"]


_encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def encoded(value: Any) -> bytes:
    """A value as JSON."""
    # A text of the client's may hold half of a surrogate pair: it goes back as it came.
    return _encoder.encode(value).encode("utf-8", "backslashreplace")


def spelled(text: str) -> bytes:
    """A text of the model's as JSON."""
    return encode_basestring(text).encode()


def data(value: Any) -> bytes:
    """An event of a stream that has data alone."""
    return b"data: " + encoded(value) + b"\n\n"


def event(name: str, value: Any) -> bytes:
    """An event of a stream that has a name."""
    return b"event: " + name.encode() + b"\ndata: " + encoded(value) + b"\n\n"


def line(value: Any) -> bytes:
    """A line of JSON."""
    return encoded(value) + b"\n"


#: What stands for the text in a frame that is encoded ahead: no text that a client sends.
MARK = f"\x00{secrets.token_hex(16)}"


def around(frame: bytes) -> tuple[bytes, bytes]:
    """What stands before and behind the text in a frame whose text is `MARK`."""
    before, _, behind = frame.partition(spelled(MARK))
    return before, behind


def identifier(prefix: str) -> str:
    """A name for an answer that no other has."""
    return f"{prefix}{secrets.token_hex(16)}"


def now() -> int:
    """Seconds since 1970."""
    return int(time.time())
