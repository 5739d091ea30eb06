"""The gated delta rule in NumPy, token by token: Yang et al. 2024, https://arxiv.org/abs/2412.06464,
as Qwen3-Next's layers use it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def logistic(x: Array) -> Array:
    """1 / (1 + exp(-x))."""
    with np.errstate(over="ignore"):  # exp(-x) = inf gives the right limit, 0
        result: Array = 1.0 / (1.0 + np.exp(-x))
    return result


def causal_convolution(x: Array, weight: Array) -> Array:
    """`x` [tokens, channels] with `weight` [channels, taps]; zeros stand before the first token."""
    taps = weight.shape[1]
    padded = np.concatenate([np.zeros((taps - 1, x.shape[1])), x])
    return sum((padded[j : j + len(x)] * weight[:, j] for j in range(taps)), np.zeros_like(x))


def delta_rule(
    q: Array,
    k: Array,
    v: Array,
    alpha: Array,
    beta: Array,
    a: Array,
    dt: Array,
    eps: float,
    *,
    grouped: bool = False,
) -> Array:
    """The outputs [tokens, heads, d] of queries and keys [tokens, key heads, d] and values
    [tokens, heads, d]; head h of the values goes with head h % key heads, or where they are
    `grouped` with head h * key heads // heads."""
    n, heads, d = v.shape
    q = q / np.sqrt((q * q).sum(axis=-1, keepdims=True) + eps) / np.sqrt(d)
    k = k / np.sqrt((k * k).sum(axis=-1, keepdims=True) + eps)
    stays = np.exp(a * np.logaddexp(0.0, alpha + dt))
    taken = logistic(beta)
    state = np.zeros((heads, d, d))
    out = np.empty_like(v)
    of_keys = np.arange(heads) * q.shape[1] // heads if grouped else np.arange(heads) % q.shape[1]
    for t in range(n):
        q_t, k_t = q[t, of_keys], k[t, of_keys]
        state = state * stays[t, :, None, None]
        missing = v[t] - np.einsum("hic,hi->hc", state, k_t)
        state = state + k_t[:, :, None] * (missing * taken[t, :, None])[:, None, :]
        out[t] = np.einsum("hic,hi->hc", state, q_t)
    return out
