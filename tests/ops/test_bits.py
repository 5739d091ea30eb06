"""The order of every sum belongs to the tensor's shape and type: however the work is cut, over
rows, chunks, batches, threads or instruction sets, the bits are the same."""

import itertools
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.backends import Backend, over_backends
from support.plans import ROWS, TYPES, Floats, Plan, Run, bits, encode, nmse, normal
from support.plans_model import MODEL_TYPES, logits, runner, tokens, types

TESTS = Path(__file__).resolve().parents[1]

over_types = pytest.mark.parametrize("ty", MODEL_TYPES)
pytestmark = pytest.mark.simulated_types("Q4_K")


@cache
def whole(backend: Backend, ty: str, n: int, seed: int) -> Floats:
    """The logits of a random prompt, in as few chunks as can be, alone, by one thread."""
    return logits(runner(backend, ty), tokens(n, seed))


@over_backends
@pytest.mark.parametrize("ty", TYPES)
@pytest.mark.parametrize("blocks", [1, 3])
def test_a_row_alone_equals_the_row_in_a_batch(backend: Backend, ty: str, blocks: int) -> None:
    n_in, n_out = blocks * TYPES[ty][0] * (1 if TYPES[ty][0] > 1 else 45), 61
    plan = Plan()
    x, y = plan.buffer("x", n_in), plan.buffer("y", n_out)
    weight = plan.weight("w", ty, encode(ty, normal(n_out, n_in)), n_in, n_out)
    plan.op("mat_vec", x=x, weight=weight, bias=plan.vector("b", normal(n_out)), out=y)
    values = normal(100, n_in, seed=1)
    run = Run(backend, plan)
    alone = np.concatenate([run({"x": values[[i]]})["y"] for i in range(100)])
    for threads in (1, 2, 3):
        run = Run(backend, plan, threads=threads)
        for rows in (n for n in ROWS if n <= (backend.step_rows or n)):
            for start in (0, 100 - rows):
                found = run({"x": values[start : start + rows]})["y"]
                assert np.array_equal(bits(found), bits(alone[start : start + rows])), rows


@over_backends
@over_types
@pytest.mark.parametrize("threads", [2, 3])
def test_threads(backend: Backend, ty: str, threads: int) -> None:
    run = runner(backend, ty, threads=threads)
    assert np.array_equal(bits(logits(run, tokens(70))), bits(whole(backend, ty, 70, 0)))


@over_backends
@over_types
def test_steps_equal_the_chunk(backend: Backend, ty: str) -> None:
    run = runner(backend, ty, threads=2)
    steps = [logits(run, [token], i) for i, token in enumerate(tokens(70))]
    assert np.array_equal(bits(np.concatenate(steps)), bits(whole(backend, ty, 70, 0)))


@pytest.mark.thorough
@over_backends
def test_any_chunks_equal_the_whole(backend: Backend) -> None:
    @given(
        cuts=st.sets(st.integers(1, 129)),
        threads=st.integers(1, 3),
        ty=st.sampled_from(types(backend)),
    )
    @settings(max_examples=backend.examples(30), deadline=None, derandomize=True)
    def check(cuts: set[int], threads: int, ty: str) -> None:
        prompt, run = tokens(130, 1), runner(backend, ty, threads=threads)
        edges = [0, *sorted(cuts), 130]
        parts = [logits(run, prompt[a:b], a) for a, b in itertools.pairwise(edges)]
        assert np.array_equal(bits(np.concatenate(parts)), bits(whole(backend, ty, 130, 1)))

    check()


@pytest.mark.thorough
@over_backends
@over_types
def test_any_chunks_of_a_prompt_equal_the_whole(backend: Backend, ty: str) -> None:
    """Of those that are a prompt's; their sums are near to a step's, and may be others."""
    least, n = (backend.step_rows or 0) + 1, 280
    run = runner(backend, ty, n_ctx=n)
    prompt = tokens(n, 2)
    once = logits(run, prompt, whole=True)
    for cuts in ([least], [n - least], [least + 3, 2 * least + 64]):
        edges = [0, *cuts, n]
        parts = [logits(run, prompt[a:b], a, whole=True) for a, b in itertools.pairwise(edges)]
        assert np.array_equal(bits(np.concatenate(parts)), bits(once)), cuts
    assert nmse(once, logits(run, prompt)) <= 1e-6


@over_backends
@over_types
def test_alone_equals_in_a_batch(backend: Backend, ty: str) -> None:
    """Sequences of different lengths in one batch, rows interleaved, then a step of each."""
    lengths = [1, 2, 33, 64, 65] if backend.step_rows is None else [1, 2, 9, 20, 30]
    run = runner(backend, ty, n_slots=len(lengths), threads=2)
    prompts = [tokens(n + 1, seed=10 + n) for n in lengths]
    rows = [(slot, p) for slot, n in enumerate(lengths) for p in range(n)]
    rows = [rows[i] for i in np.random.default_rng(3).permutation(len(rows))]
    for batch in (rows, list(enumerate(lengths))):
        run(
            {},
            tokens=[prompts[slot][p] for slot, p in batch],
            positions=[p for _, p in batch],
            slots=[slot for slot, _ in batch],
            out_rows=range(len(batch)),
        )
        for (slot, p), found in zip(batch, run["logits"], strict=True):
            solo = whole(backend, ty, lengths[slot] + 1, 10 + lengths[slot])
            assert np.array_equal(bits(found), bits(solo[p])), (slot, p)


@over_backends
@over_types
def test_wanting_fewer_logits_changes_none(backend: Backend, ty: str) -> None:
    n = backend.step_rows or 70
    prompt, run = tokens(70)[:n], runner(backend, ty)
    for wanted in ([], [n - 1], [3, 0, 3]):
        run({}, tokens=prompt, positions=range(n), slots=[0] * n, out_rows=wanted)
        assert np.array_equal(bits(run["logits"]), bits(whole(backend, ty, 70, 0)[wanted]))


@over_backends
def test_the_model_says_something(backend: Backend) -> None:
    """Equal bits prove nothing where all logits are equal, zero or NaN."""
    for ty in types(backend):
        rows = whole(backend, ty, 70, 0)
        assert np.isfinite(rows).all()
        assert 0.1 < rows.std() < 100
        assert len(np.unique(bits(rows))) > rows.size // 2


@pytest.mark.thorough
def test_instruction_sets() -> None:
    """Plain code, AVX2 and AVX-512 with and without VNNI, what the processor has of it, give the
    same bits."""
    found = {}
    for level in ("scalar", "avx2", "avx2_vnni", "avx512", "best"):
        env = os.environ | {"ONEGRAPH_CPU": level, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-m", "support.plans_model"]
        found[level] = subprocess.check_output(command, cwd=TESTS, env=env, text=True, timeout=300)
    assert len(found["scalar"].splitlines()) == 3 * len(MODEL_TYPES)
    assert len(set(found.values())) == 1
