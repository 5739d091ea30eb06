"""Hyper-connections and rows of n-grams: what these ops compute, to the bit on every backend."""

from typing import Any

import numpy as np
import pytest
from support.backends import INTERPRETER, Backend, over_backends, over_cards
from support.delta_rule import logistic
from support.plans import Floats, Plan, Run, bits, decode, encode, nmse, normal

ROWS = [1, 5, 70]
#: Streams, and values of each.
SHAPES = [(4, 256), (2, 100), (8, 33), (4, 1300)]


def mean(n: int, width: int) -> Plan:
    plan = Plan()
    x, gate = plan.buffer("x", n * width), plan.buffer("gate", n * width)
    plan.op("streams", what="mean", x=x, gate=gate, out=plan.buffer("out", width), n=n)
    return plan


def inject(n: int, width: int) -> Plan:
    plan = Plan()
    x, gate = plan.buffer("x", width), plan.buffer("gate", n)
    streams = plan.buffer("out", n * width)
    plan.op("streams", what="inject", x=x, gate=gate, streams=streams, n=n)
    return plan


def gated(n: int, width: int) -> Plan:
    plan = Plan()
    key, query = plan.buffer("key", n * width), plan.buffer("query", n * width)
    value, out = plan.buffer("value", width), plan.buffer("out", n * width)
    plan.op("streams", what="gate", key=key, query=query, value=value, out=out, n=n)
    return plan


def inputs_of(plan: Plan, rows: int) -> dict[str, Floats]:
    """Of all buffers but `out`, which `inject` alone reads."""
    wanted = [
        b for b in plan._plan["buffers"] if b["name"] != "out" or len(plan._plan["buffers"]) == 3
    ]
    return {b["name"]: normal(rows, b["width"], seed=i) for i, b in enumerate(wanted)}


def exact(what: Any, inputs: dict[str, Floats], n: int) -> np.ndarray:
    wide = {name: values.astype(np.float64) for name, values in inputs.items()}
    streams = {name: v.reshape(len(v), n, -1) for name, v in wide.items() if not v.shape[1] % n}
    if what is mean:
        result: np.ndarray = (streams["x"] * logistic(streams["gate"])).mean(axis=1)
        return result
    if what is inject:
        by = 2 * logistic(wide["gate"] / n)
        return wide["out"] + (by[:, :, None] * wide["x"][:, None]).reshape(len(by), -1)
    score = (streams["key"] * streams["query"]).sum(axis=2) / np.sqrt(wide["value"].shape[1])
    gate = logistic(np.sign(score) * np.sqrt(np.maximum(np.abs(score), 1e-6)))
    return (gate[:, :, None] * wide["value"][:, None]).reshape(len(gate), -1)


over_ops = pytest.mark.parametrize("what", [mean, inject, gated])


@over_backends
@over_ops
@pytest.mark.parametrize(("n", "width"), SHAPES)
def test_it_computes_what_it_says(backend: Backend, what: Any, n: int, width: int) -> None:
    plan = what(n, width)
    for rows in ROWS:
        inputs = inputs_of(plan, rows)
        found = Run(backend, plan)(inputs)["out"]
        assert nmse(found, exact(what, inputs, n)) <= backend.nmse


@over_cards
@over_ops
@pytest.mark.parametrize(("n", "width"), SHAPES)
def test_it_has_the_interpreters_bits(backend: Backend, what: Any, n: int, width: int) -> None:
    plan = what(n, width)
    for rows in ROWS:
        inputs = inputs_of(plan, rows)
        # Gates at their ends, and scores of all sizes.
        for i, end in enumerate((0.0, -0.0, 1e-9, 88.8, -3e38, np.inf, -np.inf, np.nan)):
            for name in ("gate", "key"):
                if name in inputs:
                    inputs[name][0, i % inputs[name].shape[1]] = end
        found, wanted = (Run(on, plan)(inputs)["out"] for on in (backend, INTERPRETER))
        assert np.array_equal(found, wanted, equal_nan=True), rows
        numbers = ~np.isnan(wanted)
        assert np.array_equal(bits(found[numbers]), bits(wanted[numbers])), rows


@over_backends
def test_a_score_of_nothing_opens_a_gate_halfway(backend: Backend) -> None:
    plan = gated(2, 40)
    inputs = inputs_of(plan, 2)
    inputs["key"][:] = 0
    found = Run(backend, plan)(inputs)["out"].reshape(2, 2, 40)
    assert np.array_equal(found, np.repeat(inputs["value"][:, None] / 2, 2, axis=1))


@over_backends
def test_tokens_are_numbered_from_one(backend: Backend) -> None:
    plan = Plan()
    plan.op("ngram", what="tokens", out=plan.buffer("out", 1))
    tokens = [0, 7, 255_999, 2**24 - 2]
    found = Run(backend, plan)({}, tokens=tokens, positions=range(4))["out"]
    assert found[:, 0].tolist() == [token + 1 for token in tokens]


EOS = 9


def chosen(tokens: list[int], by: list[int], heads: list[tuple[int, int]]) -> list[int]:
    """Rows of a table that the tokens, the newest first, choose; None stands before a text."""
    cut, seen = False, []
    for j, token in enumerate(tokens):
        cut = cut or (j > 0 and token in (-1, EOS))
        seen.append(EOS if cut else token)
    per_length = len(heads) // (len(tokens) - 1)
    out = []
    for h, (offset, size) in enumerate(heads):
        mixed = 0
        for token, factor in list(zip(seen, by, strict=True))[: 2 + h // per_length]:
            mixed ^= token * factor % 2**64
        out.append(offset + mixed % size)
    return out


@over_backends
@pytest.mark.parametrize("ty", ["IQ4_NL", "Q8_0", "F16", "Q5_1"])
@pytest.mark.parametrize(("width", "each"), [(32, 8), (160, 8), (96, 1)])
@pytest.mark.parametrize(("n", "per_length"), [(3, 8), (2, 1), (4, 2)])
def test_hashes_choose_rows(
    backend: Backend, n: int, per_length: int, width: int, each: int, ty: str
) -> None:
    """A row of the matrix is `each` of the table's."""
    heads = [(3 + 50 * h, 47 + h % 3) for h in range(per_length * (n - 1))]
    rows = -(-(heads[-1][0] + heads[-1][1]) // (16 * each)) * 16 * each
    data = encode(ty, normal(rows, width))
    by = [2**45 + 12345 * j + 1 for j in range(n - 1)] + [2**63 + 5]
    plan = Plan()
    plan.op(
        "ngram",
        what="rows",
        recent=plan.buffer("x", n),
        weight=plan.weight("table", ty, data, each * width, rows // each),
        out=plan.buffer("out", len(heads) * width),
        table={
            "width": width,
            "eos": EOS,
            "multipliers": by,
            "heads": [{"offset": offset, "size": size} for offset, size in heads],
        },
    )
    tokens = np.random.default_rng(n).integers(-1, 14, (40, n))
    tokens[:, 0] = np.abs(tokens[:, 0]) + 200_000 * (np.arange(40) % 2)
    table = decode(ty, data).reshape(rows, width)
    picked = [chosen(row, by, heads) for row in tokens.tolist()]
    found = Run(backend, plan)({"x": (tokens + 1).astype(np.float32)})["out"]
    assert np.array_equal(bits(found), bits(table[picked].reshape(len(tokens), -1)))
