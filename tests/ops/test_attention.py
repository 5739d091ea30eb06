"""`attention` over the paged cache against float64: lengths across page borders, grouped heads,
head widths, storage types that the CPU alone has. Caches of integers: `test_attention_exact.py`."""

import numpy as np
import pytest
from support.backends import INTERPRETER, Backend, over_backends
from support.exact_attention import KINDS
from support.plans import PAGE, TYPES, WRITTEN, Plan, Run, bits, nmse, normal
from support.plans_attention import in_float64

LENGTHS = [1, 2, 63, 64, 65, 127, 128, 129, 1000]
#: What rounding of values costs of a normalized square error.
ROUNDING = {"I16": 1e-8, "F32": 0.0}
over_types = pytest.mark.parametrize("kv_type", ROUNDING)


def plan_of(n_head: int, n_head_kv: int, head_dim: int, scale: float) -> Plan:
    plan = Plan(n_head_kv=n_head_kv, head_dim=head_dim)
    k, v = (plan.buffer(name, n_head_kv * head_dim) for name in "kv")
    q, out = (plan.buffer(name, n_head * head_dim) for name in ("q", "out"))
    plan.op("kv_scatter", k=k, v=v, layer=0)
    plan.op("attention", q=q, out=out, layer=0, n_head=n_head, scale=scale)
    return plan


def check(
    n: int,
    n_head: int,
    n_head_kv: int,
    head_dim: int,
    kv_type: str = "F32",
    sizes: tuple[float, float, float] = (1.0, 1.0, 1.0),
) -> None:
    scale = head_dim**-0.5
    run = Run(
        INTERPRETER,
        plan_of(n_head, n_head_kv, head_dim, scale),
        n_ctx=-(-n // PAGE) * PAGE,
        kv_type=kv_type,
        threads=2,
    )
    q = normal(n, n_head * head_dim, seed=1, scale=sizes[0])
    k = normal(n, n_head_kv * head_dim, seed=2, scale=sizes[1])
    v = normal(n, n_head_kv * head_dim, seed=3, scale=sizes[2])
    found = run({"q": q, "k": k, "v": v}, positions=range(n))["out"]
    wanted = in_float64(q, k, v, n_head, n_head_kv, scale, kv_type)
    assert nmse(found, wanted) <= INTERPRETER.nmse
    assert nmse(found[-1], wanted[-1]) <= 10 * INTERPRETER.nmse


@pytest.mark.parametrize("n", LENGTHS)
def test_lengths(n: int) -> None:
    check(n, 4, 2, 64)


@pytest.mark.parametrize("n_head_kv", [1, 2, 3, 5])
@pytest.mark.parametrize("ratio", range(1, 9))
def test_grouped_heads(n_head_kv: int, ratio: int) -> None:
    check(70, n_head_kv * ratio, n_head_kv, 64)


@pytest.mark.parametrize("head_dim", [64, 80, 96, 112, 128, 256, 512])
def test_head_widths(head_dim: int) -> None:
    check(130, 6, 2, head_dim)


@pytest.mark.parametrize(
    "kv_type", [t for t in TYPES if WRITTEN[t] and 256 % TYPES[t][0] == 0 and t not in KINDS]
)
def test_every_type_may_hold_the_cache(kv_type: str) -> None:
    check(70, 2, 1, 256, kv_type)


@pytest.mark.parametrize("size", [1e-6, 1e-3, 1e3, 1e6])
def test_scales(size: float) -> None:
    check(130, 4, 2, 64, sizes=(size, 1 / size, 1.0))
    check(130, 4, 2, 64, sizes=(1.0, 1.0, size))


@over_backends
@over_types
def test_scores_beyond_the_exponential(backend: Backend, kv_type: str) -> None:
    """Scores of thousands pick one token; none overflows."""
    n, dim = 100, 64
    run = Run(backend, plan_of(1, 1, dim, 1.0), n_ctx=128, kv_type=kv_type)
    k = np.zeros((n, dim), np.float32)
    k[:, 0] = np.random.default_rng(1).permutation(n)
    v = normal(n, dim, seed=2)
    # Queries have a grid below 2^50 where keys are integers.
    most = 1e30 if kv_type == "F32" else 1e12
    for size in (1e3, most, -1e3, -most):
        q = np.zeros((n, dim), np.float32)
        q[:, 0] = size
        found = run({"q": q, "k": k, "v": v}, positions=range(n))["out"]
        best = [int(np.argmax(np.sign(size) * k[: i + 1, 0])) for i in range(n)]
        assert nmse(found, v[best]) <= ROUNDING[kv_type]


@over_backends
@over_types
def test_equal_scores_give_the_mean(backend: Backend, kv_type: str) -> None:
    n, dim = 200, 64
    run = Run(backend, plan_of(2, 1, dim, 1.0), n_ctx=256, kv_type=kv_type)
    v = normal(n, dim, seed=2)
    zeros = np.zeros((n, dim), np.float32)
    found = run({"q": np.zeros((n, 2 * dim), np.float32), "k": zeros, "v": v}, positions=range(n))[
        "out"
    ]
    mean = np.cumsum(v.astype(np.float64), axis=0) / np.arange(1, n + 1)[:, None]
    assert nmse(found, np.concatenate([mean, mean], axis=1)) <= max(ROUNDING[kv_type], backend.nmse)


@over_backends
@over_types
def test_later_tokens_are_not_seen(backend: Backend, kv_type: str) -> None:
    """A row at position p gives the same bits whatever stands after p in its pages."""
    n, dim = 130, 64
    run = Run(backend, plan_of(2, 1, dim, 0.1), n_ctx=192, kv_type=kv_type)
    q, k, v = normal(n, 2 * dim, seed=1), normal(n, dim, seed=2), normal(n, dim, seed=3)
    whole = run({"q": q, "k": k, "v": v}, positions=range(n))["out"]
    for p in (0, 1, 62, 63, 64, 127, 128):
        alone = run({"q": q[[p]], "k": k[[p]], "v": v[[p]]}, positions=[p])["out"]
        assert np.array_equal(bits(alone[0]), bits(whole[p])), p
