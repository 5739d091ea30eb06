"""Shapes of models, true and small, as typed records, and the tensors each architecture has."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

FILES = ("shapes.toml", "expert_shapes.toml", "small_shapes.toml", "odd_shapes.toml")
PATHS = [Path(__file__).with_name(name) for name in FILES]


@dataclass(frozen=True)
class Shape:
    """One table of the files; `shapes.toml` says what its keys are."""

    name: str
    arch: str
    pre: str
    n_layer: int
    n_embd: int
    #: 0 where all of it is experts.
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_vocab: int
    n_ctx: int
    eps: float
    rope_base: float
    rope_scaling: dict[str, Any]
    #: "last" or "mean" where the model makes embeddings: its texts end with a token of their own,
    #: and it has no chat template; "rank" where it has a head for scores.
    pooling: str = ""
    tied: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    #: Whether that norm is one over all heads.
    qk_norm_whole: bool = False
    #: Dimensions of a head that are turned; 0: all.
    rope_dim: int = 0
    #: Layers of the gated delta rule: taps of the convolution, numbers of a head, heads of keys and
    #: of values, and every which layer attends instead.
    delta: dict[str, int] = field(default_factory=dict)
    #: Of a model that caches what its keys and values are made of: numbers of that row, which has
    #: the rotated ones behind it (`head_dim` together), of the row that queries are made of, if
    #: there is one, and of a head's key and value.
    latent: dict[str, int] = field(default_factory=dict)
    #: Taps of the short convolution that stands in all layers but those that attend.
    conv: int = 0
    attend: tuple[int, ...] = ()
    #: Layers of Mamba-2, all but those that attend or are a feed-forward part alone: taps of the
    #: convolution, heads, numbers of a head, groups, numbers of the state of each.
    mamba2: dict[str, int] = field(default_factory=dict)
    feed: tuple[int, ...] = ()
    #: Streams in the place of rows and their norms (hyper-connections): how many, the width of what
    #: their gates are made of; and of the choice of blocks that attention sees: heads and their
    #: width, tokens that are chosen, and tokens of a block.
    streams: dict[str, int] = field(default_factory=dict)
    #: Embeddings of n-grams: the layer that adds them, tokens of the longest, heads of each length,
    #: numbers of a row, rows of a head at least, and taps of the convolution.
    ngrams: dict[str, int] = field(default_factory=dict)
    #: Layers behind the others that guess further tokens.
    n_layer_nextn: int = 0

    #: How queries grow with their position.
    temperature: float = 0.0

    window: int = 0
    window_pattern: int = 0
    window_base: float = 0.0
    post_norms: bool = False
    #: Whether what attention gives has a gate, of a matrix of its own; and whether that has one
    #: number for a head.
    attn_gate: bool = False
    head_gate: bool = False
    #: Of Laguna: heads of layers that see a window, and how many dimensions of a head they turn.
    window_heads: int = 0
    window_rope_dim: int = 0
    #: Whether norms stand before attention and before the feed-forward part.
    pre_norms: bool = True
    #: Whether attention and the feed-forward part stand side by side, under one norm.
    parallel: bool = False
    #: Whether one matrix gives gate and up, and one queries, keys and values.
    fused_up: bool = False
    fused_qkv: bool = False
    embedding_scale: float = 0.0
    residual_scale: float = 0.0
    attention_scale: float = 0.0
    logit_scale: float = 0.0

    n_expert: int = 0
    n_expert_used: int = 0
    n_ff_exp: int = 0
    #: Layers before the first that has experts.
    n_layer_dense: int = 0
    #: Experts by sigmoids, and a bias in their choice.
    sigmoid: bool = False
    #: Groups of experts, and of how many of them a row's are.
    groups: tuple[int, ...] = ()
    #: What the weights of the chosen are multiplied by.
    expert_scale: float = 0.0
    #: Width of the expert that every row goes to.
    n_ff_shared: int = 0
    #: Width of what experts multiply, where it is not that of rows.
    n_latent: int = 0
    #: Whether each matrix has a scale of its own beside it, and what its input was scaled by.
    scales: bool = False
    #: Attention with a sink a head, and a bias of every product.
    sinks: bool = False

    #: Of Gemma 4: heads of layers with a window, `head_dim` and `n_head_kv`; layers at the end that
    #: read what an earlier one stored, and their feed-forward width where it is another; whether
    #: layers without a window have no values but their keys; numbers of a token a layer has for
    #: itself; the cap of the logits, which Muse Glimmer has too.
    local: dict[str, int] = field(default_factory=dict)
    n_layer_shared_kv: int = 0
    n_ff_last: int = 0
    keys_as_values: bool = False
    n_embd_layer: int = 0
    logit_cap: float = 0.0
    #: Of its assistant: the width of the rows of the model that it drafts for.
    n_embd_backbone: int = 0

    def attends(self, layer: int) -> bool:
        """Whether a layer attends, or has a recurrent state."""
        if self.conv or self.mamba2:
            return layer in self.attend
        interval = self.delta.get("interval", 1)
        return (layer + 1) % interval == 0

    @property
    def embedding_factor(self) -> float:
        """What a row of the embedding is multiplied by: of Gemma no key says it."""
        if self.arch in ("gemma3", "gemma4"):
            return math.sqrt(self.n_embd)
        return self.embedding_scale or 1.0

    @property
    def logit_divisor(self) -> float:
        """What logits are divided by; Granite's key says it, of others it is a factor."""
        scale = self.logit_scale or 1.0
        return scale if self.arch in ("granite", "granitehybrid") else 1.0 / scale

    def is_local(self, layer: int) -> bool:
        """Of Gemma 4, Muse Glimmer and Laguna: whether a layer sees a window."""
        if self.arch == "laguna":
            return self.window > 0 and layer % (self.window_pattern or 4) != 0
        return (layer + 1) % self.window_pattern != 0

    def query_heads(self, layer: int) -> int:
        """Heads of queries of a layer."""
        return self.window_heads if self.window_heads and self.is_local(layer) else self.n_head

    def stores(self, layer: int) -> bool:
        """Whether a layer has keys and values of its own."""
        return layer < self.n_layer - self.n_layer_shared_kv

    def heads(self, layer: int) -> tuple[int, int]:
        """Heads of keys and values of a layer, and their width."""
        if self.local and self.is_local(layer):
            return self.local["n_head_kv"], self.local["head_dim"]
        return self.n_head_kv, self.head_dim

    def ff(self, layer: int) -> int:
        """Width of a layer's feed-forward part."""
        if self.is_nemotron_h:
            return (self.n_ff_exp or self.n_ff) if layer in self.feed else 0
        return self.n_ff_last if self.n_ff_last and not self.stores(layer) else self.n_ff

    @property
    def is_nemotron_h(self) -> bool:
        """Whether each layer is one block."""
        return self.arch.startswith("nemotron_h")

    def tensors(self) -> list[tuple[str, tuple[int, ...]]]:
        """Name and GGUF shape (row length first) of every tensor, in file order."""
        kv = self.n_head_kv * self.head_dim
        out: list[tuple[str, tuple[int, ...]]] = []
        if not self.tied:
            out.append(("output.weight", (self.n_embd, self.n_vocab)))
        out.append(("token_embd.weight", (self.n_embd, self.n_vocab)))
        if self.pooling == "rank":
            out.append(("cls.output.weight", (self.n_embd, 2)))
        if self.streams:
            out += self._streams("output_hc", False)
        else:
            last_norm = "token_embd_norm" if self.conv else "output_norm"
            out.append((f"{last_norm}.weight", (self.n_embd,)))
        if self.ngrams:
            end = sum(self.ngram_rows())
            rows = -(-end // 128) * 128
            out.append(("per_layer_token_embd.weight", (self.ngrams["width"], rows)))
        if self.arch.startswith("gemma4"):
            return out + self._gemma4()
        if self.rope_scaling.get("type") == "llama3":
            out.append(("rope_freqs.weight", (self.head_dim // 2,)))
        if self.rope_scaling.get("type") == "longrope":
            pairs = (self.rope_dim or self.head_dim) // 2
            out += [(f"rope_factors_{name}.weight", (pairs,)) for name in ("long", "short")]
        for layer in range(self.n_layer + self.n_layer_nextn):
            q = self.query_heads(layer) * self.head_dim
            # The queries of a model with a delta rule come with a gate each.
            n_q = 2 * q if self.delta else q
            block: list[tuple[str, tuple[int, ...]]] = []
            if self.pre_norms:
                block += [("attn_norm.weight", (self.n_embd,))]
            if self.streams:
                block += self._streams("hc_attn") + self._streams("hc_ffn")
            if self.ngrams and layer == self.ngrams["layer"]:
                block += self._ngrams()
            if self.ff(layer) and self.is_nemotron_h:
                out += [(f"blk.{layer}.{name}", shape) for name, shape in block + self._squares()]
                continue
            if self.latent:
                block += self._latent()
            elif layer < self.n_layer and not self.attends(layer):
                if self.mamba2:
                    block += self._mamba2()
                else:
                    block += self._convolution() if self.conv else self._delta_rule()
            else:
                parts = [("attn_q", n_q), ("attn_k", kv), ("attn_v", kv)]
                if self.fused_qkv:
                    parts = [("attn_qkv", n_q + 2 * kv)]
                block += [(f"{name}.weight", (self.n_embd, width)) for name, width in parts]
                block += [("attn_output.weight", (q, self.n_embd))]
                if self.attn_gate:
                    n_gate = self.query_heads(layer) if self.head_gate else q
                    block += [("attn_gate.weight", (self.n_embd, n_gate))]
                if self.qk_norm:
                    widths = (q, kv) if self.qk_norm_whole else (self.head_dim, self.head_dim)
                    names = ("attn_q_norm.weight", "attn_k_norm.weight")
                    block += [(name, (n,)) for name, n in zip(names, widths, strict=True)]
                if self.streams:
                    wide, d = self.streams["index_heads"], self.streams["index_dim"]
                    block += [
                        ("indexer.q_proj.weight", (self.n_embd, wide * d)),
                        ("indexer.k_proj.weight", (self.n_embd, d)),
                        ("indexer.q_norm.weight", (d,)),
                        ("indexer.k_norm.weight", (d,)),
                    ]
            if self.is_nemotron_h:
                out += [(f"blk.{layer}.{name}", shape) for name, shape in block]
                continue
            named_after = self.delta or self.sinks or self.arch in ("seed_oss", "glm4moe")
            before_ffn = "post_attention_norm.weight" if named_after else "ffn_norm.weight"
            if self.pre_norms and not self.parallel:
                block += [(before_ffn, (self.n_embd,))]
            if self.n_expert and layer >= self.n_layer_dense:
                if self.sigmoid:
                    block += [("exp_probs_b.bias", (self.n_expert,))]
                block += [
                    ("ffn_gate_inp.weight", (self.n_embd, self.n_expert)),
                    ("ffn_gate_exps.weight", (self.n_embd, self.n_ff_exp, self.n_expert)),
                    ("ffn_up_exps.weight", (self.n_embd, self.n_ff_exp, self.n_expert)),
                    ("ffn_down_exps.weight", (self.n_ff_exp, self.n_embd, self.n_expert)),
                ]
                if self.n_ff_shared:
                    if self.arch not in ("glm4moe", "laguna", "granitehybrid", "deepseek2"):
                        block += [("ffn_gate_inp_shexp.weight", (self.n_embd,))]
                    block += [
                        ("ffn_gate_shexp.weight", (self.n_embd, self.n_ff_shared)),
                        ("ffn_up_shexp.weight", (self.n_embd, self.n_ff_shared)),
                        ("ffn_down_shexp.weight", (self.n_ff_shared, self.n_embd)),
                    ]
            else:
                if not self.fused_up:
                    block += [("ffn_gate.weight", (self.n_embd, self.n_ff))]
                block += [
                    ("ffn_up.weight", (self.n_embd, (1 + self.fused_up) * self.n_ff)),
                    ("ffn_down.weight", (self.n_ff, self.n_embd)),
                ]
            if self.sinks:
                block += [
                    ("attn_sinks.weight", (self.n_head,)),
                    ("attn_output.bias", (self.n_embd,)),
                    ("ffn_gate_inp.bias", (self.n_expert,)),
                    ("ffn_gate_exps.bias", (self.n_ff_exp, self.n_expert)),
                    ("ffn_up_exps.bias", (self.n_ff_exp, self.n_expert)),
                    ("ffn_down_exps.bias", (self.n_embd, self.n_expert)),
                ]
            if self.qkv_bias:
                block += [("attn_q.bias", (q,)), ("attn_k.bias", (kv,)), ("attn_v.bias", (kv,))]
            if layer >= self.n_layer:
                block += [("nextn.eh_proj.weight", (2 * self.n_embd, self.n_embd))]
                block += [(f"nextn.{x}norm.weight", (self.n_embd,)) for x in "eh"]
            if self.post_norms:
                names = ("post_attention_norm", "post_ffw_norm")
                block += [(f"{name}.weight", (self.n_embd,)) for name in names]
            if self.scales and layer < self.n_layer:
                block += _scales(block)
            out += [(f"blk.{layer}.{name}", shape) for name, shape in block]
        return out

    def _streams(self, name: str, injects: bool = True) -> list[tuple[str, tuple[int, ...]]]:
        """The tensors between the streams and a block, or the head."""
        n, rank = self.streams["count"], self.streams["rank"]
        wide = n * self.n_embd
        out: list[tuple[str, tuple[int, ...]]] = [
            (f"{name}_norm.weight", (wide,)),
            (f"{name}_down.weight", (wide, rank)),
            (f"{name}_up.weight", (rank, wide)),
        ]
        return [*out, (f"{name}_inject.weight", (wide, n))] if injects else out

    def ngram_rows(self) -> list[int]:
        """Rows of each head of n-grams: primes, so that no two hashes are alike."""
        rows: list[int] = []
        at = self.ngrams["rows"]
        while len(rows) < (self.ngrams["size"] - 1) * self.ngrams["heads"]:
            if all(at % d for d in range(2, math.isqrt(at) + 1)):
                rows.append(at)
            at += 1
        return rows

    def _ngrams(self) -> list[tuple[str, tuple[int, ...]]]:
        """The tensors of the layer that adds embeddings of n-grams."""
        n, wide = self.n_embd, self.streams["count"] * self.n_embd
        rows = len(self.ngram_rows()) * self.ngrams["width"]
        return [
            ("ple_key.weight", (rows, wide)),
            ("ple_value.weight", (rows, n)),
            *((f"ple_norm_{name}.weight", (wide,)) for name in ("key", "query", "conv")),
            ("ple_conv1d.weight", (self.ngrams["conv"], wide)),
        ]

    def _latent(self) -> list[tuple[str, tuple[int, ...]]]:
        """The tensors of attention over latent rows."""
        rank, key_dim, value_dim = (self.latent[key] for key in ("rank", "key_dim", "value_dim"))
        q, q_rank = self.n_head * key_dim, self.latent.get("q_rank", 0)
        out: list[tuple[str, tuple[int, ...]]] = [("attn_q.weight", (self.n_embd, q))]
        if q_rank:
            out = [
                ("attn_q_a.weight", (self.n_embd, q_rank)),
                ("attn_q_a_norm.weight", (q_rank,)),
                ("attn_q_b.weight", (q_rank, q)),
            ]
        return [
            *out,
            ("attn_kv_a_mqa.weight", (self.n_embd, self.head_dim)),
            ("attn_kv_a_norm.weight", (rank,)),
            ("attn_k_b.weight", (key_dim - self.rope_dim, rank, self.n_head)),
            ("attn_v_b.weight", (rank, value_dim, self.n_head)),
            ("attn_output.weight", (self.n_head * value_dim, self.n_embd)),
        ]

    def _convolution(self) -> list[tuple[str, tuple[int, ...]]]:
        """The tensors of a layer of a short convolution."""
        return [
            ("shortconv.in_proj.weight", (self.n_embd, 3 * self.n_embd)),
            ("shortconv.conv.weight", (self.conv, self.n_embd)),
            ("shortconv.out_proj.weight", (self.n_embd, self.n_embd)),
        ]

    def _mamba2(self) -> list[tuple[str, tuple[int, ...]]]:
        """The tensors of a layer of Mamba-2."""
        of = self.mamba2
        inner = of["n_head"] * of["head_dim"]
        channels = inner + 2 * of["n_group"] * of["d_state"]
        return [
            ("ssm_in.weight", (self.n_embd, inner + channels + of["n_head"])),
            ("ssm_conv1d.weight", (of["conv"], channels)),
            ("ssm_conv1d.bias", (channels,)),
            ("ssm_dt.bias", (of["n_head"],)),
            ("ssm_a", (1, of["n_head"])),
            ("ssm_d", (1, of["n_head"])),
            ("ssm_norm.weight", (inner // of["n_group"], of["n_group"])),
            ("ssm_out.weight", (inner, self.n_embd)),
        ]

    def _squares(self) -> list[tuple[str, tuple[int, ...]]]:
        """The tensors of a feed-forward layer of Nemotron-H, whose activation has no gate."""
        n, wide = self.n_embd, self.n_ff_shared
        if not self.n_expert:
            return [("ffn_up.weight", (n, self.n_ff)), ("ffn_down.weight", (self.n_ff, n))]
        out: list[tuple[str, tuple[int, ...]]] = [
            ("ffn_gate_inp.weight", (n, self.n_expert)),
            ("exp_probs_b.bias", (self.n_expert,)),
        ]
        if latent := self.n_latent:
            out += [("ffn_latent_down.weight", (n, latent)), ("ffn_latent_up.weight", (latent, n))]
        return [
            *out,
            ("ffn_down_exps.weight", (self.n_ff_exp, latent or n, self.n_expert)),
            ("ffn_up_exps.weight", (latent or n, self.n_ff_exp, self.n_expert)),
            ("ffn_down_shexp.weight", (wide, n)),
            ("ffn_up_shexp.weight", (n, wide)),
        ]

    def _gemma4(self) -> list[tuple[str, tuple[int, ...]]]:
        """The tensors of Gemma 4 behind those of the vocabulary."""
        n, told = self.n_embd, self.n_layer * self.n_embd_layer
        out: list[tuple[str, tuple[int, ...]]] = [("rope_freqs.weight", (self.head_dim // 2,))]
        if told:
            out += [
                ("per_layer_token_embd.weight", (told, self.n_vocab)),
                ("per_layer_model_proj.weight", (n, told)),
                ("per_layer_proj_norm.weight", (self.n_embd_layer,)),
            ]
        if wide := self.n_embd_backbone:
            out += [("nextn.pre_projection.weight", (2 * wide, n))]
            out += [("nextn.post_projection.weight", (n, wide))]
        for layer in range(self.n_layer):
            n_head_kv, d = self.heads(layer)
            q, kv, n_ff = self.n_head * d, n_head_kv * d, self.ff(layer)
            block: list[tuple[str, tuple[int, ...]]] = [("attn_norm", (n,)), ("attn_q", (n, q))]
            if self.stores(layer):
                block += [("attn_k", (n, kv)), ("attn_k_norm", (d,))]
                if self.is_local(layer) or not self.keys_as_values:
                    block += [("attn_v", (n, kv))]
            block += [("attn_q_norm", (d,)), ("attn_output", (q, n)), ("ffn_norm", (n,))]
            block += [("ffn_gate", (n, n_ff)), ("ffn_up", (n, n_ff)), ("ffn_down", (n_ff, n))]
            block += [("post_attention_norm", (n,)), ("post_ffw_norm", (n,))]
            if self.n_expert:
                n_exp, count = self.n_ff_exp, self.n_expert
                block += [("ffn_gate_inp", (n, count)), ("pre_ffw_norm_2", (n,))]
                block += [("post_ffw_norm_1", (n,)), ("post_ffw_norm_2", (n,))]
                block += [("ffn_gate_up_exps", (n, 2 * n_exp, count))]
                block += [("ffn_down_exps", (n_exp, n, count))]
                for part, width in (("ffn_gate_inp", n), ("ffn_down_exps", count)):
                    out.append((f"blk.{layer}.{part}.scale", (width,)))
            if told:
                block += [("inp_gate", (n, self.n_embd_layer)), ("proj", (self.n_embd_layer, n))]
                block += [("post_norm", (n,))]
            block += [("layer_output_scale", (1,))]
            out += [(f"blk.{layer}.{name}.weight", shape) for name, shape in block]
        return out

    def _delta_rule(self) -> list[tuple[str, tuple[int, ...]]]:
        """The tensors of a layer of the gated delta rule."""
        d, k_heads, v_heads = (self.delta[key] for key in ("head_dim", "k_heads", "v_heads"))
        channels = (2 * k_heads + v_heads) * d
        return [
            ("attn_qkv.weight", (self.n_embd, channels)),
            ("attn_gate.weight", (self.n_embd, v_heads * d)),
            ("ssm_conv1d.weight", (self.delta["conv"], channels)),
            ("ssm_dt.bias", (v_heads,)),
            ("ssm_a", (v_heads,)),
            *(
                [("ssm_ba.weight", (self.n_embd, 2 * v_heads))]
                if self.arch == "qwen3next"
                else [(f"ssm_{x}.weight", (self.n_embd, v_heads)) for x in ("beta", "alpha")]
            ),
            ("ssm_norm.weight", (d,)),
            ("ssm_out.weight", (v_heads * d, self.n_embd)),
        ]


def _scales(
    block: list[tuple[str, tuple[int, ...]]],
) -> list[tuple[str, tuple[int, ...]]]:
    """The scales of a block's matrices, as converters of NVFP4 leave them: a number each, of
    experts one for each of them; routers and convolutions have none."""
    out: list[tuple[str, tuple[int, ...]]] = []
    for name, (_, *rest) in block:
        part = name.removesuffix(".weight")
        if rest and part not in ("ffn_gate_inp", "ssm_conv1d"):
            one_each = (*rest[1:],) or (1,)
            out += [(f"{part}.scale", one_each), (f"{part}.input_scale", one_each)]
    return out


def load() -> dict[str, Shape]:
    """Every shape of the files, by name."""
    known = {f.name for f in fields(Shape)}
    shapes = {}
    for path in PATHS:
        for name, table in tomllib.loads(path.read_text()).items():
            if unknown := set(table) - known:
                raise ValueError(f"{path.name}: [{name}] has unknown keys {sorted(unknown)}")
            table.setdefault("head_dim", table["n_embd"] // table["n_head"])
            table.setdefault("rope_scaling", {})
            table |= {key: tuple(table.get(key, ())) for key in ("attend", "feed", "groups")}
            shapes[name] = Shape(name=name, **table)
    return shapes


def find(name: str) -> Shape:
    """The shape of that name, case ignored."""
    shapes = load()
    if name.lower() not in shapes:
        raise ValueError(f"no shape {name!r}; there are {', '.join(shapes)}")
    return shapes[name.lower()]
