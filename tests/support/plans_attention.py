"""Attention over a cache of one layer as a plan, sequences to feed it with, and what must come out
of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from support import exact_attention as exact
from support.backends import Backend
from support.plans import PAGE, Floats, Plan, Run, bits, normal, rounded
from support.plans_kv import lay

#: Scales of blocks that are no numbers.
CANARY = 0xFF

Rows = dict[str, Floats]


@dataclass(frozen=True)
class Shape:
    """A cache of one layer and the attention over it."""

    n_head: int = 4
    n_head_kv: int = 2
    #: A whole block and a shorter one.
    head_dim: int = 144
    #: Numbers of a value where it is the first of its key; none: it is stored beside that.
    values_in_keys: int | None = None
    #: Tokens that a row sees; none: all.
    window: int | None = None
    #: Whether a row sees none behind it.
    causal: bool = True
    #: The mean of scores that have no value, one of each head; none: there are none.
    sink: float | None = None
    #: How the cache keeps keys and values.
    kv_type: str = "I16"

    @property
    def kind(self) -> exact.Kind:
        return exact.KINDS[self.kv_type]

    @property
    def sinks(self) -> Floats | None:
        return None if self.sink is None else normal(self.n_head, seed=9) + np.float32(self.sink)

    @property
    def scale(self) -> float:
        return float(self.head_dim**-0.5)

    @property
    def widths(self) -> dict[str, int]:
        heads = {"q": self.n_head, "k": self.n_head_kv, "v": self.n_head_kv}
        if self.values_in_keys:
            heads.pop("v")
        return {name: n * self.head_dim for name, n in heads.items()}

    def run(
        self,
        backend: Backend,
        n_ctx: int,
        n_slots: int = 1,
        threads: int = 2,
    ) -> Run:
        """A runner whose pool is full of canaries."""
        plan = Plan(
            n_head_kv=self.n_head_kv,
            head_dim=self.head_dim,
            values_in_keys=self.values_in_keys,
        )
        buffers = {name: plan.buffer(name, width) for name, width in self.widths.items()}
        out = plan.buffer("out", self.n_head * (self.values_in_keys or self.head_dim))
        plan.op("kv_scatter", k=buffers["k"], v=buffers.get("v", buffers["k"]), layer=0)
        sinks = None if self.sinks is None else plan.vector("sinks", self.sinks)
        fields = {"n_head": self.n_head, "scale": self.scale, "window": self.window, "sinks": sinks}
        fields["causal"] = self.causal
        plan.op("attention", q=buffers["q"], out=out, layer=0, **fields)
        n_ctx = -(-n_ctx // PAGE) * PAGE
        sizes = {"n_slots": n_slots, "n_ctx": n_ctx, "threads": threads}
        run = Run(backend, plan, kv_type=self.kv_type, **sizes)
        lay(run, CANARY)
        return run

    def rows(self, n: int, seed: int = 0, sizes: tuple[float, ...] = (1.0, 1.0, 1.0)) -> Rows:
        """Standard normal q, k and v of `n` tokens, times `sizes`."""
        drawn = zip(self.widths.items(), sizes, strict=False)
        return {
            name: normal(n, width, seed=3 * seed + i, scale=size)
            for i, ((name, width), size) in enumerate(drawn)
        }

    def exact(self, rows: Rows, positions: range | None = None) -> Floats:
        q, k, v = rows["q"], rows["k"], rows.get("v", rows["k"])
        fields = (self.n_head, self.n_head_kv, self.scale, positions, self.window, self.sinks)
        out = exact.attention(q, k, v, *fields, self.kind)
        heads = out.reshape(len(out), self.n_head, -1)[..., : self.values_in_keys]
        return heads.reshape(len(out), -1)

    def pool(self, run: Run, rows: Rows) -> NDArray[np.uint8]:
        """The pool of `run`, of canaries, with the tokens of one sequence from page 1 on."""
        pool = np.full_like(run.kv, CANARY)
        self.kind.store(pool, [rows[name] for name in "kv" if name in rows], self.n_head_kv)
        return pool


def feed(run: Run, rows: Rows, positions: range, slot: int = 0) -> Floats:
    """The attention of tokens of a sequence, in passes as long as can be."""
    parts = []
    for piece in run.backend.pieces(len(positions), run.backend.max_rows):
        part = positions[piece.start : piece.stop]
        values = {name: x[part.start : part.stop] for name, x in rows.items()}
        parts.append(run(values, positions=part, slots=[slot] * len(part))["out"])
    return np.concatenate(parts)


def assert_same(found: Floats, wanted: Floats) -> None:
    """Equal bits; of NaN, which has many, the place."""
    nan = np.isnan(wanted)
    differ = np.where(nan, ~np.isnan(found), bits(found) != bits(wanted))
    at = np.argwhere(differ)[:1].tolist()
    assert not at, f"{differ.sum()} of {differ.size}, first at {at}: {found[differ][0]!r}"


def check(backend: Backend, shape: Shape, rows: Rows, wanted: Floats | None = None) -> None:
    """What is stored and what comes out of a sequence."""
    n = len(rows["q"])
    run = shape.run(backend, n)
    found = feed(run, rows, range(n))
    assert_same(found, shape.exact(rows) if wanted is None else wanted)
    assert_stored(run, shape, rows)


def assert_stored(run: Run, shape: Shape, rows: Rows) -> None:
    """The tokens lie in their entries, and nothing else was written but, maybe, page 0."""
    found, wanted = run.kv, shape.pool(run, rows)
    page_0 = (len(rows) - 1) * shape.n_head_kv * PAGE * shape.kind.head_bytes(shape.head_dim)
    assert np.array_equal(found[page_0:], wanted[page_0:])


@cache
def sequence(shape: Shape, n: int, seed: int = 0) -> tuple[Rows, Floats]:
    """A sequence and its attention; its first tokens are a shorter one."""
    rows = shape.rows(n, seed)
    return rows, shape.exact(rows)


def in_float64(
    q: Floats,
    k: Floats,
    v: Floats,
    n_head: int,
    n_head_kv: int,
    scale: float,
    kv_type: str,
    window: int | None = None,
    sinks: Floats | None = None,
) -> NDArray[np.float64]:
    """`[n, n_head * head_dim]` of a sequence of n tokens, each seeing those up to itself,
    at most `window`, and `sinks`, over what a cache of `kv_type` holds."""
    n = len(q)
    heads = q.astype(np.float64).reshape(n, n_head, -1)
    keys = rounded(kv_type, k).astype(np.float64).reshape(n, n_head_kv, -1)
    values = rounded(kv_type, v).astype(np.float64).reshape(n, n_head_kv, -1)
    age = np.arange(n)[:, None] - np.arange(n)
    unseen = (age < 0) | (age >= (window or n))
    out = np.empty_like(heads)
    for head in range(n_head):
        kv = head * n_head_kv // n_head
        scores = heads[:, head] @ keys[:, kv].T * np.float32(scale)
        scores[unseen] = -np.inf
        top = scores.max(axis=1, keepdims=True)
        p = np.exp(scores - top)
        more = 0.0 if sinks is None else np.exp(sinks[head] - top)
        out[:, head] = p @ values[:, kv] / (p.sum(axis=1, keepdims=True) + more)
    return out.reshape(n, -1)
