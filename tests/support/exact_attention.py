"""A second program for attention over an `I16` cache (the doc comment of `Op::Attention`), and for
how such a cache stores keys and values: integers by NumPy's int64, float32 operations by NumPy,
each rounded once.

out = attention(q, k, v, n_head, n_head_kv, scale)                    # every row of a sequence
last = attention(q, k, v, n_head, n_head_kv, scale, positions=[n - 1])    # q, k, v as above
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Integers = NDArray[np.int64]
Bytes = NDArray[np.uint8]

#: Dimensions of a head that share a unit.
BLOCK = 64
#: Tokens that are weighed together, and those of a page.
TOKENS = 64
#: More units of tokens than this are joined in splits of two or more.
SPLITS = 32
#: What a cache holds at most.
LARGEST = np.float32(32767 * 2.0**35)

_LOG2_E = 1.4426950408889634
#: Of r^6 to r^1 in 2^r.
_EXP2 = [0.0001532647, 0.00133908074, 0.00961850584, 0.0555035993, 0.240226477, 0.693147182]


def fma(a: Floats, b: Floats, c: Floats) -> Floats:
    """`a b + c` of finite numbers, rounded once: the product is exact in float64, and the sum is
    rounded to odd there, so that rounding it again to float32 is as if it had been exact."""
    product = np.asarray(a, np.float64) * np.asarray(b, np.float64)
    addend = np.asarray(c, np.float64)
    total = product + addend
    rest = total - product
    error = (product - (total - rest)) + (addend - rest)
    even = total.view(np.int64) & 1 == 0
    to_odd = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    return np.where((error != 0) & even, to_odd, total).astype(np.float32)


def exp2_down(x: Floats) -> Floats:
    """`2^x` for `x <= 0`; zero below -100."""
    near = np.maximum(x, np.float32(-100))
    n = np.rint(near)
    r = near - n
    p = np.full_like(r, _EXP2[0])
    for coefficient in [*_EXP2[1:], 1.0]:
        p = fma(p, r, np.full_like(r, coefficient))
    return np.where(x < -100, np.float32(0), p * _power(n))


def _power(exponent: NDArray[np.generic]) -> Floats:
    """`2^exponent`, a float32."""
    return np.ldexp(np.float32(1), exponent.astype(np.int32)).astype(np.float32)


def _field(largest: Floats) -> Integers:
    """The exponent fields of numbers that are not negative."""
    return (np.ascontiguousarray(largest, np.float32).view(np.uint32) >> 23).astype(np.int64)


def _in_blocks(heads: NDArray[np.generic]) -> NDArray[np.generic]:
    """`[..., head_dim]` as `[..., blocks, 64]`, the last block filled up with zeros."""
    more = -heads.shape[-1] % BLOCK
    filled = np.pad(heads, [(0, 0)] * (heads.ndim - 1) + [(0, more)])
    return filled.reshape(*heads.shape[:-1], -1, BLOCK)


def head_bytes(head_dim: int) -> int:
    """Bytes of a key or a value."""
    return 2 * head_dim + -(-head_dim // BLOCK)


def encode(values: Floats) -> Bytes:
    """`[n, head_dim]` keys or values as they are stored, `[n, head_bytes]`."""
    x = np.where(np.isnan(values), np.float32(0), values).clip(-LARGEST, LARGEST)
    parts = []
    for first in range(0, x.shape[1], BLOCK):
        block = x[:, first : first + BLOCK]
        field = _field(np.abs(block).max(axis=1)).clip(15, 176)
        steps = block.astype(np.float64) * np.ldexp(1.0, 141 - field)[:, None]
        integers = np.rint(steps).clip(-32767, 32767).astype("<i2")
        parts += [(field - 14).astype(np.uint8)[:, None], integers.view(np.uint8)]
    return np.concatenate(parts, axis=1)


@dataclass(frozen=True)
class Fixed:
    """Stored keys or values of one head, taken apart."""

    #: `[tokens, blocks]`.
    units: Floats
    #: `[tokens, blocks, 64]`, the last block filled up with zeros.
    integers: Integers

    @staticmethod
    def of(stored: Bytes, head_dim: int) -> Fixed:
        """Of `[tokens, head_bytes]`."""
        units, integers = [], []
        for block, first in enumerate(range(0, head_dim, BLOCK)):
            at, width = block * (1 + 2 * BLOCK), min(BLOCK, head_dim - first)
            units.append(stored[:, at].astype(np.uint32) << 23)
            ints = np.ascontiguousarray(stored[:, at + 1 : at + 1 + 2 * width])
            integers.append(ints.view("<i2").astype(np.int64))
        joined = _in_blocks(np.concatenate(integers, axis=1)).astype(np.int64)
        return Fixed(np.stack(units, axis=1).astype(np.uint32).view(np.float32), joined)


def decode(stored: Bytes, head_dim: int) -> Floats:
    """`[n, head_dim]`: what stored keys or values stand for, without rounding."""
    fixed = Fixed.of(stored, head_dim)
    values = fixed.integers.astype(np.float32) * fixed.units[:, :, None]
    return values.reshape(len(stored), -1)[:, :head_dim]


def _query(q: Floats) -> tuple[Integers, Integers, NDArray[np.bool_]]:
    """Heads `[rows, head_dim]` as integers in blocks, their exponents, and which have none."""
    field = _field(np.abs(q).max(axis=1))
    bad = field > 176
    e = np.where(bad, 0, np.maximum(field, 24) - 126)
    clean = np.where(bad[:, None], np.float32(0), q).astype(np.float64)
    integers = np.rint(clean * np.ldexp(1.0, 18 - e)[:, None]).astype(np.int64)
    assert np.abs(integers).max() <= 1 << 18
    return _in_blocks(integers).astype(np.int64), e, bad


def _scores(q: Integers, e: Integers, keys: Fixed, scale: float) -> Floats:
    """`y`, `[rows, tokens]`."""
    score = None
    for block in range(q.shape[1]):
        sums = (q[:, block] @ keys.integers[:, block].T).astype(np.float32)
        units = np.broadcast_to(keys.units[:, block], sums.shape)
        score = sums * units if score is None else fma(sums, units, score)
    assert score is not None
    c = np.float32(float(np.float32(scale)) * _LOG2_E)
    return score * (float(c) * np.ldexp(1.0, e - 18)).astype(np.float32)[:, None]


@dataclass(frozen=True)
class _Part:
    """The sums of some tokens: `[rows]`, `[rows]`, `[rows, blocks * 64]`."""

    top: Floats
    weight: Floats
    out: Floats

    def join(self, later: _Part) -> _Part:
        top = np.maximum(self.top, later.top)
        f, later_f = _shrunk(self.top - top), _shrunk(later.top - top)
        weight = fma(later.weight, later_f, self.weight * f)
        out = fma(later.out, later_f[:, None], self.out * f[:, None])
        return _Part(top, weight, out)


def _shrunk(exponent: Floats) -> Floats:
    """`2^exponent`; zero below 2^-126."""
    return np.where(exponent < -126, np.float32(0), _power(np.maximum(exponent, -126)))


def _unit(y: Floats, values: Fixed) -> _Part:
    """The sums of up to 64 tokens; `y` is -inf where a row does not see a token."""
    seen = y > -np.inf
    top = np.ceil(y.max(axis=1))
    p = exp2_down(np.where(seen, y, top[:, None]) - top[:, None])
    p = np.where(seen, p, np.float32(0))
    integers = np.rint(p.astype(np.float64) * 2.0**22).astype(np.int64)
    weight = integers.sum(axis=1).astype(np.float32) * np.float32(2.0**-22)
    outs = []
    for block in range(values.units.shape[1]):
        v = p * values.units[:, block]
        e = np.maximum(_field(v.max(axis=1)), 24) - 126
        w = np.rint(v.astype(np.float64) * np.ldexp(1.0, 16 - e)[:, None]).astype(np.int64)
        sums = np.minimum(w, 65535) @ values.integers[:, block]
        outs.append(sums.astype(np.float32) * _power(e - 16)[:, None])
    return _Part(top, weight, np.concatenate(outs, axis=1))


def units_of_a_split(n: int) -> int:
    """How many units in a row are joined first, for a row that sees `n` tokens."""
    return 1 << (-(-n // (SPLITS * TOKENS)) - 1).bit_length()


def _head(q: Floats, keys: Fixed, values: Fixed, scale: float, positions: Integers) -> Floats:
    """`[rows, head_dim]` of rows that see as many units of tokens."""
    integers, e, bad = _query(q)
    n = int(positions.max()) + 1
    keys = Fixed(keys.units[:n], keys.integers[:n])
    y = _scores(integers, e, keys, scale)
    y[np.arange(n) > positions[:, None]] = -np.inf
    run = units_of_a_split(n) * TOKENS
    whole: _Part | None = None
    for first in range(0, n, run):
        split: _Part | None = None
        for start in range(first, min(first + run, n), TOKENS):
            tokens = slice(start, min(start + TOKENS, n))
            part = _unit(y[:, tokens], Fixed(values.units[tokens], values.integers[tokens]))
            split = part if split is None else split.join(part)
        assert split is not None
        whole = split if whole is None else whole.join(split)
    assert whole is not None
    out = whole.out / whole.weight[:, None]
    out[bad] = np.nan
    return out[:, : q.shape[1]]


def attention_over(
    q: Floats,
    keys: Bytes,
    values: Bytes,
    n_head: int,
    scale: float,
    positions: Sequence[int] | None = None,
) -> Floats:
    """Attention over what a cache holds, `[tokens, n_head_kv, head_bytes]`: rows of `positions`, or
    of all tokens, `[len(positions), n_head * head_dim]`. Row `p` of q is the token of position `p`.
    """
    chosen = np.arange(len(q)) if positions is None else np.asarray(positions, np.int64)
    n_head_kv, head_dim = keys.shape[1], q.shape[1] // n_head
    group = n_head // n_head_kv
    heads = q.reshape(len(q), n_head, head_dim)
    out = np.empty((len(chosen), n_head, head_dim), np.float32)
    for kv in range(n_head_kv):
        stored = [Fixed.of(part[:, kv], head_dim) for part in (keys, values)]
        for units in np.unique(chosen // TOKENS):
            rows = np.flatnonzero(chosen // TOKENS == units)
            for head in range(kv * group, (kv + 1) * group):
                at = chosen[rows]
                out[rows, head] = _head(heads[at, head], stored[0], stored[1], scale, at)
    return out.reshape(len(chosen), -1)


def encode_heads(values: Floats, n_head_kv: int) -> Bytes:
    """`[n, n_head_kv * head_dim]` keys or values as stored, `[n, n_head_kv, head_bytes]`."""
    stored = encode(values.reshape(len(values) * n_head_kv, -1))
    return stored.reshape(len(values), n_head_kv, -1)


def store(pool: Bytes, k: Floats, v: Floats, n_head_kv: int) -> None:
    """Lays keys and values of a sequence, whose pages are those from 1 on, into the pool of a cache
    of one layer."""
    token = np.arange(len(k))
    for part, values in enumerate((k, v)):
        stored = encode_heads(values, n_head_kv)
        pages = pool.reshape(-1, 2, n_head_kv, TOKENS, stored.shape[2])
        pages[1 + token // TOKENS, part, :, token % TOKENS] = stored


def attention(
    q: Floats,
    k: Floats,
    v: Floats,
    n_head: int,
    n_head_kv: int,
    scale: float,
    positions: Sequence[int] | None = None,
) -> Floats:
    """Attention of a sequence, `[n, width]` each of q, k and v, in which a token sees those up to
    itself: the rows of `positions`, or all of them, `[rows, n_head * head_dim]`."""
    keys, values = encode_heads(k, n_head_kv), encode_heads(v, n_head_kv)
    return attention_over(q, keys, values, n_head, scale, positions)


def in_float64(
    q: Floats, k: Floats, v: Floats, n_head: int, n_head_kv: int, scale: float
) -> Doubles:
    """The same by the definition of attention, over keys and values as they are stored."""
    n, head_dim = len(q), q.shape[1] // n_head
    heads = q.astype(np.float64).reshape(n, n_head, head_dim)
    stored = [decode(encode(x.reshape(-1, head_dim)), head_dim) for x in (k, v)]
    keys, values = (x.astype(np.float64).reshape(n, n_head_kv, head_dim) for x in stored)
    out = np.empty_like(heads)
    for head in range(n_head):
        kv = head * n_head_kv // n_head
        scores = heads[:, head] @ keys[:, kv].T * float(np.float32(scale))
        scores[np.triu(np.ones((n, n), bool), 1)] = -np.inf
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[:, head] = p @ values[:, kv] / p.sum(axis=1, keepdims=True)
    return out.reshape(n, -1)
