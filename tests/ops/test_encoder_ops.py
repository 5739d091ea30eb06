"""The ops of encoders: `layer_norm`, `gelu` by the normal distribution, `add_row`, and attention to
tokens behind a row; against float64, and the interpreter's bits on cards."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from support import exact_attention as exact
from support.backends import INTERPRETER, Backend, over_backends, over_cards
from support.plans import PAGE, ROWS, SCALES, Floats, Plan, Run, bits, nmse, normal
from support.plans_attention import Shape, assert_same

WIDTHS = [8, 33, 384, 768, 1000, 2048]


def normed(width: int, eps: float, *, has_bias: bool = True) -> tuple[Plan, Floats, Floats]:
    """`y` is the norm of `x`, and so is then `x`."""
    weight, bias = normal(width, seed=1), normal(width, seed=2)
    plan = Plan()
    x, y = plan.buffer("x", width), plan.buffer("y", width)
    by: dict[str, Any] = {
        "weight": plan.vector("w", weight),
        "bias": plan.vector("b", bias),
        "eps": eps,
    }
    if not has_bias:
        by["bias"], bias = None, np.zeros_like(bias)
    plan.op("layer_norm", x=x, out=y, **by)
    plan.op("layer_norm", x=x, out=x, **by)
    return plan, weight, bias


def in_order(values: Floats, squares: bool) -> np.float32:
    """The sum of a row, or of its squares, as the op states it."""
    total = np.float32(0)
    for number, start in enumerate(range(0, len(values), 256)):
        block = np.zeros(256, np.float32)
        block[: len(values) - start] = values[start : start + 256]
        chains = np.zeros(32, np.float32)
        for column in block.reshape(32, 8).T:
            one = column if squares else np.ones_like(column)
            chains = exact.fma(column, one, chains)
        while len(chains) > 1:
            chains = chains[: len(chains) // 2] + chains[len(chains) // 2 :]
        total = chains[0] if number == 0 else total + chains[0]
    return np.float32(total)


@over_backends
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("width", WIDTHS)
def test_layer_norm(backend: Backend, width: int, has_bias: bool) -> None:
    plan, weight, bias = normed(width, 1e-5, has_bias=has_bias)
    run = Run(backend, plan)
    for scale in SCALES:
        for rows in ROWS:
            x = normal(rows, width, seed=rows, scale=scale) + np.float32(scale)
            run({"x": x})
            wide = x.astype(np.float64)
            size = np.sqrt(wide.var(axis=1, keepdims=True) + np.float32(1e-5))
            wanted = (wide - wide.mean(axis=1, keepdims=True)) / size * weight + bias
            assert nmse(run["y"], wanted) <= backend.nmse
            assert np.array_equal(bits(run["x"]), bits(run["y"]))


@over_backends
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("width", [33, 384, 1000])
def test_layer_norm_has_the_stated_bits(backend: Backend, width: int, has_bias: bool) -> None:
    plan, weight, bias = normed(width, 1e-12, has_bias=has_bias)
    x = normal(3, width, seed=5)
    found = Run(backend, plan)({"x": x})["y"]
    for row, out in zip(x, found, strict=True):
        n = np.float32(width)
        d = row - in_order(row, squares=False) / n
        factor = np.float32(1) / np.sqrt(in_order(d, squares=True) / n + np.float32(1e-12))
        assert np.array_equal(bits(out), bits(exact.fma(d * factor, weight, bias)))


@over_backends
def test_layer_norm_of_what_overflows_is_none(backend: Backend) -> None:
    plan, _, bias = normed(64, 1e-5)
    run = Run(backend, plan)
    x = normal(4, 64)
    x[1, 3], x[2, 5], x[3] = np.inf, np.nan, 1e30 * x[3]
    found = run({"x": x})["y"]
    assert np.isfinite(found[0]).all() and np.isnan(found[1:]).all()
    # Of equal numbers nothing is left but the bias.
    for has_bias in (True, False):
        plan, _, bias = normed(64, 1e-5, has_bias=has_bias)
        same = Run(backend, plan)({"x": np.full((1, 64), 3.5, np.float32)})["y"][0]
        assert np.array_equal(same, bias)


@over_backends
def test_gelu(backend: Backend) -> None:
    plan = Plan()
    plan.op("gelu", x=plan.buffer("x", 96))
    run = Run(backend, plan)
    for scale in [1e-6, 1e-3, 0.3, 1.0, 4.0, 1e3]:
        x = normal(9, 96, scale=scale)
        wide = x.astype(np.float64)
        tail = np.vectorize(math.erfc)(-wide / math.sqrt(2)) / 2
        assert np.abs(run({"x": x})["x"] - wide * tail).max() <= 3e-7 * np.abs(x).max()
    ends = np.array([0.0, -0.0, 13.1, 13.3, 1e18, 3e38, -1e18, -3e38, -14.0], np.float32)
    found = run({"x": np.resize(ends, (1, 96))})["x"][0, : len(ends)]
    assert np.array_equal(found, np.maximum(ends, 0))
    for value in (np.inf, -np.inf, np.nan):
        assert np.isnan(run({"x": np.full((1, 96), value, np.float32)})["x"]).all()


@over_cards
def test_gelu_has_the_interpreters_bits(backend: Backend) -> None:
    plan = Plan()
    plan.op("gelu", x=plan.buffer("x", 96))
    x = np.concatenate([normal(40, 96, seed=3, scale=scale) for scale in SCALES])
    found, wanted = (Run(b, plan)({"x": x})["x"] for b in (backend, INTERPRETER))
    assert np.array_equal(bits(found), bits(wanted))


@over_backends
def test_a_row_of_a_table_is_added(backend: Backend) -> None:
    table = normal(10, 48, seed=1)
    plan = Plan()
    for name, row in (("x", "position"), ("y", "first"), ("z", "type")):
        at = plan.vector(f"of_{name}", table.reshape(-1))
        plan.op("add_row", x=plan.buffer(name, 48), table=at, row=row)
    run = Run(backend, plan)
    x, y, z = (normal(5, 48, seed=seed) for seed in (2, 3, 4))
    positions, types = [0, 9, 3, 3, 10], [0, 1, 1, 0, 1]
    run({"x": x, "y": y, "z": z}, positions=positions, types=types)
    assert np.array_equal(bits(run["z"]), bits(z + table[types]))
    assert np.array_equal(bits(run["y"]), bits(y + table[0]))
    assert np.array_equal(bits(run["x"][:4]), bits(x[:4] + table[positions[:4]]))
    # Behind the table's end is nothing to add.
    assert np.isnan(run["x"][4]).all()


def together(run: Run, texts: list[dict[str, Floats]], lengths: list[int]) -> Floats:
    """What texts side by side give in one pass."""
    return run(
        {name: np.concatenate([rows[name] for rows in texts]) for name in "qkv"},
        positions=[p for n in lengths for p in range(n)],
        slots=[slot for slot, n in enumerate(lengths) for _ in range(n)],
    )["out"]


@pytest.mark.one_shape
@over_backends
@pytest.mark.parametrize("kv_type", ["I16", "Q8_0"])
def test_rows_see_all_of_their_text_and_nothing_else(backend: Backend, kv_type: str) -> None:
    """Texts in one pass, side by side, and each alone."""
    shape = Shape(4, 2, 64, causal=False, kv_type=kv_type)
    lengths = [1, 70, 5, 64]
    texts = [shape.rows(n, seed=n) for n in lengths]
    wanted = []
    for rows, n in zip(texts, lengths, strict=True):
        # What its last row sees is what each sees.
        seen = [{**rows, "q": np.repeat(rows["q"][r : r + 1], n, axis=0)} for r in range(n)]
        wanted.append(np.concatenate([shape.exact(each, range(n - 1, n)) for each in seen]))
    run = shape.run(backend, 70, n_slots=4)
    found = together(run, texts, lengths)
    assert_same(found, np.concatenate(wanted))
    for slot, (rows, n, its) in enumerate(zip(texts, lengths, wanted, strict=True)):
        alone = run(rows, positions=range(n), slots=[slot] * n)["out"]
        assert_same(alone, its)


@pytest.mark.one_shape
@over_backends
@pytest.mark.parametrize("window", [1, 8, 71, 400])
def test_rows_see_a_window_around_them(backend: Backend, window: int) -> None:
    """Half of it to either side, as far as the text goes."""
    shape = Shape(4, 2, 64, window=window, causal=False)
    lengths, half = [1, 100, 5], window // 2
    texts = [shape.rows(n, seed=n) for n in lengths]
    wanted = []
    for rows, n in zip(texts, lengths, strict=True):
        for r in range(n):
            first, last = max(r - half, 0), min(r + half, n - 1)
            # As a row at the end of what it sees would.
            seen = dataclasses.replace(shape, window=last - first + 1)
            row = {**rows, "q": np.repeat(rows["q"][r : r + 1], n, axis=0)}
            wanted.append(seen.exact(row, range(last, last + 1)))
    run = shape.run(backend, 100, n_slots=3)
    found = together(run, texts, lengths)
    assert_same(found, np.concatenate(wanted))


@pytest.mark.one_shape
@over_backends
def test_a_layer_may_leave_its_cache_to_the_next(backend: Backend) -> None:
    """Each stores, and attends, before the next one stores in the same place."""
    plan = Plan(n_head_kv=1, head_dim=32)
    buffers = {name: plan.buffer(name, 32) for name in ("q", "k", "v", "other", "a", "b")}
    for k, out in (("k", "a"), ("other", "b")):
        plan.op("kv_scatter", k=buffers[k], v=buffers["v"], layer=0)
        fields = {"n_head": 1, "scale": 0.2, "window": None, "sinks": None, "causal": False}
        plan.op("attention", q=buffers["q"], out=buffers[out], layer=0, **fields)
    run = Run(backend, plan, n_ctx=PAGE)
    given = {name: normal(20, 32, seed=i) for i, name in enumerate(("q", "k", "v", "other"))}
    run(given, positions=range(20))
    first, second = run["a"].copy(), run["b"].copy()
    run({**given, "k": given["other"], "other": given["k"]}, positions=range(20))
    assert np.array_equal(bits(run["b"]), bits(first))
    assert np.array_equal(bits(run["a"]), bits(second))
    assert not np.array_equal(first, second)
