"""`join`, `route_all` and groups in `route`: what latent attention and its experts take beside the
ops of others."""

from typing import Any

import numpy as np
import pytest
from support.backends import INTERPRETER, Backend, over_backends, over_cards
from support.plans import Floats, Plan, Run, bits, normal


@over_backends
@pytest.mark.parametrize(("n", "of"), [(1, (512, 64)), (20, (96, 16)), (3, (5, 7)), (2, (1, 300))])
@pytest.mark.parametrize("rows", [1, 5, 70])
def test_parts_side_by_side(backend: Backend, n: int, of: tuple[int, int], rows: int) -> None:
    plan = Plan()
    x, y = (plan.buffer(name, n * width) for name, width in zip("xy", of, strict=True))
    plan.op("join", x=x, y=y, out=plan.buffer("out", n * sum(of)), n=n, of=of)
    values = [normal(rows, n * width, seed=width) for width in of]
    values[0][0, 0] = np.nan
    found = Run(backend, plan)(dict(zip("xy", values, strict=True)))["out"]
    parts = [v.reshape(rows, n, -1) for v in values]
    assert np.array_equal(bits(found), bits(np.concatenate(parts, axis=2).reshape(rows, -1)))


@over_cards
@pytest.mark.parametrize("plain", [0, 192, 12])
@pytest.mark.parametrize("style", ["interleaved", "halves"])
@pytest.mark.parametrize(
    ("rank", "rotated", "n_head"),
    [(512, 64, 20), (96, 16, 5), (256, 32, 4), (1000, 8, 1), (301, 4, 3), (2304, 64, 128)],
)
def test_a_latent_row_has_the_interpreters_bits(
    backend: Backend, rank: int, rotated: int, n_head: int, style: str, plain: int
) -> None:
    """One kernel cuts queries, normalizes, rotates and joins."""
    half = rotated // 2
    plan = Plan(inv_freq=list(10000.0 ** (-np.arange(half) / half)))
    out, q = plan.buffer("out", rank + rotated), plan.buffer("q", n_head * rotated)
    x, y = plan.buffer("x", rank), plan.buffer("y", rotated)
    weight = plan.vector("w", normal(rank, seed=3))
    names = ["out", "q"]
    if plain:
        names.append("plain")
        width = plain + rotated
        heads = plan.buffer("heads", n_head * width)
        rest = plan.buffer("plain", n_head * plain)
        plan.op("slice", x=heads, out=rest, n=n_head, first=0, of=width)
        plan.op("slice", x=heads, out=q, n=n_head, first=plain, of=width)
    plan.op("rms_norm", x=x, weight=weight, out=x, group=rank, eps=1e-6)
    plan.op("rope", x=y, n_head=1, style=style)
    plan.op("rope", x=q, n_head=n_head, style=style)
    plan.op("join", x=x, y=y, out=out, n=1, of=(rank, rotated))
    for rows in (1, 5):
        inputs = {"x": normal(rows, rank), "y": normal(rows, rotated, seed=1)}
        inputs["heads" if plain else "q"] = normal(rows, n_head * (plain + rotated), seed=2)
        at = range(7, 7 + rows)
        runs = [Run(on, plan)(inputs, positions=at) for on in (backend, INTERPRETER)]
        for name in names:
            found, wanted = (bits(run[name]) for run in runs)
            assert np.array_equal(found, wanted)


@over_backends
@pytest.mark.parametrize("rows", [1, 5, 70])
@pytest.mark.parametrize("n", [1, 20, 128, 300])
def test_all_in_order(backend: Backend, rows: int, n: int) -> None:
    plan = Plan()
    x = plan.buffer("x", 4)
    plan.op("scale", x=x, factor=1.0)
    plan.op("route_all", out=plan.buffer("out", 2 * n))
    found = Run(backend, plan)({"x": normal(rows, 4)})["out"]
    assert np.array_equal(found, np.tile([*range(n), *[1.0] * n], (rows, 1)))


def chosen(scores: Floats, k: int, groups: dict[str, int], counted: int) -> np.ndarray[Any, Any]:
    """Ids of one row by Python's order of numbers: NaN last, of equals the lower id."""

    def best(ids: Any, of: Any) -> list[int]:
        return sorted(
            ids, key=lambda i: (bool(np.isnan(of[i])), -of[i] if of[i] == of[i] else 0, i)
        )

    size = len(scores) // groups["count"]
    its = [range(group * size, (group + 1) * size) for group in range(groups["count"])]
    top = [best(ids, scores)[:counted] for ids in its]
    of_groups = [sum((scores[i] for i in ids[1:]), scores[ids[0]]) for ids in top]
    left = best(range(groups["count"]), of_groups)[: groups["used"]]
    return np.array(best([i for group in left for i in its[group]], scores)[:k])


@over_backends
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(
    ("n_expert", "k", "count", "used"),
    [(256, 8, 8, 4), (160, 6, 8, 3), (8, 2, 4, 2), (9, 3, 3, 1), (64, 32, 32, 16), (40, 8, 5, 5)],
)
def test_experts_of_the_best_groups(
    backend: Backend, n_expert: int, k: int, count: int, used: int, biased: bool
) -> None:
    plan = Plan()
    logits, routes = plan.buffer("logits", n_expert), plan.buffer("routes", 2 * k)
    # Without a part of the gates: scores are sums of these numbers.
    bias: Floats = np.round(normal(n_expert, seed=5, scale=4)) / np.float32(4)
    groups = {"count": count, "used": used}
    fields = {"gating": "selected_softmax", "renormalize": False, "scale": 1.0, "groups": groups}
    weight = plan.vector("bias", bias) if biased else None
    plan.op("route", logits=logits, bias=weight, out=routes, **fields)
    # Many that are equal, and some rows with what is no number.
    values: Floats = np.round(normal(24, n_expert, seed=6, scale=4)) / np.float32(4)
    values[1, :: n_expert // 4] = np.nan
    values[2] = np.nan
    values[3] = -0.0
    values[4, : n_expert // count] = np.inf
    values[5] = -np.inf
    values[6, n_expert // 2 :] = -np.inf
    found = Run(backend, plan)({"logits": values})["routes"]
    for row, scores in zip(found, values + bias if biased else values, strict=True):
        with np.errstate(invalid="ignore"):
            wanted = chosen(scores.astype(np.float32), k, groups, 2 if biased else 1)
        assert np.array_equal(row[:k], wanted)
    same = Run(INTERPRETER, plan)({"logits": values})["routes"]
    assert np.array_equal(bits(found), bits(same))
