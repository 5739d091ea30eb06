"""The KV scatter and the attention that reads it back, token by token: what is written is what the
page table says, where it says, and nothing else."""

from dataclasses import replace

import numpy as np
import onegraph
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.backends import INTERPRETER, Backend, over_backends, over_backends_slowly
from support.plans import KV_TYPES, PAGE, TYPES, bits, head_bytes
from support.plans_kv import CANARIES, Cache, changed, lay

HEAD_DIMS = [64, 80, 96, 112, 128, 256]
FITS = [(ty, dim) for ty in KV_TYPES for dim in HEAD_DIMS if head_bytes(ty, dim)]
FITS_NOT = [(ty, dim) for ty in KV_TYPES for dim in HEAD_DIMS if not head_bytes(ty, dim)]

#: The types a user may choose, and how far from a value its stored self may be, as a part of the
#: largest value.
ROUNDING = {"I16": 2.0**-15, "F32": 0.0, "Q8_0": 1 / 250}

#: Ends inside a page, so that a page has entries past the last position.
CACHE = Cache()
#: Ends with a page, so that the next entry of the page table is another sequence's.
FULL_PAGES = Cache(n_ctx=128)

quickly = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
over_types = pytest.mark.parametrize("kv_type", ROUNDING)
over_caches = pytest.mark.parametrize("cache", [CACHE, FULL_PAGES], ids=["ragged", "full pages"])


@over_backends
@pytest.mark.parametrize(("kv_type", "head_dim"), FITS)
def test_every_token_has_bytes_of_its_own(backend: Backend, kv_type: str, head_dim: int) -> None:
    cache = Cache(n_layer=1, kv_type=kv_type, head_dim=head_dim, n_slots=1, n_ctx=64, n_pages=3)
    owned: set[int] = set()
    for page in (1, 2):
        for entry in (0, 1, 30, 31, 32, 62, 63):
            bytes_of_token = set(cache.footprint(backend, page, entry).tolist())
            assert not owned & bytes_of_token, (page, entry)
            owned |= bytes_of_token


@over_backends
def test_the_pool_is_its_tokens_and_page_0(backend: Backend) -> None:
    cache = replace(CACHE, n_pages=3)
    pages = [cache.page_footprint(backend, page) for page in (1, 2)]
    owned = np.concatenate(pages)
    assert len(np.unique(owned)) == len(owned) == 2 * PAGE * cache.token_bytes
    assert len(cache.run(backend).kv) == len(owned) + PAGE * cache.token_bytes


@pytest.mark.parametrize(("kv_type", "head_dim"), FITS_NOT)
def test_heads_that_are_no_whole_blocks_are_refused(kv_type: str, head_dim: int) -> None:
    elems = TYPES[kv_type][0]
    with pytest.raises(onegraph.ArgumentError) as error:
        Cache(kv_type=kv_type, head_dim=head_dim).run(INTERPRETER)
    text = str(error.value)
    assert "kv_type" in text and kv_type in text
    assert f"heads of {head_dim} values" in text
    assert f"blocks of {elems}" in text and "use another kv_type" in text


@over_backends
@pytest.mark.parametrize("n_head_kv", [1, 2, 3, 8])
@pytest.mark.parametrize(("kv_type", "head_dim"), [f for f in FITS if f[0] in ROUNDING])
def test_values_come_back(backend: Backend, kv_type: str, n_head_kv: int, head_dim: int) -> None:
    """A sequence of one token attends to its own value alone."""
    cache = Cache(
        n_layer=2, n_head=n_head_kv, n_head_kv=n_head_kv, head_dim=head_dim, kv_type=kv_type
    )
    run = cache.run(backend)
    run.map(0, [5])
    lay(run, 0xFF)  # NaN in every float format
    row = cache.row(1)
    out = cache.outs(run(row, positions=[0]))
    values = np.concatenate([row["v0"], row["v1"]], axis=1)
    assert np.abs(out - values).max() <= ROUNDING[kv_type] * np.abs(values).max()


@over_backends_slowly
@given(
    n_prompt=st.integers(1, 130),
    cuts=st.lists(st.integers(1, 70), max_size=4),
    pages=st.permutations(range(1, 7)),
    canary=st.sampled_from(CANARIES),
    slot=st.integers(0, 2),
)
@quickly
def test_a_prompt_and_its_decode_write_their_own_tokens(
    backend: Backend, n_prompt: int, cuts: list[int], pages: list[int], canary: int, slot: int
) -> None:
    n = CACHE.n_ctx
    run = CACHE.run(backend)
    run.map(slot, pages[:3])
    lay(run, canary)
    before = run.kv
    starts = [0, *sorted({cut for cut in np.cumsum(cuts).tolist() if cut < n_prompt})]
    ends = [*starts[1:], n_prompt]
    outs = []
    for start, end in [*zip(starts, ends, strict=True), *((i, i + 1) for i in range(n_prompt, n))]:
        outs.append(CACHE.feed(run, range(start, end), start, slot))
    owned = {
        byte
        for position in range(n)
        for byte in CACHE.footprint(backend, pages[position // PAGE], position % PAGE).tolist()
    }
    assert changed(before, run.kv) <= owned
    # Each token is where an eager, single chunk puts it.
    assert np.array_equal(bits(np.concatenate(outs)), bits(CACHE.solo(backend, range(n))))
    whole = CACHE.run(backend)
    whole.map(slot, pages[:3])
    lay(whole, canary)
    whole(CACHE.rows(range(n)), positions=range(n), slots=[slot] * n)
    # Also where a long prompt's sums are others: what is stored comes before any.
    assert np.array_equal(run.kv, whole.kv)


def refusal(position: int, slot: int, limit: int) -> str:
    return (
        f"KV scatter: position {position} of sequence slot {slot} is outside the cache of {limit} "
        "tokens; nothing was written"
    )


@pytest.mark.one_shape
@over_backends
@over_caches
@pytest.mark.parametrize("beyond", [0, 1, 63, 64, 2**31, 2**32 - 1])
@pytest.mark.parametrize("canary", CANARIES)
def test_a_position_past_the_limit_writes_nothing(
    backend: Backend, cache: Cache, beyond: int, canary: int
) -> None:
    position = min(cache.n_ctx + beyond, 2**32 - 1)
    run = cache.run(backend)
    run.map(0, [1, 2, 3][: cache.per_slot])
    run.map(1, [4, 5, 6][: cache.per_slot])
    lay(run, canary)
    before = run.kv
    # Good rows around it, the last good position among them.
    positions = [cache.n_ctx - 1, position, 0]
    with pytest.raises(onegraph.InternalError) as error:
        run(cache.rows([1, 2, 3]), positions=positions, slots=[0, 0, 1])
    assert refusal(position, 0, cache.n_ctx) in str(error.value)
    last = (cache.n_ctx - 1) // PAGE + 1, (cache.n_ctx - 1) % PAGE
    good = {*cache.footprint(backend, *last).tolist(), *cache.footprint(backend, 4, 0).tolist()}
    assert changed(before, run.kv) <= good
    # The good rows were stored, and the runner works on.
    after = run.kv
    run(
        {n: v[[0, 2]] for n, v in cache.rows([1, 2, 3]).items()},
        positions=[positions[0], 0],
        slots=[0, 1],
    )
    assert np.array_equal(run.kv, after)
    run.map(0, [1, 2, 3][: cache.per_slot])
    out = cache.feed(run, range(70))
    assert np.array_equal(bits(out), bits(cache.solo(backend, range(70))))


@pytest.mark.one_shape
@over_backends
@over_caches
@pytest.mark.parametrize("slot", [3, 4, 2**31, 2**32 - 1])
def test_a_slot_that_does_not_exist_writes_nothing(
    backend: Backend, cache: Cache, slot: int
) -> None:
    run = cache.run(backend)
    for owner in range(3):
        run.map(owner, [2 * owner + 1, 2 * owner + 2])
    lay(run, 0x5A)
    before = run.kv
    if slot == backend.padding_slot:
        run(cache.row(1), positions=[5], slots=[slot])
    else:
        with pytest.raises(onegraph.InternalError) as error:
            run(cache.row(1), positions=[5], slots=[slot])
        assert refusal(5, slot, cache.n_ctx) in str(error.value)
    assert changed(before, run.kv) == set()


@over_backends
@pytest.mark.parametrize("canary", CANARIES)
def test_pages_that_are_not_mapped_are_not_written(backend: Backend, canary: int) -> None:
    run = CACHE.run(backend)
    run.map(1, [3, 0, 4])  # a hole: page 0 means "not mapped"
    run.map(2, [5])
    lay(run, canary)
    before = run.kv
    for slot, position in [(0, 0), (0, 64), (1, 64), (1, 127), (2, 64), (2, 129)]:
        with pytest.raises(onegraph.InternalError) as error:
            run(CACHE.row(1), positions=[position], slots=[slot])
        assert refusal(position, slot, CACHE.n_ctx) in str(error.value)
        assert changed(before, run.kv) == set(), (slot, position)


@over_backends_slowly
@given(
    rows=st.lists(st.booleans(), min_size=1, max_size=16),
    seed=st.integers(0, 1000),
    canary=st.sampled_from(CANARIES),
)
@quickly
def test_padding_rows_change_nothing(
    backend: Backend, rows: list[bool], seed: int, canary: int
) -> None:
    """Padding rows stand at position 0 of a slot without pages, anywhere in the batch. A backend
    may report them or not; what counts is what live rows and live pages see."""
    length = 70
    live = np.flatnonzero(rows)
    with_padding, alone = CACHE.run(backend), CACHE.run(backend)
    for run in (with_padding, alone):
        lay(run, canary)
        run.map(1, [2, 4])
        CACHE.feed(run, range(length), slot=1)
    values = CACHE.rows(range(seed, seed + len(rows)))
    positions = np.zeros(len(rows), int)
    positions[live] = length + np.arange(len(live))
    slots = np.where(rows, 1, 2)
    try:
        with_padding(values, positions=positions.tolist(), slots=slots.tolist())
    except onegraph.InternalError as error:
        assert refusal(0, 2, CACHE.n_ctx) in str(error)
        assert not all(rows)
    if len(live):
        alone(
            {name: v[live] for name, v in values.items()},
            positions=positions[live].tolist(),
            slots=[1] * len(live),
        )
        assert np.array_equal(bits(CACHE.outs(with_padding)[live]), bits(CACHE.outs(alone)))
    page_0 = np.ones(len(with_padding.kv), bool)
    for page in range(1, CACHE.n_pages):
        page_0[CACHE.page_footprint(backend, page)] = False
    assert np.array_equal(with_padding.kv[~page_0], alone.kv[~page_0])


@over_backends
@over_types
def test_the_same_position_twice_gives_the_same_cache(backend: Backend, kv_type: str) -> None:
    cache = replace(CACHE, kv_type=kv_type)
    run = cache.run(backend)
    run.map(0, [6, 2, 4])
    lay(run, 0x5A)
    first = cache.outs(run(cache.rows(range(100)), positions=range(100)))
    pool = run.kv
    again = cache.outs(run(cache.rows(range(100)), positions=range(100)))
    assert np.array_equal(bits(first), bits(again)) and np.array_equal(pool, run.kv)
    run(cache.row(64), positions=[64])
    assert np.array_equal(pool, run.kv)


@over_backends_slowly
@over_types
@given(pages=st.permutations(range(1, 7)), length=st.integers(1, 130))
@quickly
def test_where_the_pages_lie_changes_no_bit(
    backend: Backend, kv_type: str, pages: list[int], length: int
) -> None:
    cache = replace(CACHE, kv_type=kv_type)
    run = cache.run(backend)
    run.map(0, pages[:3])
    lay(run, 0x5A)
    out = cache.feed(run, range(length))
    assert np.array_equal(bits(out), bits(cache.solo(backend, range(length))))


@over_backends
@over_types
@pytest.mark.parametrize("length", [1, 2, 33, 63, 64, 65, 127, 128, 129, 130])
def test_what_lay_in_a_fresh_page_is_never_seen(
    backend: Backend, kv_type: str, length: int
) -> None:
    """Zero times NaN is NaN: masking by multiplication would show what the page held before."""
    cache = replace(CACHE, kv_type=kv_type)
    seen = []
    for filling in (0x00, 0xFF, 0x7F, 0x7C):  # zero; NaN, large and infinite numbers
        run = cache.run(backend)
        run.map(0, [1, 2, 3])
        lay(run, filling)
        prompt = cache.feed(run, range(length))
        # Then token by token from the start again, over what the prompt left ahead of them.
        lay(run, filling)
        steps = [cache.outs(run(cache.row(i), positions=[i])) for i in range(length)]
        assert np.array_equal(bits(prompt), bits(np.concatenate(steps)))
        seen.append(prompt)
    assert not np.isnan(seen[0]).any()
    for other in seen[1:]:
        assert np.array_equal(bits(seen[0]), bits(other))


@over_backends
def test_two_hundred_runs_are_one(backend: Backend) -> None:
    cache = replace(CACHE, n_head=8, n_head_kv=4)
    run = cache.run(backend, threads=3)
    run.map(0, [6, 1, 4])
    run.map(1, [2])
    rows, positions, slots = cache.rows(range(9)), [0, 1, 2, 3, 4, 5, 0, 1, 2], [0] * 6 + [1] * 3
    first = cache.outs(run(rows, positions=positions, slots=slots))
    pool = run.kv
    for _ in range(200):
        assert np.array_equal(
            bits(cache.outs(run(rows, positions=positions, slots=slots))), bits(first)
        )
    assert np.array_equal(run.kv, pool)


@over_backends
@pytest.mark.parametrize(
    ("slot", "first", "pages", "says"),
    [
        (3, 0, [1], "slot = 3: must be below 3"),
        (0, 3, [1], "page of the sequence = 4: must be below 4"),
        (0, 2, [1, 2], "page of the sequence = 4: must be below 4"),
        (0, 2**63, [1], f"page of the sequence = {2**63 + 1}: must be below 4"),
        (0, 0, [1, 7], "page = 7: must be below 7"),
        (2, 1, [2**32 - 1], f"page = {2**32 - 1}: must be below 7"),
    ],
)
def test_the_page_table_refuses_what_does_not_exist(
    backend: Backend, slot: int, first: int, pages: list[int], says: str
) -> None:
    run = CACHE.run(backend)
    run.map(0, [1, 2, 3])
    with pytest.raises(onegraph.ArgumentError) as error:
        run.map(slot, pages, first)
    assert says in str(error.value)
    # Nothing of it was taken over.
    lay(run, 0x5A)
    before = run.kv
    run(CACHE.row(1), positions=[0])
    assert changed(before, run.kv) <= set(CACHE.footprint(backend, 1, 0).tolist())


@over_backends
def test_a_pool_of_another_size_is_refused(backend: Backend) -> None:
    run = CACHE.run(backend)
    size = len(run.kv)
    for wrong in (size - 1, size + 1, 0):
        with pytest.raises(onegraph.ArgumentError) as error:
            run.kv = np.zeros(wrong, np.uint8)
        assert f"{wrong} bytes" in str(error.value) and f"{size} bytes" in str(error.value)


@over_backends
def test_a_pool_that_no_machine_has_is_refused(backend: Backend) -> None:
    for n_pages in (2**44, 2**62):
        with pytest.raises(onegraph.OutOfMemoryError) as error:
            replace(CACHE, n_pages=n_pages).run(backend)
        need = n_pages * PAGE * CACHE.token_bytes
        assert f"{n_pages} pages" in str(error.value)
        assert (str(need) if need < 2**64 else "more than 2^64") in str(error.value)
        assert "smaller n_ctx" in str(error.value)
