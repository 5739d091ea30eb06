"""`attention` over a cache of integers, `I16` or `Q8_0`, has one stated sum: the same bits as
another program of it, and the same stored bytes, on every backend, however rows are cut into
passes."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support import exact_attention as exact
from support.backends import Backend, over_backends
from support.plans import PAGE, bits, nmse
from support.plans_attention import Rows, Shape, assert_same, assert_stored, check, feed, sequence
from support.plans_kv import lay

#: A context of which rust/engine/src/backend/cuda/lower/attention_fixed.rs expects long texts.
LONG = 8192
LENGTHS = [1, 2, 63, 64, 65, 128, 129, 1000]
#: Nearest to a test, so that of a few cases that stand for all some are of each.
over_caches = pytest.mark.parametrize("kv_type", exact.KINDS)


@pytest.mark.thorough
@pytest.mark.one_shape
@over_backends
@pytest.mark.parametrize("n", LENGTHS)
@over_caches
def test_lengths(backend: Backend, n: int, kv_type: str) -> None:
    shape = Shape(kv_type=kv_type)
    rows, wanted = sequence(shape, max(LENGTHS))
    check(backend, shape, {name: x[:n] for name, x in rows.items()}, wanted[:n])


@pytest.mark.one_shape
@over_backends
@pytest.mark.parametrize("n", [2048, 2049, 4100, 6200])
@over_caches
def test_splits_of_several_token_blocks(backend: Backend, n: int, kv_type: str) -> None:
    """Rows of one pass have splits of one token block and of two, of two and of four."""
    shape = Shape(2, 1, 64, kv_type=kv_type)
    rows = shape.rows(n)
    run = shape.run(backend, n)
    last = range(n - 70, n)
    if backend.few:
        run.kv = shape.pool(run, {name: x[: last.start] for name, x in rows.items()})
    else:
        feed(run, rows, range(last.start))
    wanted = shape.exact(rows, last)
    assert_same(feed(run, rows, last), wanted)
    assert_same(feed(run, rows, range(n - 1, n)), wanted[-1:])
    assert_stored(run, shape, rows)


@over_backends
@pytest.mark.parametrize("n", [2100, 2, 64, 130, 257])
@over_caches
def test_a_row_alone_whose_text_may_be_long(backend: Backend, n: int, kv_type: str) -> None:
    """Blocks of long contexts have more teams, whatever there is of the text."""
    shape = Shape(4, 1, 64, kv_type=kv_type)
    rows = shape.rows(n)
    run = shape.run(backend, LONG)
    run.kv = shape.pool(run, {name: x[: n - 1] for name, x in rows.items()})
    assert_same(feed(run, rows, range(n - 1, n)), shape.exact(rows, range(n - 1, n)))
    assert_stored(run, shape, rows)


@over_backends
@over_caches
def test_rows_of_a_pass_that_end_in_different_pages(backend: Backend, kv_type: str) -> None:
    """A page ends behind the first of a prompt's rows that are multiplied together."""
    shape = Shape(4, 1, 64, kv_type=kv_type)
    rows = shape.rows(130)
    run = shape.run(backend, 130)
    feed(run, rows, range(56))
    last = range(56, 130)
    assert_same(feed(run, rows, last), shape.exact(rows, last))


@over_backends
@pytest.mark.parametrize("head_dim", [80, 16, 32, 256, 512, 192, 64, 96, 128])
@over_caches
def test_head_widths(backend: Backend, head_dim: int, kv_type: str) -> None:
    shape = Shape(3, 1, head_dim, kv_type=kv_type)
    check(backend, shape, shape.rows(130))


@over_backends
@pytest.mark.parametrize(
    ("group", "n_head_kv"), list(itertools.product(range(8, 0, -1), [3, 2, 1]))
)
@over_caches
def test_grouped_heads(backend: Backend, group: int, n_head_kv: int, kv_type: str) -> None:
    shape = Shape(group * n_head_kv, n_head_kv, 64, kv_type=kv_type)
    check(backend, shape, shape.rows(70))


@pytest.mark.thorough
@over_backends
@pytest.mark.parametrize(
    ("group", "n_head_kv", "head_dim"),
    [(20, 1, 128), (71, 1, 32), (17, 2, 64), (5, 2, 512), (9, 1, 256)],
)
@over_caches
def test_groups_that_several_blocks_share(
    backend: Backend, group: int, n_head_kv: int, head_dim: int, kv_type: str
) -> None:
    shape, n = Shape(group * n_head_kv, n_head_kv, head_dim, kv_type=kv_type), 200
    rows = shape.rows(n)
    check(backend, shape, rows)
    # Blocks of a lone row share its splits as well.
    run = shape.run(backend, n)
    feed(run, rows, range(n - 1))
    assert_same(feed(run, rows, range(n - 1, n)), shape.exact(rows, range(n - 1, n)))


@pytest.mark.one_shape
@over_backends
@pytest.mark.parametrize(
    "sizes",
    [
        (1e-6, 1e6, 1.0),
        (1e6, 1e-6, 1.0),
        (1e-6, 1e-6, 1e-6),
        (1.0, 1.0, 1e6),
        (1e-3, 1e3, 1e-6),
        # Scores in the thousands, and so far beyond that the largest alone has a weight.
        (50.0, 50.0, 1.0),
        (1e6, 1e6, 1e6),
    ],
)
@over_caches
def test_scales(backend: Backend, sizes: tuple[float, float, float], kv_type: str) -> None:
    shape = Shape(kv_type=kv_type)
    check(backend, shape, shape.rows(130, sizes=sizes))


def weighed(shape: Shape, powers: NDArray[np.float64]) -> Rows:
    """Tokens whose weights are those powers of 2, in the order given. The largest have values of 0;
    each dimension has values of every eighth of the others: what little they weigh is all."""
    n = len(powers)
    rows = shape.rows(n, sizes=(0.0, 0.0, 1.0))
    # So large that the keys are not.
    rows["q"][:, :: shape.head_dim] = 1024.0
    keys = powers / (shape.scale * np.log2(np.e) * 1024.0)
    rows["k"][:, :: shape.head_dim] = keys[:, None].astype(np.float32)
    rank = np.unique(-np.floor(powers), return_inverse=True)[1]
    dims = np.arange(shape.widths["v"])
    rows["v"][(rank[:, None] - dims) % 8 != 1] = 0.0
    rows["v"][rank == 0] = 0.0
    return rows


def far_apart(shape: Shape) -> Rows:
    """Token blocks around where the factors that join them become zero."""
    powers = [-126, 0, -125, -126, -127, -140, -60, -5, -119]
    return weighed(shape, np.repeat(powers, PAGE) - 0.5)


def large_and_light(shape: Shape) -> Rows:
    """Weights in one token block around the least that there are, of the largest values."""
    rows = weighed(shape, np.concatenate([[-0.5], -62 - np.arange(63) / 16]))
    return rows | {"v": rows["v"] * np.float32(2.0**47)}


def far_out(shape: Shape) -> Rows:
    """Scores around the two sizes from which on the largest alone has a weight."""
    return weighed(shape, np.linspace(-1.02, 1.02, 2 * PAGE) * 2.0**23)


def too_large(shape: Shape) -> Rows:
    """Keys and values that are larger than the cache holds, and the largest that it does."""
    rows = shape.rows(130)
    largest = shape.kind.largest
    beyond = np.nextafter(largest, np.float32(np.inf))
    odd = [3e38, -3e38, largest, -largest, beyond, -beyond, 1e-40]
    for name in "kv":
        for i, value in enumerate(odd):
            # In both blocks, each beside others and in a block that is 0 otherwise.
            rows[name][i, 15 * i] = value
            rows[name][20 + i, : shape.head_dim] = 0.0
            rows[name][20 + i, 130] = value
        rows[name][40, :] = 3e38
        rows[name][41, : len(odd)] = odd
    # A head that minds no such key: scores that large have no weights.
    rows["q"][:, [*range(len(odd)), *range(0, 15 * len(odd), 15), 130]] = 0.0
    return rows


def ties(shape: Shape) -> Rows:
    """Keys, values and queries halfway between two integers."""
    rows, kind = shape.rows(130), shape.kind
    for name, x in rows.items():
        half = np.arange(x.shape[1], dtype=np.float32) % 128 - 63.5
        # The largest of each block, so that a step is 1.
        for i, first in enumerate(range(0, shape.head_dim, kind.block)):
            most = kind.most * (-1.0) ** i if name != "q" else 1.5 if i else exact.Q_MOST
            half[first :: shape.head_dim] = most
        x[5:9] = half
        # Steps whose reciprocals are rounded.
        x[10:13] = half * np.float32([[1 + 2**-7], [1.5], [3 - 2**-6]])
    rows["q"][:] = rows["q"][5] * np.float32(2.0**-26)
    # Near the largest that has this step.
    near = np.nextafter(np.float32(kind.most), np.float32(np.inf))
    for i, most in [(7, near), (8, -near), (9, kind.most - 0.5)]:
        rows["v"][i, 0] = rows["k"][i, 128] = most
    return rows


def kinds(shape: Shape) -> dict[str, Rows]:
    n = 130
    plain = shape.rows(n)
    zeros = {name: np.zeros_like(x) for name, x in plain.items()}
    by_value = 10.0 ** np.random.default_rng(1).uniform(-12, 12, plain["v"].shape)
    by_token = by_value[:, :1]
    return {
        "zeros": zeros,
        "zero queries": plain | {"q": zeros["q"]},
        "zero keys": plain | {"k": zeros["k"]},
        "zero values": plain | {"v": zeros["v"]},
        "equal keys": plain | {"k": np.repeat(plain["k"][:1], n, axis=0)},
        "values of all sizes": plain | {"v": (plain["v"] * by_value).astype(np.float32)},
        "tokens of all sizes": {
            "q": plain["q"],
            "k": (plain["k"] * by_token[::-1] ** 0.5).astype(np.float32),
            "v": (plain["v"] * by_token).astype(np.float32),
        },
        # The grids of values, and of weights, end before.
        "tiny values": plain | {"v": plain["v"] * np.float32(1e-30)},
        "subnormal values": plain | {"v": plain["v"] * np.float32(1e-40)},
        "tiny queries": plain | {"q": plain["q"] * np.float32(1e-34)},
        "tiny keys": plain | {"k": plain["k"] * np.float32(1e-36)},
        "huge": {name: x * np.float32(1e13) for name, x in plain.items()},
        "far apart": far_apart(shape),
        "large and light": large_and_light(shape),
        "far out": far_out(shape),
        "too large": too_large(shape),
        "ties": ties(shape),
    }


KINDS = {kv_type: kinds(Shape(kv_type=kv_type)) for kv_type in exact.KINDS}


@pytest.mark.thorough
@pytest.mark.one_shape
@over_backends
@pytest.mark.parametrize("kind", KINDS["I16"])
@over_caches
def test_kinds(backend: Backend, kind: str, kv_type: str) -> None:
    check(backend, Shape(kv_type=kv_type), KINDS[kv_type][kind])


@over_backends
@over_caches
def test_a_query_without_a_grid_makes_its_own_head_nan(backend: Backend, kv_type: str) -> None:
    shape, n = Shape(kv_type=kv_type), 70
    rows = shape.rows(n)
    # Of no weight for the largest query that has a grid, where it has no other.
    rows["k"][:, -1] = 0.0
    clean = shape.exact(rows).reshape(n, shape.n_head, -1)
    wrong = [np.nan, np.inf, -np.inf, 2.0**50, -(2.0**50), 3e38, -np.nan]
    right = np.nextafter(np.float32(2.0**50), np.float32(0))
    q = rows["q"].copy()
    heads = q.reshape(n, shape.n_head, -1)
    bad = np.zeros((n, shape.n_head), bool)
    for i, value in enumerate(wrong):
        for row, head in [(i, i % shape.n_head), (n - 1 - i, (i + 1) % shape.n_head)]:
            heads[row, head, 23 * i % shape.head_dim] = value
            bad[row, head] = True
    # The largest that has one, beside a head that has none.
    heads[0, 3, -1] = right
    given = rows | {"q": q}
    run = shape.run(backend, n)
    found = feed(run, given, range(n))
    assert_same(found, shape.exact(given))
    found = found.reshape(n, shape.n_head, -1)
    assert np.array_equal(np.isnan(found).all(axis=2), bad)
    untouched = ~bad
    untouched[0, 3] = False
    assert np.array_equal(bits(found[untouched]), bits(clean[untouched]))
    # A step has other kernels than a prompt may have.
    for row in (0, n - 1):
        assert_same(feed(run, given, range(row, row + 1))[0], found[row].reshape(-1))


@over_backends
@over_caches
def test_a_cleared_page_holds_zeros(backend: Backend, kv_type: str) -> None:
    """Tokens that nobody wrote: keys and values of 0."""
    shape, position = Shape(kv_type=kv_type), 70
    rows = shape.rows(position + 1)
    run = shape.run(backend, PAGE * 2)
    lay(run, 0)
    found = feed(run, rows, range(position, position + 1))
    k, v = (shape.kind.encode_heads(rows[name], shape.n_head_kv) for name in "kv")
    k[:position] = v[:position] = 0
    fields = (shape.n_head, shape.scale, [position])
    wanted = exact.attention_over(rows["q"], k, v, *fields, kind=shape.kind)
    assert_same(found, wanted)


@pytest.mark.thorough
@over_backends
@over_caches
def test_any_passes_give_the_same_bits(backend: Backend, kv_type: str) -> None:
    """A row alone, in a batch of many sequences, and in a prompt in any chunks."""
    n_slots, shape = 4, Shape(kv_type=kv_type)
    chunk = st.one_of(st.integers(0, 3), st.integers(0, 90))
    passes = st.lists(st.tuples(*[chunk] * n_slots), min_size=1, max_size=4)

    @given(passes=passes, threads=st.integers(1, 3), seed=st.integers(0, 99))
    @settings(max_examples=backend.examples(20), deadline=None, derandomize=True)
    def check(passes: list[tuple[int, ...]], threads: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        run = shape.run(backend, 4 * 90, n_slots, threads)
        sequences = [sequence(shape, 4 * 90, slot) for slot in range(n_slots)]

        def one_pass(batch: list[tuple[int, int]]) -> None:
            """`(slot, position)` of each row."""
            given = {
                name: np.stack([sequences[slot][0][name][p] for slot, p in batch]) for name in "qkv"
            }
            slots, positions = [slot for slot, _ in batch], [p for _, p in batch]
            found = run(given, positions=positions, slots=slots)["out"]
            assert_same(found, np.stack([sequences[slot][1][p] for slot, p in batch]))

        fed = [0] * n_slots
        for sizes in passes:
            batch = [(slot, fed[slot] + i) for slot, size in enumerate(sizes) for i in range(size)]
            fed = [n + size for n, size in zip(fed, sizes, strict=True)]
            if rng.integers(2):
                batch = [batch[i] for i in rng.permutation(len(batch))]
            if batch:
                one_pass(batch)
        known = [(slot, p) for slot, n in enumerate(fed) for p in range(n)]
        for i in rng.permutation(len(known))[:3]:
            one_pass([known[i]])
        latest = [(slot, n - 1) for slot, n in enumerate(fed) if n]
        if latest:
            one_pass(latest)

    check()


@pytest.mark.thorough
@over_backends
@over_caches
def test_near_float64(backend: Backend, kv_type: str) -> None:
    """Over what the cache holds: the rounding of keys and values is not counted."""
    shape, n = Shape(kv_type=kv_type), 300
    rows, _ = sequence(shape, max(LENGTHS))
    rows = {name: x[:n] for name, x in rows.items()}
    q, k, v = (rows[name] for name in "qkv")
    fields = (shape.n_head, shape.n_head_kv, shape.scale, shape.kind)
    wanted = exact.in_float64(q, k, v, *fields)
    assert nmse(feed(shape.run(backend, n), rows, range(n)), wanted) <= 2e-9


def nearest(x: Fraction) -> np.float32:
    """A float32, ties to even, of a number that is near float64's."""
    guess = np.float32(float(x))
    down, up = (np.nextafter(guess, np.float32(end)) for end in (-np.inf, np.inf))
    near = [down, guess, up]
    errors = [(abs(Fraction(float(y)) - x), int(y.view(np.uint32)) & 1) for y in near]
    return np.float32(near[errors.index(min(errors))])


def test_the_references_fma_rounds_once() -> None:
    rng = np.random.default_rng(0)
    n = 1000
    # Products halfway between two float32, with a little more or less, and halfway of a sum.
    a = np.array([97.0] * n + [1 + 2.0**-23] * n, np.float32)
    b = np.array([172961.0] * n + [2.0**-24 * (1 - 2.0**-23)] * n, np.float32)
    tiny = np.ldexp(rng.choice([-1.0, 0.0, 1.0], n), rng.integers(-140, 10, n))
    c = np.concatenate([tiny, 1 + rng.integers(-9, 9, n) * 2.0**-23]).astype(np.float32)
    sign = rng.choice([-1, 1], (2, 2 * n)).astype(np.float32)
    a, b, c = a * sign[0], b, c * sign[1]
    found = exact.fma(a, b, c)
    once = [Fraction(float(x)) * Fraction(float(y)) for x, y in zip(a, b, strict=True)]
    wanted = [nearest(x + Fraction(float(y))) for x, y in zip(once, c, strict=True)]
    assert_same(found, np.array(wanted, np.float32))
    twice = (a.astype(np.float64) * b + c).astype(np.float32)
    assert (bits(twice) != bits(found)).sum() > n // 10
