"""Products with a scale of their own, a number or one for each expert: their definition, and every
way that a card ends a product."""

from itertools import cycle
from typing import Any

import numpy as np
import pytest
from support.backends import INTERPRETER, Backend, over_backends, over_cards
from support.plans import TYPES, Floats, Plan, Run, bits, encode, normal

pytestmark = pytest.mark.thorough

KINDS = [ty for ty in ("NVFP4", "F16", "Q4_K") if ty in TYPES]
N = 256


def factor(plan: Plan, name: str, values: list[float]) -> int:
    """A number, or one for each of several experts."""
    weight = plan.vector(name, np.array(values, np.float32))
    plan._plan["weights"][weight] |= {"n_in": 1, "n_expert": len(values)}
    return weight


def matrix(plan: Plan, name: str, ty: str, n_in: int, n_out: int, n_expert: int = 1) -> int:
    values = normal(n_expert * n_out, n_in, seed=len(plan.weights), scale=n_in**-0.5)
    weight = plan.weight(name, ty, encode(ty, values), n_in, n_out)
    plan._plan["weights"][weight]["n_expert"] = n_expert
    return weight


@over_backends
@pytest.mark.parametrize("ty", KINDS)
def test_a_scale_multiplies_the_sum_before_the_bias(backend: Backend, ty: str) -> None:
    scale, bias = np.float32(0.3712), normal(40, seed=9)
    plan = Plan()
    x, norm = plan.buffer("x", N), plan.norm("n", normal(N, seed=3), 1e-6)
    fields: dict[str, Any] = {"x": x, "weight": matrix(plan, "w", ty, N, 40)}
    for name, of_it in [("sum", None), ("normed", norm)]:
        more = fields | {"norm": of_it}
        plan.op("mat_vec", bias=None, out=plan.buffer(name, 40), **more)
        out = plan.buffer(f"{name} scaled", 40)
        its = {"scale": factor(plan, f"{name} s", [float(scale)])}
        its["bias"] = plan.vector(f"{name} b", bias)
        plan.op("mat_vec", out=out, **more, **its)
    run = Run(backend, plan)
    for rows in (1, 3, 40):
        found = run({"x": normal(rows, N, seed=rows)})
        for name in ("sum", "normed"):
            wanted = found[name] * scale + bias
            assert np.array_equal(bits(found[f"{name} scaled"]), bits(wanted)), (name, rows)


def apart(rows: int, n_expert: int) -> np.ndarray:
    """Two experts of each row, as a router chooses them: none twice."""
    rng = np.random.default_rng(rows)
    return np.array([rng.permutation(n_expert)[:2] for _ in range(rows)])


@over_backends
@pytest.mark.parametrize("ty", KINDS)
def test_each_expert_has_a_scale(backend: Backend, ty: str) -> None:
    n_expert, k, n_out = 5, 2, 24
    scales = np.array([0.5, 3.25, -1.1, 0.0, 1e-3], np.float32)
    plan = Plan()
    x, routes = plan.buffer("x", N), plan.buffer("routes", 2 * k)
    fields = {"x": x, "ranked": False, "routes": routes, "bias": None}
    fields["weight"] = matrix(plan, "w", ty, N, n_out, n_expert)
    plan.op("expert_mat_vec", out=plan.buffer("sum", k * n_out), **fields)
    its = factor(plan, "s", scales.tolist())
    plan.op("expert_mat_vec", out=plan.buffer("scaled", k * n_out), scale=its, **fields)
    run = Run(backend, plan)
    for rows in (1, 4, 40):
        ids = apart(rows, n_expert)
        chosen = np.concatenate([ids, np.ones((rows, k))], axis=1).astype(np.float32)
        found = run({"x": normal(rows, N, seed=rows), "routes": chosen})
        wanted = found["sum"] * np.repeat(scales[ids], n_out, axis=1)
        assert np.array_equal(bits(found["scaled"]), bits(wanted)), rows


def layer(ty: str, rotated: bool) -> Plan:
    """Products that end in each way: rotated, added, multiplied with each other, of experts too."""
    plan = Plan(inv_freq=(10000.0 ** (-np.arange(16) / 16)).tolist())
    k, n_ff = 2, 96 if TYPES[ty][0] <= 32 else 256
    widths = {"x": N, "routes": 2 * k, "q": 64, "k": 32, "v": 32, "wide": N, "o": N}
    widths |= {"gate": n_ff, "up": n_ff, "act": n_ff, "down": N}
    widths |= {"gates": k * n_ff, "ups": k * n_ff, "acts": k * n_ff, "downs": k * N, "mix": N}
    b = {name: plan.buffer(name, width) for name, width in widths.items()}
    scales = cycle([0.25, 1.7, -0.6, 3.0, 0.9])

    def product(name: str, x: str, n_in: int, scaled: bool = True, **fields: Any) -> None:
        weight = matrix(plan, f"w_{name}", ty, n_in, widths[name])
        scale = factor(plan, f"s_{name}", [next(scales)]) if scaled else None
        fields |= {"weight": weight, "scale": scale, "bias": None, "out": b[name]}
        plan.op("mat_vec", x=b[x], **fields)

    def experts(name: str, x: str, n_in: int, **fields: Any) -> None:
        weight = matrix(plan, f"w_{name}", ty, n_in, widths[name] // k, 3)
        scale = factor(plan, f"s_{name}", [next(scales) for _ in range(3)])
        fields |= {"routes": b["routes"], "weight": weight, "scale": scale, "bias": None}
        plan.op("expert_mat_vec", x=b[x], out=b[name], **fields)

    norm = plan.norm("norm", 1 + 0.1 * normal(N), 1e-6)
    product("q", "x", N, norm=norm)
    product("k", "x", N, norm=norm, scaled=False)
    product("v", "x", N, norm=norm)
    if rotated:
        plan.op("rope", x=b["q"], n_head=2, style="halves")
        plan.op("rope", x=b["k"], n_head=1, style="halves")
    product("gate", "x", N, norm=norm)
    product("up", "x", N, norm=norm, scaled=rotated)
    plan.op("swi_glu", gate=b["gate"], up=b["up"], out=b["act"])
    experts("gates", "x", N, ranked=False, norm=norm)
    experts("ups", "x", N, ranked=False, norm=norm)
    plan.op("swi_glu", gate=b["gates"], up=b["ups"], out=b["acts"])
    experts("downs", "acts", n_ff, ranked=True, norm=None)
    plan.op("mix_experts", x=b["downs"], routes=b["routes"], out=b["mix"])
    product("down", "act", n_ff)
    plan.op("add", x=b["down"], out=b["x"])
    return plan


@over_cards
@pytest.mark.parametrize("ty", KINDS)
def test_every_end_of_a_product_has_the_interpreters_bits(backend: Backend, ty: str) -> None:
    for rotated in (True, False):
        plan = layer(ty, rotated)
        runs = [Run(b, plan) for b in (INTERPRETER, backend)]
        for rows in (1, 40):
            weights = np.random.default_rng(rows).random((rows, 2))
            routes = np.concatenate([apart(rows, 3), weights], axis=1).astype(np.float32)
            inputs: dict[str, Floats] = {"x": normal(rows, N, seed=rows), "routes": routes}
            positions = [(5 * i) % 64 for i in range(rows)]
            wanted, found = (run(inputs, positions=positions) for run in runs)
            for name in ("q", "k", "v", "act", "mix", "x"):
                assert np.array_equal(bits(found[name]), bits(wanted[name])), (name, rows, rotated)


@pytest.mark.parametrize("values", [[1.0, 2.0], []])
def test_a_scale_that_is_no_number_is_refused(values: list[float]) -> None:
    plan = Plan()
    fields = {"x": plan.buffer("x", N), "out": plan.buffer("y", 8), "bias": None}
    weight = matrix(plan, "w", "F16", N, 8)
    plan.op("mat_vec", weight=weight, scale=plan.vector("s", np.array(values)), **fields)
    with pytest.raises(ValueError, match="widths or rows do not fit"):
        Run(INTERPRETER, plan)
