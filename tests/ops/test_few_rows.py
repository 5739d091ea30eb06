"""Products of two to eight rows of as many columns as have all parts, which on cards with clusters
have a kernel of their own: the interpreter's bits."""

from __future__ import annotations

import numpy as np
import pytest
from support.backends import INTERPRETER, Backend, over_cards
from support.plans import Plan, Run, bits, encode, normal

#: Widths of eight parts, even and uneven.
WIDTHS = [2048, 2304, 4608]


def same(backend: Backend, plan: Plan, outs: list[str], inputs: dict[str, np.ndarray]) -> None:
    wanted, found = (Run(b, plan)(inputs) for b in (INTERPRETER, backend))
    for name in outs:
        differ = bits(found[name]) != bits(wanted[name])
        assert not differ.any(), (name, np.argwhere(differ)[:5], int(differ.sum()))


@over_cards
@pytest.mark.parametrize("normed", [False, True], ids=["plain", "normed"])
@pytest.mark.parametrize("ty", ["Q2_K", "Q8_0", "IQ4_NL", "Q6_K", "Q5_1", "Q4_K"])
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
