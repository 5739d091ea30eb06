"""`route`, `expert_mat_vec` and `mix_experts`: the choice of experts against its definition, their
products against ordinary ones, bit for bit, and every backend against the interpreter."""

from typing import Any

import numpy as np
import onegraph
import pytest
from support.backends import INTERPRETER, Backend, over_backends, over_cards
from support.plans import TYPES, Floats, Plan, Run, bits, encode, nmse, normal

pytestmark = pytest.mark.thorough

Array = np.ndarray
GATINGS = ["softmax", "sigmoid", "selected_softmax"]
#: Types of integers of each kind, and floats.
KINDS = [ty for ty in ("Q4_K", "F16", "Q4_1", "Q8_0") if ty in TYPES]


def router(n_expert: int, k: int, bias: Floats | None = None, **fields: Any) -> Plan:
    plan = Plan()
    logits, routes = plan.buffer("logits", n_expert), plan.buffer("routes", 2 * k)
    weight = None if bias is None else plan.vector("bias", bias)
    fields = {"gating": "softmax", "renormalize": True, "scale": 1.0} | fields
    plan.op("route", logits=logits, bias=weight, out=routes, **fields)
    return plan


def exact(logits: Floats, k: int, gating: str, renormalize: bool, scale: float, bias: Any) -> Array:
    """Ids and weights in float64."""
    x = logits.astype(np.float64)
    p = np.exp(x - x.max(axis=1, keepdims=True))
    p = p / p.sum(axis=1, keepdims=True) if gating == "softmax" else 1 / (1 + np.exp(-x))
    gates = x if gating == "selected_softmax" else p
    score = x if bias is None else gates + bias
    ids = np.argsort(-score, axis=1, kind="stable")[:, :k]
    w = np.take_along_axis(gates, ids, axis=1)
    if gating == "selected_softmax":
        w = np.exp(w - w.max(axis=1, keepdims=True))
        w /= w.sum(axis=1, keepdims=True)
    if renormalize:
        w = w / np.maximum(w.sum(axis=1, keepdims=True), 2.0**-14)
    return np.concatenate([ids, w * scale], axis=1)


@over_backends
@pytest.mark.parametrize("gating", GATINGS)
@pytest.mark.parametrize(("n_expert", "k"), [(8, 2), (5, 5), (33, 1), (1, 1), (256, 8), (128, 8)])
def test_the_choice_and_its_weights(backend: Backend, gating: str, n_expert: int, k: int) -> None:
    for rows, biased, renormalize, scale in [(1, False, True, 1.0), (9, True, False, 2.5)]:
        logits = normal(rows, n_expert, seed=rows, scale=3.0)
        bias = normal(n_expert, seed=5) if biased else None
        fields = {"gating": gating, "renormalize": renormalize, "scale": scale}
        plan = router(n_expert, k, bias, **fields)
        found = Run(backend, plan)({"logits": logits})["routes"]
        wanted = exact(logits, k, gating, renormalize, scale, bias)
        assert np.array_equal(found[:, :k], wanted[:, :k])
        assert nmse(found[:, k:], wanted[:, k:]) <= backend.nmse
        same = Run(INTERPRETER, plan)({"logits": logits})["routes"]
        assert np.array_equal(bits(found), bits(same))


@over_backends
@pytest.mark.parametrize("gating", GATINGS)
def test_ties_go_to_the_lower_id(backend: Backend, gating: str) -> None:
    n, k = 70, 6
    logits = np.zeros((4, n), np.float32)
    logits[0, ::2] = -0.0
    logits[1, [69, 3, 40, 7, 35, 11, 60]] = 2.0
    logits[2] = -3e38
    logits[2, [50, 20]] = 1.0
    logits[3] = np.arange(n) // 4
    found = Run(backend, router(n, k, gating=gating))({"logits": logits})["routes"]
    assert found[0, :k].tolist() == [0, 1, 2, 3, 4, 5]
    assert found[1, :k].tolist() == [3, 7, 11, 35, 40, 60]
    assert found[2, :k].tolist() == [20, 50, 0, 1, 2, 3]
    assert found[3, :k].tolist() == [68, 69, 64, 65, 66, 67]
    assert not np.isnan(found).any()


@over_backends
@pytest.mark.parametrize("gating", GATINGS)
def test_no_number_is_chosen_last_and_its_row_weighs_nothing(backend: Backend, gating: str) -> None:
    n, k = 40, 3
    logits = normal(6, n)
    logits[0, 7] = np.nan
    logits[1] = np.nan
    logits[2, 30] = np.inf
    logits[3] = -np.inf
    # The weight of an expert that overflowed would be 0, or it not chosen.
    logits[4, 5] = -np.inf
    found = Run(backend, router(n, k, gating=gating))({"logits": logits})["routes"]
    clean = np.where(np.isnan(logits[0]), -np.inf, logits[0])
    assert found[0, :k].tolist() == np.argsort(-clean, kind="stable")[:k].tolist()
    assert found[1, :k].tolist() == [0, 1, 2]
    assert found[2, 0] == 30
    assert found[3, :k].tolist() == [0, 1, 2]
    assert (bits(found[:5, k:]) == 0x7FC00000).all()
    assert not np.isnan(found[5]).any()


@over_cards
@pytest.mark.parametrize("gating", GATINGS)
@pytest.mark.parametrize(("n_expert", "k"), [(128, 8), (33, 4), (70, 40)])
def test_factors_about_the_choice_have_the_interpreters_bits(
    backend: Backend, gating: str, n_expert: int, k: int
) -> None:
    """One kernel does all three, behind a router's product and alone; rows of no number too."""
    factor, fields = 2816.0**-0.5, {"gating": gating, "renormalize": True, "scale": 1.5}

    def plan_of(has_product: bool, factor: float | None) -> Plan:
        plan = Plan()
        logits, routes = plan.buffer("logits", n_expert), plan.buffer("routes", 2 * k)
        if has_product:
            data = normal(n_expert, 64, seed=1, scale=0.5).astype("<f4").tobytes()
            weight = plan.weight("router", "F32", data, 64, n_expert)
            x = plan.buffer("x", 64)
            plan.op("mat_vec", x=x, norm=None, weight=weight, bias=None, out=logits)
        if factor is not None:
            plan.op("scale", x=logits, factor=factor)
        plan.op("route", logits=logits, bias=None, out=routes, **fields)
        scales = plan.vector("scales", normal(n_expert, seed=4))
        plan.op("scale_ranks", routes=routes, weight=scales)
        return plan

    for has_product in (False, True):
        plan = plan_of(has_product, factor)
        for rows in (1, 5, 40):
            # Not of the router's seed: logits would be so far apart that one expert has all.
            values = normal(rows, 64 if has_product else n_expert, seed=100 + rows, scale=30.0)
            if not has_product and rows > 1:
                values[0, 7] = np.nan
            inputs = {"x" if has_product else "logits": values}
            wanted = Run(INTERPRETER, plan)(inputs)["routes"]
            without = Run(INTERPRETER, plan_of(has_product, None))(inputs)["routes"]
            assert not np.array_equal(wanted[-1], without[-1]), "the factor shows"
            for fuse in (True, False):
                found = Run(backend, plan, fuse=fuse)(inputs)["routes"]
                assert np.array_equal(np.isnan(found), np.isnan(wanted))
                there = ~np.isnan(wanted)
                assert np.array_equal(bits(found)[there], bits(wanted)[there]), (fuse, rows)


def by_expert(
    ty: str, n_in: int, n_out: int, n_expert: int, k: int, *, ranked: bool, norm: bool = False
) -> Plan:
    """`y[r][j] = weight[id] · x + bias[id]`."""
    plan = Plan()
    x = plan.buffer("x", n_in * (k if ranked else 1))
    routes, y = plan.buffer("routes", 2 * k), plan.buffer("y", k * n_out)
    one = encode(ty, normal(n_expert * n_out, n_in, seed=1, scale=0.1))
    weight = plan.weight("w", ty, one, n_in, n_out)
    plan._plan["weights"][weight]["n_expert"] = n_expert
    biases = normal(n_expert, n_out, seed=2)
    bias = plan.weight("b", "F32", biases.astype("<f4").tobytes(), n_out)
    plan._plan["weights"][bias]["n_expert"] = n_expert
    scale = plan.norm("n", normal(n_in, seed=3), 1e-6) if norm else None
    plan.op(
        "expert_mat_vec",
        x=x, ranked=ranked, norm=scale, routes=routes, weight=weight, bias=bias, out=y,
    )  # fmt: skip
    return plan


def one_by_one(plan: Plan, x: Floats, routes: Floats, n_in: int, n_out: int, k: int) -> Floats:
    """The same by ordinary products, on the interpreter: one expert and one row at a time."""
    weight, *_ = plan._plan["weights"]
    (op,) = plan._plan["ops"]
    data, biases = plan.weights["w"], plan.weights["b"]
    n_expert = weight["n_expert"]
    size = len(data) // n_expert
    out = np.empty((len(x), k, n_out), np.float32)
    for expert in range(n_expert):
        single = Plan()
        a, b = single.buffer("x", n_in), single.buffer("y", n_out)
        part = data[expert * size : (expert + 1) * size]
        w = single.weight("w", weight["ty"], part, n_in, n_out)
        v = single.weight("b", "F32", biases[expert * n_out * 4 : (expert + 1) * n_out * 4], n_out)
        norm = None
        if op["norm"]:
            norm = single.norm("n", np.frombuffer(plan.weights["n"], "<f4"), 1e-6)
        single.op("mat_vec", x=a, norm=norm, weight=w, bias=v, out=b)
        run = Run(INTERPRETER, single)
        for row, rank in np.argwhere(routes[:, :k] == expert):
            own = x[row].reshape(-1, n_in)[rank if op["ranked"] else 0]
            out[row, rank] = run({"x": own[None]})["y"]
    return out.reshape(len(x), -1)


def choices(rows: int, n_expert: int, k: int, how: str) -> Floats:
    """Routes: ids that differ in a row, and weights."""
    rng = np.random.default_rng(rows)
    ids = np.array([rng.permutation(n_expert)[:k] for _ in range(rows)])
    if how == "one":
        ids[:] = np.arange(k) + n_expert - k
    elif how == "apart":
        ids = np.arange(rows * k).reshape(rows, k) % n_expert
    return np.concatenate([ids, rng.random((rows, k))], axis=1).astype(np.float32)


@over_backends
@pytest.mark.parametrize("ranked", [False, True])
@pytest.mark.parametrize("ty", KINDS)
def test_products_are_those_of_each_expert(backend: Backend, ty: str, ranked: bool) -> None:
    n_expert, k = 7, 3
    # Rows of no whole tile, so that experts do not begin where tiles of one matrix would.
    for n_in, n_out, norm in [(256, 40, False), (768, 24, True)]:
        plan = by_expert(ty, n_in, n_out, n_expert, k, ranked=ranked, norm=norm)
        run = Run(backend, plan)
        for rows in (1, 2, 9, 40) if not backend.few else (1, 19):
            for how in ("one", "apart", "mixed"):
                x = normal(rows, n_in * (k if ranked else 1), seed=rows)
                routes = choices(rows, n_expert, k, how)
                found = run({"x": x, "routes": routes})["y"]
                wanted = one_by_one(plan, x, routes, n_in, n_out, k)
                assert np.array_equal(bits(found), bits(wanted)), (rows, how)
                # Alone as in the batch.
                last = run({"x": x[-1:], "routes": routes[-1:]})["y"]
                assert np.array_equal(bits(last), bits(found[-1:])), (rows, how)


@over_backends
def test_ids_that_name_no_expert_stand_for_the_first(backend: Backend) -> None:
    plan = by_expert("Q8_0", 64, 16, 4, 2, ranked=False)
    run = Run(backend, plan)
    for rows in (1, 3):
        x, routes = normal(rows, 64), np.zeros((rows, 4), np.float32)
        wanted = run({"x": x, "routes": routes})["y"]
        for bad in (4.0, -1.0, np.nan, np.inf, 1e30):
            routes[:, :2] = bad
            found = run({"x": x, "routes": routes})["y"]
            assert np.array_equal(bits(found), bits(wanted)), bad


@over_backends
@pytest.mark.parametrize("k", [1, 2, 8])
def test_mixing_is_a_chain_in_the_order_of_ranks(backend: Backend, k: int) -> None:
    n = 100
    plan = Plan()
    x, routes = plan.buffer("x", k * n), plan.buffer("routes", 2 * k)
    plan.op("mix_experts", x=x, routes=routes, out=plan.buffer("y", n))
    for rows in (1, 7):
        values, chosen = normal(rows, k * n), choices(rows, 16, k, "mixed")
        terms = values.reshape(rows, k, n).astype(np.float64) * chosen[:, k:, None]
        found = Run(backend, plan)({"x": values, "routes": chosen})["y"]
        assert nmse(found, terms.sum(axis=1)) <= backend.nmse
        same = Run(INTERPRETER, plan)({"x": values, "routes": chosen})["y"]
        assert np.array_equal(bits(found), bits(same))


def layer(
    n_expert: int,
    k: int,
    n_ff: int,
    ty: str,
    *,
    is_one: bool = False,
    shared: tuple[str, int] | None = None,
) -> Plan:
    """A whole layer of experts, as architectures write it; gate and up may be one tensor, and every
    row may go to one expert more, of a type and a width of its own."""
    n = 256
    plan = Plan()
    b = {
        name: plan.buffer(name, width)
        for name, width in [
            ("x", n), ("router", n_expert), ("routes", 2 * k), ("gate", k * n_ff),
            ("up", k * n_ff), ("act", k * n_ff), ("down", k * n), ("delta", n),
            ("both", 2 * k * n_ff),
        ]
    }  # fmt: skip
    norm = plan.norm("norm", 1 + 0.1 * normal(n), 1e-6)
    of_shared, n_shared = shared or ("F32", 1)
    for name in ("gate_shared", "up_shared", "act_shared", "gated_shared"):
        b[name] = plan.buffer(name, n_shared)
    b |= {name: plan.buffer(name, width) for name, width in [("share", 1), ("last", n)]}

    def to_all(name: str, x: str, n_in: int, ty: str, width: int, **fields: Any) -> None:
        values = normal(width, n_in, seed=sum(name.encode()), scale=n_in**-0.5)
        weight = plan.weight(f"w_{name}", ty, encode(ty, values), n_in, width)
        plan.op("mat_vec", x=b[x], weight=weight, bias=None, out=b[name], **fields)

    if shared:
        to_all("gate_shared", "x", n, of_shared, n_shared, norm=norm)
        to_all("up_shared", "x", n, of_shared, n_shared, norm=norm)
        activation = "ge_glu" if is_one else "swi_glu"
        plan.op(activation, gate=b["gate_shared"], up=b["up_shared"], out=b["act_shared"])
        to_all("share", "x", n, "F32", 1, norm=norm)
    data = normal(n_expert, n, seed=1, scale=0.05).astype("<f4").tobytes()
    weight = plan.weight("router", "F32", data, n, n_expert)
    plan.op("mat_vec", x=b["x"], norm=norm, weight=weight, bias=None, out=b["router"])
    fields = {"gating": "softmax", "renormalize": True, "scale": 1.0}
    plan.op("route", logits=b["router"], bias=None, out=b["routes"], **fields)

    def product(name: str, x: str, n_in: int, n_out: int, **fields: Any) -> None:
        values = normal(n_expert * n_out, n_in, seed=len(name), scale=n_in**-0.5)
        weight = plan.weight(f"w_{name}", ty, encode(ty, values), n_in, n_out)
        plan._plan["weights"][weight]["n_expert"] = n_expert
        fields |= {"routes": b["routes"], "weight": weight, "bias": None, "out": b[name]}
        plan.op("expert_mat_vec", x=b[x], **fields)

    if is_one:
        product("both", "x", n, 2 * n_ff, ranked=False, norm=norm)
        for name, first in (("gate", 0), ("up", n_ff)):
            plan.op("slice", x=b["both"], out=b[name], n=k, first=first, of=2 * n_ff)
        plan.op("ge_glu", gate=b["gate"], up=b["up"], out=b["act"])
    else:
        product("gate", "x", n, n_ff, ranked=False, norm=norm)
        product("up", "x", n, n_ff, ranked=False, norm=norm)
        plan.op("swi_glu", gate=b["gate"], up=b["up"], out=b["act"])
    product("down", "act", n_ff, n, ranked=True, norm=None)
    plan.op("mix_experts", x=b["down"], routes=b["routes"], out=b["delta"])
    plan.op("add", x=b["delta"], out=b["x"])
    if shared:
        let_through = {"x": b["act_shared"], "gate": b["share"], "out": b["gated_shared"]}
        plan.op("sigmoid_mul", **let_through)
        to_all("last", "gated_shared", n_shared, of_shared, n)
        plan.op("add", x=b["last"], out=b["x"])
    return plan


@over_cards
@pytest.mark.parametrize("is_one", [False, True])
@pytest.mark.parametrize("ty", KINDS)
def test_a_layer_has_the_interpreters_bits(backend: Backend, ty: str, is_one: bool) -> None:
    # 96 is no multiple of a tile, 44 of half a one.
    n_ff = {"F16": 44}.get(ty, 512 if TYPES[ty][0] == 256 else 96)
    plan = layer(11, 3, n_ff, ty, is_one=is_one)
    for fuse, rows in [(True, 1), (True, 3), (True, 40), (False, 3)]:
        # Not of the router's seed: a row that is one of its own has one expert alone.
        x = normal(rows, 256, seed=100 + rows)
        run = Run(INTERPRETER, plan)({"x": x})
        assert run["routes"][:, 3:].min() > 0.01, "every rank shows"
        wanted = run["x"]
        found = Run(backend, plan, fuse=fuse)({"x": x})["x"]
        assert np.array_equal(bits(found), bits(wanted)), (fuse, rows)


@over_cards
@pytest.mark.parametrize(
    ("ty", "of_shared"),
    [
        ("Q4_K", "Q8_0"),
        ("Q8_0", "Q8_0"),
        ("Q4_1", "Q4_K"),
        ("F16", "F16"),
        ("F16", "Q8_0"),
        ("Q8_0", "F16"),
        ("Q4_K", "Q4_K"),
    ],
)
def test_an_expert_of_every_row_has_the_interpreters_bits(
    backend: Backend, ty: str, of_shared: str
) -> None:
    n_ff = 512 if 256 in (TYPES[ty][0], TYPES[of_shared][0]) else 96
    # As wide as the others, and wider; behind a matrix of both halves too.
    for n_shared, is_one in [(n_ff, False), (n_ff, True), (n_ff + 256, False)]:
        plan = layer(11, 3, n_ff, ty, is_one=is_one, shared=(of_shared, n_shared))
        runs = [Run(b, plan) for b in (INTERPRETER, backend)]
        for rows in (1, 1, 3, 40):
            x = normal(rows, 256, seed=100 + rows)
            wanted, found = (run({"x": x})["x"] for run in runs)
            assert np.array_equal(bits(found), bits(wanted)), (n_shared, is_one, rows)


@over_cards
def test_an_expert_of_every_row_that_overflows_is_named(backend: Backend) -> None:
    plan = layer(11, 3, 96, "Q8_0", shared=("Q8_0", 96))
    runs = [Run(b, plan) for b in (INTERPRETER, backend)]
    x = normal(1, 256, seed=101)
    nan = np.where(np.arange(256) == 3, np.float32(np.nan), x)
    # The others give nothing; of this one, the product of its gate and up is too large.
    plan.weights["w_gate"] = bytes(len(plan.weights["w_gate"]))
    plan.weights["norm"] = np.full(256, 1e19, "<f4").tobytes()
    runs_of_large = [Run(b, plan) for b in (INTERPRETER, backend)]
    for tensor, of, row in [("w_gate_shared", runs, nan), ("w_last", runs_of_large, x)]:
        for run in of:
            with pytest.raises(onegraph.ModelError, match=f"product with {tensor} at position 0"):
                run({"x": row})


@over_backends
def test_a_row_that_overflows_is_reported_at_its_position(backend: Backend) -> None:
    for ranked in (False, True):
        run = Run(backend, by_expert("Q8_0", 64, 16, 4, 2, ranked=ranked))
        for rows, bad in ((1, 0), (5, 3)):
            x, routes = normal(rows, 64 * (1 + ranked)), choices(rows, 4, 2, "mixed")
            x[bad, -1] = np.nan
            where = rf"product with w at position {bad} .* of NaN"
            with pytest.raises(onegraph.ModelError, match=where):
                run({"x": x, "routes": routes}, positions=range(rows))
