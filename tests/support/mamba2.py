"""Mamba-2's scan in NumPy, token by token: Dao and Gu 2024, https://arxiv.org/abs/2405.21060,
section 7, as its authors' layers use it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from support.delta_rule import logistic

Array = NDArray[np.float64]


def scan(x: Array, b: Array, c: Array, t: Array, a: Array, dt: Array, d: Array) -> Array:
    """The outputs [tokens, heads, head_dim] of `x` of the same shape; `b` and `c` are
    [tokens, groups, d_state], each of its share of the heads in turn, and `t` [tokens, heads]."""
    n, heads, head_dim = x.shape
    b, c = (np.repeat(each, heads // each.shape[1], axis=1) for each in (b, c))
    step = np.logaddexp(0.0, t + dt)
    stays = np.exp(a * step)
    state = np.zeros((heads, head_dim, b.shape[2]))
    out = np.empty_like(x)
    for i in range(n):
        update = np.einsum("hc,hn->hcn", step[i, :, None] * x[i], b[i])
        state = stays[i, :, None, None] * state + update
        out[i] = np.einsum("hcn,hn->hc", state, c[i]) + d[:, None] * x[i]
    return out


def gated(y: Array, z: Array) -> Array:
    """`y` through its gate."""
    return z * logistic(z) * y
