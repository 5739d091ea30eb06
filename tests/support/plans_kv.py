"""Plans that write and read the KV cache, and what a test may know of its pool.

The bytes that a token owns are learned by watching a backend write it, so the properties hold for
any layout of the pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache as remembered
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from support.backends import Backend
from support.plans import PAGE, Floats, Plan, Run, head_bytes

Bytes = NDArray[np.uint8]

#: Two fillings with no byte in common: what is written differs from one of them at least. As units
#: of blocks they are positive, as all that are stored.
CANARIES = (0x5A, 0x25)


@dataclass(frozen=True)
class Cache:
    """The shape of a cache and of the attention over it."""

    n_layer: int = 2
    n_head: int = 4
    n_head_kv: int = 2
    head_dim: int = 32
    kv_type: str = "I16"
    n_slots: int = 3
    n_ctx: int = 130
    n_pages: int = 7

    @property
    def per_slot(self) -> int:
        """Pages of a full sequence."""
        return -(-self.n_ctx // PAGE)

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's keys and values in all layers."""
        size = head_bytes(self.kv_type, self.head_dim)
        assert size is not None
        return self.n_layer * 2 * self.n_head_kv * size

    def plan(self) -> Plan:
        """Each layer stores `k<layer>` and `v<layer>`, then attends with `q<layer>` into
        `out<layer>`."""
        plan = Plan(n_layer=self.n_layer, n_head_kv=self.n_head_kv, head_dim=self.head_dim)
        wide, narrow = self.n_head * self.head_dim, self.n_head_kv * self.head_dim
        for layer in range(self.n_layer):
            k, v = plan.buffer(f"k{layer}", narrow), plan.buffer(f"v{layer}", narrow)
            q, out = plan.buffer(f"q{layer}", wide), plan.buffer(f"out{layer}", wide)
            plan.op("kv_scatter", k=k, v=v, layer=layer)
            scale = self.head_dim**-0.5
            plan.op("attention", q=q, out=out, layer=layer, n_head=self.n_head, scale=scale)
        return plan

    def run(self, backend: Backend, *, mapped: bool = False, threads: int = 1) -> Run:
        """A runner, its pages unmapped unless asked for."""
        return Run(
            backend,
            self.plan(),
            n_slots=self.n_slots,
            n_ctx=self.n_ctx,
            n_pages=self.n_pages,
            kv_type=self.kv_type,
            threads=threads,
            mapped=mapped,
        )

    def row(self, seed: int) -> dict[str, Floats]:
        """The q, k and v of one token in every layer, `[1, width]` each, drawn from `seed`."""
        rng = np.random.default_rng(seed)
        row = {}
        for layer in range(self.n_layer):
            for name, heads in [("q", self.n_head), ("k", self.n_head_kv), ("v", self.n_head_kv)]:
                values = rng.standard_normal((1, heads * self.head_dim))
                row[f"{name}{layer}"] = values.astype(np.float32)
        return row

    def rows(self, seeds: Sequence[int]) -> dict[str, Floats]:
        """The rows of `seeds`, `[len(seeds), width]` each."""
        rows = [self.row(seed) for seed in seeds]
        return {name: np.concatenate([row[name] for row in rows]) for name in self.row(0)}

    def outs(self, run: Run) -> Floats:
        """The attention of all layers side by side, `[rows, n_layer * n_head * head_dim]`."""
        return np.concatenate([run[f"out{layer}"] for layer in range(self.n_layer)], axis=1)

    def feed(self, run: Run, seeds: Sequence[int], first: int = 0, slot: int = 0) -> Floats:
        """The attention of new tokens of a sequence from position `first` on, in as few passes as
        have the sums of steps."""
        outs = []
        for piece in run.backend.pieces(len(seeds)):
            positions = [first + i for i in piece]
            run(
                self.rows([seeds[i] for i in piece]),
                positions=positions,
                slots=[slot] * len(positions),
            )
            outs.append(self.outs(run))
        return np.concatenate(outs)

    def solo(self, backend: Backend, seeds: Sequence[int]) -> Floats:
        """The attention of a sequence that runs alone, in a cache of its own."""
        run = self.run(backend)
        run.map(0, range(1, 1 + self.per_slot))
        return self.feed(run, seeds)

    def footprint(self, backend: Backend, page: int, entry: int) -> NDArray[np.int64]:
        """The bytes of the pool that a token at `entry` of `page` occupies, in all layers."""
        return _footprint(self, backend, page, entry)

    def page_footprint(self, backend: Backend, page: int) -> NDArray[np.int64]:
        """The bytes of every entry of `page`."""
        return np.concatenate([self.footprint(backend, page, entry) for entry in range(PAGE)])


@remembered
def _prober(cache: Cache, backend: Backend) -> Run:
    return cache.run(backend)


def forget() -> None:
    """Frees the runners that were kept."""
    _prober.cache_clear()


@lru_cache(maxsize=1 << 14)
def _footprint(cache: Cache, backend: Backend, page: int, entry: int) -> NDArray[np.int64]:
    run = _prober(cache, backend)
    run.map(0, [page])
    written = np.zeros(len(run.kv), bool)
    for canary in CANARIES:
        lay(run, canary)
        run(cache.row(page * PAGE + entry), positions=[entry])
        written |= run.kv != canary
    found = np.flatnonzero(written)
    assert len(found) == cache.token_bytes, f"{len(found)} bytes, not {cache.token_bytes}"
    return found


def lay(run: Run, canary: int) -> None:
    """Fills the pool with a canary."""
    run.kv = np.full(len(run.kv), canary, np.uint8)


def changed(before: Bytes, after: Bytes) -> set[int]:
    """The bytes that differ."""
    return set(np.flatnonzero(before != after).tolist())
