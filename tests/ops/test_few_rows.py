"""Products of two to eight rows of as many columns as have all parts, which on cards with clusters
have a kernel of their own, and of one row so wide that none beside it is small, which has a
multiprocessor to itself: the interpreter's bits."""

from __future__ import annotations

import numpy as np
import pytest
from support.backends import INTERPRETER, Backend, over_cards
from support.plans import Plan, Run, bits, encode, normal

pytestmark = pytest.mark.thorough

#: Widths of eight parts, even and uneven.
WIDTHS = [2048, 2304, 4608]
#: Columns of one row for a superblock a warp, for a few more than there are warps, and for several
#: each. As many rows of weights as are no small product on a card of 132 multiprocessors either.
WIDTHS_ALONE = [4096, 5120, 9216]
N_OUT_ALONE = 3000

over_types = pytest.mark.parametrize("ty", ["Q2_K", "Q8_0", "IQ4_NL", "Q6_K", "Q5_1", "Q4_K"])
over_norms = pytest.mark.parametrize("normed", [False, True], ids=["plain", "normed"])


def same(backend: Backend, plan: Plan, outs: list[str], inputs: dict[str, np.ndarray]) -> None:
    wanted, found = (Run(b, plan)(inputs) for b in (INTERPRETER, backend))
    for name in outs:
        differ = bits(found[name]) != bits(wanted[name])
        assert not differ.any(), (name, np.argwhere(differ)[:5], int(differ.sum()))


@over_cards
@over_norms
@over_types
@pytest.mark.parametrize("n_in", WIDTHS)
def test_products(backend: Backend, n_in: int, ty: str, normed: bool) -> None:
    # One meeting of the blocks, and several.
    for n_out, rows in [(33, 2), (500, 5), (300, 8), (3000, 3)]:
        plan = Plan()
        x = plan.buffer("x", n_in)
        norm = plan.norm("n", normal(n_in, seed=3), 1e-6) if normed else None
        for i in range(2):
            weight = plan.weight(f"w{i}", ty, encode(ty, normal(n_out, n_in, seed=i)), n_in, n_out)
            bias = plan.vector(f"b{i}", normal(n_out, seed=5)) if i else None
            out = plan.buffer(f"y{i}", n_out)
            plan.op("mat_vec", x=x, norm=norm, weight=weight, bias=bias, out=out)
        same(backend, plan, ["y0", "y1"], {"x": normal(rows, n_in, seed=rows)})


@over_cards
@over_norms
@over_types
@pytest.mark.parametrize("n_in", WIDTHS_ALONE)
def test_a_row_alone(backend: Backend, n_in: int, ty: str, normed: bool) -> None:
    plan = Plan()
    x, y = plan.buffer("x", n_in), plan.buffer("y", N_OUT_ALONE)
    norm = plan.norm("n", normal(n_in, seed=3), 1e-6) if normed else None
    data = encode(ty, normal(N_OUT_ALONE, n_in))
    weight = plan.weight("w", ty, data, n_in, N_OUT_ALONE)
    bias = plan.vector("b", normal(N_OUT_ALONE, seed=5))
    plan.op("mat_vec", x=x, norm=norm, weight=weight, bias=bias, out=y)
    same(backend, plan, ["y"], {"x": normal(1, n_in, seed=1)})
