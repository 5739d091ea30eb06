"""Ops that take a state from token to token: what they compute, whose state it is, and that no bit
depends on how rows are cut into passes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support import exact_attention as stated
from support import mamba2
from support.backends import INTERPRETER, Backend, over_backends, over_cards
from support.delta_rule import causal_convolution, delta_rule, logistic
from support.plans import Floats, Plan, Run, bits, nmse, normal

#: Where rows of no sequence stand.
NOWHERE = 2**32 - 1


@dataclass(frozen=True)
class Convolution:
    channels: int
    taps: int
    silu: bool = False
    gates: bool = False
    bias: bool = False
    #: Values of a row before and behind those that are convolved.
    around: tuple[int, int] = (0, 0)
    dilation: int = 1

    @property
    def width(self) -> int:
        """Of its input."""
        return (3 if self.gates else 1) * self.channels + sum(self.around)

    def plan(self) -> Plan:
        plan = Plan()
        self.add(plan, "out")
        return plan

    def add(self, plan: Plan, name: str) -> int:
        """The op, with what it reads, and where its output of this name goes."""
        weight = normal(self.channels, self.taps, seed=7)
        x, out = plan.buffer("x", self.width), plan.buffer(name, self.channels)
        more: dict[str, Any] = {} if self.gates else {"silu": self.silu}
        if self.bias:
            more["bias"] = plan.vector("bias", normal(self.channels, seed=8))
        if any(self.around):
            more["part"] = {"first": self.around[0], "of": self.width}
        if self.dilation > 1:
            more["dilation"] = self.dilation
        plan.op(
            "gated_conv" if self.gates else "short_conv",
            x=x,
            weight=plan.vector("w", weight.reshape(-1)),
            state=plan.state("conv", (self.taps - 1) * self.dilation * self.channels),
            out=out,
            taps=self.taps,
            **more,
        )
        return out

    def inputs(self, n: int, seed: int = 1) -> dict[str, Floats]:
        return {"x": normal(n, self.width, seed=seed)}

    def exact(self, inputs: dict[str, Floats]) -> np.ndarray:
        weight = normal(self.channels, self.taps, seed=7).astype(np.float64)
        x = inputs["x"].astype(np.float64)
        if self.gates:
            b, c, u = np.split(x, 3, axis=1)
            return c * causal_convolution(b * u, weight)
        # As of so many taps, of which those between are zero.
        spread = np.zeros((self.channels, (self.taps - 1) * self.dilation + 1))
        spread[:, :: self.dilation] = weight
        y = causal_convolution(x[:, self.around[0] :][:, : self.channels], spread)
        y = y + normal(self.channels, seed=8) * float(self.bias)
        return y * logistic(y) if self.silu else y


@dataclass(frozen=True)
class Recent:
    """A sequence's last rows, the newest first."""

    width: int
    n: int

    def plan(self) -> Plan:
        plan = Plan()
        plan.op(
            "ngram",
            what="recent",
            x=plan.buffer("x", self.width),
            state=plan.state("last", (self.n - 1) * self.width),
            out=plan.buffer("out", self.n * self.width),
            n=self.n,
        )
        return plan

    def inputs(self, n: int, seed: int = 1) -> dict[str, Floats]:
        return {"x": normal(n, self.width, seed=seed)}

    def exact(self, inputs: dict[str, Floats]) -> np.ndarray:
        x = np.concatenate([np.zeros((self.n - 1, self.width)), inputs["x"]])
        rows = [x[self.n - 1 - back : len(x) - back] for back in range(self.n)]
        return np.concatenate(rows, axis=1)


@dataclass(frozen=True)
class DeltaNet:
    n_head: int
    n_head_k: int
    head_dim: int
    grouped: bool = False

    @property
    def gates(self) -> dict[str, Floats]:
        return {"a": -np.abs(normal(self.n_head, seed=3)), "dt": normal(self.n_head, seed=4) - 2}

    def plan(self) -> Plan:
        plan = Plan()
        heads = 2 * self.n_head_k + self.n_head
        self.add(plan, plan.buffer("qkv", heads * self.head_dim))
        return plan

    def add(self, plan: Plan, qkv: int) -> None:
        plan.op(
            "delta_net",
            qkv=qkv,
            alpha=plan.buffer("alpha", self.n_head),
            beta=plan.buffer("beta", self.n_head),
            **{name: plan.vector(name, values) for name, values in self.gates.items()},
            state=plan.state("delta", self.n_head * self.head_dim**2),
            out=plan.buffer("out", self.n_head * self.head_dim),
            n_head=self.n_head,
            n_head_k=self.n_head_k,
            grouped=self.grouped,
            head_dim=self.head_dim,
            eps=1e-6,
        )

    def inputs(self, n: int, seed: int = 1) -> dict[str, Floats]:
        heads = 2 * self.n_head_k + self.n_head
        return {
            "qkv": normal(n, heads * self.head_dim, seed=seed),
            "alpha": normal(n, self.n_head, seed=seed + 1),
            "beta": normal(n, self.n_head, seed=seed + 2),
        }

    def exact(self, inputs: dict[str, Floats]) -> np.ndarray:
        wide = {name: values.astype(np.float64) for name, values in inputs.items()}
        qkv = wide["qkv"].reshape(len(wide["qkv"]), -1, self.head_dim)
        q, k, v = np.split(qkv, [self.n_head_k, 2 * self.n_head_k], axis=1)
        gates = {name: values.astype(np.float64) for name, values in self.gates.items()}
        fields = (wide["alpha"], wide["beta"], gates["a"], gates["dt"], 1e-6)
        out = delta_rule(q, k, v, *fields, grouped=self.grouped)
        return out.reshape(len(out), -1)


@dataclass(frozen=True)
class ConvolvedRule:
    """The rule over queries, keys and values that a convolution gives, as layers have both."""

    rule: DeltaNet
    taps: int

    @property
    def convolution(self) -> Convolution:
        heads = 2 * self.rule.n_head_k + self.rule.n_head
        return Convolution(heads * self.rule.head_dim, self.taps, silu=True)

    def plan(self) -> Plan:
        plan = Plan()
        self.rule.add(plan, self.convolution.add(plan, "qkv"))
        return plan

    def inputs(self, n: int, seed: int = 1) -> dict[str, Floats]:
        inputs = self.rule.inputs(n, seed)
        return {"x": inputs.pop("qkv"), **inputs}

    def exact(self, inputs: dict[str, Floats]) -> np.ndarray:
        qkv = self.convolution.exact({"x": inputs["x"]})
        return self.rule.exact({**inputs, "qkv": qkv})


@dataclass(frozen=True)
class Scan:
    """Mamba-2's, over what a convolution gives of the same rows, as layers have both."""

    n_head: int
    n_group: int
    head_dim: int
    d_state: int
    taps: int = 4

    @property
    def inner(self) -> int:
        return self.n_head * self.head_dim

    @property
    def convolution(self) -> Convolution:
        channels = self.inner + 2 * self.n_group * self.d_state
        around = (self.inner, self.n_head)
        return Convolution(channels, self.taps, silu=True, bias=True, around=around)

    @property
    def weights(self) -> dict[str, Floats]:
        a, d = -np.abs(normal(self.n_head, seed=3)), normal(self.n_head, seed=5)
        return {"a": a, "dt": normal(self.n_head, seed=4) - 2, "d": d}

    def plan(self) -> Plan:
        plan = Plan()
        convolved = self.convolution.add(plan, "convolved")
        self.add(plan, 0, convolved, self.weights)
        return plan

    def add(self, plan: Plan, projected: int, convolved: int, weights: dict[str, Floats]) -> None:
        plan.op(
            "mamba2",
            projected=projected,
            convolved=convolved,
            **{name: plan.vector(name, values) for name, values in weights.items()},
            state=plan.state("scan", self.inner * self.d_state),
            out=plan.buffer("out", self.inner),
            n_head=self.n_head,
            n_group=self.n_group,
            head_dim=self.head_dim,
            d_state=self.d_state,
        )

    def inputs(self, n: int, seed: int = 1) -> dict[str, Floats]:
        return self.convolution.inputs(n, seed)

    def exact(self, inputs: dict[str, Floats]) -> np.ndarray:
        convolved, n = self.convolution.exact(inputs), len(inputs["x"])
        shared = self.n_group * self.d_state
        parts = np.split(convolved, [self.inner, self.inner + shared], axis=1)
        shapes = [(self.n_head, self.head_dim), *[(self.n_group, self.d_state)] * 2]
        x, b, c = (part.reshape(n, *shape) for part, shape in zip(parts, shapes, strict=True))
        rows = inputs["x"].astype(np.float64)
        fields = [values.astype(np.float64) for values in self.weights.values()]
        y = mamba2.scan(x, b, c, rows[:, -self.n_head :], *fields).reshape(n, -1)
        return mamba2.gated(y, rows[:, : self.inner])


Op = Convolution | DeltaNet | ConvolvedRule | Scan | Recent

OPS: list[Op] = [
    Convolution(512, 4, gates=True),
    DeltaNet(4, 2, 64),
    Convolution(300, 3),
    DeltaNet(3, 1, 48),
    Convolution(40, 2, silu=True),
    DeltaNet(2, 2, 128),
    Convolution(520, 3, silu=True),
    Convolution(40, 2, gates=True),
    DeltaNet(1, 1, 16),
    ConvolvedRule(DeltaNet(2, 1, 256), 4),
    ConvolvedRule(DeltaNet(3, 1, 48), 3),
    DeltaNet(2, 1, 256),
    ConvolvedRule(DeltaNet(6, 2, 16), 2),
    # Widths of which no power of two is a block's share, and heads that do not share alike.
    ConvolvedRule(DeltaNet(2, 1, 80), 4),
    ConvolvedRule(DeltaNet(1, 1, 160), 3),
    ConvolvedRule(DeltaNet(3, 2, 32), 4),
    ConvolvedRule(DeltaNet(2, 3, 64), 4),
    # Heads of values that share one of keys are neighbours.
    DeltaNet(6, 2, 16, grouped=True),
    ConvolvedRule(DeltaNet(6, 3, 32, grouped=True), 3),
    Convolution(40, 3, bias=True),
    Convolution(264, 4, silu=True, bias=True, around=(24, 7)),
    Scan(4, 2, 64, 128),
    Scan(3, 1, 16, 32, taps=2),
    Scan(2, 2, 40, 256),
    Convolution(264, 4, silu=True, dilation=3),
    Recent(1, 3),
    Recent(20, 8),
    ConvolvedRule(DeltaNet(4, 2, 64), 4),
]
over_ops = pytest.mark.parametrize("op", OPS, ids=str)


def cut(run: Run, inputs: dict[str, Floats], sizes: list[int], slot: int = 0) -> Floats:
    """The outputs of a sequence that is fed in passes of these sizes."""
    found, at = [], 0
    for size in sizes:
        rows = range(at, at + size)
        part = {name: values[at : at + size] for name, values in inputs.items()}
        found.append(run(part, positions=rows, slots=[slot] * size)["out"].copy())
        at += size
    return np.concatenate(found)


@over_backends
@over_ops
def test_it_computes_what_it_says(backend: Backend, op: Op) -> None:
    inputs = op.inputs(33)
    assert nmse(cut(Run(backend, op.plan()), inputs, [33]), op.exact(inputs)) <= backend.nmse


@over_cards
@over_ops
def test_it_has_the_interpreters_bits(backend: Backend, op: Op) -> None:
    """Steps and prompts, and what the sequence keeps."""
    inputs = op.inputs(20)
    for sizes in ([20], [1] * 20):
        run, wanted = Run(backend, op.plan()), Run(INTERPRETER, op.plan())
        its = cut(wanted, inputs, sizes)
        assert np.array_equal(bits(cut(run, inputs, sizes)), bits(its))
        assert np.array_equal(bits(run.state(0)), bits(wanted.state(0)))


@over_backends
@over_ops
def test_no_bit_depends_on_how_a_prompt_is_cut(backend: Backend, op: Op) -> None:
    inputs = op.inputs(20)
    run = Run(backend, op.plan())
    whole = bits(cut(run, inputs, [20]))
    state = bits(run.state(0))
    for sizes in ([1] * 20, [7, 1, 12], [2, 2, 2, 2, 2, 10], [19, 1]):
        # Each begins at position 0, and so anew, in a slot that another has left.
        assert np.array_equal(bits(cut(run, inputs, sizes)), whole), sizes
        assert np.array_equal(bits(run.state(0)), state), sizes


def mixed(op: Op) -> tuple[list[dict[str, Floats]], list[list[tuple[int, range]]]]:
    """Three sequences, and passes of some rows of each."""
    inputs = [op.inputs(12, seed=10 * i) for i in range(3)]
    passes = [
        [(0, range(0, 5)), (2, range(0, 1))],
        [(2, range(1, 4)), (1, range(0, 7)), (0, range(5, 6))],
        [(1, range(7, 8)), (0, range(6, 7)), (2, range(4, 5))],
        [(0, range(7, 12))],
        [(1, range(8, 12)), (2, range(5, 12))],
    ]
    return inputs, passes


@over_backends
@over_ops
def test_a_sequence_has_the_same_bits_alone_and_among_others(backend: Backend, op: Op) -> None:
    inputs, passes = mixed(op)
    run = Run(backend, op.plan(), n_slots=3)
    found: list[list[Floats]] = [[], [], []]
    for rows in passes:
        part = {
            name: np.concatenate([inputs[slot][name][its.start : its.stop] for slot, its in rows])
            for name in inputs[0]
        }
        run(
            part,
            positions=[p for _, its in rows for p in its],
            slots=[slot for slot, its in rows for _ in its],
        )
        ends = np.cumsum([len(its) for _, its in rows])[:-1]
        for (slot, _), out in zip(rows, np.split(run["out"], ends), strict=True):
            found[slot].append(out.copy())
    for slot in range(3):
        alone = Run(backend, op.plan(), n_slots=3)
        wanted = cut(alone, inputs[slot], [12], slot)
        assert np.array_equal(bits(np.concatenate(found[slot])), bits(wanted)), slot
        assert np.array_equal(bits(run.state(slot)), bits(alone.state(slot))), slot


@over_backends
@pytest.mark.parametrize("op", [OPS[0], OPS[2], OPS[4], OPS[8], OPS[17]], ids=str)
def test_a_sequence_may_begin_and_end_anywhere_in_a_tile_of_rows(backend: Backend, op: Op) -> None:
    """Kernels take prompts in tiles of 8 or 16 rows; a neighbour's rows lie before and behind."""
    inputs = [op.inputs(50, seed=10 * i) for i in range(3)]
    alone = Run(backend, op.plan(), n_slots=3)
    run = Run(backend, op.plan(), n_slots=3)
    for first in (13, 14, 15, 16):
        for length in (1, 2, 3, 18, 34):
            parts = [(0, range(first)), (1, range(length)), (2, range(5))]
            run(
                {
                    name: np.concatenate([inputs[slot][name][: len(its)] for slot, its in parts])
                    for name in inputs[0]
                },
                positions=[p for _, its in parts for p in its],
                slots=[slot for slot, its in parts for _ in its],
            )
            found = np.split(run["out"], [first, first + length])
            for (slot, its), out in zip(parts, found, strict=True):
                own = {name: values[: len(its)] for name, values in inputs[slot].items()}
                wanted = cut(alone, own, [len(its)], slot)
                assert np.array_equal(bits(out), bits(wanted)), (first, length, slot)
                state = bits(alone.state(slot))
                assert np.array_equal(bits(run.state(slot)), state), (first, length, slot)


@over_backends
@over_ops
def test_rows_of_no_sequence_touch_no_state(backend: Backend, op: Op) -> None:
    run = Run(backend, op.plan(), n_slots=2)
    cut(run, op.inputs(3), [3], 0)
    cut(run, op.inputs(3, seed=5), [3], 1)
    before = [bits(run.state(slot)) for slot in range(2)]
    # Padding, and slots that do not exist, at the start of a sequence and within one.
    for slot in (2, 3, 1000, NOWHERE):
        for positions in ([0, 1], [3, 4]):
            run(op.inputs(2, seed=8), positions=positions, slots=[slot] * 2)
            assert not run["out"].any()
    # Among the rows of one that exists.
    part = op.inputs(4, seed=9)
    run(part, positions=[3, 0, 0, 0], slots=[1, NOWHERE, NOWHERE, NOWHERE])
    assert np.array_equal(bits(run.state(0)), before[0])
    assert not np.array_equal(bits(run.state(1)), before[1])


@over_backends
@over_ops
def test_a_state_can_be_saved_copied_and_restored(backend: Backend, op: Op) -> None:
    inputs = op.inputs(12)
    run = Run(backend, op.plan(), n_slots=3)
    whole = cut(run, inputs, [12])
    cut(run, {name: values[:7] for name, values in inputs.items()}, [7])
    state = run.state(0)
    rest = {name: values[7:] for name, values in inputs.items()}

    def go_on(slot: int) -> Floats:
        run(rest, positions=range(7, 12), slots=[slot] * 5)
        return run["out"].copy()

    go_on(0)
    for slot in (2, 0):
        run.set_state(slot, state)
        assert np.array_equal(bits(go_on(slot)), bits(whole[7:])), slot


@over_backends
def test_a_state_of_another_size_or_slot_is_refused(backend: Backend) -> None:
    run = Run(backend, OPS[0].plan(), n_slots=2)
    state = run.state(1)
    with pytest.raises(ValueError, match="state = 1535 numbers: the state of a sequence has 1536"):
        run.set_state(1, state[:-1])
    refused: list[Callable[[], object]] = [lambda: run.state(2), lambda: run.set_state(2, state)]
    for call in refused:
        with pytest.raises(ValueError, match="slot = 2: must be below 2"):
            call()


@over_backends
def test_gates_at_their_ends(backend: Backend) -> None:
    """Nothing but numbers comes of finite gates: all is forgotten, or nothing, taken or left."""
    op = DeltaNet(2, 1, 16)
    inputs = op.inputs(12)
    ends = np.array([0.0, -0.0, 1e-38, 0.4, 20.0, 87.0, 88.8, 1e4, 3e38, -20.0, -88.8, -3e38])
    inputs["alpha"] = np.repeat(ends[:, None], 2, axis=1).astype(np.float32)
    inputs["beta"] = np.repeat(np.roll(ends, 5)[:, None], 2, axis=1).astype(np.float32)
    found = cut(Run(backend, op.plan()), inputs, [12])
    assert np.isfinite(found).all()
    with np.errstate(over="ignore"):
        assert nmse(found, op.exact(inputs)) <= backend.nmse


@over_backends
def test_a_scan_sums_in_the_stated_order(backend: Backend) -> None:
    """With steps and gates of 30, of which softplus and silu are 30, and a state that stays or
    goes as a whole."""
    op, n, ends = Scan(2, 1, 8, 48), 5, np.float32(30)
    channels = op.convolution.channels
    plan = Plan()
    projected = plan.buffer("projected", op.inner + channels + op.n_head)
    weights = {"a": np.array([0, -9], np.float32), "d": normal(2, seed=5)}
    weights["dt"] = np.zeros(2, np.float32)
    op.add(plan, projected, plan.buffer("convolved", channels), weights)
    rows = normal(n, channels)
    inputs = {"projected": np.full((n, op.inner + channels + 2), ends), "convolved": rows}
    found = Run(backend, plan)(inputs)["out"].reshape(n, 2, 8)
    b, c = rows[:, op.inner :][:, :48], rows[:, op.inner + 48 :]
    for head, stays in enumerate([1.0, 0.0]):
        state = np.zeros((48, 8), np.float32)
        for i in range(n):
            x = rows[i, 8 * head :][:8]
            u, before = ends * x, np.float32(stays) * state
            state = np.stack([stated.fma(b[i, r], u, before[r]) for r in range(48)])
            chains = np.zeros((16, 8), np.float32)
            for r in range(0, 48, 16):
                part = zip(state[r : r + 16], c[i, r : r + 16], chains, strict=True)
                chains = np.stack([stated.fma(s, q, y) for s, q, y in part])
            for _ in range(2):
                chains = np.stack([(w + x) + (y + z) for w, x, y, z in chains.reshape(-1, 4, 8)])
            wanted = ends * stated.fma(weights["d"][head], x, chains[0])
            assert np.array_equal(bits(found[i, head]), bits(wanted)), (head, i)


@over_backends
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_steps_that_are_not_finite_make_their_head_no_number(
    backend: Backend, value: float
) -> None:
    op = Scan(2, 1, 16, 32)
    inputs = op.inputs(6)
    clean = cut(Run(backend, op.plan()), inputs, [6])
    inputs["x"][3, -1] = value
    found = cut(Run(backend, op.plan()), inputs, [6])
    assert np.isnan(found[3:, 16:]).all()
    assert np.array_equal(bits(found[:3]), bits(clean[:3]))
    assert np.array_equal(bits(found[:, :16]), bits(clean[:, :16]))


@over_backends
@pytest.mark.parametrize("name", ["alpha", "beta"])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_gates_that_are_not_finite_make_their_head_no_number(
    backend: Backend, name: str, value: float
) -> None:
    """A state that stays whole, is forgotten, or takes nothing would hide them."""
    op = DeltaNet(2, 1, 16)
    inputs = op.inputs(6)
    clean = cut(Run(backend, op.plan()), inputs, [6])
    inputs[name][3, 1] = value
    found = cut(Run(backend, op.plan()), inputs, [6])
    assert np.isnan(found[3:, 16:]).all()
    assert np.array_equal(bits(found[:3]), bits(clean[:3]))
    assert np.array_equal(bits(found[:, :16]), bits(clean[:, :16]))


@over_backends
def test_a_sequence_that_was_no_number_leaves_nothing_to_the_next(backend: Backend) -> None:
    for op in (*OPS[:2], OPS[-1]):
        run = Run(backend, op.plan())
        inputs = op.inputs(6)
        fresh = cut(run, inputs, [6])
        broken = {name: np.full_like(values, np.nan) for name, values in inputs.items()}
        assert np.isnan(cut(run, broken, [6])).all()
        assert np.array_equal(bits(cut(run, inputs, [6])), bits(fresh))


#: What ops multiply by, of a gate.
FACTORS: dict[str, Callable[[NDArray[np.float64]], Any]] = {
    "sigmoid_mul": logistic,
    "softplus_mul": lambda gate: np.logaddexp(0.0, gate),
}


@over_backends
@pytest.mark.parametrize("op", FACTORS)
def test_a_product_with_a_function_of_a_gate(backend: Backend, op: str) -> None:
    plan = Plan()
    x, gate, out = (plan.buffer(name, 96) for name in ("x", "gate", "out"))
    plan.op(op, x=x, gate=gate, out=out)
    ends = np.array([0.0, -0.0, 88.8, -88.8, 1e30, -1e30, 20, -20], np.float32)
    gates = np.concatenate([np.resize(ends, (1, 96)), *(normal(9, 96, scale=s) for s in (1, 50))])
    values = normal(len(gates), 96, seed=2)
    inputs = {"x": values, "gate": gates}
    found = Run(backend, plan)(inputs)["out"]
    wanted = values * FACTORS[op](gates.astype(np.float64))
    # Beside the largest the others are nothing.
    for rows in (slice(1), slice(1, None)):
        assert nmse(found[rows], wanted[rows]) <= backend.nmse
    assert np.array_equal(bits(found), bits(Run(INTERPRETER, plan)(inputs)["out"]))


@over_backends
@pytest.mark.parametrize(("width", "gates"), [(96, 1), (96, 3), (7, 1), (640, 128)])
@pytest.mark.parametrize("rows", [1, 5, 70])
@pytest.mark.parametrize("op", FACTORS)
def test_a_gate_of_fewer_numbers_counts_for_runs_of_values(
    backend: Backend, op: str, width: int, gates: int, rows: int
) -> None:
    plan = Plan()
    x, out = plan.buffer("x", width), plan.buffer("out", width)
    plan.op(op, x=x, gate=plan.buffer("gate", gates), out=out)
    inputs = {"x": normal(rows, width), "gate": normal(rows, gates, seed=2, scale=5)}
    found = Run(backend, plan)(inputs)["out"]
    wide = np.repeat(inputs["gate"], width // gates, axis=1)
    assert nmse(found, inputs["x"] * FACTORS[op](wide.astype(np.float64))) <= backend.nmse
    assert np.array_equal(bits(found), bits(Run(INTERPRETER, plan)(inputs)["out"]))
    # The same as with a gate for each.
    plan = Plan()
    x, gate, out = (plan.buffer(name, width) for name in ("x", "gate", "out"))
    plan.op(op, x=x, gate=gate, out=out)
    each = Run(INTERPRETER, plan)({"x": inputs["x"], "gate": wide})["out"]
    assert np.array_equal(bits(found), bits(each))


@pytest.mark.parametrize("gates", [5, 192])
def test_a_gate_that_divides_no_row_is_refused(gates: int) -> None:
    plan = Plan()
    x, out = plan.buffer("x", 96), plan.buffer("out", 96)
    plan.op("sigmoid_mul", x=x, gate=plan.buffer("gate", gates), out=out)
    with pytest.raises(ValueError, match="widths or rows do not fit"):
        Run(INTERPRETER, plan)


@over_backends
@pytest.mark.parametrize(
    ("n", "first", "of", "width"), [(3, 0, 8, 4), (3, 4, 8, 4), (1, 5, 40, 35)]
)
def test_a_slice_of_each_part(backend: Backend, n: int, first: int, of: int, width: int) -> None:
    plan = Plan()
    x, out = plan.buffer("x", n * of), plan.buffer("out", n * width)
    plan.op("slice", x=x, out=out, n=n, first=first, of=of)
    values = normal(7, n * of)
    wanted = values.reshape(7, n, of)[:, :, first : first + width].reshape(7, -1)
    assert np.array_equal(Run(backend, plan)({"x": values})["out"], wanted)
