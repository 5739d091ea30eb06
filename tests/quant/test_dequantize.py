"""Expansion of every type of the table, bit for bit against the `gguf` package."""

from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onegraph import _native

TYPES = _native.quant_types()
by_type = pytest.mark.parametrize(
    ("name", "number", "elems", "size"), [t[:4] for t in TYPES], ids=[t[0] for t in TYPES]
)

#: Halves at the edges: zeros, subnormals, the least normal, one, the largest, infinities, NaNs.
HALVES = [
    *(0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x83FF, 0x0400, 0x3C00, 0xBC00),
    *(0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7C01, 0x7E00, 0xFFFF),
]


def expected(number: int, data: NDArray[np.uint8]) -> NDArray[np.uint32]:
    kind = gguf.GGMLQuantizationType(number)
    with np.errstate(all="ignore"):
        values = gguf.quants.dequantize(data.reshape(1, -1), kind)
    return np.ascontiguousarray(values, dtype=np.float32).reshape(-1).view(np.uint32)


def check(name: str, number: int, data: NDArray[np.uint8]) -> None:
    ours = np.frombuffer(_native.dequantize(name, data), np.uint32)
    theirs = expected(number, data)
    assert ours.shape == theirs.shape
    both_nan = np.isnan(ours.view(np.float32)) & np.isnan(theirs.view(np.float32))
    wrong = np.flatnonzero((ours != theirs) & ~both_nan)
    assert not len(wrong), (
        f"{len(wrong)} weights differ, first at {wrong[0]}: "
        f"{ours[wrong[0]]:#010x} is not {theirs[wrong[0]]:#010x}"
    )


def test_the_table_agrees_with_the_gguf_package() -> None:
    assert TYPES, "an empty table would pass every test of this file"
    for name, number, elems, size, _ in TYPES:
        assert gguf.GGMLQuantizationType(number).name == name
        assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(number)] == (elems, size)


@by_type
def test_random_blocks(name: str, number: int, elems: int, size: int) -> None:
    rng = np.random.default_rng(number)
    check(name, number, rng.integers(0, 256, size * max(4096, 2**20 // elems), dtype=np.uint8))


@by_type
def test_every_byte_value_at_every_place(name: str, number: int, elems: int, size: int) -> None:
    rng = np.random.default_rng(number)
    for place in range(size):
        blocks = rng.integers(0, 256, (256, size), dtype=np.uint8)
        blocks[:, place] = np.arange(256)
        check(name, number, blocks.reshape(-1))


@by_type
def test_uniform_blocks(name: str, number: int, elems: int, size: int) -> None:
    check(name, number, np.repeat(np.arange(256, dtype=np.uint8), size))


@by_type
def test_halves_at_the_edges(name: str, number: int, elems: int, size: int) -> None:
    """An infinite, NaN or subnormal number wherever a block may keep a scale."""
    rng = np.random.default_rng(number)
    for place in range(size - 1):
        blocks = rng.integers(0, 256, (len(HALVES), size), dtype=np.uint8)
        blocks[:, place : place + 2] = np.array(HALVES, "<u2").reshape(-1, 1).view(np.uint8)
        check(name, number, blocks.reshape(-1))


@by_type
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_drawn_blocks(name: str, number: int, elems: int, size: int, data: Any) -> None:
    half = st.sampled_from(HALVES).map(lambda h: h.to_bytes(2, "little"))
    piece = st.one_of(half, st.binary(min_size=2, max_size=2))
    raw = b"".join(data.draw(st.lists(piece, min_size=(size + 1) // 2, max_size=size)))
    raw = raw[: len(raw) // size * size]
    check(name, number, np.frombuffer(raw, np.uint8))


@by_type
def test_a_length_that_is_no_whole_number_of_blocks(
    name: str, number: int, elems: int, size: int
) -> None:
    with pytest.raises(ValueError, match=rf"{size + 1} items.*multiple of {size}"):
        _native.dequantize(name, bytes(size + 1))
    assert _native.dequantize(name, b"") == b""


def test_an_unknown_type_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"Q9_Z.*supported: .*F32"):
        _native.dequantize("Q9_Z", b"")


def test_names_take_either_case() -> None:
    for name, _, _, size, _ in TYPES:
        assert _native.dequantize(name.lower(), bytes(size)) == _native.dequantize(
            name, bytes(size)
        )
