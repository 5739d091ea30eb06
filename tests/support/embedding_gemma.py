"""EmbeddingGemma: small files with random weights, and an independent pass in NumPy.

write(path, SHAPES["dense"], "Q8_0")
vector = EmbeddingGemma(path).vector(ids, "mean")      # float64 [n_embd]
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from onegraph import _native

from support.encoders import POOLING, Doubles, attended, pooled, rotated, weights_of
from support.oracles import NORMAL, sentencepiece


@dataclass(frozen=True)
class Shape:
    """A model's sizes."""

    n_embd: int = 256
    n_ff: int = 512
    n_head: int = 4
    n_head_kv: int = 2
    head_dim: int = 128
    n_layer: int = 2
    n_ctx: int = 200
    window: int = 40
    period: int = 2
    #: Of the layer between both that stand behind the pooling; 0: there are none.
    n_dense: int = 0


#: The second has the published model's one head of keys, an odd window, and what it has behind the
#: pooling.
SHAPES = {
    "gemma-embedding": Shape(),
    "dense": Shape(n_head=3, n_head_kv=1, head_dim=256, window=71, n_dense=512),
}


def write(
    path: Path, shape: Shape, mix: str = "F32", pooling: str = "mean", without: str = ""
) -> Path:
    """A file of `shape`, its matrices of the type `mix`, `without` one of them."""
    rng = np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, "gemma-embedding")
    writer.add_block_count(shape.n_layer)
    writer.add_context_length(shape.n_ctx)
    writer.add_embedding_length(shape.n_embd)
    writer.add_feed_forward_length(shape.n_ff)
    writer.add_head_count(shape.n_head)
    writer.add_head_count_kv(shape.n_head_kv)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_sliding_window(shape.window)
    writer.add_sliding_window_pattern(shape.period)
    writer.add_pooling_type(gguf.PoolingType(POOLING[pooling]))
    data = sentencepiece()
    pieces = enumerate(zip(data["tokens"], data["token_type"], strict=True))
    short = [i for i, (text, kind) in pieces if kind != NORMAL or len(text) < 3]
    tokens = [data["tokens"][i] for i in short]
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores([data["scores"][i] for i in short])
    writer.add_token_types([data["token_type"][i] for i in short])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_eos_token(True)
    writer.add_add_space_prefix(False)

    def matrix(name: str, n_in: int, n_out: int, gain: float = 1.0) -> None:
        values = (rng.standard_normal((n_out, n_in)) * gain / math.sqrt(n_in)).astype(np.float32)
        if mix in ("F32", "F16"):
            writer.add_tensor(f"{name}.weight", values.astype(mix.replace("F", "float")))
            return
        quantized = np.frombuffer(_native.quantize(mix, values.reshape(-1)), np.uint8)
        kind = gguf.GGMLQuantizationType[mix]
        writer.add_tensor(f"{name}.weight", quantized.reshape(n_out, -1), raw_dtype=kind)

    def norm(name: str, n: int) -> None:
        values = 1 + 0.1 * rng.standard_normal(n)
        writer.add_tensor(f"{name}.weight", values.astype(np.float32))

    n, n_q, n_kv = shape.n_embd, shape.n_head * shape.head_dim, shape.n_head_kv * shape.head_dim
    matrix("token_embd", n, len(tokens), 2.0)
    norm("output_norm", n)
    for layer in range(shape.n_layer):
        at = f"blk.{layer}"
        for name in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
            norm(f"{at}.{name}", n)
        for name in ("attn_q_norm", "attn_k_norm"):
            norm(f"{at}.{name}", shape.head_dim)
        for name, width in (("attn_q", n_q), ("attn_k", n_kv), ("attn_v", n_kv)):
            matrix(f"{at}.{name}", n, width)
        matrix(f"{at}.attn_output", n_q, n)
        matrix(f"{at}.ffn_gate", n, shape.n_ff)
        matrix(f"{at}.ffn_up", n, shape.n_ff)
        matrix(f"{at}.ffn_down", shape.n_ff, n)
    if shape.n_dense:
        for name, n_in, n_out in (("dense_2", n, shape.n_dense), ("dense_3", shape.n_dense, n)):
            writer.add_dense_features_dims(name, n_in, n_out)
            if name != without:
                matrix(name, n_in, n_out)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


class EmbeddingGemma:
    """A file opened for an exact pass, in float64 (https://arxiv.org/abs/2509.20354)."""

    def __init__(self, path: Path) -> None:
        reader = gguf.GGUFReader(path)
        self._weights = weights_of(reader)
        key = lambda name: reader.fields[f"gemma-embedding.{name}"].contents()  # noqa: E731
        self.n_layer = int(key("block_count"))
        self.n_head = int(key("attention.head_count"))
        self.n_head_kv = int(key("attention.head_count_kv"))
        self.half = int(key("attention.sliding_window")) // 2
        self.period = int(key("attention.sliding_window_pattern"))
        self.base = float(key("rope.freq_base"))
        self.eps = float(key("attention.layer_norm_rms_epsilon"))

    def states(self, ids: list[int]) -> Doubles:
        """The last hidden state of each token."""
        x = self._weights["token_embd.weight"][ids]
        x = x * math.sqrt(x.shape[1])
        for layer in range(self.n_layer):
            at = f"blk.{layer}"
            sees_all = layer % self.period == self.period - 1
            delta = self._attention(self._norm(x, f"{at}.attn_norm"), at, sees_all)
            x = x + self._norm(delta, f"{at}.post_attention_norm")
            inner = self._norm(x, f"{at}.ffn_norm")
            gate = self._linear(inner, f"{at}.ffn_gate")
            cubed = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
            inner = gate / 2 * (1 + np.tanh(cubed)) * self._linear(inner, f"{at}.ffn_up")
            delta = self._linear(inner, f"{at}.ffn_down")
            x = x + self._norm(delta, f"{at}.post_ffw_norm")
        return self._norm(x, "output_norm")

    def vector(self, ids: list[int], pooling: str, dimensions: int | None = None) -> Doubles:
        """The text's vector, of length 1."""
        vector = pooled(self.states(ids), pooling)
        for name in ("dense_2", "dense_3"):
            if f"{name}.weight" in self._weights:
                vector = self._linear(vector, name)
        vector = vector[:dimensions]
        return vector / np.linalg.norm(vector)

    def _attention(self, x: Doubles, at: str, sees_all: bool) -> Doubles:
        q, k, v = (self._linear(x, f"{at}.attn_{part}") for part in "qkv")
        q, k, v = (
            row.reshape(len(x), n, -1).swapaxes(0, 1)
            for row, n in ((q, self.n_head), (k, self.n_head_kv), (v, self.n_head_kv))
        )
        base = self.base if sees_all else 10_000.0
        q = rotated(self._norm(q, f"{at}.attn_q_norm"), base)
        k = rotated(self._norm(k, f"{at}.attn_k_norm"), base)
        shared = self.n_head // self.n_head_kv
        k, v = (np.repeat(rows, shared, axis=0) for rows in (k, v))
        out = attended(q, k, v, None if sees_all else self.half)
        return self._linear(out, f"{at}.attn_output")

    def _linear(self, x: Doubles, name: str) -> Doubles:
        return x @ self._weights[f"{name}.weight"].T

    def _norm(self, x: Doubles, name: str) -> Doubles:
        size = np.sqrt((x * x).mean(axis=-1, keepdims=True) + self.eps)
        return x / size * self._weights[f"{name}.weight"]
