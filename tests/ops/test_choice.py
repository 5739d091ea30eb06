"""The choice of blocks of tokens, and attention that sees them: what they compute, with the
interpreter's bits on every card, in prompts and steps alike."""

import numpy as np
import pytest
from numpy.typing import NDArray
from support.backends import INTERPRETER, Backend, over_backends, over_cards
from support.plans import Floats, Plan, Run, bits, nmse, normal
from support.plans_attention import in_float64

EPS = 1e-6


def words_of(n: int, ratio: int) -> int:
    return -(-n * ratio // 64)


def scores_plan(heads: int, dim: int, ratio: int, n: int, half: int) -> Plan:
    plan = Plan(
        n_head_kv=1,
        head_dim=dim,
        values_in_keys=dim,
        inv_freq=list(10000.0 ** (-np.arange(half) / half)),
    )
    k, q = plan.buffer("k", dim), plan.buffer("q", heads * dim)
    plan.op("kv_scatter", k=k, v=k, layer=0)
    plan.op(
        "choice",
        what="scores",
        q=q,
        weight=plan.vector("w", normal(dim, seed=3)),
        layer=0,
        out=plan.buffer("out", n),
        n_head=heads,
        table=0,
        ratio=ratio,
        n=n,
        eps=EPS,
    )
    return plan


def in_order(rows: dict[str, Floats], heads: int, ratio: int, half: int) -> NDArray[np.float64]:
    """Scores of all whole blocks: [rows, blocks]."""
    dim = rows["k"].shape[1]
    keys = rows["k"].astype(np.float64)[: len(rows["k"]) // ratio * ratio]
    keys = keys.reshape(-1, ratio, dim).mean(axis=1)
    keys /= np.sqrt((keys * keys).mean(axis=1, keepdims=True) + EPS)
    keys *= normal(dim, seed=3)
    turns = np.arange(len(keys))[:, None] * ratio * 10000.0 ** (-np.arange(half) / half)
    a, b = keys[:, :half].copy(), keys[:, half : 2 * half].copy()
    keys[:, :half] = a * np.cos(turns) - b * np.sin(turns)
    keys[:, half : 2 * half] = a * np.sin(turns) + b * np.cos(turns)
    q = rows["q"].astype(np.float64).reshape(len(rows["q"]), heads, dim)
    result: NDArray[np.float64] = np.maximum(q @ keys.T, 0.0).sum(axis=1)
    return result


SHAPES = [(4, 128, 4, 32), (1, 48, 8, 8), (3, 256, 64, 24), (2, 80, 16, 40)]


@over_backends
@pytest.mark.parametrize(("heads", "dim", "ratio", "half"), SHAPES)
def test_scores_are_those_of_mean_keys(
    backend: Backend, heads: int, dim: int, ratio: int, half: int
) -> None:
    n, blocks = 150, 200 // ratio
    rows = {"k": normal(n, dim, seed=1), "q": normal(n, heads * dim, seed=2)}
    run = Run(backend, scores_plan(heads, dim, ratio, blocks, half), n_ctx=192)
    found = run(rows, positions=range(n), slots=[0] * n)["out"]
    exact = in_order(rows, heads, ratio, half)
    # Keys are kept in 16 bits.
    for row in (ratio - 1, 70, n - 1):
        seen = (row + 1) // ratio
        assert nmse(found[row, :seen], exact[row, :seen]) <= 1e-7
        assert found[row, :seen].min() >= 0


@over_cards
@pytest.mark.parametrize("kv_type", ["I16", "Q8_0"])
@pytest.mark.parametrize(("heads", "dim", "ratio", "half"), SHAPES)
def test_scores_have_the_interpreters_bits(
    backend: Backend, heads: int, dim: int, ratio: int, half: int, kv_type: str
) -> None:
    n, blocks = 150, 200 // ratio
    rows = {"k": normal(n, dim, seed=1), "q": normal(n, heads * dim, seed=2)}
    plan = scores_plan(heads, dim, ratio, blocks, half)
    found, wanted = (
        Run(on, plan, n_ctx=192, kv_type=kv_type)(rows, positions=range(n), slots=[0] * n)["out"]
        for on in (backend, INTERPRETER)
    )
    for row in range(n):
        seen = (row + 1) // ratio
        assert np.array_equal(bits(found[row, :seen]), bits(wanted[row, :seen])), row
    # A step behind it, of a sequence that stands among others.
    run = Run(backend, plan, n_ctx=192, kv_type=kv_type, n_slots=2)
    for row in range(n):
        part = {name: values[row : row + 1] for name, values in rows.items()}
        if row >= n - 3:
            found = run(part, positions=[row], slots=[1])["out"]
        elif row == 0:
            prompt = {name: values[: n - 3] for name, values in rows.items()}
            run(prompt, positions=range(n - 3), slots=[1] * (n - 3))
    seen = n // ratio
    assert np.array_equal(bits(found[0, :seen]), bits(wanted[-1, :seen]))


@over_backends
@pytest.mark.parametrize("ratio", [4, 16, 64])
@pytest.mark.parametrize(("n", "top"), [(40, 9), (700, 33), (1300, 257)])
def test_the_largest_are_chosen_of_equals_the_first(
    backend: Backend, n: int, top: int, ratio: int
) -> None:
    plan = Plan()
    words = words_of(n, ratio)
    plan.op(
        "choice",
        what="blocks",
        scores=plan.buffer("x", n),
        out=plan.buffer("out", words),
        ratio=ratio,
        top_k=top * ratio,
        n=n,
    )
    # Many are alike, and many nothing.
    scores = np.abs(np.round(normal(6, n, seed=n), 1)) * (normal(6, n, seed=1) > -0.5)
    scores[1] = 0
    scores[2, ::7] = np.inf
    scores[3] = np.arange(n)
    ends = [0, ratio - 2, n * ratio - 1, top * ratio + 5, (n - 3) * ratio + 2, n * ratio // 2]
    found = Run(backend, plan)({"x": scores.astype(np.float32)}, positions=ends, slots=[0] * 6)[
        "out"
    ]
    for row, end in enumerate(ends):
        whole, seen = (end + 1) // ratio, np.zeros(words * 64 // ratio, dtype=bool)
        best = np.argsort(-scores[row, :whole].astype(np.float32), kind="stable")[:top]
        seen[best] = True
        if (end + 1) % ratio:
            seen[whole] = True
        wanted = seen.reshape(words, -1) @ 2.0 ** np.arange(64 // ratio)
        assert np.array_equal(found[row], wanted), end


def attention_plan(heads: int, of_keys: int, dim: int, ratio: int, words: int, sinks: bool) -> Plan:
    plan = Plan(n_head_kv=of_keys, head_dim=dim)
    k, v = plan.buffer("k", of_keys * dim), plan.buffer("v", of_keys * dim)
    q, blocks = plan.buffer("q", heads * dim), plan.buffer("blocks", words)
    plan.op("kv_scatter", k=k, v=v, layer=0)
    plan.op(
        "attention",
        q=q,
        out=plan.buffer("out", heads * dim),
        layer=0,
        n_head=heads,
        scale=dim**-0.5,
        window=None,
        sinks=plan.vector("sinks", normal(heads, seed=4)) if sinks else None,
        chosen={"blocks": blocks, "words": words, "ratio": ratio},
    )
    return plan


def random_blocks(n: int, ratio: int, words: int, share: float) -> Floats:
    """For each row blocks at random, of many words none, and the row's own."""
    rng = np.random.default_rng(n)
    seen = rng.random((n, words * 64 // ratio)) < share
    seen &= np.repeat(rng.random((n, words)) < 0.5, 64 // ratio, axis=1)
    seen[np.arange(n), np.arange(n) // ratio] = True
    result: Floats = (seen.reshape(n, words, -1) @ 2.0 ** np.arange(64 // ratio)).astype(np.float32)
    return result


def given(n: int, heads: int, of_keys: int, dim: int, blocks: Floats) -> dict[str, Floats]:
    wide = {"k": of_keys, "v": of_keys, "q": heads}
    rows = {name: normal(n, of * dim, seed=of + i) for i, (name, of) in enumerate(wide.items())}
    return rows | {"blocks": blocks}


@over_backends
@pytest.mark.parametrize("kv_type", ["I16", "F32"])
@pytest.mark.parametrize("ratio", [4, 32])
def test_attention_sees_the_chosen_blocks(backend: Backend, ratio: int, kv_type: str) -> None:
    if kv_type not in (backend.kv_types or ("I16", "F32")):
        pytest.skip("a cache of the CPU alone")
    heads, of_keys, dim, n, words = 4, 2, 32, 300, 6
    blocks = random_blocks(n, ratio, words, 0.4)
    rows = given(n, heads, of_keys, dim, blocks)
    plan = attention_plan(heads, of_keys, dim, ratio, words, False)
    run = Run(backend, plan, n_ctx=320, kv_type=kv_type)
    found = run(rows, positions=range(n), slots=[0] * n)["out"]
    for row in (0, 3, 100, n - 1):
        word, bit = np.arange(row + 1) // 64, np.arange(row + 1) % 64 // ratio
        seen = np.flatnonzero(blocks[row].astype(np.int64)[word] >> bit & 1)
        kept = {name: rows[name][seen] for name in "kv"}
        last = np.repeat(rows["q"][row : row + 1], len(seen), axis=0)
        exact = in_float64(last, kept["k"], kept["v"], heads, of_keys, dim**-0.5, "F32")
        assert nmse(found[row], exact[-1]) <= 1e-7


@over_cards
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("kv_type", ["I16", "Q8_0"])
@pytest.mark.parametrize(
    ("heads", "of_keys", "dim", "n"), [(4, 2, 64, 200), (12, 1, 256, 140), (3, 3, 96, 90)]
)
def test_attention_has_the_interpreters_bits(
    backend: Backend, heads: int, of_keys: int, dim: int, n: int, kv_type: str, sinks: bool
) -> None:
    """Of a prompt, and of steps behind it."""
    words, ratio = 4, 4
    rows = given(n, heads, of_keys, dim, random_blocks(n, ratio, words, 0.3))
    plan = attention_plan(heads, of_keys, dim, ratio, words, sinks)
    runs = [Run(on, plan, n_ctx=256, kv_type=kv_type) for on in (backend, INTERPRETER)]
    for at in (range(n - 2), range(n - 2, n - 1), range(n - 1, n)):
        part = {name: values[at.start : at.stop] for name, values in rows.items()}
        found, wanted = (run(part, positions=at, slots=[0] * len(at))["out"] for run in runs)
        assert np.array_equal(bits(found), bits(wanted)), at


@pytest.mark.thorough
@over_cards
def test_splits_of_which_nothing_is_seen_are_left_out(backend: Backend) -> None:
    heads, of_keys, dim, ratio, words = 2, 1, 16, 4, 36
    n = 64 * words
    rows = given(n, heads, of_keys, dim, np.zeros((n, words), np.float32))
    # All scores are so low that beside a maximum of 0 nothing would be left.
    rows |= {"k": np.abs(rows["k"]), "q": -300 * np.abs(rows["q"])}
    plan = attention_plan(heads, of_keys, dim, ratio, words, False)
    runs = [Run(on, plan, n_ctx=n) for on in (backend, INTERPRETER)]
    for run in runs:
        # What rows see of these is nothing.
        for first in range(0, n, 384):
            part = {name: values[first : first + 384] for name, values in rows.items()}
            run(part, positions=range(first, first + 384), slots=[0] * 384)
    last = {name: values[-1:] for name, values in rows.items()}
    for seen in ([35], [0, 35], [15, 20, 35], [2, 3, 35], [0]):
        blocks = np.zeros((1, words), np.float32)
        blocks[:, seen] = [7.0 + word for word in seen]
        found, wanted = (
            run(last | {"blocks": blocks}, positions=[n - 1], slots=[0])["out"] for run in runs
        )
        assert np.isfinite(wanted).all()
        assert np.array_equal(bits(found), bits(wanted)), seen
