"""Quantizers of the table: equality with the `gguf` package where it has one, error, edges."""

from collections.abc import Callable
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onegraph import _native

Floats = NDArray[np.float32]

TYPES = [t[:4] for t in _native.quant_types() if t[4]]
BLOCKS = [t for t in TYPES if t[2] > 1]


def over(types: list[tuple[str, int, int, int]]) -> Callable[[Any], Any]:
    return pytest.mark.parametrize(
        ("name", "number", "elems", "size"), types, ids=[t[0] for t in types]
    )


def gguf_quantizes(number: int) -> bool:
    try:
        gguf.quants.quantize(np.zeros((1, 256), np.float32), gguf.GGMLQuantizationType(number))
    except NotImplementedError:
        return False
    return True


EQUAL = [t for t in TYPES if gguf_quantizes(t[1])]

#: Mean square error over mean square on Gaussian weights, 10% above what was measured.
MEASURED = {
    "F16": 4.8e-8,
    "BF16": 3.1e-6,
    "Q4_0": 8.2e-3,
    "Q4_1": 6.8e-3,
    "Q5_0": 2.02e-3,
    "Q5_1": 1.6e-3,
    "Q8_0": 3.2e-5,
    "Q2_K": 8.1e-2,
    "Q3_K": 2.2e-2,
    "Q4_K": 5.5e-3,
    "Q5_K": 1.34e-3,
    "Q6_K": 3.3e-4,
    "IQ4_NL": 6.1e-3,
    "IQ4_XS": 6.2e-3,
    "MXFP4": 1.48e-2,
    "NVFP4": 7.5e-3,
}

#: Whose scales are powers of two: their steps may span more than the largest weights, or less.
POWERS = {"MXFP4"}
#: Whose scales are numbers of eight bits: the magnitudes that they hold to the full.
REACHES = {"NVFP4": (0.2, 2e3)}


def reaches(name: str, *magnitudes: float) -> bool:
    least, most = REACHES.get(name, (0.0, np.inf))
    return all(least <= abs(m) <= most for m in magnitudes)


def round_trip(name: str, x: Floats) -> Floats:
    return np.frombuffer(_native.dequantize(name, _native.quantize(name, x)), np.float32)


def relative_error(name: str, x: Floats) -> float:
    exact = x.astype(np.float64)
    return float(((round_trip(name, x) - exact) ** 2).sum() / (exact**2).sum())


def check_equal(name: str, number: int, x: Floats) -> None:
    kind = gguf.GGMLQuantizationType(number)
    with np.errstate(all="ignore"):
        theirs = gguf.quants.quantize(x.reshape(1, -1), kind).view(np.uint8).reshape(-1)
    ours = np.frombuffer(_native.quantize(name, x), np.uint8)
    wrong = np.flatnonzero(ours != theirs)
    assert not len(wrong), f"{len(wrong)} bytes of {len(ours)} differ, first {wrong[:4]}"


@over(EQUAL)
@pytest.mark.parametrize("scale", [1e-20, 1e-6, 1e-3, 0.02, 1.0, 60.0, 8e3])
def test_equal_to_the_gguf_package(
    name: str, number: int, elems: int, size: int, scale: float
) -> None:
    rng = np.random.default_rng(number)
    for draw in (rng.standard_normal, lambda n: rng.uniform(-1, 1, n), rng.standard_cauchy):
        x = np.clip(draw(1 << 16), -6, 6) * scale
        check_equal(name, number, x.astype(np.float32))
    grid = rng.integers(-8, 8, 1 << 14).astype(np.float32) * np.float32(scale)
    check_equal(name, number, grid + 0.0)  # ties, and no negative zero


def test_which_types_the_gguf_package_can_quantize() -> None:
    assert {"F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4"} <= {t[0] for t in EQUAL}


@over(EQUAL)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_equal_to_the_gguf_package_on_drawn_numbers(
    name: str, number: int, elems: int, size: int, data: Any
) -> None:
    number_or_zero = st.one_of(
        st.just(0.0),
        st.floats(2.0**-100, 5e4, width=32),
        st.floats(-5e4, -(2.0**-100), width=32),
    )
    drawn = data.draw(st.lists(number_or_zero, min_size=elems, max_size=elems))
    check_equal(name, number, np.array(drawn, np.float32))


@over(TYPES)
@pytest.mark.parametrize("sigma", [1e-3, 0.02, 1.0, 1e3])
def test_error_on_gaussian_weights(
    name: str, number: int, elems: int, size: int, sigma: float
) -> None:
    if not reaches(name, sigma, 4 * sigma):
        pytest.skip(f"{name} has no scale for numbers of this size")
    x = (np.random.default_rng(1).standard_normal(1 << 18) * sigma).astype(np.float32)
    # A type without a measured figure: no worse than the least efficient one, by bits a weight.
    bound = MEASURED.get(name, 7.0 * 4.0 ** (-8 * size / elems))
    assert relative_error(name, x) <= bound


@over(BLOCKS)
@pytest.mark.parametrize(
    "shape", ["uniform", "offset", "negative", "heavy", "sparse", "outlier", "ramp"]
)
def test_error_on_other_weights(name: str, number: int, elems: int, size: int, shape: str) -> None:
    """No weight is farther off than one step, if the steps span the block's largest weights."""
    rng = np.random.default_rng(2)
    n = 1 << 15
    x = {
        "uniform": rng.uniform(-1, 1, n),
        "offset": 3 + rng.standard_normal(n),
        "negative": -3 + rng.standard_normal(n),
        "heavy": rng.standard_t(3, n),
        "sparse": rng.standard_normal(n) * (rng.random(n) < 0.05),
        "outlier": rng.standard_normal(n) + 100 * (np.arange(n) % 256 == 7),
        "ramp": np.linspace(-1, 1, n),
    }[shape].astype(np.float32)
    blocks = x.reshape(-1, elems)
    reach = 2 * np.abs(blocks).max(1)
    bits = 8 * size // elems
    if name in POWERS or name in REACHES:
        # Of the largest weights, from 8 to 16, those above 12 become 12; the step below is 4.
        reach *= (2**bits - 1) / 8
    off = np.abs(round_trip(name, x).reshape(-1, elems) - blocks).max(1)
    assert (off <= reach / (2**bits - 1) * 1.05).all(), (off / reach * (2**bits - 1)).max()


@over(TYPES)
def test_zeros_stay_zeros(name: str, number: int, elems: int, size: int) -> None:
    assert not round_trip(name, np.zeros(4 * elems, np.float32)).any()


@over(TYPES)
@pytest.mark.parametrize("value", [1e-3, 0.7, -0.7, 100.0, -3e4])
def test_constants_are_kept(name: str, number: int, elems: int, size: int, value: float) -> None:
    if not reaches(name, value):
        return
    x = np.full(2 * elems, value, np.float32)
    # Scales that are subnormal halves have few bits, those of eight bits four, powers of two none.
    few = 0.2 if name in POWERS else 0.07 if name in REACHES else 8e-3
    most = max(few, 1.1e-2 if value == 1e-3 else 0.0)
    np.testing.assert_allclose(round_trip(name, x), x, rtol=most)


@over(BLOCKS)
def test_what_is_written_is_finite(name: str, number: int, elems: int, size: int) -> None:
    """NaN counts as 0; infinities and numbers out of range become the largest magnitude."""
    rng = np.random.default_rng(3)
    big = np.finfo(np.float32).max
    edges = [np.nan, np.inf, -np.inf, big, -big, 1e30, -1e30, 1e-45, -1e-45, 0.0, 1.0]
    x = rng.choice(np.array(edges, np.float32), 512 * elems)
    y = round_trip(name, x)
    assert np.isfinite(y).all()
    for edge in (np.inf, big):
        y = round_trip(name, np.full(elems, edge, np.float32))
        assert (y == y[0]).all()
        assert y[0] > REACHES.get(name, (0.0, 5e4))[1]
        mirrored = round_trip(name, np.full(elems, -edge, np.float32))
        assert (mirrored == mirrored[0]).all()
        assert mirrored[0] < -REACHES.get(name, (0.0, 5e4))[1]
    assert not round_trip(name, np.full(elems, np.nan, np.float32)).any()


@over([t for t in TYPES if t[2] == 1])
def test_plain_floats_keep_what_is_not_finite(
    name: str, number: int, elems: int, size: int
) -> None:
    y = round_trip(name, np.array([np.nan, np.inf, -np.inf, -0.0], np.float32))
    assert np.isnan(y[0])
    assert y[1] == np.inf
    assert y[2] == -np.inf
    assert np.signbit(y[3])


@over(BLOCKS)
@settings(max_examples=100, deadline=None)
@given(exponent=st.integers(-149, 127), seed=st.integers(0, 2**32 - 1))
def test_any_magnitude(
    name: str, number: int, elems: int, size: int, exponent: int, seed: int
) -> None:
    draw = np.random.default_rng(seed).uniform(-1, 1, elems)
    x = np.ldexp(draw, exponent).astype(np.float32)
    y = round_trip(name, x)
    assert np.isfinite(y).all()
    most = np.abs(x).max()
    # A scale among the subnormals of half precision is off by up to 2^-25, times the largest
    # integer. (K-quants fit their integers to the scale as it is stored.)
    integer, off = (127 if name == "Q8_0" else 32), 2.0**-25
    if name in REACHES:
        off = 2.0**-11
    assert np.abs(y).max() <= 1.3 * most + integer * off
    if 1e-2 <= most <= 1e4 and reaches(name, most):
        # Uniform numbers leave an error of at least 4^-bits.
        coarse = max(0.02, 1.5 * 4.0 ** -(8 * size // elems))
        assert relative_error(name, x) <= (0.05 if name in POWERS | REACHES.keys() else coarse)


@over(TYPES)
def test_blocks_do_not_depend_on_their_neighbours(
    name: str, number: int, elems: int, size: int
) -> None:
    """Enough blocks for several threads; each is what it would be alone."""
    n = max(3 * 2**14 // elems, 3) + 1
    x = np.random.default_rng(4).standard_normal(n * elems).astype(np.float32)
    whole = _native.quantize(name, x)
    for i in (0, 1, n // 2, n - 1):
        alone = _native.quantize(name, x[i * elems : (i + 1) * elems])
        assert alone == whole[i * size : (i + 1) * size]


@over(BLOCKS)
def test_a_length_that_is_no_whole_number_of_blocks(
    name: str, number: int, elems: int, size: int
) -> None:
    with pytest.raises(ValueError, match=rf"{elems + 1} items.*multiple of {elems}"):
        _native.quantize(name, np.zeros(elems + 1, np.float32))
    assert _native.quantize(name, np.zeros(0, np.float32)) == b""


def test_only_float32_is_taken() -> None:
    with pytest.raises(BufferError):
        _native.quantize("Q8_0", np.zeros(32, np.float64))
