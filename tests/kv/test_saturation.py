"""Keys and values that are larger than the cache's type holds: they become the largest that it
holds and the slot says so. Those that are not finite end their sequence."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onegraph
import pytest
from support.backends import INTERPRETER, Backend, over_backends
from support.plans import Floats, Plan, Run, bits, encode
from support.plans_kv import Cache, lay

#: What a cache's type holds at most; the types that hold less than float32 does.
LARGEST = {"F16": 65504.0, "Q8_0": 127 * 65504.0, "I16": 32767 * 2.0**35}
#: How far a value may be from its stored self, as a part of the largest of its block.
ROUNDING = {"F16": 2.0**-11, "Q8_0": 1 / 250, "I16": 2.0**-15}
#: How far the attention to one token may be from its value: half a step of an exact sum's weights,
#: of which that of one token is 32767.5 or more.
WEIGHTS = {"I16": 1 / 65534, "Q8_0": 1 / 65534}
N_SLOTS = 3

over_types = pytest.mark.parametrize("kv_type", LARGEST)


def one_head(kv_type: str) -> Cache:
    return Cache(n_layer=1, n_head=1, n_head_kv=1, kv_type=kv_type, n_slots=N_SLOTS, n_ctx=64)


def row(cache: Cache, seed: int, **planted: float) -> dict[str, Floats]:
    """A token's q, k and v with a number planted in the middle of some of them."""
    values = cache.row(seed)
    for name, value in planted.items():
        values[f"{name}0"][0, cache.head_dim // 2] = value
    return values


def is_near(kv_type: str, found: float, value: float) -> bool:
    """Whether that is the attention to one token with this value."""
    return abs(found - value) <= WEIGHTS.get(kv_type, 0.0) * abs(value)


def said(run: Run) -> list[int]:
    """The slots that say that something was too large."""
    return [slot for slot in range(N_SLOTS) if run.native.saturated(slot)]


@over_backends
@over_types
@pytest.mark.one_shape
@pytest.mark.parametrize("beyond", [1.0001, 1e6], ids=["just", "far"])
@pytest.mark.parametrize("sign", [1, -1], ids=["positive", "negative"])
def test_a_value_beyond_the_type_becomes_the_largest(
    backend: Backend, kv_type: str, beyond: float, sign: int
) -> None:
    cache = one_head(kv_type)
    run = cache.run(backend, mapped=True)
    out = cache.outs(run(row(cache, 1, v=sign * beyond * LARGEST[kv_type]), positions=[0]))
    # A sequence of one token attends to its own value alone.
    assert is_near(kv_type, out[0, cache.head_dim // 2], sign * LARGEST[kv_type])
    assert np.isfinite(out).all()
    assert said(run) == [0]


@over_backends
@over_types
@pytest.mark.one_shape
def test_one_key_beyond_the_type_does_not_poison_the_tokens_that_follow(
    backend: Backend, kv_type: str
) -> None:
    cache = one_head(kv_type)
    run = cache.run(backend, mapped=True)
    for position in range(10):
        most = LARGEST[kv_type]
        planted = {"k": 8 * most, "v": -8 * most} if position == 3 else {}
        out = cache.outs(run(row(cache, position, **planted), positions=[position], slots=[1]))
        assert np.isfinite(out).all(), position
        assert said(run) == ([1] if position >= 3 else [])


@over_backends
@over_types
@pytest.mark.one_shape
def test_the_largest_itself_is_no_news(backend: Backend, kv_type: str) -> None:
    cache = one_head(kv_type)
    run = cache.run(backend, mapped=True)
    most = LARGEST[kv_type]
    out = cache.outs(run(row(cache, 1, k=-most, v=most), positions=[0]))
    assert is_near(kv_type, out[0, cache.head_dim // 2], most)
    assert said(run) == []


@over_backends
@over_types
@pytest.mark.one_shape
def test_each_row_speaks_for_its_own_slot(backend: Backend, kv_type: str) -> None:
    cache = one_head(kv_type)
    run = cache.run(backend, mapped=True)
    lay(run, 0)
    rows = [row(cache, 1), row(cache, 2, k=2 * LARGEST[kv_type]), row(cache, 3)]
    together = {name: np.concatenate([r[name] for r in rows]) for name in rows[0]}
    out = cache.outs(run(together, positions=[0, 0, 0], slots=[0, 2, 1]))
    assert said(run) == [2]
    # The neighbours have the bits that they have without it.
    for i in (0, 2):
        alone = cache.run(backend, mapped=True)
        assert np.array_equal(bits(out[i : i + 1]), bits(cache.outs(alone(rows[i], positions=[0]))))


@over_backends
@over_types
@pytest.mark.one_shape
def test_a_refused_token_says_nothing_of_its_size(backend: Backend, kv_type: str) -> None:
    if backend.padding_slot is None:
        pytest.skip("padding rows are what cards have")
    cache = one_head(kv_type)
    run = cache.run(backend, mapped=True)
    for value in (2 * LARGEST[kv_type], np.nan):
        run(row(cache, 1, k=value), positions=[0], slots=[backend.padding_slot])
        assert said(run) == []


def refusal(run: Run, inputs: dict[str, Floats], **batch: Any) -> str:
    with pytest.raises(onegraph.ModelError) as caught:
        run(inputs, **batch)
    return str(caught.value)


def places(error: str) -> tuple[int, int, int, float]:
    """Layer, position, slot and magnitude of a message."""
    found = NOT_FINITE.fullmatch(error)
    assert found, error
    return int(found[1]), int(found[2]), int(found[3]), abs(float(found[4]))


NOT_FINITE = re.compile(
    r"KV scatter of layer (\d+): a key or value at position (\d+) of sequence slot (\d+) is (\S+), "
    r"but all must be finite; .*"
)


@over_backends
@pytest.mark.parametrize("kv_type", ["F32", *LARGEST])
@pytest.mark.one_shape
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf], ids=["nan", "infinity", "negative"])
def test_a_key_or_value_that_is_not_finite_ends_its_sequence_alone(
    backend: Backend, kv_type: str, value: float
) -> None:
    cache = one_head(kv_type)
    run = cache.run(backend, mapped=True)
    lay(run, 0)
    for planted in ("k", "v"):
        rows = [row(cache, 1), row(cache, 2, **{planted: value}), row(cache, 3)]
        together = {name: np.concatenate([r[name] for r in rows]) for name in rows[0]}
        error = refusal(run, together, positions=[0, 0, 0], slots=[0, 2, 1])
        layer, position, slot, size = places(error)
        assert (layer, position, slot) == (0, 0, 2)
        assert size == abs(value) or np.isnan([size, value]).all()
        # It is none of the numbers that were too large.
        assert said(run) == []
        # The neighbours have the bits that they have without it, and go on.
        out = cache.outs(run)
        for i in (0, 2):
            alone = cache.outs(cache.run(backend, mapped=True)(rows[i], positions=[0]))
            assert np.array_equal(bits(out[i : i + 1]), bits(alone))
        run(row(cache, 4), positions=[1], slots=[0])


@over_backends
@pytest.mark.parametrize("kv_type", ["F32", *LARGEST])
@pytest.mark.one_shape
def test_of_rows_that_are_not_finite_each_ends_its_own_sequence_at_its_first(
    backend: Backend, kv_type: str
) -> None:
    """One of three is told of, the others of the same pass are not forgotten: nor told of later."""
    cache = one_head(kv_type)
    run = cache.run(backend, mapped=True)
    rows = [
        row(cache, 1),
        row(cache, 2, k=np.nan),
        row(cache, 3, v=np.inf),
        row(cache, 4, v=np.nan),
    ]
    together = {name: np.concatenate([r[name] for r in rows]) for name in rows[0]}
    error = refusal(run, together, positions=[0, 1, 2, 0], slots=[0, 0, 0, 1])
    assert places(error)[:3] == (0, 1, 0)
    run(row(cache, 5), positions=[0], slots=[1])


def test_a_float32_cache_holds_what_a_float16_cache_does_not() -> None:
    cache = one_head("F32")
    run = cache.run(INTERPRETER, mapped=True)
    out = cache.outs(run(row(cache, 1, k=1e9, v=1e9), positions=[0]))
    assert out[0, cache.head_dim // 2] == np.float32(1e9)
    assert said(run) == []


N_HEAD, HEAD_DIM, N_EMBD = 2, 64, 256


def attending(backend: Backend, kv_type: str, planted: str, scale: float, *, fuse: bool) -> Run:
    """Attention as models have it: q, k and v are products with biases, q and k are rotated. All
    numbers are 1 but one of `planted`: far too large where `scale`, which is that of weights that
    are zero, is finite, else NaN."""
    width = N_HEAD * HEAD_DIM
    plan = Plan(n_head_kv=N_HEAD, head_dim=HEAD_DIM, inv_freq=[0.5] * (HEAD_DIM // 2))
    h = plan.buffer("h", N_EMBD)
    b = {name: plan.buffer(name, width) for name in ("q", "k", "v", "out")}
    zeros = encode("Q8_0", np.zeros((width, N_EMBD), np.float32))
    for name in ("q", "k", "v"):
        values = np.ones(width, np.float32)
        if name == planted:
            values[PLANTED] = -16 * LARGEST.get(kv_type, 0.0)
        blocks = np.frombuffer(zeros, np.uint8).reshape(width, -1, 34).copy()
        if name == planted:
            blocks[PLANTED, :, :2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
        weight = plan.weight(f"w{name}", "Q8_0", blocks.tobytes(), N_EMBD, width)
        plan.op("mat_vec", x=h, weight=weight, bias=plan.vector(f"b{name}", values), out=b[name])
    for name in ("q", "k"):
        plan.op("rope", x=b[name], n_head=N_HEAD, style="halves")
    plan.op("kv_scatter", k=b["k"], v=b["v"], layer=0)
    plan.op("attention", q=b["q"], out=b["out"], layer=0, n_head=N_HEAD, scale=HEAD_DIM**-0.5)
    return Run(backend, plan, n_slots=N_SLOTS, n_ctx=128, kv_type=kv_type, fuse=fuse)


def projected(
    backend: Backend, kv_type: str, rows: int, slot: int, planted: str, *, fuse: bool
) -> Run:
    """A pass of it, in which all that is planted is finite."""
    run = attending(backend, kv_type, planted, 0.0, fuse=fuse)
    inputs = {"h": np.ones((rows, N_EMBD), np.float32)}
    return run(inputs, positions=range(rows), slots=[slot] * rows)


#: In the second head.
PLANTED = HEAD_DIM + 5

over_fusion = pytest.mark.parametrize("fuse", [True, False], ids=["fused", "op by op"])


@over_backends
@over_types
@over_fusion
@pytest.mark.one_shape
@pytest.mark.parametrize("planted", ["", "k", "v"], ids=["nothing", "key", "value"])
def test_products_that_store_their_results_saturate_too(
    backend: Backend, kv_type: str, fuse: bool, planted: str
) -> None:
    run = projected(backend, kv_type, 1, 1, planted, fuse=fuse)
    assert np.isfinite(run["out"]).all()
    assert said(run) == ([1] if planted else [])
    if planted == "v":
        assert is_near(kv_type, run["out"][0, PLANTED], -LARGEST[kv_type])


@over_backends
@pytest.mark.parametrize("kv_type", WEIGHTS)
@over_fusion
@pytest.mark.one_shape
def test_prompts_saturate_as_steps_do(backend: Backend, kv_type: str, fuse: bool) -> None:
    """More rows than a step has: other kernels store them."""
    rows = 1 + (backend.step_rows or 64)
    run = projected(backend, kv_type, rows, 2, "v", fuse=fuse)
    assert np.allclose(run["out"][:, PLANTED], -LARGEST[kv_type], rtol=2 * WEIGHTS[kv_type])
    assert said(run) == [2]


@over_backends
@pytest.mark.parametrize("kv_type", ["F32", *LARGEST])
@over_fusion
@pytest.mark.one_shape
@pytest.mark.parametrize("planted", ["k", "v"], ids=["key", "value"])
def test_products_that_store_what_is_not_finite_say_so_in_steps_and_prompts(
    backend: Backend, kv_type: str, fuse: bool, planted: str
) -> None:
    for rows in (1, 1 + (backend.step_rows or 64)):
        run = attending(backend, kv_type, planted, np.inf, fuse=fuse)
        inputs = {"h": np.ones((rows, N_EMBD), np.float32)}
        error = refusal(run, inputs, positions=range(rows), slots=[1] * rows)
        layer, position, slot, size = places(error)
        assert (layer, position, slot) == (0, 0, 1) and np.isnan(size)
        assert said(run) == []
