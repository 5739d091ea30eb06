"""Encoders: small files with random weights, and an independent pass in NumPy.

write(path, SHAPES["bert"], "Q8_0", pooling="mean")
states = Encoder(path).states(ids)      # float64 [len(ids), n_embd]
"""

from __future__ import annotations

import json
import math
import re
import string
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from onegraph import _native

from support.oracles import unigram

Doubles = NDArray[np.float64]

#: Numbers of `pooling_type`.
POOLING = {"none": 0, "mean": 1, "cls": 2, "last": 3, "rank": 4}

_erfc = np.vectorize(math.erfc)


@dataclass(frozen=True)
class Shape:
    """An encoder's sizes."""

    n_embd: int
    n_ff: int
    n_head: int
    n_layer: int = 2
    n_ctx: int = 200
    n_types: int = 2
    eps: float = 1e-12
    arch: str = "bert"
    unigram: bool = False


#: The second has rows and heads that are no multiples of what kernels like, the last two the
#: tokenizer and the one type of bge-m3.
SHAPES = {
    "bert": Shape(256, 512, 4),
    "odd": Shape(96, 160, 3, n_layer=3, n_types=0, eps=1e-5),
    "nomic-bert": Shape(256, 512, 4, arch="nomic-bert"),
    "xlm-r": Shape(256, 512, 4, n_types=1, eps=1e-5, unigram=True),
    "nomic-bert-moe": Shape(256, 512, 4, n_types=1, eps=1e-5, arch="nomic-bert-moe", unigram=True),
}

#: Of a layer that has experts; two of them are chosen.
N_EXPERT = 4

WORDS = ["the", "tea", "cup", "of", "sky", "is", "blue", "why", "naive", "rain", "日", "本"]


def vocabulary() -> list[str]:
    """Tokens as files spell them: special ones, beginnings of words, and what goes on with one."""
    alone = [*string.ascii_lowercase, *string.digits, *string.punctuation, *WORDS]
    more = [*string.ascii_lowercase, *string.digits, "ing", "ea", "##"]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return [*special, *(f"▁{text}" for text in alone), *more]


def _unigram(writer: gguf.GGUFWriter) -> list[str]:
    """Adds XLM-R's kind of vocabulary; between two texts stand two of its separators."""
    data = unigram()
    writer.add_tokenizer_model(data["model"])
    writer.add_tokenizer_pre(data["pre"])
    writer.add_token_list(data["tokens"])
    writer.add_token_scores(data["scores"])
    writer.add_token_types(data["token_type"])
    writer.add_precompiled_charsmap(data["precompiled_charsmap"])
    writer.add_add_space_prefix(True)
    writer.add_remove_extra_whitespaces(True)
    writer.add_bos_token_id(0)
    writer.add_pad_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_sep_token_id(2)
    writer.add_unk_token_id(3)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(True)
    writer.add_add_sep_token(True)
    tokens: list[str] = data["tokens"]
    return tokens


def write(
    path: Path, shape: Shape, mix: str = "F32", pooling: str = "", seed: int = 1, **keys: Any
) -> Path:
    """A file of `shape`, its matrices of the type `mix`; `keys` are more of its own."""
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, shape.arch)
    learned, has_experts = shape.arch == "bert", shape.arch == "nomic-bert-moe"
    if not learned:
        writer.add_rope_freq_base(1000.0)
    if has_experts:
        writer.add_moe_every_n_layers(2)
        writer.add_expert_count(N_EXPERT)
        writer.add_expert_used_count(2)
    writer.add_block_count(shape.n_layer)
    writer.add_context_length(shape.n_ctx)
    writer.add_embedding_length(shape.n_embd)
    writer.add_feed_forward_length(shape.n_ff)
    writer.add_head_count(shape.n_head)
    writer.add_layer_norm_eps(shape.eps)
    writer.add_causal_attention(False)
    writer.add_token_type_count(max(shape.n_types, 1))
    if pooling:
        writer.add_pooling_type(gguf.PoolingType(POOLING[pooling]))
    for key, value in keys.items():
        writer.add_key_value(key.replace("__", "."), value, gguf.GGUFValueType.get_type(value))
    if shape.unigram:
        tokens = _unigram(writer)
    else:
        tokens = vocabulary()
        writer.add_tokenizer_model("bert")
        writer.add_tokenizer_pre("jina-v2-en")
        writer.add_token_list(tokens)
        writer.add_token_types([3 if text[0] == "[" and len(text) > 2 else 1 for text in tokens])
        writer.add_unk_token_id(1)
        writer.add_bos_token_id(2)
        writer.add_sep_token_id(3)
        writer.add_pad_token_id(0)
        writer.add_mask_token_id(4)

    def matrix(name: str, n_in: int, n_out: int | tuple[int, int], size: float) -> None:
        rows = n_out if isinstance(n_out, tuple) else (n_out,)
        values = (rng.standard_normal((*rows, n_in)) * size).astype(np.float32)
        kind = gguf.GGMLQuantizationType[mix]
        if mix == "F32" or name.endswith("gate_inp.weight"):
            writer.add_tensor(name, values)
        elif mix == "F16":
            writer.add_tensor(name, values.astype(np.float16))
        else:
            data = np.frombuffer(_native.quantize(mix, values.reshape(-1)), np.uint8)
            writer.add_tensor(name, data.reshape(*rows, -1), raw_dtype=kind)

    def vector(name: str, n: int, middle: float) -> None:
        writer.add_tensor(name, (middle + 0.1 * rng.standard_normal(n)).astype(np.float32))

    def norm(name: str) -> None:
        vector(f"{name}.weight", shape.n_embd, 1.0)
        vector(f"{name}.bias", shape.n_embd, 0.0)

    def linear(name: str, n_in: int, n_out: int, gain: float = 1.0) -> None:
        matrix(f"{name}.weight", n_in, n_out, gain / math.sqrt(n_in))
        if shape.arch != "nomic-bert":
            vector(f"{name}.bias", n_out, 0.0)

    n = shape.n_embd
    matrix("token_embd.weight", n, len(tokens), 1.0)
    rows = {"position_embd": shape.n_ctx if learned else 0, "token_types": shape.n_types}
    for name, count in rows.items():
        if count:
            table = (0.5 * rng.standard_normal((count, n))).astype(np.float32)
            writer.add_tensor(f"{name}.weight", table)
    norm("token_embd_norm")
    if pooling == "rank":
        linear("cls", n, n)
        linear("cls.output", n, 1, 3.0)
    for layer in range(shape.n_layer):
        at = f"blk.{layer}"
        if learned:
            for part, gain in (("attn_q", 1.5), ("attn_k", 1.5), ("attn_v", 1.0)):
                linear(f"{at}.{part}", n, n, gain)
        else:
            linear(f"{at}.attn_qkv", n, 3 * n, 1.3)
        linear(f"{at}.attn_output", n, n, 2.0)
        norm(f"{at}.attn_output_norm")
        if has_experts and layer % 2:
            matrix(f"{at}.ffn_gate_inp.weight", n, N_EXPERT, 1.0 / math.sqrt(n))
            matrix(f"{at}.ffn_up_exps.weight", n, (N_EXPERT, shape.n_ff), 1.5 / math.sqrt(n))
            matrix(f"{at}.ffn_down_exps.weight", shape.n_ff, (N_EXPERT, n), 1.0 / math.sqrt(n))
        else:
            if shape.arch == "nomic-bert":
                linear(f"{at}.ffn_gate", n, shape.n_ff, 1.5)
            linear(f"{at}.ffn_up", n, shape.n_ff, 1.5)
            linear(f"{at}.ffn_down", shape.n_ff, n)
        norm(f"{at}.layer_output_norm")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def weights_of(reader: gguf.GGUFReader) -> dict[str, Doubles]:
    """A file's tensors, by name."""
    weights = {}
    for tensor in reader.tensors:
        flat = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        dims = tuple(int(d) for d in reversed(tensor.shape))
        weights[tensor.name] = np.asarray(flat, np.float64).reshape(dims)
    return weights


def rotated(x: Doubles, base: float) -> Doubles:
    """Heads `[heads, rows, head_dim]`, each row turned by its place, in halves."""
    half = x.shape[2] // 2
    angles = np.arange(x.shape[1])[:, None] * base ** (-np.arange(half) / half)
    cos, sin, (u, v) = np.cos(angles), np.sin(angles), np.split(x, 2, axis=2)
    return np.concatenate([u * cos - v * sin, u * sin + v * cos], axis=2)


def attended(q: Doubles, k: Doubles, v: Doubles, half: int | None = None) -> Doubles:
    """What rows find, of `[heads, rows, head_dim]` each: `[rows, heads * head_dim]`; with `half`,
    of no row further away."""
    scores = q @ k.swapaxes(1, 2) / math.sqrt(q.shape[2])
    if half is not None:
        row = np.arange(q.shape[1])
        scores[:, np.abs(row[:, None] - row) > half] = -np.inf
    shares = np.exp(scores - scores.max(axis=2, keepdims=True))
    shares /= shares.sum(axis=2, keepdims=True)
    return (shares @ v).swapaxes(0, 1).reshape(q.shape[1], -1)


def pooled(states: Doubles, pooling: str) -> Doubles:
    """One vector of a text's states."""
    return {"cls": states[0], "last": states[-1], "mean": states.mean(axis=0)}[pooling]


class Encoder:
    """A file opened for an exact pass, in float64 (https://arxiv.org/abs/1810.04805), of Nomic's
    too (https://arxiv.org/abs/2402.01613)."""

    def __init__(self, path: Path) -> None:
        reader = gguf.GGUFReader(path)
        self._weights = weights_of(reader)
        arch = reader.fields["general.architecture"].contents()
        key = lambda name: reader.fields[f"{arch}.{name}"].contents()  # noqa: E731
        self.rope_base = float(key("rope.freq_base")) if arch != "bert" else None
        self.arch = arch
        self.n_layer = int(key("block_count"))
        self.n_head = int(key("attention.head_count"))
        self.eps = float(key("attention.layer_norm_epsilon"))

    def states(self, ids: list[int], second: int | None = None) -> Doubles:
        """The last hidden state of each token; of a pair, where the `second` text begins."""
        x = self._weights["token_embd.weight"][ids]
        if self.rope_base is None:
            x = x + self._weights["position_embd.weight"][: len(ids)]
        if "token_types.weight" in self._weights:
            types = np.arange(len(ids)) >= (len(ids) if second is None else second)
            x = x + self._weights["token_types.weight"][types.astype(int)]
        x = self._norm(x, "token_embd_norm")
        for layer in range(self.n_layer):
            at = f"blk.{layer}"
            x = self._norm(x + self._attention(x, at), f"{at}.attn_output_norm")
            x = self._norm(x + self._feed_forward(x, at), f"{at}.layer_output_norm")
        return x

    def _feed_forward(self, x: Doubles, at: str) -> Doubles:
        if f"{at}.ffn_gate_inp.weight" in self._weights:
            return np.stack([self._experts(row, at) for row in x])
        inner = self._linear(x, f"{at}.ffn_up")
        if self.arch == "nomic-bert":
            gate = self._linear(x, f"{at}.ffn_gate")
            inner = inner * gate / (1 + np.exp(-gate))
        else:
            inner = self._gelu(inner)
        return self._linear(inner, f"{at}.ffn_down")

    def _experts(self, row: Doubles, at: str) -> Doubles:
        """Of the two with the largest shares, times these (https://arxiv.org/abs/2502.07972)."""
        shares = np.exp(self._weights[f"{at}.ffn_gate_inp.weight"] @ row)
        shares /= shares.sum()
        up, down = (self._weights[f"{at}.ffn_{part}_exps.weight"] for part in ("up", "down"))
        best = np.argsort(-shares)[:2]
        return np.sum([shares[i] * (down[i] @ self._gelu(up[i] @ row)) for i in best], axis=0)

    @staticmethod
    def _gelu(x: Doubles) -> Doubles:
        return x * _erfc(-x / math.sqrt(2)) / 2

    def vector(self, ids: list[int], pooling: str) -> Doubles:
        """The text's vector, of length 1."""
        states = self.states(ids)
        vector = pooled(states, pooling)
        return vector / np.linalg.norm(vector)

    def score(self, ids: list[int], second: int | None = None) -> float:
        """A reranker's, of a query and a document."""
        inner = np.tanh(self._linear(self.states(ids, second)[:1], "cls"))
        return float(1 / (1 + np.exp(-self._linear(inner, "cls.output")[0, 0])))

    def _attention(self, x: Doubles, at: str) -> Doubles:
        if self.rope_base is None:
            rows = [self._linear(x, f"{at}.attn_{part}") for part in "qkv"]
        else:
            rows = np.split(self._linear(x, f"{at}.attn_qkv"), 3, axis=1)
        q, k, v = (row.reshape(len(x), self.n_head, -1).swapaxes(0, 1) for row in rows)
        if self.rope_base is not None:
            q, k = rotated(q, self.rope_base), rotated(k, self.rope_base)
        return self._linear(attended(q, k, v), f"{at}.attn_output")

    def _linear(self, x: Doubles, name: str) -> Doubles:
        return x @ self._weights[f"{name}.weight"].T + self._weights.get(f"{name}.bias", 0.0)

    def _norm(self, x: Doubles, name: str) -> Doubles:
        x = x - x.mean(axis=1, keepdims=True)
        size = np.sqrt((x * x).mean(axis=1, keepdims=True) + self.eps)
        return x / size * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]


#: Names of a published BERT's tensors, and of a file's.
NAMES = {
    "embeddings.word_embeddings.weight": "token_embd.weight",
    "embeddings.position_embeddings.weight": "position_embd.weight",
    "embeddings.token_type_embeddings.weight": "token_types.weight",
    "embeddings.LayerNorm": "token_embd_norm",
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}


def convert(folder: Path, path: Path, mix: str = "F32") -> Path:
    """A published BERT of `folder` (`model.safetensors`, `config.json`, `vocab.txt`) as a file."""
    config = json.loads((folder / "config.json").read_text())
    raw = (folder / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    data = memoryview(raw)[8 + length :]
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_token_type_count(config["type_vocab_size"])
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    words = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")[: config["vocab_size"]]
    kinds = [3 if w in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") else 1 for w in words]
    begun = [
        w if kind == 3 else w[2:] if w.startswith("##") else f"▁{w}"
        for w, kind in zip(words, kinds, strict=True)
    ]
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("jina-v2-en")
    writer.add_token_list(begun)
    writer.add_token_types(kinds)
    writer.add_bos_token_id(words.index("[CLS]"))
    writer.add_sep_token_id(words.index("[SEP]"))
    writer.add_unk_token_id(words.index("[UNK]"))
    for name, at in json.loads(raw[8 : 8 + length]).items():
        if name == "__metadata__" or name.startswith("pooler") or name.endswith("position_ids"):
            continue
        assert at["dtype"] == "F32", name
        begin, end = at["data_offsets"]
        values = np.frombuffer(data[begin:end], "<f4").reshape(at["shape"])
        layer = re.match(r"encoder\.layer\.(\d+)\.", name)
        rest = name[layer.end() :] if layer else name
        stem = rest if rest in NAMES else rest.rpartition(".")[0]
        to = NAMES[stem] + rest[len(stem) :]
        to = f"blk.{layer[1]}.{to}" if layer else to
        if values.ndim == 2 and mix == "F16" and "position" not in to and "types" not in to:
            values = values.astype(np.float16)
        writer.add_tensor(to, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
