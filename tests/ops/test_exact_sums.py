"""`mat_vec`, over weights that are small integers above all, against another program of its
definition (the doc comments of `Op::MatVec` and `Op::RmsNorm`): integers by NumPy's int64, float32
operations by float64 rounded to odd. The bits are the same, and they are near to float64."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onegraph
import pytest
import shapes
from gguf.quants import (
    IQ1_S,
    IQ2_S,
    IQ2_XS,
    IQ2_XXS,
    IQ3_S,
    IQ3_XXS,
    IQ4_NL,
    MXFP4,
    NVFP4,
    Q4_K,
)
from numpy.typing import NDArray
from support.backends import BACKENDS
from support.plans import TYPES, Floats, Plan, Run, bits, decode, encode, normal
from support.plans_attention import assert_same

CPU = BACKENDS[0]
Integers = NDArray[np.int64]
Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class Blocks:
    """Blocks of one type: `[blocks, ...]`."""

    #: [blocks, columns]
    q: Integers
    #: [blocks, sub-blocks]: d s.
    scales: Doubles
    #: [blocks, sub-blocks] in units of `dmin`, [blocks].
    mins: tuple[Integers, Doubles] | None = None
    #: [blocks, sub-blocks]: numbers of their own.
    offsets: Doubles | None = None


def halves(data: NDArray[np.uint8]) -> Doubles:
    return np.ascontiguousarray(data).view("<f2").astype(np.float64)


def nibbles(data: NDArray[np.uint8], run: int) -> Integers:
    """Low halves of each run of bytes, then its high halves."""
    runs = data.reshape(len(data), -1, 1, run)
    return (runs >> np.array([[0], [4]], np.uint8) & 15).reshape(len(data), -1).astype(np.int64)


def q4_0(b: NDArray[np.uint8]) -> Blocks:
    return Blocks(nibbles(b[:, 2:], 16) - 8, halves(b[:, :2]))


def q4_1(b: NDArray[np.uint8]) -> Blocks:
    return Blocks(nibbles(b[:, 4:], 16), halves(b[:, :2]), offsets=halves(b[:, 2:4]))


def five_bits(b: NDArray[np.uint8]) -> Integers:
    """Of fifth bits, one a weight, and nibbles behind."""
    top = np.unpackbits(b[:, :4], axis=1, bitorder="little").astype(np.int64)
    return nibbles(b[:, 4:], 16) + 16 * top


def q5_0(b: NDArray[np.uint8]) -> Blocks:
    return Blocks(five_bits(b[:, 2:]) - 16, halves(b[:, :2]))


def q5_1(b: NDArray[np.uint8]) -> Blocks:
    return Blocks(five_bits(b[:, 4:]), halves(b[:, :2]), offsets=halves(b[:, 2:4]))


def q8_0(b: NDArray[np.uint8]) -> Blocks:
    return Blocks(np.ascontiguousarray(b[:, 2:]).view(np.int8).astype(np.int64), halves(b[:, :2]))


def with_minimums(q: Integers, b: NDArray[np.uint8]) -> Blocks:
    scales, mins = Q4_K.get_scale_min(b[:, 4:16])
    d, dmin = halves(b[:, :2]), halves(b[:, 2:4])[:, 0]
    return Blocks(q, d * scales, mins=(mins.astype(np.int64), dmin))


def q4_k(b: NDArray[np.uint8]) -> Blocks:
    return with_minimums(nibbles(b[:, 16:], 32), b)


def q5_k(b: NDArray[np.uint8]) -> Blocks:
    top = b[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    return with_minimums(nibbles(b[:, 48:], 32) + 16 * top.reshape(len(b), -1).astype(np.int64), b)


def q6_k(b: NDArray[np.uint8]) -> Blocks:
    low = nibbles(b[:, :128], 64)
    top = b[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([[0], [2], [4], [6]], np.uint8) & 3
    scales = np.ascontiguousarray(b[:, 192:208]).view(np.int8).astype(np.float64)
    q = low + 16 * top.reshape(len(b), -1).astype(np.int64) - 32
    return Blocks(q, halves(b[:, 208:]) * scales)


def two_bits(b: NDArray[np.uint8]) -> Integers:
    """Two runs of 32 bytes, of which each pair of bits is a run of columns."""
    runs = b.reshape(-1, 2, 1, 32) >> np.array([[0], [2], [4], [6]], np.uint8) & 3
    return runs.reshape(len(b), -1).astype(np.int64)


def q2_k(b: NDArray[np.uint8]) -> Blocks:
    scales, mins = (b[:, :16] & 15).astype(np.float64), (b[:, :16] >> 4).astype(np.int64)
    d, dmin = halves(b[:, 80:82]), halves(b[:, 82:])[:, 0]
    return Blocks(two_bits(b[:, 16:80]), d * scales, mins=(mins, dmin))


def q3_k(b: NDArray[np.uint8]) -> Blocks:
    top = b[:, None, :32] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    q = two_bits(b[:, 32:96]) + 4 * top.reshape(len(b), -1).astype(np.int64) - 4
    high = b[:, None, 104:108] >> np.array([[0], [2], [4], [6]], np.uint8) & 3
    scales = nibbles(b[:, 96:104], 8) + 16 * high.reshape(len(b), -1).astype(np.int64) - 32
    return Blocks(q, halves(b[:, 108:]) * scales)


def word(b: NDArray[np.uint8], at: int, count: int, dtype: str) -> Integers:
    """`count` numbers from byte `at` on."""
    size = np.dtype(dtype).itemsize
    data = np.ascontiguousarray(b[:, at : at + count * size])
    return data.view(dtype).astype(np.int64)


def fields(x: Integers, width: int, count: int) -> Integers:
    """Of each number so many fields of bits, the lowest first."""
    return (x[..., None] >> width * np.arange(count) & (1 << width) - 1).reshape(len(x), -1)


def points(ty: type, number: Integers) -> Integers:
    """The points of these numbers, `[blocks, places]`, of the gguf package's grid of a type."""
    ty.init_grid()
    grid = np.asarray(ty.grid).reshape(ty.grid_shape).astype(np.int64)
    return grid[number].reshape(len(number), -1)


def signs(bits: Integers) -> Integers:
    return 1 - 2 * fields(bits, 1, 8)


def of_seven(x: Integers) -> Integers:
    """The signs of eight of which seven are stored: an even number is negative."""
    seven = fields(x, 1, 7).reshape(len(x), -1, 7)
    eight = np.concatenate([seven, seven.sum(axis=2, keepdims=True) & 1], axis=2)
    return 1 - 2 * eight.reshape(len(x), -1)


def odd(b: NDArray[np.uint8], s: Integers, parts: int, at: int = 0) -> Doubles:
    return halves(b[:, at : at + 2]) / parts * (2 * s + 1)


def iq3_xxs(b: NDArray[np.uint8]) -> Blocks:
    both = word(b, 66, 8, "<u4")
    q = points(IQ3_XXS, word(b, 2, 64, "u1")) * of_seven(fields(both & 0xFFFFFFF, 7, 4))
    return Blocks(q, odd(b, both >> 28, 4))


def iq3_s(b: NDArray[np.uint8]) -> Blocks:
    number = word(b, 2, 64, "u1") + 256 * fields(word(b, 66, 8, "u1"), 1, 8)
    q = points(IQ3_S, number) * signs(word(b, 74, 32, "u1"))
    return Blocks(q, odd(b, fields(word(b, 106, 4, "u1"), 4, 2), 1))


def iq2_xxs(b: NDArray[np.uint8]) -> Blocks:
    words = word(b, 2, 16, "<u4")
    number, both = fields(words[:, ::2], 8, 4), words[:, 1::2]
    q = points(IQ2_XXS, number) * of_seven(fields(both & 0xFFFFFFF, 7, 4))
    return Blocks(q, odd(b, both >> 28, 8))


def iq2_xs(b: NDArray[np.uint8]) -> Blocks:
    both = word(b, 2, 32, "<u2")
    q = points(IQ2_XS, both & 511) * of_seven(both >> 9)
    return Blocks(q, odd(b, fields(word(b, 66, 8, "u1"), 4, 2), 8))


def iq2_s(b: NDArray[np.uint8]) -> Blocks:
    number = word(b, 2, 32, "u1") + 256 * fields(word(b, 66, 8, "u1"), 2, 4)
    q = points(IQ2_S, number) * signs(word(b, 34, 32, "u1"))
    return Blocks(q, odd(b, fields(word(b, 74, 8, "u1"), 4, 2), 8))


def shifted(number: Integers, down: Integers) -> Integers:
    """Eights of points, and one more, or one less where `down`."""
    return 8 * points(IQ1_S, number) + 1 - 2 * np.repeat(down, 8, axis=1)


def iq1_s(b: NDArray[np.uint8]) -> Blocks:
    more = word(b, 34, 8, "<u2")
    number = word(b, 2, 32, "u1") + 256 * fields(more & 0xFFF, 3, 4)
    return Blocks(shifted(number, np.repeat(more >> 15, 4, axis=1)), odd(b, more >> 12 & 7, 8))


def iq1_m(b: NDArray[np.uint8]) -> Blocks:
    more, parts = fields(word(b, 32, 16, "u1"), 4, 2), word(b, 48, 4, "<u2")
    number = word(b, 0, 32, "u1") + 256 * (more & 7)
    d = ((parts >> 12) << np.arange(0, 16, 4)).sum(axis=1).astype("<u2")
    scales = odd(d[:, None].view(np.uint8), fields(parts & 0xFFF, 3, 4), 8)
    return Blocks(shifted(number, more >> 3), scales)


IQ4 = np.array(IQ4_NL.kvalues)


def iq4_nl(b: NDArray[np.uint8]) -> Blocks:
    return Blocks(IQ4[nibbles(b[:, 2:], 16)], halves(b[:, :2]))


def iq4_xs(b: NDArray[np.uint8]) -> Blocks:
    upper = np.ascontiguousarray(b[:, 2:4]).view("<u2") >> np.arange(0, 16, 2) & 3
    lower = np.stack([b[:, 4:8] & 15, b[:, 4:8] >> 4], axis=2).reshape(len(b), 8)
    scales = 16 * upper + lower - 32.0
    return Blocks(IQ4[nibbles(b[:, 8:], 16)], halves(b[:, :2]) * scales)


E2M1 = np.array(MXFP4.kvalues)


def mxfp4(b: NDArray[np.uint8]) -> Blocks:
    scales = 2.0 ** (b[:, :1].astype(np.float64) - 128)
    return Blocks(E2M1[nibbles(b[:, 1:], 16)], scales)


def nvfp4(b: NDArray[np.uint8]) -> Blocks:
    return Blocks(E2M1[nibbles(b[:, 4:], 8)], NVFP4.ue4m3_to_fp32(b[:, :4]).astype(np.float64))


UNPACK: dict[str, Callable[[NDArray[np.uint8]], Blocks]] = {
    "Q4_0": q4_0,
    "Q4_1": q4_1,
    "Q5_0": q5_0,
    "Q5_1": q5_1,
    "Q8_0": q8_0,
    "Q2_K": q2_k,
    "Q3_K": q3_k,
    "Q4_K": q4_k,
    "Q5_K": q5_k,
    "Q6_K": q6_k,
    "IQ2_XXS": iq2_xxs,
    "IQ2_XS": iq2_xs,
    "IQ3_XXS": iq3_xxs,
    "IQ1_S": iq1_s,
    "IQ3_S": iq3_s,
    "IQ2_S": iq2_s,
    "IQ1_M": iq1_m,
    "IQ4_NL": iq4_nl,
    "IQ4_XS": iq4_xs,
    "MXFP4": mxfp4,
    "NVFP4": nvfp4,
}
over_types = pytest.mark.parametrize("ty", UNPACK)


def test_every_type_of_small_integers_is_here() -> None:
    assert set(UNPACK) == {ty for ty, (elems, _) in TYPES.items() if elems > 1}


def rounded(x: Doubles) -> Doubles:
    return x.astype(np.float32).astype(np.float64)


def fma(a: Doubles, b: Doubles, c: Doubles) -> Doubles:
    """Of float32 numbers, rounded once: the product is exact in float64, the sum is rounded to odd
    there, so that rounding it again to fewer bits is as if it had been exact."""
    product = a * b
    total = product + c
    back = total - product
    error = (product - (total - back)) + (c - back)
    even = total.view(np.int64) & 1 == 0
    to_odd = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    return rounded(np.where((error != 0) & even, to_odd, total))


def exponent(x: Floats) -> NDArray[np.int32]:
    """Of float32 numbers: each is below 2 to its own."""
    return (np.abs(x).view(np.uint32) >> 23).astype(np.int32) - 126


def block_fixed_point(x: Floats) -> tuple[Integers, int]:
    """Up to 256 columns as 256 integers, in 2^-20, and their exponent."""
    blocks = np.pad(x, (0, 256 - len(x))).reshape(8, 32)
    own = np.maximum(exponent(np.abs(blocks).max(axis=1, keepdims=True)), 24 - 126)
    z = np.rint(blocks * 2.0 ** (14 - own))
    h = np.rint(z.astype(np.float16) * 2.0 ** (own - own.max() + 20))
    return h.astype(np.int64).reshape(256), int(own.max())


def minimum(mins: Integers, sums: Doubles) -> Doubles:
    """`[n_out]`: the sum of minimums times sums of x, in 2^24."""
    e = max(int(exponent(np.abs(sums).max(keepdims=True).astype(np.float32))[0]), -2)
    return (mins * np.rint(sums * 2.0 ** (14 - e))).sum(axis=1) * 2.0 ** (e - 38)


def product(blocks: Blocks, x: Floats) -> Floats:
    """`[n_out]` sums of one row of x; blocks are those of a superblock of each row, in order."""
    n = -(-len(x) // 256)
    sub = blocks.q.shape[1] // blocks.scales.shape[1]
    per_row = len(x) // blocks.q.shape[1]

    def rows(part: NDArray, width: int) -> NDArray:
        """`[n_out, n, width]`, the last superblock filled up with zeros."""
        flat = part.reshape(-1, per_row * part.shape[1])
        return np.pad(flat, ((0, 0), (0, n * width - flat.shape[1]))).reshape(-1, n, width)

    subs = 256 // sub
    q = rows(blocks.q, 256).reshape(-1, n, subs, sub)
    scales = rows(blocks.scales, subs)
    offsets = None if blocks.offsets is None else rows(blocks.offsets, subs)
    parts = min(8, n)
    total = None
    for i in range(parts):
        y = np.zeros(len(q))
        for s in range(i * n // parts, (i + 1) * n // parts):
            integers, e = block_fixed_point(x[256 * s : 256 * (s + 1)])
            h = integers.reshape(subs, sub)
            t = rounded((q[:, s] * h).sum(axis=2).astype(np.float64)) * 2.0**-44
            sums = h.sum(axis=1) * 2.0**-20
            p = np.zeros(len(q))
            if blocks.mins is not None:
                mins, dmin = blocks.mins
                m = minimum(rows(mins, subs)[:, s], sums)
                p = -rounded(rows(dmin[:, None], 1)[:, s, 0] * m)
            for j in range(subs):
                p = fma(scales[:, s, j], t[:, j], p)
                if offsets is not None:
                    p = fma(offsets[:, s, j], sums[j] * 2.0**-24, p)
            y = fma(np.full(len(q), 2.0 ** (e + 10)), p, y)
        total = y if total is None else rounded(total + y)
    assert total is not None
    return total.astype(np.float32)


def product_of_floats(weight: Doubles, x: Floats) -> Floats:
    """`[n_out]` sums of one row of x over 32 lanes; `weight` is `[n_out, n_in]`."""
    more = -len(x) % 32
    columns = np.pad(weight, ((0, 0), (0, more))).reshape(len(weight), -1, 32)
    values = np.pad(x.astype(np.float64), (0, more)).reshape(-1, 32)
    lanes = np.zeros((len(weight), 32))
    for i, x_of_lanes in enumerate(values):
        lanes = fma(columns[:, i], np.broadcast_to(x_of_lanes, lanes.shape), lanes)
    return folded(lanes)[:, 0].astype(np.float32)


def folded(lanes: Doubles) -> Doubles:
    """32 lanes added up in halves."""
    while lanes.shape[1] > 1:
        half = lanes.shape[1] // 2
        lanes = rounded(lanes[:, :half] + lanes[:, half:])
    return lanes


def norm_factor(x: Floats, eps: float) -> np.float32:
    """What the norm of a row multiplies its sums by: NaN where its squares overflow."""
    values = np.pad(x.astype(np.float64), (0, -len(x) % 256)).reshape(-1, 32, 8)
    chains = np.zeros(values.shape[:2])
    for e in range(8):
        chains = fma(values[:, :, e], values[:, :, e], chains)
    first, *others = folded(chains)[:, 0].astype(np.float32)
    for squares in others:
        first += squares
    factor = np.float32(1) / np.sqrt(first / np.float32(len(x)) + np.float32(eps))
    return factor if factor > 0 else np.float32(np.nan)


def linear(ty: str, n_in: int, n_out: int, bias: Floats | None = None) -> Plan:
    plan = Plan()
    x, y = plan.buffer("x", n_in), plan.buffer("y", n_out)
    weight = plan.weight("blk.3.w", ty, encode(ty, normal(n_out, n_in, scale=0.1)), n_in, n_out)
    b = None if bias is None else plan.vector("b", bias)
    plan.op("mat_vec", x=x, weight=weight, bias=b, out=y)
    return plan


def unpacked(plan: Plan, ty: str) -> Blocks:
    data = np.frombuffer(plan.weights["blk.3.w"], np.uint8)
    return UNPACK[ty](data.reshape(-1, TYPES[ty][1]))


@over_types
def test_blocks_are_what_the_gguf_package_says(ty: str) -> None:
    """The integers here are those of the file: expanded, they are its weights."""
    plan = linear(ty, 512, 9)
    b = unpacked(plan, ty)
    sub = b.q.shape[1] // b.scales.shape[1]
    weights = b.q * np.repeat(b.scales, sub, axis=1)
    if b.mins is not None:
        weights -= np.repeat(b.mins[0] * b.mins[1][:, None], sub, axis=1)
    if b.offsets is not None:
        weights += np.repeat(b.offsets, sub, axis=1)
    found = weights.astype(np.float32).reshape(-1)
    assert np.array_equal(found, decode(ty, plan.weights["blk.3.w"]))


def kinds(rows: int, n_in: int) -> dict[str, Floats]:
    outliers = normal(rows, n_in)
    outliers[:, ::97] *= 1000
    below = 0.5 ** np.random.default_rng(3).integers(0, 48, -(-n_in // 32))
    magnitudes = 10.0 ** np.random.default_rng(1).uniform(-12, 12, (rows, n_in))
    return {
        "normal": normal(rows, n_in, seed=2),
        "outliers": outliers,
        "zeros": np.zeros((rows, n_in), np.float32),
        "tiny": normal(rows, n_in, scale=1e-38),
        "huge": normal(rows, n_in, scale=3e34),
        # From some on a block's integers lose places, then nothing is left of them.
        "blocks below": normal(rows, n_in) * np.repeat(below, 32)[:n_in].astype(np.float32),
        "all magnitudes": (normal(rows, n_in) * magnitudes).astype(np.float32),
    }


@over_types
@pytest.mark.parametrize("blocks", [1, 3, 13, 41])
def test_bits(ty: str, blocks: int) -> None:
    elems = TYPES[ty][0]
    n_in, n_out = (blocks if elems < 256 else -(-blocks // 3)) * elems, 37
    bias = normal(n_out, seed=5)
    plan = linear(ty, n_in, n_out, bias)
    b = unpacked(plan, ty)
    run = Run(CPU, plan, threads=2)
    for kind, x in kinds(5, n_in).items():
        wanted = np.stack([product(b, row) + bias for row in x])
        for rows in (1, 2, 5):
            assert np.array_equal(bits(run({"x": x[:rows]})["y"]), bits(wanted[:rows])), kind


@over_types
@pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value")
def test_bits_of_blocks_of_any_bits(ty: str) -> None:
    """Scales of every size, of no number too."""
    n_in, n_out = 768, 64
    plan = linear(ty, n_in, n_out)
    size = len(plan.weights["blk.3.w"])
    plan.weights["blk.3.w"] = np.random.default_rng(6).bytes(size)
    b = unpacked(plan, ty)
    x = normal(2, n_in, seed=9)
    wanted = np.stack([product(b, row) for row in x])
    assert np.isfinite(wanted).any(), "sums of no number have no bits of their own"
    found = Run(CPU, plan)({"x": x})["y"]
    assert np.array_equal(np.isnan(found), np.isnan(wanted))
    kept = ~np.isnan(wanted)
    assert np.array_equal(bits(found[kept]), bits(wanted[kept]))


@over_types
def test_any_number_of_rows(ty: str) -> None:
    n_in = 544 if TYPES[ty][0] == 32 else 768
    plan = linear(ty, n_in, 70)
    b = unpacked(plan, ty)
    x = normal(65, n_in, seed=9)
    wanted = np.stack([product(b, row) for row in x])
    for threads in (1, 3):
        run = Run(CPU, plan, threads=threads)
        for rows in range(1, 66):
            assert np.array_equal(bits(run({"x": x[:rows]})["y"]), bits(wanted[:rows])), rows


@pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value")
@pytest.mark.parametrize("ty", TYPES)
@pytest.mark.parametrize("blocks", [1, 3, 13])
def test_a_norm_is_part_of_the_sum(ty: str, blocks: int) -> None:
    """Its weight multiplies x before the sum, its factor the sum before the bias."""
    elems = TYPES[ty][0]
    n_in = {1: 45}.get(elems, elems) * (-(-blocks // 3) if elems == 256 else blocks)
    n_out, eps = 37, 1e-5
    bias, scale = normal(n_out, seed=5), normal(n_in, seed=6)
    plan = linear(ty, n_in, n_out, bias)
    data = plan.weights["blk.3.w"]
    norm = plan.norm("norm", scale, eps)
    # The one of `linear`, then two of one norm: with a bias and without.
    for out, b in [("biased", 1), ("sum", None)]:
        fields = {"x": 0, "norm": norm, "weight": 0, "bias": b}
        plan.op("mat_vec", out=plan.buffer(out, n_out), **fields)

    def sums(x: Floats) -> Floats:
        if ty in UNPACK:
            return product(unpacked(plan, ty), x)
        return product_of_floats(decode(ty, data).reshape(n_out, -1).astype(np.float64), x)

    run = Run(CPU, plan, threads=2)
    for kind, x in kinds(5, n_in).items():
        # What is huge must have a grid behind the norm's weight too.
        x = x / np.float32(8) if kind == "huge" else x
        plain = np.stack([sums(row) for row in x])
        normed = np.stack([sums(row * scale) * norm_factor(row, eps) for row in x])
        wanted = {"y": plain + bias, "biased": normed + bias, "sum": normed}
        for rows in (1, 2, 5):
            found = run({"x": x[:rows]})
            for out, values in wanted.items():
                assert_same(found[out], values[:rows])


def lengths() -> list[int]:
    """Every row length of the shapes of models that is whole blocks."""
    tensors = [t for shape in shapes.load().values() for _, t in shape.tensors()]
    return sorted({n_in for n_in, *rest in tensors if rest and n_in % 32 == 0})


@pytest.mark.parametrize("n_in", lengths())
def test_every_shape_of_a_model_has_the_parts_of_the_rule(n_in: int) -> None:
    ty = "Q8_0"
    plan = linear(ty, n_in, 3)
    b = unpacked(plan, ty)
    x = kinds(2, n_in)["all magnitudes"]
    wanted = np.stack([product(b, row) for row in x])
    assert np.array_equal(bits(Run(CPU, plan)({"x": x})["y"]), bits(wanted))


@over_types
def test_products_are_near_float64(ty: str) -> None:
    """By the norms of the errors and of the products: 2.5e-4, what 11 bits of x leave. Beside an
    outlier the other values of a block have fewer."""
    plan = linear(ty, 2048, 256)
    weight = decode(ty, plan.weights["blk.3.w"]).reshape(256, 2048).astype(np.float64)
    x = kinds(16, 2048)
    for kind, most in [("normal", 3e-4), ("huge", 3e-4), ("outliers", 3.5e-4)]:
        exact = x[kind].astype(np.float64) @ weight.T
        error = Run(CPU, plan)({"x": x[kind]})["y"] - exact
        assert np.linalg.norm(error) <= most * np.linalg.norm(exact), kind


@over_types
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2.0**117])
def test_inputs_without_a_grid_are_refused(ty: str, bad: float) -> None:
    n_in = TYPES[ty][0] * 2
    plan = linear(ty, n_in, 33)
    run = Run(CPU, plan, n_slots=3, threads=2)
    for rows in (1, 9):
        good = normal(rows, n_in)
        clean = run({"x": good})["y"]
        x = good.copy()
        x[rows // 2, n_in - 1] = bad
        with pytest.raises(onegraph.ModelError) as error:
            run({"x": x}, positions=range(rows), slots=[2] * rows)
        said = str(error.value)
        assert f"the product with blk.3.w at position {rows // 2} of sequence slot 2" in said
        assert "another quantization" in said
        assert np.array_equal(bits(run({"x": good})["y"]), bits(clean))


@over_types
def test_a_norm_may_take_inputs_off_the_grid(ty: str) -> None:
    """What has to have a grid is x times the weight of the norm, which the message shows."""
    n_in = TYPES[ty][0] * 2
    plan = linear(ty, n_in, 33)
    scale = np.ones(n_in, np.float32)
    scale[-1] = 2.0**60
    (op,) = plan._plan["ops"]
    op["norm"] = plan.norm("norm", scale, 1e-5)
    run = Run(CPU, plan, threads=2)
    for rows in (1, 9):
        x = normal(rows, n_in)
        x[rows // 2, -1] = 2.0**56
        assert np.isfinite(run({"x": x})["y"]).all()
        x[rows // 2, -1] = -(2.0**57)
        with pytest.raises(onegraph.ModelError, match=r"blk\.3\.w .* an input of -166153"):
            run({"x": x})
