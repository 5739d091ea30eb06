"""Sequences that join, grow, shrink and finish at random in one pool: each equals its solo run, and
every step changes the bytes of its own tokens alone."""

from dataclasses import dataclass, field

import numpy as np
import onegraph
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from support.backends import Backend, over_backends
from support.plans import PAGE, Floats, bits
from support.plans_kv import CANARIES, Cache, Run, changed, lay

pytestmark = pytest.mark.thorough

CACHE = Cache(n_slots=4, n_pages=10)


@dataclass
class Sequence:
    """What the model of the pool knows of one sequence."""

    slot: int
    pages: list[int] = field(default_factory=list)
    #: The seed of each token's row, and the attention that its step gave.
    seeds: list[int] = field(default_factory=list)
    outs: list[Floats] = field(default_factory=list)


class Pool(RuleBasedStateMachine):
    """A page allocator in Python above the backend's scatter and attention."""

    backend: Backend

    @initialize(canary=st.sampled_from(CANARIES), threads=st.integers(1, 2))
    def start(self, canary: int, threads: int) -> None:
        self.run: Run = CACHE.run(self.backend, threads=threads)
        lay(self.run, canary)
        self.pool = self.run.kv
        self.free = list(range(1, CACHE.n_pages))
        self.sequences: dict[int, Sequence] = {}
        self.next_seed = 1

    def grow(self, sequence: Sequence, n: int, most: int) -> int:
        """Pages for `n` more tokens, or for as many as there is room; says how many."""
        n = min(n, CACHE.n_ctx - len(sequence.seeds), most)
        while len(sequence.pages) * PAGE < len(sequence.seeds) + n and self.free:
            page = self.free.pop()
            self.run.map(sequence.slot, [page], len(sequence.pages))
            sequence.pages.append(page)
        return min(n, len(sequence.pages) * PAGE - len(sequence.seeds))

    def step(self, tokens: list[tuple[Sequence, int]], padding: int = 0, order: int = 0) -> None:
        """One forward pass: so many new tokens for each sequence, and padding rows, shuffled."""
        rows: list[tuple[Sequence | None, int, int]] = []
        # All in one pass that has the sums of steps.
        most = (self.backend.step_rows or 1 << 20) - padding
        for sequence, n in tokens:
            for _ in range(self.grow(sequence, n, most - len(rows))):
                rows.append((sequence, len(sequence.seeds), self.next_seed))
                sequence.seeds.append(self.next_seed)
                self.next_seed += 1
        live = len(rows)
        spare = next((s for s in range(CACHE.n_slots) if s not in self.sequences), None)
        if spare is not None:
            rows += [(None, 0, 0)] * padding
        if not rows:
            return
        rows = [rows[i] for i in np.random.default_rng(order).permutation(len(rows))]
        try:
            self.run(
                CACHE.rows([seed for _, _, seed in rows]),
                positions=[position for _, position, _ in rows],
                slots=[spare or 0 if s is None else s.slot for s, _, _ in rows],
            )
        except onegraph.InternalError:
            assert live < len(rows), "a live row was refused"
        outs = CACHE.outs(self.run)
        for i in np.argsort([position for _, position, _ in rows], kind="stable"):
            sequence = rows[i][0]
            if sequence is not None:
                sequence.outs.append(outs[i])
        self.check_bytes([(s, position) for s, position, _ in rows if s is not None])

    def check_bytes(self, written: list[tuple[Sequence, int]]) -> None:
        """Nothing but the tokens of this step has changed."""
        own: set[int] = set()
        for s, position in written:
            page = s.pages[position // PAGE]
            own |= set(CACHE.footprint(self.backend, page, position % PAGE).tolist())
        now = self.run.kv
        assert changed(self.pool, now) <= own
        self.pool = now

    def check_solo(self, sequence: Sequence) -> None:
        if sequence.seeds:
            solo = CACHE.solo(self.backend, sequence.seeds)
            assert np.array_equal(bits(np.stack(sequence.outs)), bits(solo))

    @precondition(lambda self: len(self.sequences) < CACHE.n_slots and self.free)
    @rule(n=st.integers(1, 80), pick=st.integers(0, 3))
    def join(self, n: int, pick: int) -> None:
        open_slots = [s for s in range(CACHE.n_slots) if s not in self.sequences]
        slot = open_slots[pick % len(open_slots)]
        self.sequences[slot] = Sequence(slot)
        self.step([(self.sequences[slot], n)])

    @precondition(lambda self: self.sequences)
    @rule(n=st.integers(1, 5), padding=st.integers(0, 4), order=st.integers(0, 99), data=st.data())
    def decode(self, n: int, padding: int, order: int, data: st.DataObject) -> None:
        """Some or all sequences take a token each, `n` times."""
        for _ in range(n):
            some = data.draw(st.sets(st.sampled_from(sorted(self.sequences)), min_size=1))
            self.step([(self.sequences[slot], 1) for slot in sorted(some)], padding, order)

    @precondition(lambda self: self.sequences)
    @rule(n=st.integers(2, 70), order=st.integers(0, 99), data=st.data())
    def prefill_while_others_decode(self, n: int, order: int, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(sorted(self.sequences)))
        self.step([(s, n if s.slot == slot else 1) for s in self.sequences.values()], order=order)

    @precondition(lambda self: self.sequences)
    @rule(keep=st.floats(0, 1), free=st.booleans(), data=st.data())
    def shrink(self, keep: float, free: bool, data: st.DataObject) -> None:
        """Goes back to an earlier position; the pages past it may be given away."""
        sequence = self.sequences[data.draw(st.sampled_from(sorted(self.sequences)))]
        n = int(keep * len(sequence.seeds))
        del sequence.seeds[n:], sequence.outs[n:]
        if free:
            kept = -(-n // PAGE)
            self.run.map(sequence.slot, [0] * (len(sequence.pages) - kept), kept)
            self.free += sequence.pages[kept:]
            del sequence.pages[kept:]

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        sequence = self.sequences.pop(data.draw(st.sampled_from(sorted(self.sequences))))
        self.check_solo(sequence)
        self.run.map(sequence.slot, [0] * len(sequence.pages))
        self.free += sequence.pages

    @precondition(lambda self: self.sequences)
    @rule(beyond=st.sampled_from([0, 1, 62, 2**31, 2**32 - 1]), data=st.data())
    def overrun(self, beyond: int, data: st.DataObject) -> None:
        """A position past the limit is refused and harms nobody."""
        slot = data.draw(st.sampled_from(sorted(self.sequences)))
        position = min(CACHE.n_ctx + beyond, 2**32 - 1)
        with pytest.raises(onegraph.InternalError, match=f"position {position} of .* slot {slot}"):
            self.run(CACHE.row(0), positions=[position], slots=[slot])
        self.check_bytes([])

    @invariant()
    def pages_have_one_owner(self) -> None:
        if hasattr(self, "free"):
            owned = [page for s in self.sequences.values() for page in s.pages] + self.free
            assert sorted(owned) == list(range(1, CACHE.n_pages))

    def teardown(self) -> None:
        for sequence in getattr(self, "sequences", {}).values():
            self.check_solo(sequence)


@over_backends
def test_each_sequence_equals_its_solo_run(backend: Backend) -> None:
    run_state_machine_as_test(
        type("PoolOnBackend", (Pool,), {"backend": backend}),
        settings=settings(
            max_examples=12 if backend.few else 40,
            stateful_step_count=30,
            deadline=None,
            derandomize=True,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
