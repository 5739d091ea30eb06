"""`attention` with a score a head that has no value: over a cache of integers the same bits however
rows are cut into passes, over floats near float64."""

import numpy as np
import onegraph
import pytest
from support import exact_attention as exact
from support.backends import INTERPRETER, Backend, over_backends
from support.plans import nmse
from support.plans_attention import Shape, assert_same, feed, in_float64, sequence

pytestmark = pytest.mark.thorough

N = 150
#: Nearest to a test, so that of a few cases that stand for all some are of each.
over_exact = pytest.mark.parametrize("kv_type", exact.KINDS)


@pytest.mark.one_shape
@over_backends
@pytest.mark.parametrize("window", [None, 70])
@pytest.mark.parametrize("sink", [0.0, 30.0, -30.0, 90.0])
@over_exact
def test_a_prompt_and_its_steps_have_the_stated_bits(
    backend: Backend, sink: float, window: int | None, kv_type: str
) -> None:
    """Sinks beside the other scores, above and below them, and so far above that little is left."""
    shape = Shape(window=window, sink=sink, kv_type=kv_type)
    rows, wanted = sequence(shape, N)
    run = shape.run(backend, N)
    assert_same(feed(run, rows, range(N)), wanted)
    for p in (0, 63, 64, N - 1):
        assert_same(feed(run, rows, range(p, p + 1)), wanted[p : p + 1])


@pytest.mark.one_shape
@over_backends
@over_exact
def test_splits_of_several_token_blocks(backend: Backend, kv_type: str) -> None:
    """A sink is joined behind the last split, whichever block has that one."""
    shape, n = Shape(2, 1, 64, sink=2.0, kv_type=kv_type), 2200
    rows = shape.rows(n)
    run = shape.run(backend, n)
    run.kv = shape.pool(run, rows)
    last = range(n - 70, n)
    wanted = shape.exact(rows, last)
    assert_same(feed(run, rows, last), wanted)
    assert_same(feed(run, rows, range(n - 1, n)), wanted[-1:])


@pytest.mark.parametrize(("sink", "window"), [(0.0, None), (-4.0, 70), (4.0, None)])
def test_a_cache_of_floats_is_near_float64(sink: float, window: int | None) -> None:
    shape = Shape(head_dim=64, window=window, sink=sink, kv_type="F32")
    rows = shape.rows(N)
    run = shape.run(INTERPRETER, N)
    fields = (shape.n_head, shape.n_head_kv, shape.scale, "F32", window, shape.sinks)
    wanted = in_float64(*(rows[name] for name in "qkv"), *fields)
    assert nmse(feed(run, rows, range(N)), wanted) <= INTERPRETER.nmse
    for p in (0, 64, N - 1):
        assert nmse(feed(run, rows, range(p, p + 1)), wanted[p : p + 1]) <= INTERPRETER.nmse


@over_backends
@pytest.mark.parametrize("sink", [2.0**23 * 0.6931471, 1e9, 1e30])
def test_a_sink_above_all_leaves_nothing(backend: Backend, sink: float) -> None:
    shape = Shape(sink=sink)
    rows = shape.rows(70)
    found = feed(shape.run(backend, 70), rows, range(70))
    assert_same(found, shape.exact(rows))
    assert not found.any()


@over_backends
@pytest.mark.parametrize("sink", [float("nan"), float("inf"), float("-inf")])
def test_a_sink_that_is_not_finite_is_refused_with_its_name(backend: Backend, sink: float) -> None:
    """One of -inf would be as none, and the answer another model's."""
    with pytest.raises(onegraph.ModelError, match=r"sinks: found (NaN|-?inf) as number 0 of"):
        Shape(sink=sink).run(backend, 70)


@over_backends
@pytest.mark.parametrize("kv_type", ["F32", *exact.KINDS])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_a_query_that_is_not_finite_is_not_hidden_by_a_sink(
    backend: Backend, kv_type: str, value: float
) -> None:
    """Where all its scores are -infinity the sink has all the weight: nothing would be a number."""
    shape = Shape(n_head=2, n_head_kv=1, head_dim=64, sink=1.0, kv_type=kv_type)
    rows = shape.rows(70)
    # Positive, so that scores with an infinity in the query are all of one sign.
    rows["k"] = np.abs(rows["k"])
    clean = feed(shape.run(backend, 70), rows, range(70))
    rows["q"][66:, 5] = value
    run = shape.run(backend, 70)
    # As steps, and as a prompt.
    for found in (
        feed(run, rows, range(70)),
        *(feed(run, rows, range(p, p + 1)) for p in (66, 69)),
    ):
        heads = found.reshape(len(found), 2, 64)
        first = 66 if len(found) == 70 else 0
        assert np.isnan(heads[first:, 0]).all()
        if len(found) == 70:
            assert_same(heads[:first], clean.reshape(70, 2, 64)[:first])
            assert_same(heads[first:, 1], clean.reshape(70, 2, 64)[first:, 1])


@over_exact
def test_the_stated_sum_is_near_float64(kv_type: str) -> None:
    shape = Shape(sink=1.0, kv_type=kv_type)
    rows, found = sequence(shape, N)
    plain = {name: rows[name] for name in "qkv"}
    for name in "kv":
        heads = plain[name].reshape(-1, shape.head_dim)
        stored = shape.kind.decode(shape.kind.encode(heads), shape.head_dim)
        plain[name] = stored.reshape(plain[name].shape)
    fields = (shape.n_head, shape.n_head_kv, shape.scale, "F32", None, shape.sinks)
    wanted = in_float64(*(plain[name] for name in "qkv"), *fields)
    assert nmse(found, wanted) <= 2e-9
