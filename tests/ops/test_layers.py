"""Layers that are not alike in one plan: each has the bits that it has alone."""

from dataclasses import dataclass

import numpy as np
import pytest
from support.backends import Backend, over_backends
from support.plans import PAGE, Floats, Plan, Run, head_bytes, normal

pytestmark = pytest.mark.thorough

#: Tokens of the sequence.
N = 70


@dataclass(frozen=True)
class Layer:
    n_head: int
    n_head_kv: int
    head_dim: int
    #: Frequencies of its own table of angles.
    inv_freq: tuple[float, ...]

    def append(self, plan: Plan, name: str, cache: int, table: int, *, stores: bool = True) -> None:
        """Rotates q and k, stores k and v, and attends into `out`, all of them of that `name`."""
        q = plan.buffer(f"q{name}", self.n_head * self.head_dim)
        k, v = (plan.buffer(f"{x}{name}", self.n_head_kv * self.head_dim) for x in "kv")
        out = plan.buffer(f"out{name}", self.n_head * self.head_dim)
        plan.op("rope", x=q, n_head=self.n_head, table=table, style="halves")
        if stores:
            plan.op("rope", x=k, n_head=self.n_head_kv, table=table, style="halves")
            plan.op("kv_scatter", k=k, v=v, layer=cache)
        scale = self.head_dim**-0.5
        plan.op("attention", q=q, out=out, layer=cache, n_head=self.n_head, scale=scale)

    def inputs(self, name: str, seed: int) -> dict[str, Floats]:
        wide, narrow = self.n_head * self.head_dim, self.n_head_kv * self.head_dim
        widths = {"q": wide, "k": narrow, "v": narrow}
        return {
            f"{x}{name}": normal(N, n, seed=seed + i) for i, (x, n) in enumerate(widths.items())
        }


LAYERS = [
    Layer(4, 2, 64, tuple(0.5**i for i in range(32))),
    Layer(6, 3, 32, tuple(0.7**i for i in range(16))),
    # Part of each head is rotated.
    Layer(8, 1, 128, tuple(0.9**i for i in range(8))),
]


def outs(backend: Backend, run: Run, inputs: dict[str, Floats], name: str) -> Floats:
    found = []
    for part in backend.pieces(N, backend.max_rows or N):
        run({x: values[part] for x, values in inputs.items()}, positions=part)
        found.append(run[name].copy())
    return np.concatenate(found)


def alone(backend: Backend, layer: Layer, inputs: dict[str, Floats], kv_type: str) -> Floats:
    plan = Plan(n_head_kv=layer.n_head_kv, head_dim=layer.head_dim, inv_freq=layer.inv_freq)
    layer.append(plan, "", 0, 0)
    run = Run(backend, plan, n_ctx=2 * PAGE, n_pages=3, kv_type=kv_type)
    return outs(backend, run, inputs, "out")


@over_backends
@pytest.mark.parametrize("kv_type", ["I16", "F32", "Q8_0"])
def test_layers_of_any_shape_have_the_bits_that_each_has_alone(
    backend: Backend, kv_type: str
) -> None:
    plan = Plan(n_layer=0)
    inputs: dict[str, Floats] = {}
    for i, layer in enumerate(LAYERS):
        # Between them layers without a cache.
        cache = plan.cache(layer.n_head_kv, layer.head_dim)
        assert plan.cache(0, layer.head_dim) == cache + 1
        layer.append(plan, str(i), cache, plan.rope_table(layer.inv_freq))
        inputs |= layer.inputs(str(i), 10 * i)
    # One more that reads what the second has stored.
    shared = LAYERS[1]
    shared.append(plan, "3", 2, plan.rope_table(shared.inv_freq), stores=False)
    inputs["q3"] = normal(N, shared.n_head * shared.head_dim, seed=99)

    run = Run(backend, plan, n_ctx=2 * PAGE, n_pages=3, kv_type=kv_type)
    sizes = [(layer.n_head_kv, head_bytes(kv_type, layer.head_dim)) for layer in LAYERS]
    assert len(run.kv) == sum(2 * 3 * PAGE * heads * (size or 0) for heads, size in sizes)
    together = {f"out{i}": outs(backend, run, inputs, f"out{i}") for i in range(4)}
    for i, layer in enumerate(LAYERS):
        its = {x[0]: values for x, values in inputs.items() if x[1:] == str(i)}
        wanted = alone(backend, layer, its, kv_type)
        assert np.array_equal(together[f"out{i}"].view("u4"), wanted.view("u4")), i
    its = {"q": inputs["q3"], "k": inputs["k1"], "v": inputs["v1"]}
    wanted = alone(backend, shared, its, kv_type)
    assert np.array_equal(together["out3"].view("u4"), wanted.view("u4"))


@over_backends
def test_a_pool_of_unlike_layers_is_read_and_written_byte_by_byte(backend: Backend) -> None:
    plan = Plan(n_layer=0)
    inputs: dict[str, Floats] = {}
    for i, layer in enumerate(LAYERS):
        table = plan.rope_table(layer.inv_freq)
        layer.append(plan, str(i), plan.cache(layer.n_head_kv, layer.head_dim), table)
        inputs |= layer.inputs(str(i), 10 * i)
    run = Run(backend, plan, n_ctx=2 * PAGE, n_pages=3, kv_type="I16")
    pool = np.random.default_rng(5).integers(0, 256, len(run.kv), np.uint8)
    run.kv = pool
    assert np.array_equal(run.kv, pool)
    # Token 3 of the sequence, whose first page is page 1: nothing else changes.
    run({x: values[:1] for x, values in inputs.items()}, positions=[3])
    changed = run.kv != pool
    at = 0
    for layer in LAYERS:
        size = head_bytes("I16", layer.head_dim)
        assert size is not None
        shape = (3, 2, layer.n_head_kv, PAGE, size)
        its = changed[at : at + int(np.prod(shape))].reshape(shape)
        assert its[1, :, :, 3].any(axis=-1).all(), "every head is stored"
        its[1, :, :, 3] = False
        assert not its.any()
        at += its.size
    assert at == len(pool)
