"""Reads and writes the frame of GGUF files: header, metadata, tensor records.

Metadata values stay encoded (their type number, then their bytes), so that a copy is exact.
Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, version 3.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

ALIGNMENT = 32

_U32, _I32, _F32, _BOOL, _STRING, _ARRAY, _U64 = 4, 5, 6, 7, 8, 9, 10
#: struct code of each fixed-size metadata type.
_CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def _text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def u32(value: int) -> bytes:
    """An encoded unsigned integer."""
    return struct.pack("<II", _U32, value)


def f32(value: float) -> bytes:
    """An encoded float."""
    return struct.pack("<If", _F32, value)


def boolean(value: bool) -> bytes:
    """An encoded truth value."""
    return struct.pack("<I?", _BOOL, value)


def string(value: str) -> bytes:
    """An encoded string."""
    return struct.pack("<I", _STRING) + _text(value)


def strings(values: Iterable[str]) -> bytes:
    """An encoded array of strings."""
    items = [_text(v) for v in values]
    return struct.pack("<IIQ", _ARRAY, _STRING, len(items)) + b"".join(items)


def booleans(values: Iterable[bool]) -> bytes:
    """An encoded array of truth values."""
    items = list(values)
    return struct.pack(f"<IIQ{len(items)}?", _ARRAY, _BOOL, len(items), *items)


def i32s(values: Iterable[int]) -> bytes:
    """An encoded array of signed integers."""
    items = list(values)
    return struct.pack(f"<IIQ{len(items)}i", _ARRAY, _I32, len(items), *items)


def u64s(values: Iterable[int]) -> bytes:
    """An encoded array of unsigned integers of 64 bits."""
    items = list(values)
    return struct.pack(f"<IIQ{len(items)}Q", _ARRAY, _U64, len(items), *items)


def f32s(values: Iterable[float]) -> bytes:
    """An encoded array of floats."""
    items = list(values)
    return struct.pack(f"<IIQ{len(items)}f", _ARRAY, _F32, len(items), *items)


def decode(encoded: bytes) -> Any:
    """The value of one encoded metadata entry."""
    cursor = _Cursor(encoded)
    return cursor.value(cursor.take("I"))


@dataclass
class Tensor:
    """A tensor record; `shape` is GGUF's, the row length first."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    #: From the start of the data section.
    offset: int
    n_bytes: int = 0


class _Cursor:
    """Decodes forwards; a short file ends in struct.error."""

    def __init__(self, data: mmap.mmap | bytes) -> None:
        self.data, self.at = data, 0

    def take(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self.data, self.at)
        self.at += struct.calcsize("<" + code)
        return value

    def text(self) -> str:
        size = self.take("Q")
        raw = self.data[self.at : self.at + size]
        self.at += size
        return raw.decode()

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY:
            return self.take(_CODES[kind])
        kind, count = self.take("I"), self.take("Q")
        if kind in _CODES:
            values = struct.unpack_from(f"<{count}{_CODES[kind]}", self.data, self.at)
            self.at += struct.calcsize(f"<{count}{_CODES[kind]}")
            return list(values)
        return [self.value(kind) for _ in range(count)]


class Reader:
    """A GGUF file of version 3, mapped into memory."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        with Path(path).open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        cursor = _Cursor(self._map)
        if self._map[:4] != b"GGUF":
            raise ValueError(f"{path} is no GGUF file: it starts with {self._map[:4]!r}")
        cursor.at = 4
        version, n_tensors, n_keys = cursor.take("I"), cursor.take("Q"), cursor.take("Q")
        if version != 3:
            raise ValueError(f"{path} is GGUF version {version}; convert it to version 3")
        #: Decoded and encoded metadata.
        self.metadata: dict[str, Any] = {}
        self.encoded: dict[str, bytes] = {}
        for _ in range(n_keys):
            key, start = cursor.text(), cursor.at
            self.metadata[key] = cursor.value(cursor.take("I"))
            self.encoded[key] = self._map[start : cursor.at]
        self.tensors: dict[str, Tensor] = {}
        for _ in range(n_tensors):
            name = cursor.text()
            shape = tuple(cursor.take("Q") for _ in range(cursor.take("I")))
            self.tensors[name] = Tensor(name, shape, cursor.take("I"), cursor.take("Q"))
        alignment = self.metadata.get("general.alignment", ALIGNMENT)
        self._start = -(-cursor.at // alignment) * alignment

    def bytes_of(self, name: str, n_bytes: int) -> bytes:
        """The first `n_bytes` of a tensor's data."""
        at = self._start + self.tensors[name].offset
        return self._map[at : at + n_bytes]


def place(tensors: Iterable[Tensor]) -> int:
    """Sets the offsets of tensors whose `n_bytes` is known; returns the size of the section."""
    at = 0
    for tensor in tensors:
        tensor.offset = at
        at = -(-(at + tensor.n_bytes) // ALIGNMENT) * ALIGNMENT
    return at


def write_header(file: BinaryIO, metadata: dict[str, bytes], tensors: list[Tensor]) -> int:
    """Writes all that stands before the data section and returns where that starts."""
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    parts += [_text(key) + value for key, value in metadata.items()]
    for t in tensors:
        record = struct.pack(f"<I{len(t.shape)}QIQ", len(t.shape), *t.shape, t.type_id, t.offset)
        parts.append(_text(t.name) + record)
    header = b"".join(parts)
    start = -(-len(header) // ALIGNMENT) * ALIGNMENT
    file.write(header.ljust(start, b"\0"))
    return start
