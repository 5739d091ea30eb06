"""Plans that do not fit together are refused before they run, with the op and what is wrong."""

import re
from typing import Any

import onegraph
import pytest
from support.backends import Backend, over_backends
from support.plans import Plan, Run, normal

FIT = "the widths or rows do not fit together, or the output is an input"

#: An op, its fields, and what its error says.
BAD: list[tuple[str, dict[str, Any], str]] = [
    ("embed", {"weight": 0, "out": 9}, "buffer 9 does not exist"),
    ("embed", {"weight": 9, "out": 0}, "weight 9 does not exist"),
    ("embed", {"weight": 0, "out": 2}, FIT),
    ("rms_norm", {"x": 0, "weight": 1, "out": 0, "group": 0, "eps": 1e-5}, FIT),
    # A weight is as wide as a group or as the row.
    ("rms_norm", {"x": 0, "weight": 2, "out": 0, "group": 16, "eps": 1e-5}, FIT),
    ("rms_norm", {"x": 0, "weight": 1, "out": 2, "group": 64, "eps": 1e-5}, FIT),
    ("rms_norm", {"x": 0, "weight": 0, "out": 0, "group": 64, "eps": 1e-5}, FIT),
    ("mat_vec", {"x": 2, "weight": 0, "bias": None, "out": 0}, FIT),
    ("mat_vec", {"x": 0, "weight": 0, "bias": None, "out": 0}, FIT),
    ("mat_vec", {"x": 0, "weight": 0, "bias": 2, "out": 1}, FIT),
    (
        "mat_vec",
        {"x": 0, "norm": {"weight": 9, "eps": 1e-5}, "weight": 0, "bias": None, "out": 1},
        "weight 9 does not exist",
    ),
    (
        "mat_vec",
        {"x": 0, "norm": {"weight": 0, "eps": 1e-5}, "weight": 0, "bias": None, "out": 1},
        FIT,
    ),
    (
        "mat_vec",
        {"x": 0, "norm": {"weight": 2, "eps": 1e-5}, "weight": 0, "bias": None, "out": 1},
        FIT,
    ),
    ("rope", {"x": 0, "n_head": 0, "style": "halves"}, FIT),
    ("rope", {"x": 0, "n_head": 3, "style": "halves"}, FIT),
    ("rope", {"x": 0, "n_head": 32, "style": "halves"}, FIT),
    ("kv_scatter", {"k": 0, "v": 0, "layer": 1}, FIT),
    ("kv_scatter", {"k": 0, "v": 2, "layer": 0}, FIT),
    ("attention", {"q": 0, "out": 1, "layer": 1, "n_head": 2, "scale": 1.0}, FIT),
    ("attention", {"q": 0, "out": 1, "layer": 0, "n_head": 3, "scale": 1.0}, FIT),
    ("attention", {"q": 0, "out": 0, "layer": 0, "n_head": 2, "scale": 1.0}, FIT),
    ("add", {"x": 0, "out": 2}, FIT),
    ("add", {"x": 0, "out": 0}, FIT),
    ("swi_glu", {"gate": 0, "up": 2, "out": 1}, FIT),
    ("swi_glu", {"gate": 0, "up": 1, "out": 0}, FIT),
    ("swi_glu", {"gate": 0, "up": 1, "out": 1}, FIT),
    ("select_rows", {"x": 0, "out": 2}, FIT),
    ("select_rows", {"x": 1, "out": 1}, FIT),
    # Buffer 3 has a row for each row that is wanted, the others one for each row of the batch.
    ("select_rows", {"x": 0, "out": 1}, FIT),
    ("embed", {"weight": 0, "out": 3}, FIT),
    ("mat_vec", {"x": 0, "weight": 0, "bias": None, "out": 3}, FIT),
    ("rope", {"x": 3, "n_head": 2, "style": "halves"}, FIT),
    ("attention", {"q": 3, "out": 3, "layer": 0, "n_head": 2, "scale": 1.0}, FIT),
    ("add", {"x": 0, "out": 3}, FIT),
]


def plan() -> Plan:
    plan = Plan(n_head_kv=2, head_dim=32, inv_freq=[1.0, 0.5])
    for name, width in [("a", 64), ("b", 64), ("narrow", 32)]:
        plan.buffer(name, width)
    plan.buffer("wanted", 64, rows="out")
    plan.weight("matrix", "F32", normal(64, 64).tobytes(), 64, 64)
    plan.vector("vector", normal(64))
    plan.vector("short", normal(32))
    return plan


@over_backends
@pytest.mark.parametrize(("op", "fields", "says"), BAD)
def test_an_op_that_does_not_fit(
    backend: Backend, op: str, fields: dict[str, Any], says: str
) -> None:
    bad = plan()
    bad.op("add", x=0, out=1)
    bad.op(op, **fields)
    with pytest.raises(onegraph.ArgumentError) as error:
        Run(backend, bad)
    text = str(error.value)
    assert text.startswith("plan = op 1, ") and says in text
    assert re.sub("_", "", op) in text.lower()


@over_backends
def test_logits_in_no_buffer(backend: Backend) -> None:
    bad = plan()
    bad._plan["logits"] = 7
    with pytest.raises(onegraph.ArgumentError, match="logits in buffer 7: there are 4 buffers"):
        Run(backend, bad)


@over_backends
@pytest.mark.parametrize("weight", [0, 2, 9])
def test_rope_factors_that_do_not_fit(backend: Backend, weight: int) -> None:
    bad = plan()
    bad._plan["ropes"][0]["factors"] = weight
    says = f"rope factors in weight {weight}: they must be a vector of 2 values"
    with pytest.raises(onegraph.ArgumentError, match=says):
        Run(backend, bad)


@over_backends
def test_what_is_no_plan(backend: Backend) -> None:
    bad = plan()
    bad.weight("w", "Q9_9", b"", 64, 64)
    with pytest.raises(onegraph.ArgumentError, match=r"Q9_9.*supported: F32"):
        Run(backend, bad)
    bad = plan()
    bad.op("mat_mul", x=0, out=1)
    with pytest.raises(onegraph.ArgumentError, match="unknown variant `mat_mul`"):
        Run(backend, bad)


def test_a_device_that_does_not_exist() -> None:
    with pytest.raises(onegraph.ModelError, match=r"device \"abacus\" is not supported.*cpu"):
        Run(Backend("abacus", nmse=0.0), plan())


@over_backends
def test_a_buffer_that_does_not_exist(backend: Backend) -> None:
    run = Run(backend, plan())
    with pytest.raises(
        onegraph.ArgumentError, match="buffer = c: the plan has none with this name"
    ):
        run.native.read("c")
    with pytest.raises(
        onegraph.ArgumentError, match="buffer = c: the plan has none with this name"
    ):
        run.native.write("c", b"")
