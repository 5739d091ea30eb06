"""`attention` whose rows see a window of the tokens before them: over a cache of integers the same
bits however rows are cut into passes, over floats near float64, and in none a page behind the
window."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.backends import INTERPRETER, Backend, over_backends
from support.plans import PAGE, bits, nmse
from support.plans_attention import Shape, assert_same, feed, in_float64, sequence

pytestmark = pytest.mark.thorough

N = 200
#: One token, less than a page, pages, more, and all that there are.
WINDOWS = [1, 100, 2, 63, 64, 65, 128, N, 1000]
#: Nearest to a test, so that of a few cases that stand for all some are of each.
over_exact = pytest.mark.parametrize("kv_type", ["I16", "Q8_0"])


def some(n: int) -> list[int]:
    """Positions at the ends of pages and of windows."""
    return sorted({p for p in (0, 62, 63, 64, 100, 127, 128, 163, n - 1) if p < n})


@pytest.mark.one_shape
@over_backends
@pytest.mark.parametrize("window", WINDOWS)
@over_exact
def test_a_prompt_and_its_steps_have_the_stated_bits(
    backend: Backend, window: int, kv_type: str
) -> None:
    shape = Shape(window=window, kv_type=kv_type)
    rows, wanted = sequence(shape, N)
    # Longer than any window: else it would be none.
    run = shape.run(backend, 1100)
    assert_same(feed(run, rows, range(N)), wanted)
    for p in some(N):
        assert_same(feed(run, rows, range(p, p + 1)), wanted[p : p + 1])


@pytest.mark.one_shape
@over_backends
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@over_exact
def test_head_widths(backend: Backend, head_dim: int, kv_type: str) -> None:
    shape = Shape(3, 1, head_dim, window=70, kv_type=kv_type)
    rows, wanted = sequence(shape, 150)
    run = shape.run(backend, 150)
    assert_same(feed(run, rows, range(150)), wanted)
    assert_same(feed(run, rows, range(149, 150)), wanted[-1:])


@pytest.mark.one_shape
@over_backends
@pytest.mark.parametrize(("window", "n"), [(2100, 2300), (1985, 2200), (1986, 2200)])
@over_exact
def test_splits_of_several_token_blocks(
    backend: Backend, window: int, n: int, kv_type: str
) -> None:
    """Rows whose splits of one or two token blocks begin at the window's first, odd or even."""
    shape = Shape(2, 1, 64, window=window, kv_type=kv_type)
    rows = shape.rows(n)
    run = shape.run(backend, n)
    last = range(n - 70, n)
    run.kv = shape.pool(run, rows)
    wanted = shape.exact(rows, last)
    assert_same(feed(run, rows, last), wanted)
    for p in (n - 70, n - 1):
        assert_same(feed(run, rows, range(p, p + 1)), wanted[p - n + 70 :][:1])


@over_backends
@pytest.mark.parametrize("kv_type", ["I16", "F32", "Q8_0"])
def test_what_lies_behind_the_window_is_not_read(backend: Backend, kv_type: str) -> None:
    """Neither pages that are mapped no more, nor entries of the window's first page."""
    shape, n = Shape(head_dim=96, window=70, kv_type=kv_type), 260
    rows = shape.rows(n)
    given = {name: x.copy() for name, x in rows.items()}
    first = n - 10
    behind = first + 1 - shape.window
    for name in "kv":
        given[name][:behind] = 6e4  # about the largest that every cache holds
    outs = []
    for values in (rows, given):
        run = shape.run(backend, n)
        feed(run, values, range(first))
        if values is given:
            run.map(0, [0] * (behind // PAGE))
        prompt = feed(run, values, range(first, n))
        steps = [feed(run, values, range(p, p + 1)) for p in (first, n - 1)]
        outs.append(np.concatenate([prompt, *steps]))
    assert_same(outs[1], outs[0])
    assert np.isfinite(outs[0]).all()


@pytest.mark.parametrize("window", [1, 100, 65])
def test_a_cache_of_floats_is_near_float64(window: int) -> None:
    shape = Shape(head_dim=64, window=window, kv_type="F32")
    rows = shape.rows(N)
    run = shape.run(INTERPRETER, N)
    fields = (shape.n_head, shape.n_head_kv, shape.scale, "F32", window)
    wanted = in_float64(*(rows[name] for name in "qkv"), *fields)
    found = feed(run, rows, range(N))
    assert nmse(found, wanted) <= INTERPRETER.nmse
    for p in some(N):
        assert nmse(feed(run, rows, range(p, p + 1)), wanted[p : p + 1]) <= INTERPRETER.nmse


@over_backends
@pytest.mark.parametrize("kv_type", ["I16", "F32", "Q8_0"])
def test_a_row_alone_has_the_bits_of_a_batch(backend: Backend, kv_type: str) -> None:
    shape, n_slots = Shape(head_dim=64, window=70, kv_type=kv_type), 3
    sequences = [shape.rows(150, seed=slot) for slot in range(n_slots)]
    ends = [150, 64, 90]
    together = shape.run(backend, 150, n_slots)
    for slot, (rows, end) in enumerate(zip(sequences, ends, strict=True)):
        feed(together, rows, range(end - 1), slot)
    newest = {
        name: np.stack([rows[name][end - 1] for rows, end in zip(sequences, ends, strict=True)])
        for name in "qkv"
    }
    positions = [end - 1 for end in ends]
    found = together(newest, positions=positions, slots=list(range(n_slots)))["out"]
    for slot, (rows, end) in enumerate(zip(sequences, ends, strict=True)):
        alone = shape.run(backend, 150)
        feed(alone, rows, range(end - 1))
        wanted = feed(alone, rows, range(end - 1, end))
        assert np.array_equal(bits(found[slot]), bits(wanted[0])), slot


@over_backends
@over_exact
def test_any_passes_give_the_same_bits(backend: Backend, kv_type: str) -> None:
    """Two sequences in chunks of any size, windows of any, beside one another."""
    n, chunk = 180, st.integers(0, 90)
    passes = st.lists(st.tuples(chunk, chunk), min_size=1, max_size=4)

    @given(passes=passes, window=st.sampled_from([1, 50, 70, 129]), seed=st.integers(0, 9))
    @settings(max_examples=backend.examples(15), deadline=None, derandomize=True)
    def check(passes: list[tuple[int, int]], window: int, seed: int) -> None:
        shape = Shape(window=window, kv_type=kv_type)
        sequences = [sequence(shape, n, slot) for slot in range(2)]
        run = shape.run(backend, n, 2)
        rng = np.random.default_rng(seed)
        fed = [0, 0]
        for sizes in passes:
            ends = [min(n, begin + size) for begin, size in zip(fed, sizes, strict=True)]
            batch = [(slot, p) for slot in range(2) for p in range(fed[slot], ends[slot])]
            fed = ends
            if rng.integers(2):
                batch = [batch[i] for i in rng.permutation(len(batch))]
            if not batch:
                continue
            values = {
                name: np.stack([sequences[slot][0][name][p] for slot, p in batch]) for name in "qkv"
            }
            slots, positions = [slot for slot, _ in batch], [p for _, p in batch]
            found = run(values, positions=positions, slots=slots)["out"]
            assert_same(found, np.stack([sequences[slot][1][p] for slot, p in batch]))

    check()


def test_a_window_as_long_as_the_text_changes_no_bit() -> None:
    shape = Shape(window=N)
    assert_same(sequence(shape, N)[1], sequence(replace(shape, window=None), N)[1])
