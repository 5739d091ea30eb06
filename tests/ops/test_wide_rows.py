"""Products of one row that are alone on a multiprocessor, for none as wide is small: the
interpreter's bits."""

from __future__ import annotations

import numpy as np
import pytest
from support.backends import INTERPRETER, Backend, over_cards
from support.plans import Plan, Run, bits, encode, normal

#: Columns for a superblock a warp, for a few more than there are warps, and for several each. As
#: many rows as are no small product on a card of 132 multiprocessors either.
WIDTHS = [4096, 5120, 9216]
N_OUT = 3000


@over_cards
@pytest.mark.parametrize("normed", [False, True], ids=["plain", "normed"])
@pytest.mark.parametrize("ty", ["Q2_K", "Q8_0", "IQ4_NL", "Q6_K", "Q5_1", "Q4_K"])
@pytest.mark.parametrize("n_in", WIDTHS)
def test_a_row_alone(backend: Backend, n_in: int, ty: str, normed: bool) -> None:
    plan = Plan()
    x, y = plan.buffer("x", n_in), plan.buffer("y", N_OUT)
    norm = plan.norm("n", normal(n_in, seed=3), 1e-6) if normed else None
    weight = plan.weight("w", ty, encode(ty, normal(N_OUT, n_in)), n_in, N_OUT)
    bias = plan.vector("b", normal(N_OUT, seed=5))
    plan.op("mat_vec", x=x, norm=norm, weight=weight, bias=bias, out=y)
    inputs = {"x": normal(1, n_in, seed=1)}
    wanted, found = (Run(b, plan)(inputs)["y"] for b in (INTERPRETER, backend))
    differ = bits(found) != bits(wanted)
    assert not differ.any(), (np.argwhere(differ)[:5], int(differ.sum()))
