"""A second program for attention over a cache of integers, `I16` or `Q8_0` (the doc comment of
`Op::Attention`), and for how such caches store keys and values: integers by NumPy's int64, float32
operations by NumPy, each rounded once.

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

#: Tokens that are weighed together, and those of a page.
TOKENS = 64
#: More token blocks than this are joined in splits of two or more.
SPLITS = 32

#: The largest integer of a query, and of a weight.
Q_MOST, W_MOST = 32639, 65535

_LOG2_E = 1.4426950408889634
#: Of x^5 to x^0 in 2^x.
_EXP2 = [0.0013264734, 0.009671371, 0.05550719, 0.24022244, 0.693147, 1.0]


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


def exp2_unit(z: Floats) -> Floats:
    """`2^(64 z - 64)` for `z` from 0 to 1: a power of 2 times that of `64 z`'s fraction."""
    steps = np.rint(z.astype(np.float64) * 64)
    x = (z.astype(np.float64) * 64 - steps).astype(np.float32)
    p = np.full_like(x, _EXP2[0])
    for coefficient in _EXP2[1:]:
        p = fma(p, x, np.full_like(x, coefficient))
    return p * _power(steps - 64)


def _power(exponent: NDArray[np.generic]) -> Floats:
    """`2^exponent`, a float32."""
    return np.ldexp(np.float32(1), exponent.astype(np.int32)).astype(np.float32)


def _field(largest: Floats) -> Integers:
    """The exponent fields of numbers that are not negative."""
    return (np.ascontiguousarray(largest, np.float32).view(np.uint32) >> 23).astype(np.int64)


def _in_blocks(heads: NDArray[np.generic], block: int) -> NDArray[np.generic]:
    """`[..., head_dim]` as `[..., blocks, block]`, the last block filled up with zeros."""
    more = -heads.shape[-1] % block
    filled = np.pad(heads, [(0, 0)] * (heads.ndim - 1) + [(0, more)])
    return filled.reshape(*heads.shape[:-1], -1, block)


def _of_halves(halves: NDArray[np.unsignedinteger]) -> Floats:
    """Float32 by their upper 16 bits."""
    return (halves.astype(np.uint32) << 16).view(np.float32)


@dataclass(frozen=True)
class Kind:
    """How a cache keeps integers: for each block of a head a scale of 16 bits, then integers."""

    #: Dimensions of a head that share a scale.
    block: int
    integer: str
    #: The largest integer.
    most: int
    #: What a cache holds at most.
    largest: np.float32

    def scales(self, bits: NDArray[np.uint16]) -> Floats:
        """What scales of these bits are."""
        if self.integer == "<i2":
            return _of_halves(bits)
        return bits.view(np.float16).astype(np.float32)

    def head_bytes(self, head_dim: int) -> int:
        """Bytes of a key or a value."""
        return np.dtype(self.integer).itemsize * head_dim + 2 * -(-head_dim // self.block)

    def _in_fixed_point(self, x: Floats) -> tuple[NDArray[np.uint16], Floats]:
        """Of a block of each row: scales as 16 bits, and integers."""
        share = np.abs(x).max(axis=1) / np.float32(self.most)
        if self.integer == "<i2":
            # The upper half of a float32, rounded up; the smallest is 2^-126.
            halves = np.maximum((share.view(np.uint32) + 0xFFFF) >> 16, 0x80).astype("<u2")
            steps = x.astype(np.float64) * (np.float32(1) / _of_halves(halves))[:, None]
            return halves, np.rint(steps)
        with np.errstate(divide="ignore", over="ignore"):
            steps = np.float32(1) / share
        y = x * np.where(np.isfinite(steps), steps, np.float32(0))[:, None]
        # To the nearest, halves away from zero.
        halves = np.minimum(share, np.float32(65504)).astype("<f2").view("<u2")
        return halves, np.trunc(y) + np.sign(y) * (np.abs(y - np.trunc(y)) >= 0.5)

    def encode(self, values: Floats) -> Bytes:
        """`[n, head_dim]` keys or values as they are stored, `[n, head_bytes]`."""
        x = np.where(np.isnan(values), np.float32(0), values).clip(-self.largest, self.largest)
        parts = []
        for first in range(0, x.shape[1], self.block):
            halves, steps = self._in_fixed_point(x[:, first : first + self.block])
            integers = steps.clip(-self.most, self.most).astype(self.integer)
            parts += [halves.view(np.uint8).reshape(-1, 2), integers.view(np.uint8)]
        return np.concatenate(parts, axis=1)

    def decode(self, stored: Bytes, head_dim: int) -> Floats:
        """`[n, head_dim]`: what stored keys or values stand for, without rounding."""
        fixed = Fixed.of(self, stored, head_dim)
        values = fixed.integers.astype(np.float32) * fixed.scales[:, :, None]
        return values.reshape(len(stored), -1)[:, :head_dim]

    def encode_heads(self, values: Floats, n_head_kv: int) -> Bytes:
        """`[n, n_head_kv * head_dim]` keys or values as stored, `[n, n_head_kv, head_bytes]`."""
        stored = self.encode(values.reshape(len(values) * n_head_kv, -1))
        return stored.reshape(len(values), n_head_kv, -1)

    def store(self, pool: Bytes, parts: Sequence[Floats], n_head_kv: int) -> None:
        """Lays keys and values of a sequence, or keys that have values in them, whose pages are
        those from 1 on, into the pool of a cache of one layer."""
        token = np.arange(len(parts[0]))
        for part, values in enumerate(parts):
            stored = self.encode_heads(values, n_head_kv)
            pages = pool.reshape(-1, len(parts), n_head_kv, TOKENS, stored.shape[2])
            pages[1 + token // TOKENS, part, :, token % TOKENS] = stored


#: By the name of the type.
KINDS = {
    "I16": Kind(128, "<i2", 32767, np.float32(32767 * 2.0**35)),
    "Q8_0": Kind(32, "<i1", 127, np.float32(127 * 65504.0)),
}


@dataclass(frozen=True)
class Fixed:
    """Stored keys or values of one head, taken apart."""

    #: `[tokens, blocks]`.
    scales: Floats
    #: `[tokens, blocks, dimensions of a block]`, the last block filled up with zeros.
    integers: Integers

    @staticmethod
    def of(kind: Kind, stored: Bytes, head_dim: int) -> Fixed:
        """Of `[tokens, head_bytes]`."""
        scales, integers, at = [], [], 0
        for first in range(0, head_dim, kind.block):
            width = min(kind.block, head_dim - first) * np.dtype(kind.integer).itemsize
            block = np.ascontiguousarray(stored[:, at : at + 2 + width])
            scales.append(kind.scales(np.ascontiguousarray(block[:, :2]).view("<u2")[:, 0]))
            words = np.ascontiguousarray(block[:, 2:]).view(kind.integer)
            integers.append(words.astype(np.int64))
            at += 2 + width
        joined = _in_blocks(np.concatenate(integers, axis=1), kind.block).astype(np.int64)
        return Fixed(np.stack(scales, axis=1), joined)


def _query(q: Floats, block: int) -> tuple[Integers, Floats, NDArray[np.bool_]]:
    """Heads `[rows, head_dim]` as integers in blocks, their largest, and which have none."""
    bad = _field(np.abs(q).max(axis=1)) > 176
    clean = np.where(bad[:, None], np.float32(0), q)
    most = np.maximum(np.abs(clean).max(axis=1), np.float32(2.0**-100))
    scale = np.float32(Q_MOST) / most
    integers = np.rint(clean.astype(np.float64) * scale[:, None]).astype(np.int64)
    assert np.abs(integers).max() <= Q_MOST
    return _in_blocks(integers, block).astype(np.int64), most, bad


def _scores(q: Integers, keys: Fixed) -> Floats:
    """`s`, `[rows, tokens]`."""
    score = None
    for block in range(q.shape[1]):
        sums = (q[:, block] @ keys.integers[:, block].T).astype(np.float32)
        scales = np.broadcast_to(keys.scales[:, block], sums.shape)
        score = sums * scales if score is None else fma(sums, scales, score)
    assert score is not None
    return score


@dataclass(frozen=True)
class _Part:
    """The sums of some tokens: `[rows]`, `[rows]`, `[rows, head_dim]` and zeros."""

    top: Floats
    weight: Floats
    out: Floats

    def join(self, later: _Part) -> _Part:
        top = np.maximum(self.top, later.top)
        f, later_f = _shrunk(self.top - top), _shrunk(later.top - top)
        weight = fma(later.weight, later_f, self.weight * f)
        out = fma(later.out, later_f[:, None], self.out * f[:, None])
        return _Part(top, weight, out)

    def with_sink(self, logit: np.float32) -> _Part:
        """One more score, which has no value."""
        s = np.full((len(self.top), 1), logit * np.float32(_LOG2_E / 64), np.float32)
        its, p = _weights(s, np.ones(len(s), np.float32))
        weight = np.rint(p[:, 0].astype(np.float64) * 2.0**22).astype(np.float32)
        weight = weight * np.float32(W_MOST * 2.0**-38)
        weight = np.where(np.isfinite(its), weight, np.float32(np.nan))
        top = np.maximum(self.top, its)
        f, later_f = _shrunk(self.top - top), _shrunk(its - top)
        return _Part(top, fma(weight, later_f, self.weight * f), self.out * f[:, None])


def _shrunk(exponent: Floats) -> Floats:
    """`2^exponent`; zero below 2^-126."""
    return np.where(exponent < -126, np.float32(0), _power(np.maximum(exponent, -126)))


def _weights(s: Floats, factor: Floats) -> tuple[Floats, Floats]:
    """`M` and `p` of up to 64 tokens; `s` is -inf where a row does not see a token."""
    seen = s > -np.inf
    largest = s.max(axis=1)
    top = np.ceil(largest * factor * np.float32(64))
    offset = fma(top, np.full_like(top, -1 / 64), np.ones_like(top))
    s = np.where(seen, s, np.float32(0))
    z = fma(s, np.broadcast_to(factor[:, None], s.shape), offset[:, None]).clip(0, 1)
    far = (s == largest[:, None]).astype(np.float32)
    z = np.where(np.abs(top)[:, None] >= 2**23, far, z)
    return top, np.where(seen, exp2_unit(z), np.float32(0))


def _unit(s: Floats, factor: Floats, values: Fixed) -> _Part:
    """The sums of up to 64 tokens."""
    top, p = _weights(s, factor)
    integers = np.rint(p.astype(np.float64) * 2.0**22).astype(np.int64)
    weight = integers.sum(axis=1).astype(np.float32) * np.float32(W_MOST * 2.0**-38)
    weight = np.where(np.isfinite(top), weight, np.float32(np.nan))
    outs = []
    for block in range(values.scales.shape[1]):
        v = p * values.scales[:, block]
        e = np.maximum(_field(v.max(axis=1)), 24) - 126
        w = np.rint(v.astype(np.float64) * np.ldexp(float(W_MOST), -e)[:, None]).astype(np.int64)
        assert w.max() <= W_MOST
        sums = w @ values.integers[:, block]
        outs.append(sums.astype(np.float32) * _power(e - 16)[:, None])
    return _Part(top, weight, np.concatenate(outs, axis=1))


def token_blocks_of_a_split(n: int) -> int:
    """How many token blocks a split has, for a row that sees token blocks of `n` tokens."""
    return -(-n // (SPLITS * TOKENS))


def first_seen(positions: Integers, window: int | None) -> Integers:
    """The first token that rows of these positions see."""
    return np.maximum(0, positions + 1 - window) if window else np.zeros_like(positions)


def _head(
    q: Floats,
    keys: Fixed,
    values: Fixed,
    scale: float,
    positions: Integers,
    window: int | None,
    sink: np.float32 | None,
) -> Floats:
    """`[rows, head_dim]` of rows that look at the same token blocks."""
    integers, most, bad = _query(q, values.integers.shape[2])
    c = np.float32(float(np.float32(scale)) * _LOG2_E / (64 * Q_MOST))
    factor = c * most
    first = first_seen(positions, window)
    base = int(first[0]) // TOKENS * TOKENS
    looked_at = slice(base, int(positions.max()) + 1)
    keys, values = (Fixed(x.scales[looked_at], x.integers[looked_at]) for x in (keys, values))
    s = _scores(integers, keys)
    n = s.shape[1]
    token = base + np.arange(n)
    s[(token > positions[:, None]) | (token < first[:, None])] = -np.inf
    run = token_blocks_of_a_split(n) * TOKENS
    whole: _Part | None = None
    for begin in range(0, n, run):
        split: _Part | None = None
        for start in range(begin, min(begin + run, n), TOKENS):
            tokens = slice(start, min(start + TOKENS, n))
            of_tokens = Fixed(values.scales[tokens], values.integers[tokens])
            part = _unit(s[:, tokens], factor, of_tokens)
            split = part if split is None else split.join(part)
        assert split is not None
        whole = split if whole is None else whole.join(split)
    assert whole is not None
    if sink is not None:
        whole = whole.with_sink(sink)
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
    window: int | None = None,
    sinks: Floats | None = None,
    kind: Kind = KINDS["I16"],
) -> Floats:
    """Attention over what a cache of `kind` holds, `[tokens, n_head_kv, head_bytes]`: rows of
    `positions`, or of all tokens, `[len(positions), n_head * head_dim]`. Row `p` of q is the token
    of position `p`; it sees `window` tokens up to itself, or all, and `sinks`, one of each head.
    """
    chosen = np.arange(len(q)) if positions is None else np.asarray(positions, np.int64)
    n_head_kv, head_dim = keys.shape[1], q.shape[1] // n_head
    group = n_head // n_head_kv
    heads = q.reshape(len(q), n_head, head_dim)
    out = np.empty((len(chosen), n_head, head_dim), np.float32)
    for kv in range(n_head_kv):
        stored = [Fixed.of(kind, part[:, kv], head_dim) for part in (keys, values)]
        token_blocks = np.stack([first_seen(chosen, window), chosen], axis=1) // TOKENS
        for alike in np.unique(token_blocks, axis=0):
            rows = np.flatnonzero((token_blocks == alike).all(axis=1))
            for head in range(kv * group, (kv + 1) * group):
                at = chosen[rows]
                sink = None if sinks is None else sinks[head]
                out[rows, head] = _head(heads[at, head], *stored, scale, at, window, sink)
    return out.reshape(len(chosen), -1)


def attention(
    q: Floats,
    k: Floats,
    v: Floats,
    n_head: int,
    n_head_kv: int,
    scale: float,
    positions: Sequence[int] | None = None,
    window: int | None = None,
    sinks: Floats | None = None,
    kind: Kind = KINDS["I16"],
) -> Floats:
    """Attention of a sequence, `[n, width]` each of q, k and v, in which a token sees those up to
    itself, at most `window`, and `sinks`: the rows of `positions`, or all of them,
    `[rows, n_head * head_dim]`.
    """
    keys, values = (kind.encode_heads(x, n_head_kv) for x in (k, v))
    return attention_over(q, keys, values, n_head, scale, positions, window, sinks, kind)


def in_float64(
    q: Floats,
    k: Floats,
    v: Floats,
    n_head: int,
    n_head_kv: int,
    scale: float,
    kind: Kind = KINDS["I16"],
) -> Doubles:
    """The same by the definition of attention, over keys and values as they are stored."""
    n, head_dim = len(q), q.shape[1] // n_head
    heads = q.astype(np.float64).reshape(n, n_head, head_dim)
    stored = [kind.decode(kind.encode(x.reshape(-1, head_dim)), head_dim) for x in (k, v)]
    keys, values = (x.astype(np.float64).reshape(n, n_head_kv, head_dim) for x in stored)
    out = np.empty_like(heads)
    for head in range(n_head):
        kv = head * n_head_kv // n_head
        scores = heads[:, head] @ keys[:, kv].T * float(np.float32(scale))
        scores[np.triu(np.ones((n, n), bool), 1)] = -np.inf
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[:, head] = p @ values[:, kv] / p.sum(axis=1, keepdims=True)
    return out.reshape(n, -1)
