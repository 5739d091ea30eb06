"""`attention` over keys that have values in them, which are stored once: the bits of the stated sum
over values of their own that are as wide, cut off, and a cache of half the bytes."""

import numpy as np
import pytest
from support import exact_attention as exact
from support.backends import INTERPRETER, Backend, over_backends
from support.plans import PAGE, Plan, Run, nmse, normal
from support.plans_attention import Shape, assert_same, assert_stored, check, feed, in_float64

over_caches = pytest.mark.parametrize("kv_type", exact.KINDS)


@over_backends
@pytest.mark.parametrize(
    ("n_head", "head_dim", "values"),
    [(5, 112, 96), (3, 48, 16), (6, 288, 256), (4, 144, 128), (2, 64, 64)],
)
@over_caches
def test_a_prompt_and_its_steps_have_the_stated_bits(
    backend: Backend, n_head: int, head_dim: int, values: int, kv_type: str
) -> None:
    shape = Shape(n_head, 1, head_dim, values, kv_type=kv_type)
    rows = shape.rows(130)
    check(backend, shape, rows)
    run = shape.run(backend, 130)
    feed(run, rows, range(128))
    for row in (128, 129):
        at = range(row, row + 1)
        assert_same(feed(run, rows, at), shape.exact(rows, at))


@pytest.mark.thorough
@over_backends
@pytest.mark.parametrize(("n_head", "n"), [(20, 70), (16, 130), (128, 3)])
@over_caches
def test_published_widths(backend: Backend, n_head: int, n: int, kv_type: str) -> None:
    shape = Shape(n_head, 1, 576, 512, kv_type=kv_type)
    check(backend, shape, shape.rows(n))


@over_backends
@pytest.mark.parametrize("n", [2049, 4100, 257])
@over_caches
def test_splits_of_several_token_blocks(backend: Backend, n: int, kv_type: str) -> None:
    shape = Shape(5, 1, 80, 64, kv_type=kv_type)
    rows = shape.rows(n)
    run = shape.run(backend, n)
    last = range(n - 4, n)
    run.kv = shape.pool(run, {name: x[: last.start] for name, x in rows.items()})
    assert_same(feed(run, rows, last), shape.exact(rows, last))
    assert_same(feed(run, rows, range(n - 1, n)), shape.exact(rows, range(n - 1, n)))
    assert_stored(run, shape, rows)


@over_backends
@over_caches
def test_heads_windows_and_sinks(backend: Backend, kv_type: str) -> None:
    shape = Shape(6, 2, 96, 32, window=70, sink=0.5, kv_type=kv_type)
    check(backend, shape, shape.rows(150))


@pytest.mark.parametrize("kv_type", ["F32", "F16"])
def test_a_cache_of_floats_is_near_float64(kv_type: str) -> None:
    n, n_head, head_dim, values = 150, 4, 80, 48
    plan = Plan(n_head_kv=1, head_dim=head_dim, values_in_keys=values)
    k, q = plan.buffer("k", head_dim), plan.buffer("q", n_head * head_dim)
    plan.op("kv_scatter", k=k, v=k, layer=0)
    out = plan.buffer("out", n_head * values)
    plan.op("attention", q=q, out=out, layer=0, n_head=n_head, scale=0.1)
    run = Run(INTERPRETER, plan, n_ctx=3 * PAGE, kv_type=kv_type)
    rows = {"q": normal(n, n_head * head_dim, seed=1), "k": normal(n, head_dim, seed=2)}
    found = run(rows, positions=range(n))["out"]
    wanted = in_float64(rows["q"], rows["k"], rows["k"], n_head, 1, 0.1, kv_type)
    wanted = wanted.reshape(n, n_head, head_dim)[..., :values].reshape(n, -1)
    assert nmse(found, wanted) <= INTERPRETER.nmse


def test_a_cache_has_half_the_bytes() -> None:
    sizes = [Shape(2, 1, 64, values).run(INTERPRETER, 64).kv.size for values in (None, 48)]
    assert sizes[0] == 2 * sizes[1]


@pytest.mark.parametrize(("values", "v"), [(65, "k"), (0, "k"), (48, "v")])
def test_values_that_are_not_in_their_keys_are_refused(values: int, v: str) -> None:
    plan = Plan(n_head_kv=1, head_dim=64, values_in_keys=values)
    buffers = {name: plan.buffer(name, 64) for name in "kv"}
    plan.op("kv_scatter", k=buffers["k"], v=buffers[v], layer=0)
    with pytest.raises(Exception, match="do not fit"):
        Run(INTERPRETER, plan)


def test_it_is_as_if_values_were_stored_too() -> None:
    shape, wide = Shape(3, 1, 112, 96), Shape(3, 1, 112)
    rows = shape.rows(100)
    found = feed(shape.run(INTERPRETER, 100), rows, range(100))
    both = feed(wide.run(INTERPRETER, 100), rows | {"v": rows["k"]}, range(100))
    assert_same(found, np.ascontiguousarray(both.reshape(-1, 112)[:, :96]).reshape(100, -1))
