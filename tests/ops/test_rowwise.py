"""The ops on rows: `rms_norm`, `rope`, `add`, `swi_glu`, `select_rows`, against float64."""

import numpy as np
import pytest
from support.backends import INTERPRETER, Backend, over_backends, over_cards
from support.plans import PAGE, ROWS, SCALES, Floats, Plan, Run, bits, nmse, normal

Array = np.ndarray


@over_backends
@pytest.mark.parametrize("eps", [1e-6, 1e-5])
@pytest.mark.parametrize(
    ("width", "group"),
    [(1, 1), (7, 7), (33, 33), (576, 576), (2048, 2048), (192, 64), (400, 80), (1024, 128)],
)
def test_rms_norm(backend: Backend, width: int, group: int, eps: float) -> None:
    weight = normal(group, seed=1)
    plan = Plan()
    x, y = plan.buffer("x", width), plan.buffer("y", width)
    plan.op("rms_norm", x=x, weight=plan.vector("w", weight), out=y, group=group, eps=eps)
    # In place, as the norms of q and k are.
    plan.op("rms_norm", x=x, weight=0, out=x, group=group, eps=eps)
    run = Run(backend, plan)
    for scale in SCALES:
        for rows in ROWS:
            values = normal(rows, width, seed=rows, scale=scale)
            groups = values.astype(np.float64).reshape(rows, -1, group)
            size = np.sqrt((groups**2).mean(axis=-1, keepdims=True) + np.float32(eps))
            exact = (groups / size * weight).reshape(rows, width)
            run({"x": values})
            assert nmse(run["y"], exact) <= backend.nmse
            assert np.array_equal(bits(run["x"]), bits(run["y"]))


@over_backends
@pytest.mark.parametrize(("width", "group"), [(33, 33), (1024, 128), (2048, 512)])
def test_rms_norm_without_a_weight_is_that_of_ones(
    backend: Backend, width: int, group: int
) -> None:
    plan = Plan()
    x, y, z = (plan.buffer(name, width) for name in "xyz")
    ones = plan.vector("w", np.ones(group, np.float32))
    plan.op("rms_norm", x=x, weight=ones, out=y, group=group, eps=1e-6)
    plan.op("rms_norm", x=x, weight=None, out=z, group=group, eps=1e-6)
    run = Run(backend, plan)
    for rows in ROWS:
        run({"x": normal(rows, width, seed=rows)})
        assert np.array_equal(bits(run["z"]), bits(run["y"]))


@over_backends
@pytest.mark.parametrize(("width", "group"), [(192, 64), (400, 80), (2048, 512), (90, 30)])
def test_groups_of_rms_norm_may_have_weights_of_their_own(
    backend: Backend, width: int, group: int
) -> None:
    plan = Plan()
    x, y, z = (plan.buffer(name, width) for name in "xyz")
    weight = normal(width, seed=1)
    plan.op("rms_norm", x=x, weight=plan.vector("w", weight), out=y, group=group, eps=1e-6)
    plan.op("rms_norm", x=x, weight=None, out=z, group=group, eps=1e-6)
    # Not the gate of heads, which have one weight.
    plan.op("swi_glu", gate=x, up=y, out=plan.buffer("gated", width))
    run = Run(backend, plan)
    for rows in ROWS:
        run({"x": normal(rows, width, seed=rows)})
        assert np.array_equal(bits(run["y"]), bits(run["z"] * weight))


@over_backends
def test_the_square_of_what_is_positive(backend: Backend) -> None:
    plan = Plan()
    plan.op("relu_squared", x=plan.buffer("x", 96))
    run = Run(backend, plan)
    for rows in ROWS:
        x = normal(rows, 96, seed=rows, scale=3)
        x[0, :4] = 0.0, -0.0, 1e-30, -1e30
        run({"x": x})
        assert np.array_equal(bits(run["x"]), bits(np.maximum(x, 0) ** 2))
    x[0, :3] = np.nan, np.inf, -np.inf
    run({"x": x})
    assert np.isnan(run["x"][0, :3]).all()


@over_backends
def test_rms_norm_of_zeros_is_zero(backend: Backend) -> None:
    plan = Plan()
    x, y = plan.buffer("x", 64), plan.buffer("y", 64)
    plan.op("rms_norm", x=x, weight=plan.vector("w", normal(64)), out=y, group=64, eps=1e-5)
    assert not Run(backend, plan)({"x": np.zeros((3, 64), np.float32)})["y"].any()


def rotated(
    x: Floats, n_head: int, style: str, positions: Array, inv_freq: Array, scale: float
) -> Array:
    """`u + iv` times `scale * exp(i * position * inv_freq)` for each pair of each head."""
    heads = x.astype(np.float64).reshape(len(x), n_head, -1)
    half = len(inv_freq)
    first, second = (
        (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
        if style == "interleaved"
        else (slice(0, half), slice(half, 2 * half))
    )
    turn = scale * np.exp(1j * (positions[:, None] * inv_freq))[:, None, :]
    pairs = (heads[..., first] + 1j * heads[..., second]) * turn
    out = heads.copy()
    out[..., first], out[..., second] = pairs.real, pairs.imag
    return out.reshape(len(x), -1)


@pytest.mark.thorough
@over_backends
@pytest.mark.parametrize("style", ["interleaved", "halves"])
@pytest.mark.parametrize(
    ("n_head", "head_dim", "half"),
    [
        *[(1, 2, 1), (9, 64, 32), (3, 80, 40), (5, 96, 48), (2, 112, 56), (4, 128, 64)],
        (2, 256, 128),
        # The last numbers of a head are left as they are.
        *[(3, 80, 16), (2, 64, 31)],
    ],
)
def test_rope(backend: Backend, style: str, n_head: int, head_dim: int, half: int) -> None:
    n_ctx = 1 << 20
    inv_freq = 10000.0 ** (-np.arange(half) / half)
    positions = np.array([0, 1, 2, 63, 64, 4095, 131071, n_ctx - 1])
    x = normal(len(positions), n_head * head_dim)
    for scale, factors in [(1.0, None), (1.0 + 0.1 * np.log(32.0), None), (1.0, [1, 8, 2.5, 1e3])]:
        plan = Plan(inv_freq=inv_freq.tolist(), rope_scale=scale)
        divisors = np.resize(np.array(factors or [1.0], np.float32), half)
        if factors:
            plan.rope_factors(divisors)
        plan.op("rope", x=plan.buffer("x", n_head * head_dim), n_head=n_head, style=style)
        run = Run(backend, plan, n_ctx=n_ctx, n_pages=2, mapped=False)
        exact = rotated(x, n_head, style, positions, inv_freq / divisors, scale)
        found = run({"x": x}, positions=positions.tolist())["x"]
        # Row by row: an error at large positions must not hide behind the small ones.
        for row, wanted in zip(found, exact, strict=True):
            assert nmse(row, wanted) <= backend.nmse
        kept = x.reshape(len(x), n_head, -1)[..., 2 * half :]
        assert np.array_equal(found.reshape(len(x), n_head, -1)[..., 2 * half :], kept)


@over_backends
def test_rope_turns_nothing_at_position_0(backend: Backend) -> None:
    plan = Plan(inv_freq=[1.0, 0.1])
    plan.op("rope", x=plan.buffer("x", 8), n_head=2, style="halves")
    x = normal(4, 8)
    assert np.array_equal(Run(backend, plan)({"x": x})["x"], x)


@pytest.mark.thorough
@over_backends
@pytest.mark.parametrize("style", ["interleaved", "halves"])
def test_queries_that_grow_with_their_position(backend: Backend, style: str) -> None:
    """Behind products, where a card joins all of it, and alone; keys by a table that grows not."""
    n_head, head_dim, by, every = 2, 32, 0.25, 100
    inv_freq = 10000.0 ** (-np.arange(head_dim // 2) / (head_dim // 2))
    plan = Plan(inv_freq=inv_freq.tolist())
    table = plan.rope_table(inv_freq.tolist(), 1.0, {"by": by, "every": every})
    matrices = {part: normal(n_head * head_dim, 64, seed=i) for i, part in enumerate("qkv")}
    x = plan.buffer("x", 64)
    out = {part: plan.buffer(part, n_head * head_dim) for part in "qkv"}
    for part, matrix in matrices.items():
        weight = plan.weight(part, "F32", matrix.tobytes(), 64, n_head * head_dim)
        plan.op("mat_vec", x=x, norm=None, weight=weight, bias=None, out=out[part])
    plan.op("rope", x=out["q"], n_head=n_head, style=style, table=table)
    plan.op("rope", x=out["k"], n_head=n_head, style=style)
    alone = plan.buffer("alone", head_dim)
    plan.op("rope", x=alone, n_head=1, style=style, table=table)
    positions = np.array([0, 1, 99, 100, 101, 299, 300, 1 << 19])
    values = {"x": normal(len(positions), 64), "alone": normal(len(positions), head_dim)}
    found, wanted = (
        Run(its, plan, n_ctx=1 << 20, n_pages=2, mapped=False) for its in (backend, INTERPRETER)
    )
    for run in (found, wanted):
        run(values, positions=positions.tolist())
    factor = 1.0 + by * np.log(positions // every + 1.0)[:, None]
    for part, heads, grows in [("q", n_head, factor), ("k", n_head, 1.0), ("alone", 1, factor)]:
        of = values["x"] @ matrices[part].T if part in matrices else values[part]
        exact = rotated(of, heads, style, positions, inv_freq, 1.0) * grows
        assert nmse(found[part], exact) <= backend.nmse
        assert np.array_equal(bits(found[part]), bits(wanted[part]))


#: Ops with a gate, and what that lets through.
GATES = [("sigmoid_mul", "x"), ("softplus_mul", "x"), ("clamped_swi_glu", "up")]

#: What an op must not turn into a number: the next op reports it.
NOT_FINITE = (np.nan, np.inf, -np.inf)


@over_backends
@pytest.mark.parametrize(("op", "gated"), GATES)
def test_gates_hide_nothing_that_is_not_finite(backend: Backend, op: str, gated: str) -> None:
    run = Run(backend, element_wise(op, "gate", gated))
    for name in ("gate", gated):
        inputs = {"gate": normal(3, 96, seed=1), gated: normal(3, 96, seed=2)}
        clean = run(inputs)["out"]
        for i, value in enumerate(NOT_FINITE):
            inputs[name][1, 7 * i] = value
        found = run(inputs)["out"]
        bad = ~np.isfinite(inputs[name])
        assert not np.isfinite(found[bad]).any()
        assert np.array_equal(bits(found)[~bad], bits(clean)[~bad])


@over_backends
def test_a_norm_of_numbers_whose_squares_are_infinite_is_none(backend: Backend) -> None:
    """A zero in the place of all of them would be a number."""
    plan = Plan()
    x, y = plan.buffer("x", 64), plan.buffer("y", 64)
    plan.op("rms_norm", x=x, weight=plan.vector("w", normal(64)), out=y, group=64, eps=1e-5)
    values = normal(3, 64)
    clean = Run(backend, plan)({"x": values})["y"]
    values[1, 9] = 1e20
    found = Run(backend, plan)({"x": values})["y"]
    assert np.isnan(found[1]).all()
    assert np.array_equal(bits(found[::2]), bits(clean[::2]))


def element_wise(op: str, *inputs: str) -> Plan:
    plan = Plan()
    plan.op(op, **{name: plan.buffer(name, 96) for name in (*inputs, "out")})
    return plan


@over_backends
@pytest.mark.parametrize("rows", ROWS)
def test_add(backend: Backend, rows: int) -> None:
    run = Run(backend, element_wise("add", "x"))
    for scale in SCALES:
        x, out = normal(rows, 96, seed=1, scale=scale), normal(rows, 96, seed=2)
        assert np.array_equal(bits(run({"x": x, "out": out})["out"]), bits(out + x))


@over_backends
@pytest.mark.parametrize("rows", [*ROWS, 1000])
def test_swiglu(backend: Backend, rows: int) -> None:
    run = Run(backend, element_wise("swi_glu", "gate", "up"), threads=2)
    rows = min(rows, backend.max_rows or rows)
    for scale in SCALES:
        gate, up = normal(rows, 96, seed=1, scale=scale), normal(rows, 96, seed=2, scale=scale)
        with np.errstate(over="ignore"):
            g = gate.astype(np.float64)
            exact = g / (1.0 + np.exp(-g)) * up
        assert nmse(run({"gate": gate, "up": up})["out"], exact) <= backend.nmse


@over_backends
def test_swiglu_at_the_ends_of_the_exponential(backend: Backend) -> None:
    """No NaN and no infinity from finite input, and each value on its own near enough."""
    ends = [0.0, -0.0, 1e-38, 16.6, 17.4, 87.3, 88.7, 88.8, 89.0, 103.9, 104.1, 1e4, 1e30, 3e38]
    ends += [1e-3, 0.5, 1.0, 20.0]
    gate = np.resize(np.array([*ends, *(-e for e in ends)], np.float32), (1, 96))
    up = np.ones((1, 96), np.float32)
    found = Run(backend, element_wise("swi_glu", "gate", "up"))({"gate": gate, "up": up})["out"]
    with np.errstate(over="ignore"):
        g = gate.astype(np.float64)
        exact = g / (1.0 + np.exp(-g))
    # Below exp(-88) the quotient leaves float32's normal range.
    assert (np.abs(found - exact) <= 5e-7 * np.abs(exact) + 1e-35).all()


def gelu(gate: Array) -> Array:
    """By tanh, as Hendrycks and Gimpel write it (https://arxiv.org/abs/1606.08415)."""
    g = gate.astype(np.float64)
    # The same as 1 + tanh(u) over 2, without its cancellation for gates far below 0.
    with np.errstate(over="ignore"):
        return g / (1.0 + np.exp(-2.0 * np.sqrt(2.0 / np.pi) * (g + 0.044715 * g**3)))


def test_the_exact_gelu_is_the_form_by_tanh() -> None:
    g = np.linspace(-6.0, 6.0, 1000)
    tanh = 0.5 * g * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (g + 0.044715 * g**3)))
    assert np.abs(gelu(g) - tanh).max() <= 1e-14


@over_backends
@pytest.mark.parametrize("rows", [*ROWS, 1000])
def test_geglu(backend: Backend, rows: int) -> None:
    run = Run(backend, element_wise("ge_glu", "gate", "up"), threads=2)
    rows = min(rows, backend.max_rows or rows)
    for scale in SCALES:
        gate, up = normal(rows, 96, seed=1, scale=scale), normal(rows, 96, seed=2, scale=scale)
        exact = gelu(gate) * up
        assert nmse(run({"gate": gate, "up": up})["out"], exact) <= backend.nmse


@over_backends
def test_geglu_at_the_ends_of_the_exponential(backend: Backend) -> None:
    """No NaN and no infinity from finite input, where its cube is infinite too."""
    ends = [0.0, -0.0, 1e-38, 1e-3, 0.5, 1.0, 3.0, 5.0, 8.0, 9.7, 9.9, 10.5, 20.0, 1e4, 1e13, 1e20]
    ends += [3e38]
    gate = np.resize(np.array([*ends, *(-e for e in ends)], np.float32), (1, 96))
    up = np.ones((1, 96), np.float32)
    found = Run(backend, element_wise("ge_glu", "gate", "up"))({"gate": gate, "up": up})["out"]
    exact = gelu(gate)
    # The exponent, up to 87, has an error of its last place, which is one of exp relative to it.
    assert (np.abs(found - exact) <= 2e-5 * np.abs(exact) + 1e-35).all()
    near = np.abs(gate) <= 3.0
    assert (np.abs(found - exact)[near] <= 2e-6 * np.abs(exact)[near]).all()
    positive = gate > 10.0
    assert np.array_equal(found[positive], gate[positive])


@over_backends
@pytest.mark.parametrize("factor", [1.0, 0.22, -3.5e-20])
def test_scale(backend: Backend, factor: float) -> None:
    plan = Plan()
    plan.op("scale", x=plan.buffer("x", 96), factor=factor)
    for scale in SCALES:
        x = normal(7, 96, scale=scale)
        found = Run(backend, plan)({"x": x})["x"]
        assert np.array_equal(bits(found), bits(x * np.float32(factor)))


@over_backends
def test_a_factor_that_is_a_tensor(backend: Backend) -> None:
    plan = Plan()
    factor = np.array([-0.37], np.float32)
    plan.op("scale_by", x=plan.buffer("x", 96), weight=plan.vector("w", factor))
    run = Run(backend, plan)
    for rows in ROWS:
        x = normal(rows, 96, seed=rows)
        assert np.array_equal(bits(run({"x": x})["x"]), bits(x * factor))


@over_backends
def test_a_factor_for_each_expert(backend: Backend) -> None:
    """What is no id stands for 0, as in products."""
    factors = normal(5, seed=1)
    plan = Plan()
    routes = plan.buffer("routes", 6)
    plan.op("scale_ranks", routes=routes, weight=plan.vector("w", factors))
    run = Run(backend, plan)
    ids = np.array([[0, 4, 2], [3, 1, 0], [-1, 5, np.nan], [1, 1e30, 4]], np.float32)
    weights = normal(4, 3, seed=2)
    found = run({"routes": np.concatenate([ids, weights], axis=1)})["routes"]
    its = np.array([[0, 4, 2], [3, 1, 0], [0, 0, 0], [1, 0, 4]])
    assert np.array_equal(bits(found[:, :3]), bits(ids))
    assert np.array_equal(bits(found[:, 3:]), bits(weights * factors[its]))


def capped(x: Array, cap: float) -> Floats:
    """As the op states it, `exp` rounded from float64: within its last place."""
    rate = np.float32(2.0 / np.float64(np.float32(cap)))
    e = np.exp(-(np.abs(x) * rate).astype(np.float64)).astype(np.float32)
    one = np.float32(1.0)
    y = np.float32(cap) * ((one - e) / (one + e))
    result: Floats = np.where(x < 0, -y, y)
    return result


@over_backends
@pytest.mark.parametrize("cap", [30.0, 1.0, 1e-3, 1e4])
def test_soft_cap(backend: Backend, cap: float) -> None:
    plan = Plan()
    plan.op("soft_cap", x=plan.buffer("x", 96), cap=cap)
    run = Run(backend, plan)
    for scale in SCALES:
        x = normal(7, 96, scale=scale) * np.float32(cap)
        found = run({"x": x})["x"]
        exact = cap * np.tanh(x.astype(np.float64) / cap)
        assert np.abs(found - exact).max() <= 2e-7 * cap
        assert np.abs(found - capped(x, cap)).max() <= 1.5e-7 * cap
    ends = [0.0, -0.0, 1e-45, 1e30, -1e30, 3e34, -3e34, 43.4, 43.6, -43.4]
    x = np.resize(np.array(ends, np.float32) * np.float32(cap), (1, 96))
    found = run({"x": x})["x"]
    assert np.isfinite(found).all() and np.abs(found).max() <= np.float32(cap)
    wanted = np.array([0.0, 0.0, 0.0, *[1, -1] * 2, 1, 1, -1], np.float32) * np.float32(cap)
    assert np.array_equal(found[0, :10], wanted)
    for value in NOT_FINITE:
        assert np.isnan(run({"x": np.full((1, 96), value, np.float32)})["x"]).all()


@over_backends
@pytest.mark.parametrize("out_rows", [[0, 1, 2, 3, 4], [], [0], [4], [4, 0, 4, 2]])
def test_select_rows(backend: Backend, out_rows: list[int]) -> None:
    plan = Plan()
    x, y = plan.buffer("x", 40), plan.buffer("y", 40, rows="out")
    plan.op("select_rows", x=x, out=y)
    weight = encode_identity(plan, 40)
    plan.op("mat_vec", x=y, weight=weight, bias=None, out=plan.buffer("z", 40, rows="out"))
    values = normal(5, 40)
    run = Run(backend, plan)({"x": values}, out_rows=out_rows)
    assert np.array_equal(run["y"], values[out_rows])
    assert np.array_equal(run["z"], values[out_rows])


def encode_identity(plan: Plan, n: int) -> int:
    return plan.weight("one", "F32", np.eye(n, dtype="<f4").tobytes(), n, n)


@over_backends
def test_outputs_are_written_whole(backend: Backend) -> None:
    """What a buffer held before a step, NaN or not, is not seen after it."""
    plan = Plan(inv_freq=[1.0])
    x, h, y = plan.buffer("x", 32), plan.buffer("h", 32), plan.buffer("y", 32)
    z, last = plan.buffer("z", 32), plan.buffer("last", 32, rows="out")
    plan.op("rms_norm", x=x, weight=plan.vector("w", normal(32)), out=h, group=32, eps=1e-5)
    plan.op("mat_vec", x=h, weight=encode_identity(plan, 32), bias=None, out=y)
    plan.op("kv_scatter", k=h, v=h, layer=0)
    plan.op("attention", q=y, out=z, layer=0, n_head=1, scale=0.2)
    plan.op("swi_glu", gate=y, up=z, out=h)
    plan.op("select_rows", x=h, out=last)
    names = ["h", "y", "z"]
    values, poison = normal(6, 32), np.full((6, 32), np.nan, np.float32)
    run = Run(backend, plan)
    first = run({"x": values}, positions=range(6), out_rows=[5])["last"]
    inputs = {"x": values, **dict.fromkeys(names, poison)}
    again = run(inputs, positions=range(6), out_rows=[5])["last"]
    assert not np.isnan(first).any()
    assert np.array_equal(bits(first), bits(again))


def of_both(backend: Backend, plan: Plan, out: str, rows: int, inputs: dict[str, Array]) -> None:
    """The interpreter's bits are the backend's."""
    positions = [(7 * i) % PAGE for i in range(rows)]
    wanted, found = (Run(b, plan)(inputs, positions=positions)[out] for b in (INTERPRETER, backend))
    assert np.array_equal(bits(found), bits(wanted)), np.flatnonzero(bits(found) != bits(wanted))


@over_cards
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(
    ("width", "group"),
    # The last is of more superblocks than a block has warps.
    [(7, 7), (33, 33), (576, 576), (2304, 2304), (192, 64), (400, 80), (8708, 8708)],
)
def test_rms_norm_has_the_interpreters_bits(
    backend: Backend, width: int, group: int, scale: float
) -> None:
    plan = Plan()
    x, y = plan.buffer("x", width), plan.buffer("y", width)
    weight = plan.vector("w", normal(group, seed=1))
    plan.op("rms_norm", x=x, weight=weight, out=y, group=group, eps=1e-6)
    of_both(backend, plan, "y", 3, {"x": normal(3, width, scale=scale)})


@over_cards
@pytest.mark.parametrize("style", ["interleaved", "halves"])
def test_rope_has_the_interpreters_bits(backend: Backend, style: str) -> None:
    plan = Plan(inv_freq=(10000.0 ** (-np.arange(16) / 16)).tolist(), rope_scale=1.3)
    plan.op("rope", x=plan.buffer("x", 3 * 48), n_head=3, style=style)
    of_both(backend, plan, "x", 9, {"x": normal(9, 3 * 48)})


@over_cards
@pytest.mark.parametrize("width", [40, 576, 2304])
def test_a_norm_and_the_sum_behind_it_have_the_interpreters_bits(
    backend: Backend, width: int
) -> None:
    """One kernel does both."""
    plan = Plan()
    x, y = plan.buffer("x", width), plan.buffer("y", width)
    weight = plan.vector("w", normal(width, seed=1))
    plan.op("rms_norm", x=x, weight=weight, out=x, group=width, eps=1e-6)
    plan.op("add", x=x, out=y)
    of_both(backend, plan, "y", 5, {"x": normal(5, width), "y": normal(5, width, seed=2)})


@over_cards
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("width", [33, 40, 2304, 8708])
def test_norms_that_meet_have_the_interpreters_bits(
    backend: Backend, width: int, scaled: bool
) -> None:
    """One kernel does all three, the sums between them and the factor behind them."""
    plan = Plan()
    a, b, y = (plan.buffer(name, width) for name in "aby")

    def norm(x: int, seed: int) -> None:
        weight = plan.vector(f"w{seed}", normal(width, seed=seed))
        plan.op("rms_norm", x=x, weight=weight, out=x, group=width, eps=1e-6)

    norm(a, 1)
    norm(b, 2)
    plan.op("add", x=b, out=a)
    norm(a, 3)
    plan.op("add", x=a, out=y)
    if scaled:
        factor = np.array([-0.37], np.float32)
        plan.op("scale_by", x=y, weight=plan.vector("factor", factor))
    for rows in (1, 5):
        values = {name: normal(rows, width, seed=i) for i, name in enumerate("aby")}
        of_both(backend, plan, "y", rows, values)


@over_cards
@pytest.mark.parametrize("values", ["none", "own", "keys"])
@pytest.mark.parametrize(
    ("head_dim", "half"),
    [(128, 64), (64, 32), (256, 32), (16, 8), (80, 40), (512, 256), (512, 64), (384, 128)],
)
def test_norms_and_turns_of_heads_have_the_interpreters_bits(
    backend: Backend, head_dim: int, half: int, values: str
) -> None:
    """One kernel does all four, and the norm of values; also heads whose ends are not rotated."""
    n_head, n_head_kv = 5, 2
    for style in ("interleaved", "halves"):
        plan = Plan(inv_freq=(10000.0 ** (-np.arange(half) / half)).tolist(), rope_scale=1.3)
        heads = {"q": n_head, "k": n_head_kv}
        ids = {name: plan.buffer(name, n * head_dim) for name, n in heads.items()}
        if values != "none":
            v = plan.buffer("v", n_head_kv * head_dim)
            of = v if values == "own" else ids["k"]
            plan.op("rms_norm", x=of, weight=None, out=v, group=head_dim, eps=1e-6)
        for name, x in ids.items():
            weight = plan.vector(f"w_{name}", normal(head_dim, seed=2 + x))
            plan.op("rms_norm", x=x, weight=weight, out=x, group=head_dim, eps=1e-6)
        for name, x in ids.items():
            plan.op("rope", x=x, n_head=heads[name], style=style)
        all_heads = heads if values == "none" else heads | {"v": n_head_kv}
        for rows in (1, 9):
            x = {name: normal(rows, n * head_dim, seed=n) for name, n in all_heads.items()}
            x["k"] *= 3.0
            for name in all_heads:
                of_both(backend, plan, name, rows, x)


@over_cards
@pytest.mark.parametrize("cap", [30.0, 0.3])
def test_soft_cap_has_the_interpreters_bits(backend: Backend, cap: float) -> None:
    plan = Plan()
    plan.op("soft_cap", x=plan.buffer("x", 96), cap=cap)
    x = np.concatenate([normal(40, 96, seed=3, scale=scale) for scale in SCALES])
    of_both(backend, plan, "x", len(x), {"x": x})


@over_cards
@pytest.mark.parametrize(("width", "group"), [(384, 128), (2304, 2304), (144, 48)])
def test_a_norm_of_heads_and_the_gate_behind_it_have_the_interpreters_bits(
    backend: Backend, width: int, group: int
) -> None:
    """One kernel does both."""
    plan = Plan()
    x, gate, out = (plan.buffer(name, width) for name in ("x", "gate", "out"))
    weight = plan.vector("w", normal(group, seed=1))
    plan.op("rms_norm", x=x, weight=weight, out=x, group=group, eps=1e-6)
    plan.op("swi_glu", gate=gate, up=x, out=out)
    of_both(backend, plan, "out", 5, {"x": normal(5, width), "gate": normal(5, width, seed=2)})


@over_cards
@pytest.mark.parametrize("op", ["swi_glu", "ge_glu"])
def test_activations_have_the_interpreters_bits(backend: Backend, op: str) -> None:
    special = [0.0, -0.0, 1e-45, 1e-38, 87.0, 87.01, 88.8, 1e4, 3e38, 20.0, 1e-3, 9.75, 1e13, 1e20]
    gates = [*special, *(-s for s in special)]
    gate = np.concatenate(
        [
            np.resize(np.array(gates, np.float32), (1, 96)),
            *(normal(40, 96, scale=s) for s in SCALES),
        ]
    )
    up = normal(len(gate), 96, seed=2)
    plan = element_wise(op, "gate", "up")
    of_both(backend, plan, "out", len(gate), {"gate": gate, "up": up})
