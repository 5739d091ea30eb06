"""Gemma 4's forward pass in NumPy, in float64: the part of `support.reference` for `gemma4`.

After the model's own description (https://ai.google.dev/gemma/docs) and the keys of its GGUF files:
layers that see a window and layers that see all differ in heads, angles and products.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from support.reference import Reference

Array = NDArray[np.float64]


def gelu(x: Array) -> Array:
    """By tanh (https://arxiv.org/abs/1606.08415)."""
    cubed = x + 0.044715 * x**3
    result: Array = 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * cubed))
    return result


def unit(x: Array, eps: float) -> Array:
    """Each row by its root mean square."""
    result: Array = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)
    return result


def logits(model: Reference, ids: Sequence[int]) -> Array:
    """Logits after each token of `ids`: float64 [len(ids), n_vocab]."""
    return _Pass(model, ids).logits()


def guesses(model: Reference, assistant: Reference, ids: Sequence[int]) -> tuple[Array, Array]:
    """Rows of the model after each token of `ids` but the last, and the logits that its assistant
    has, by each and the token that follows it, of the token behind. Its layers attend over the keys
    and values of the model's last layer of their kind."""
    of = _Pass(model, ids)
    rows = of.hidden()[:-1]
    return rows, _Pass(assistant, ids[1:]).guessed(of, rows)


def attended(q: Array, k: Array, v: Array, unseen: NDArray[np.bool_]) -> Array:
    """Attention of queries [n, heads, head_dim], whose scores are scaled by nothing: [n, -1]."""
    out = np.empty(q.shape)
    for head in range(q.shape[1]):
        its = head // (q.shape[1] // k.shape[1])
        scores = q[:, head] @ k[:, its].T
        scores[unseen] = -np.inf
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[:, head] = scores / scores.sum(axis=1, keepdims=True) @ v[:, its]
    return out.reshape(len(q), -1)


class _Pass:
    """One pass over `ids`."""

    def __init__(self, model: Reference, ids: Sequence[int]) -> None:
        self.model, self.ids = model, np.asarray(ids, dtype=np.int64)
        n_layer = int(self._key("block_count"))
        self.is_local = [bool(x) for x in self._key("attention.sliding_window_pattern")]
        heads = self._key("attention.head_count_kv")
        self.n_head_kv = heads if isinstance(heads, list) else [int(heads)] * n_layer
        self.first_shared = n_layer - int(self._key("attention.shared_kv_layers", 0))
        self.window = int(self._key("attention.sliding_window"))
        #: Of each layer that stores them, rotated keys, and values: [n, heads, head_dim].
        self.stored: dict[int, tuple[Array, Array]] = {}

    def _key(self, key: str, default: Any = None) -> Any:
        return self.model.key(key, default)

    def hidden(self) -> Array:
        """What the head multiplies."""
        m = self.model
        x = m.require("token_embd.weight")[self.ids].astype(np.float64) * math.sqrt(m.n_embd)
        told = self._told(x)
        for layer in range(m.n_layer):
            block = f"blk.{layer}"
            delta = self._attention(layer, m.norm(x, f"{block}.attn_norm"))
            x = x + m.norm(delta, f"{block}.post_attention_norm")
            x = x + m.norm(self._feed_forward(layer, x), f"{block}.post_ffw_norm")
            if told is not None:
                gate = gelu(m.linear(x, f"{block}.inp_gate"))
                delta = m.linear(gate * told[:, layer], f"{block}.proj")
                x = x + m.norm(delta, f"{block}.post_norm")
            scale = m.weight(f"{block}.layer_output_scale.weight")
            if scale is not None:
                x = x * float(scale[0])
        return m.norm(x, "output_norm")

    def logits(self) -> Array:
        m, n = self.model, len(self.ids)
        x = self.hidden()
        head = "output" if m.weight("output.weight") is not None else "token_embd"
        result = m.linear(x, head)
        assert result.shape == (n, m.n_vocab)
        cap = float(self._key("final_logit_softcapping", 0.0))
        return cap * np.tanh(result / cap) if cap else result

    def guessed(self, of: _Pass, rows: Array) -> Array:
        m, n = self.model, len(rows)
        embedding = of.model.require("token_embd.weight")[self.ids].astype(np.float64)
        both = np.concatenate([embedding * math.sqrt(of.model.n_embd), rows], axis=1)
        x = m.linear(both, "nextn.pre_projection")
        for layer, local in enumerate(self.is_local):
            block = f"blk.{layer}"
            q = self._queries(layer, m.norm(x, f"{block}.attn_norm"), first=1)
            source = max(i for i in of.stored if of.is_local[i] == local)
            unseen = np.triu(np.ones((n, n), dtype=bool), 1)
            if local:
                # The token itself, not stored yet, is one of those that the window holds.
                unseen |= np.tril(np.ones((n, n), dtype=bool), 1 - self.window)
            k, v = (kept[:n] for kept in of.stored[source])
            delta = m.linear(attended(q, k, v, unseen), f"{block}.attn_output")
            x = x + m.norm(delta, f"{block}.post_attention_norm")
            x = x + m.norm(self._feed_forward(layer, x), f"{block}.post_ffw_norm")
            x = x * float(m.require(f"{block}.layer_output_scale.weight")[0])
        return m.linear(m.norm(x, "output_norm"), "token_embd")

    def _told(self, x: Array) -> Array | None:
        """What each layer is told of each token, [n, n_layer, width]."""
        m, width = self.model, int(self._key("embedding_length_per_layer_input", 0))
        if not width:
            return None
        table = m.require("per_layer_token_embd.weight")[self.ids].astype(np.float64)
        parts = (len(x), m.n_layer, width)
        projected = m.linear(x, "per_layer_model_proj") / math.sqrt(m.n_embd)
        projected = m.norm(projected.reshape(parts), "per_layer_proj_norm")
        return (projected + table.reshape(parts) * math.sqrt(width)) / math.sqrt(2.0)

    def _attention(self, layer: int, x: Array) -> Array:
        m, n, block = self.model, len(x), f"blk.{layer}"
        local, n_kv = self.is_local[layer], self.n_head_kv[layer]
        q = self._queries(layer, x)
        d, rotate = q.shape[-1], self._rotation(n, local)
        if layer < self.first_shared:
            k = m.linear(x, f"{block}.attn_k").reshape(n, n_kv, d)
            v = k
            if m.weight(f"{block}.attn_v.weight") is not None:
                v = m.linear(x, f"{block}.attn_v").reshape(n, n_kv, d)
            k = rotate(m.norm(k, f"{block}.attn_k_norm"))
            self.stored[layer] = m.rounded(k), m.rounded(unit(v, m.eps))
        else:
            # The last that stores, of the same kind.
            layer = self.first_shared - (2 if local else 1)
            assert self.is_local[layer] == local
        k, v = self.stored[layer]
        unseen = np.triu(np.ones((n, n), dtype=bool), 1)
        if local:
            unseen |= np.tril(np.ones((n, n), dtype=bool), -self.window)
        return m.linear(attended(q, k, v, unseen), f"{block}.attn_output")

    def _queries(self, layer: int, x: Array, first: int = 0) -> Array:
        """Rotated, of rows at the positions from `first` on: [n, heads, head_dim]."""
        m, local = self.model, self.is_local[layer]
        d = int(self._key("attention.key_length_swa" if local else "attention.key_length"))
        q = m.linear(x, f"blk.{layer}.attn_q").reshape(len(x), m.n_head, d)
        q = self._rotation(len(x), local, first)(m.norm(q, f"blk.{layer}.attn_q_norm"))
        return np.asarray(q)

    def _rotation(self, n: int, local: bool, first: int = 0) -> Any:
        """The rotation of layers of a kind, of heads [n, heads, head_dim]."""
        dims = int(self._key("rope.dimension_count_swa" if local else "rope.dimension_count"))
        base = float(
            self._key("rope.freq_base_swa", 10000.0)
            if local
            else self._key("rope.freq_base", 10000.0)
        )
        half = dims // 2
        inv_freq = base ** (-2.0 * np.arange(half) / dims)
        if not local:
            inv_freq = inv_freq / self.model.require("rope_freqs.weight").astype(np.float64)
        angle = np.arange(first, first + n)[:, None, None] * inv_freq
        cos, sin = np.cos(angle), np.sin(angle)

        def rotate(x: Array) -> Array:
            out = x.copy()
            a, b = x[..., :half], x[..., half:dims]
            out[..., :half], out[..., half:dims] = a * cos - b * sin, a * sin + b * cos
            return out

        return rotate

    def _feed_forward(self, layer: int, x: Array) -> Array:
        m, block = self.model, f"blk.{layer}"
        rows = m.norm(x, f"{block}.ffn_norm")
        inner = gelu(m.linear(rows, f"{block}.ffn_gate")) * m.linear(rows, f"{block}.ffn_up")
        dense = m.linear(inner, f"{block}.ffn_down")
        if m.weight(f"{block}.ffn_gate_inp.weight") is None:
            return dense
        mixed = m.norm(self._experts(layer, x), f"{block}.post_ffw_norm_2")
        return m.norm(dense, f"{block}.post_ffw_norm_1") + mixed

    def _experts(self, layer: int, x: Array) -> Array:
        """The softmax over all experts, of those chosen divided by their sum, times their own
        factors."""
        m, block = self.model, f"blk.{layer}"
        scale = m.require(f"{block}.ffn_gate_inp.scale").astype(np.float64)
        scores = m.linear(unit(x, m.eps) / math.sqrt(m.n_embd) * scale, f"{block}.ffn_gate_inp")
        chosen = m.chosen(layer, scores)
        picked = np.take_along_axis(scores, chosen, axis=1)
        shares = np.exp(picked - picked.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        both = m.require(f"{block}.ffn_gate_up_exps.weight")
        down = m.require(f"{block}.ffn_down_exps.weight")
        factors = m.require(f"{block}.ffn_down_exps.scale").astype(np.float64)
        rows = m.norm(x, f"{block}.pre_ffw_norm_2")
        out = np.zeros_like(x)
        for expert in np.unique(chosen):
            at, slot = np.nonzero(chosen == expert)
            gate, up = np.split(rows[at] @ both[expert].T.astype(np.float64), 2, axis=1)
            inner = (gelu(gate) * up) @ down[expert].T.astype(np.float64)
            out[at] += shares[at, slot, None] * factors[expert] * inner
        return out
