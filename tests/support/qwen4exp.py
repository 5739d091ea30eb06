"""Qwen3.8-Flash-Next's forward pass in NumPy, in float64: the part of `support.reference` for
`qwen4exp`.

After `transformers` (https://huggingface.co/docs/transformers/model_doc/qwen4_exp) and SGLang's
module of the n-gram embeddings, by the names and keys of GGUF files.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from support.delta_rule import logistic

if TYPE_CHECKING:
    from support.reference import Reference

Array = NDArray[np.float64]


def hidden(model: Reference, ids: Sequence[int]) -> Array:
    """What the head multiplies after each token: float64 [len(ids), n_embd]."""
    embedding = model.require("token_embd.weight")[np.asarray(ids)].astype(np.float64)
    n = int(model.key("hyper_connection.count"))
    streams = np.repeat(embedding[:, None], n, axis=1)
    for layer in range(model.n_layer):
        if layer in model.key("ple.layers", []):
            streams = streams + of_ngrams(model, layer, ids, streams)
        for name, block in (("hc_attn", model.mixer(layer)), ("hc_ffn", model.feed_forward)):
            normed, mixed = mix(model, f"blk.{layer}.{name}", streams)
            inject = 2 * logistic(model.linear(normed, f"blk.{layer}.{name}_inject") / n)
            streams = streams + inject[:, :, None] * block(layer, mixed)[:, None]
    return mix(model, "output_hc", streams)[1]


def grouped(model: Reference, x: Array, name: str) -> Array:
    """Each stream by its root mean square, times weights of its own: [tokens, streams, n_embd]."""
    weight = model.require(f"{name}.weight").astype(np.float64).reshape(x.shape[1:])
    result: Array = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + model.eps) * weight
    return result


def mix(model: Reference, name: str, streams: Array) -> tuple[Array, Array]:
    """All streams normalized, side by side, and what a block reads of them."""
    normed = grouped(model, streams, f"{name}_norm")
    flat = normed.reshape(len(normed), -1)
    low = model.linear(flat, f"{name}_down") / normed.shape[1]
    gate = logistic(model.linear(low * logistic(low), f"{name}_up")).reshape(normed.shape)
    return flat, (gate * normed).mean(axis=1)


def of_ngrams(model: Reference, layer: int, ids: Sequence[int], streams: Array) -> Array:
    """What embeddings of n-grams add to each stream."""
    n_embd, name = streams.shape[2], f"blk.{layer}.ple"
    table = model.require("per_layer_token_embd.weight")
    rows = table[ngrams(model, ids)].reshape(len(ids), -1).astype(np.float64)
    key = model.linear(rows, f"{name}_key").reshape(streams.shape)
    key, query = (
        grouped(model, key, f"{name}_norm_key"),
        grouped(model, streams, f"{name}_norm_query"),
    )
    score = (key * query).sum(axis=2) / math.sqrt(n_embd)
    gate = logistic(np.sign(score) * np.sqrt(np.maximum(np.abs(score), 1e-6)))
    gated = gate[:, :, None] * model.linear(rows, f"{name}_value")[:, None]
    flat = grouped(model, gated, f"{name}_norm_conv").reshape(len(ids), -1)
    weight = model.require(f"{name}_conv1d.weight").astype(np.float64)
    taps, apart = weight.shape[1], int(model.key("ple.ngram_size"))
    convolved = np.zeros_like(flat)
    for tap in range(taps):
        back = (taps - 1 - tap) * apart
        convolved[back:] += flat[: len(flat) - back] * weight[:, tap]
    result: Array = gated + (convolved * logistic(convolved)).reshape(streams.shape)
    return result


def ngrams(model: Reference, ids: Sequence[int]) -> NDArray[np.int64]:
    """The rows of the table that each token takes: [tokens, heads]."""
    size, eos = int(model.key("ple.ngram_size")), int(model.key("ple.eos_token_id"))
    multipliers, offsets, sizes = (
        [int(x) for x in model.key(f"ple.{key}")]
        for key in ("layer_multipliers", "head_offsets", "head_vocab_sizes")
    )
    per_length = len(sizes) // (size - 1)
    out = np.empty((len(ids), len(sizes)), dtype=np.int64)
    for at in range(len(ids)):
        tokens = [int(ids[at])]
        # What stands before the end of a text, or before the first token, is that end.
        for back in range(1, size):
            before = int(ids[at - back]) if at >= back else eos
            tokens.append(eos if back > 1 and tokens[-1] == eos else before)
        for head in range(len(sizes)):
            mixed = 0
            for token, by in zip(tokens[: 2 + head // per_length], multipliers, strict=False):
                mixed ^= token * by % 2**64
            out[at, head] = offsets[head] + mixed % sizes[head]
    return out


def seen(model: Reference, layer: int, x: Array) -> NDArray[np.bool_]:
    """The tokens that each row sees, of those up to its own: [tokens, tokens]. All of the block
    that is not whole, and whole ones of the largest scores, of equals the earlier ones."""
    n, name = len(x), f"blk.{layer}.indexer"
    heads, dim = (
        int(model.key(f"attention.indexer.{key}")) for key in ("head_count", "key_length")
    )
    ratio = max(int(r) for r in model.key("attention.compress_ratios"))
    most = int(model.key("attention.indexer.top_k")) // ratio
    q = model.norm(model.linear(x, f"{name}.q_proj").reshape(n, heads, dim), f"{name}.q_norm")
    q = model.rotated(q, np.arange(n))
    keys = model.rounded(model.linear(x, f"{name}.k_proj"))[: n // ratio * ratio]
    keys = keys.reshape(-1, ratio, dim).mean(axis=1)
    keys = model.rotated(model.norm(keys, f"{name}.k_norm")[:, None], np.arange(len(keys)) * ratio)[
        :, 0
    ]
    scores = np.maximum(q @ keys.T, 0.0).sum(axis=1)
    result = np.zeros((n, n), dtype=bool)
    for row in range(n):
        whole = (row + 1) // ratio
        best = np.argsort(-scores[row, :whole], kind="stable")[:most]
        result[row, (best[:, None] * ratio + np.arange(ratio)).reshape(-1)] = True
        result[row, whole * ratio : row + 1] = True
    return result
