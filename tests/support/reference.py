"""An independent forward pass in NumPy: what a GGUF file's weights say, in float64.

The weights are expanded by the `gguf` package, so nothing here shares code with the engine. Every
activation, sum and KV entry is float64: the result is exact to about 1e-12, which is what the
engine's float32 is measured against.

    ref = Reference("model.gguf")
    logits = ref.logits([1, 2, 3])      # float64 [3, n_vocab], one row after each token
    mean_kl(logits, other)              # mean over rows of KL(reference || other), in nats

Architectures: llama (with linear, YaRN and llama3 rotary scaling), qwen2, qwen3, qwen3moe,
qwen35, qwen35moe, qwen3next, gpt-oss, gemma3, gemma4, granite, lfm2, lfm2moe, mistral3,
muse-glimmer, olmo2, smollm3, ernie4_5, seed_oss,
hunyuan-dense, glm4, exaone4, glm4moe, phi3, cohere2, command-r,
laguna, nemotron_h, nemotron_h_moe, granitehybrid, deepseek2, qwen4exp.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from support import gemma4, mamba2, qwen4exp
from support.delta_rule import causal_convolution, delta_rule, logistic

Array = NDArray[np.float64]

#: Architectures that choose experts by sigmoids and a bias.
SIGMOID = {"lfm2moe", "glm4moe", "laguna", "nemotron_h_moe", "deepseek2"}

#: Architectures whose layers are one block each.
NEMOTRON_H = {"nemotron_h", "nemotron_h_moe"}

#: Architectures whose RoPE rotates neighbours (2i, 2i+1); the others rotate (i, i + d/2).
INTERLEAVED = {"llama", "granite", "mistral3", "muse-glimmer", "smollm3", "ernie4_5", "glm4"}
INTERLEAVED |= {"deepseek2"}
INTERLEAVED |= (COHERE := {"cohere2", "command-r"})
INTERLEAVED |= {"granitehybrid"} | NEMOTRON_H
NEOX = {"qwen2", "qwen3", "qwen3moe", "qwen35", "qwen35moe", "gpt-oss", "gemma3", "gemma4"}
NEOX |= {"gemma4-assistant"}
NEOX |= {"olmo2", "qwen3next", "seed_oss"} | (LFM2 := {"lfm2", "lfm2moe"})
NEOX |= {"hunyuan-dense", "exaone4", "glm4moe", "phi3", "laguna", "qwen4exp"}

#: Architectures whose norm before the feed-forward is called after attention.
NAMED_AFTER = {"qwen35", "qwen35moe", "qwen3next", "gpt-oss", "seed_oss", "glm4moe"}

#: Architectures that normalize heads behind the rotation.
LATE = {"hunyuan-dense"}

#: Architectures with a norm behind each block.
NORMED_BEHIND = {"gemma3", "muse-glimmer", "olmo2", "glm4", "exaone4"}

Rope = tuple[Array, float]


class Reference:
    """A model file opened for exact evaluation.

    `kv_dtype=np.float16` rounds keys and values as a half-precision cache does. `cache=True` keeps
    the expanded float32 weights (4 bytes a weight) between calls. `n_ctx` is what the context may
    hold, which chooses among LongRoPE's factors.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        kv_dtype: type[np.floating[Any]] = np.float64,
        cache: bool = True,
        n_ctx: int = 512,
    ) -> None:
        reader = gguf.GGUFReader(os.fspath(path))
        self._meta = {name: field for name, field in reader.fields.items()}
        self._tensors = {t.name: t for t in reader.tensors}
        self._expanded: dict[str, NDArray[np.float32]] | None = {} if cache else None
        self._kv_dtype = kv_dtype
        self._n_ctx = n_ctx

        self.arch: str = self.metadata("general.architecture")
        if self.arch not in INTERLEAVED | NEOX:
            raise ValueError(f"the reference knows no architecture {self.arch!r}")
        # Layers that guess further tokens stand behind the others.
        self.n_layer = int(self.key("block_count")) - int(self.key("nextn_predict_layers", 0))
        self.n_embd = int(self.key("embedding_length"))
        # One number, or one a layer.
        heads = np.asarray(self.key("attention.head_count"))
        self.heads = np.broadcast_to(heads, int(self.key("block_count")))
        self.n_head = int(heads.max())
        # One number, or one a layer, which is 0 where that convolves.
        self.n_head_kv = int(np.max(self.key("attention.head_count_kv", self.n_head)))
        self.head_dim = int(self.key("attention.key_length", self.n_embd // self.n_head))
        self.n_rot = int(self.key("rope.dimension_count", self.head_dim))
        norm = "layer_norm" if self.arch in COHERE else "layer_norm_rms"
        self.eps = float(self.key(f"attention.{norm}_epsilon"))
        self.n_vocab = int(self._tensors["token_embd.weight"].shape[1])
        self._rope_all = self._rope_frequencies()
        # Gemma 3 (https://arxiv.org/abs/2503.19786, section 2): layers that see a window have a
        # base of their own and no scaling; five of them come before each that sees all.
        have_windows = {"gemma3", "gpt-oss", "muse-glimmer", "olmo2", "exaone4", "cohere2"}
        have_windows |= {"laguna"}
        has_windows = self.arch in have_windows
        self.window = int(self.key("attention.sliding_window", 0)) if has_windows else 0
        # OLMo 3 (https://arxiv.org/abs/2512.13961) has one base, and three come before each.
        one_base = self.arch in ("muse-glimmer", "olmo2")
        usual = self.key("rope.freq_base") if one_base else 10000.0
        local = float(self.key("rope.freq_base_swa", usual))
        n_rot = int(self.key("rope.dimension_count_swa", self.n_rot))
        pair = np.arange(n_rot // 2, dtype=np.float64)
        self._rope_window: Rope = (local ** (-2.0 * pair / n_rot), 1.0)
        if self.arch in ("gpt-oss", "exaone4", "cohere2"):
            self._rope_window = self._rope_all
        #: Layers and rows where the best expert that is not chosen goes for the last that is; of
        #: groups of experts the layer counts from behind the last on.
        self.swapped: set[tuple[int, int]] = set()
        #: Of each layer with experts, by how much those two differ in each row of the last pass.
        self.margins: dict[int, Array] = {}

    def metadata(self, key: str, default: Any = None) -> Any:
        """The value of a metadata key, or `default`."""
        field = self._meta.get(key)
        return default if field is None else field.contents()

    def key(self, key: str, default: Any = None) -> Any:
        """The value of a key of the architecture, or `default`; KeyError where there is neither."""
        value = self.metadata(f"{self.arch}.{key}", default)
        if value is None:
            raise KeyError(f"{self.arch}.{key}")
        return value

    def weight(self, name: str) -> NDArray[np.float32] | None:
        """The expanded tensor, rows first (`[n_out, n_in]` for a matrix); None where absent."""
        if name not in self._tensors:
            return None
        if self._expanded is not None and name in self._expanded:
            return self._expanded[name]
        tensor = self._tensors[name]
        shape = tuple(int(n) for n in reversed(tensor.shape))
        flat = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        expanded = np.ascontiguousarray(flat, dtype=np.float32).reshape(shape)
        if self._expanded is not None:
            self._expanded[name] = expanded
        return expanded

    def logits(self, ids: Sequence[int]) -> Array:
        """Logits after each token of `ids`: float64 [len(ids), n_vocab]."""
        if self.arch == "gemma4":
            return gemma4.logits(self, ids)
        head = "output" if "output.weight" in self._tensors else "token_embd"
        logits = self.linear(self.hidden(ids), head) / self._granite("logit_scale", 1.0)
        if self.arch in COHERE | {"muse-glimmer"}:
            logits = logits * float(self.key("logit_scale"))
        if self.arch != "muse-glimmer":
            return logits
        cap = float(self.key("final_logit_softcapping"))
        result: Array = cap * np.tanh(logits / cap)
        return result

    def hidden(self, ids: Sequence[int]) -> Array:
        """What the head multiplies after each token: float64 [len(ids), n_embd]."""
        if self.arch == "qwen4exp":
            return qwen4exp.hidden(self, ids)
        embedding = self.require("token_embd.weight")
        x = embedding[np.asarray(ids, dtype=np.int64)].astype(np.float64) * self._embedding_factor()
        # Muse Glimmer's rows begin normalized; what its blocks give is by another epsilon.
        behind = self.eps
        if self.arch == "muse-glimmer":
            x, behind = normalized(x, self.eps), 1e-8
        residual = self._granite("residual_scale", 1.0)
        for layer in range(self.n_layer):
            normed = self._norm_before(x, f"blk.{layer}.attn_norm")
            delta = self.mixer(layer)(layer, normed)
            # Cohere's blocks stand side by side, under one norm
            # (https://huggingface.co/docs/transformers/model_doc/cohere2).
            if self.arch in COHERE:
                x = x + delta + self.feed_forward(layer, normed)
                continue
            if self.arch in NORMED_BEHIND:
                delta = self.norm(delta, f"blk.{layer}.post_attention_norm", behind)
            x = x + residual * delta
            if self.arch in NEMOTRON_H:
                continue
            norm = "post_attention_norm" if self.arch in NAMED_AFTER else "ffn_norm"
            delta = self.feed_forward(layer, self._norm_before(x, f"blk.{layer}.{norm}"))
            if self.arch in NORMED_BEHIND:
                delta = self.norm(delta, f"blk.{layer}.post_ffw_norm", behind)
            x = x + residual * delta
        return self.norm(x, "token_embd_norm" if self.arch in LFM2 else "output_norm")

    def guesses(self, ids: Sequence[int]) -> Array:
        """Logits that the layer behind the others has of the token behind each but the first of
        `ids`: float64 [len(ids) - 1, n_vocab]. DeepSeek-V3 (https://arxiv.org/abs/2412.19437,
        section 2.2), as Qwen3.5 and GLM-4.5 have it: the embedding goes first."""
        layer, nextn = self.n_layer, f"blk.{self.n_layer}.nextn"
        rows = self.norm(self.hidden(ids)[:-1], f"{nextn}.hnorm")
        embedding = self.require("token_embd.weight")[np.asarray(ids[1:])].astype(np.float64)
        both = np.concatenate([self.norm(embedding, f"{nextn}.enorm"), rows], axis=1)
        x = self.linear(both, f"{nextn}.eh_proj")
        x = x + self._attention(layer, self.norm(x, f"blk.{layer}.attn_norm"))
        norm = "post_attention_norm" if self.arch in NAMED_AFTER else "ffn_norm"
        x = x + self.feed_forward(layer, self.norm(x, f"blk.{layer}.{norm}"))
        own = f"{nextn}.shared_head_norm"
        x = self.norm(x, own if f"{own}.weight" in self._tensors else "output_norm")
        return self.linear(x, "output" if "output.weight" in self._tensors else "token_embd")

    def _norm_before(self, x: Array, name: str) -> Array:
        """OLMo 2 (https://arxiv.org/abs/2501.00656, section 3.2) norms what a block gives alone."""
        return x if self.arch in ("olmo2", "exaone4") else self.norm(x, name)

    def mixer(self, layer: int) -> Callable[[int, Array], Array]:
        """What mixes the tokens in a layer."""
        if f"blk.{layer}.ssm_d" in self._tensors:
            return self._mamba2
        if f"blk.{layer}.ssm_a" in self._tensors:
            return self._delta_rule
        if f"blk.{layer}.ffn_up.weight" in self._tensors and self.arch in NEMOTRON_H:
            return self.feed_forward
        if f"blk.{layer}.ffn_up_exps.weight" in self._tensors and self.arch in NEMOTRON_H:
            return self.feed_forward
        if f"blk.{layer}.shortconv.conv.weight" in self._tensors:
            return self._gated_convolution
        return self._latent_attention if self.arch == "deepseek2" else self._attention

    def _gated_convolution(self, layer: int, x: Array) -> Array:
        """LFM2 (https://arxiv.org/abs/2511.23404, section 2): gates before and behind."""
        b, c, u = np.split(self.linear(x, f"blk.{layer}.shortconv.in_proj"), 3, axis=1)
        weight = self.require(f"blk.{layer}.shortconv.conv.weight").astype(np.float64)
        y = c * causal_convolution(b * u, weight)
        return self.linear(y, f"blk.{layer}.shortconv.out_proj")

    def _granite(self, key: str, missing: float) -> float:
        """A factor of Granite (https://huggingface.co/docs/transformers/model_doc/granite)."""
        is_granite = self.arch in ("granite", "granitehybrid")
        return float(self.key(key, missing)) if is_granite else missing

    def _embedding_factor(self) -> float:
        if self.arch == "gemma3":
            return math.sqrt(self.n_embd)
        return self._granite("embedding_scale", 1.0)

    def _score_factor(self) -> float:
        """The largest Gemma 3, of 62 layers, counts the model's width for its heads'."""
        if self.arch == "gemma3" and self.n_layer == 62:
            return 1.0 / math.sqrt(self.n_embd // self.n_head)
        return self._granite("attention.scale", 1.0 / math.sqrt(self.head_dim))

    def _temperature(self, n: int) -> Array:
        """Factors of queries, in units of the context before scaling: Llama 4's, as Ministral 3 has
        them (https://huggingface.co/docs/transformers/model_doc/ministral3)."""
        if self.arch != "mistral3":
            return np.ones(n)
        context = self.key("rope.scaling.original_context_length", self.key("context_length"))
        by = float(self.key("attention.temperature_scale", 0.0))
        factors: Array = 1.0 + by * np.log(np.floor(np.arange(n) / context) + 1.0)
        return factors

    def _sees_a_window(self, layer: int) -> bool:
        usual = {"gemma3": 6, "gpt-oss": 2}.get(self.arch, 4)
        period = self.key("attention.sliding_window_pattern", usual)
        if isinstance(period, list):
            return bool(period[layer])
        # Laguna's pattern begins with the layer that sees all.
        all_at = 0 if self.arch == "laguna" else period - 1
        return self.window > 0 and layer % period != all_at

    def _rotates(self, layer: int) -> bool:
        if self.arch == "smollm3":
            return layer % 4 != 3
        if self.arch == "granitehybrid":
            return bool(self.key("rope.scaling.finetuned", True))
        # EXAONE 4 (https://arxiv.org/abs/2507.11407, section 2.1); without windows all are rotated.
        if self.arch == "exaone4" and not self.window:
            return True
        alone = {"muse-glimmer", "exaone4", "cohere2"} | NEMOTRON_H
        return self.arch not in alone or self._sees_a_window(layer)

    def _attention(self, layer: int, x: Array) -> Array:
        n, d, n_head = len(x), self.head_dim, int(self.heads[layer])
        group = n_head // self.n_head_kv
        if f"blk.{layer}.attn_qkv.weight" in self._tensors:
            rows = self.linear(x, f"blk.{layer}.attn_qkv").reshape(n, -1, d)
            q, k, v = np.split(rows, [n_head, n_head + self.n_head_kv], axis=1)
        else:
            q = self.linear(x, f"blk.{layer}.attn_q").reshape(n, n_head, -1)
            k = self.linear(x, f"blk.{layer}.attn_k").reshape(n, self.n_head_kv, d)
            v = self.linear(x, f"blk.{layer}.attn_v").reshape(n, self.n_head_kv, d)
        # In qwen35 each head of queries comes with a gate of its output.
        q, gate = q[..., :d], q[..., d:]
        # Present in qwen3: each head's own RMS norm, before the rotation; in olmo2 one of all, in
        # hunyuan-dense behind it.
        has_norms, is_late = f"blk.{layer}.attn_q_norm.weight" in self._tensors, self.arch in LATE
        if has_norms and not is_late:
            q = self.norm(q, f"blk.{layer}.attn_q_norm")
            k = self.norm(k, f"blk.{layer}.attn_k_norm")
        rope = self._rope_window if self._sees_a_window(layer) else self._rope_all
        if self._rotates(layer):
            q, k = self._rope(q, rope), self._rope(k, rope)
        if has_norms and is_late:
            q = self.norm(q, f"blk.{layer}.attn_q_norm")
            k = self.norm(k, f"blk.{layer}.attn_k_norm")
        # Muse Glimmer's gate has a matrix of its own.
        if self.arch == "muse-glimmer":
            gate = self.linear(x, f"blk.{layer}.attn_gate").reshape(n, n_head, d)
        q = q * self._temperature(n)[:, None, None]
        k, v = self.rounded(k), self.rounded(v)
        unseen = np.triu(np.ones((n, n), dtype=bool), 1)
        if self._sees_a_window(layer):
            unseen |= np.tril(np.ones((n, n), dtype=bool), -self.window)
        if self.arch == "qwen4exp":
            unseen |= ~qwen4exp.seen(self, layer, x)
        sinks = self.weight(f"blk.{layer}.attn_sinks.weight")
        out = np.empty((n, n_head, d))
        for head in range(n_head):
            scores = q[:, head] @ k[:, head // group].T * self._score_factor()
            scores[unseen] = -np.inf
            if sinks is not None:
                # A score that has no value takes its share of the softmax.
                scores = np.concatenate([scores, np.full((n, 1), float(sinks[head]))], axis=1)
            scores = np.exp(scores - scores.max(axis=1, keepdims=True))
            shares = scores / scores.sum(axis=1, keepdims=True)
            out[:, head] = shares[:, :n] @ v[:, head // group]
        if gate.size:
            out = out * logistic(gate)
        # Laguna's is softplus, of a number a head or a value
        # (https://huggingface.co/poolside/Laguna-XS.2).
        if self.arch == "laguna":
            gate = self.linear(x, f"blk.{layer}.attn_gate").reshape(n, n_head, -1)
            out = out * np.logaddexp(0.0, gate)
        return self.linear(out.reshape(n, -1), f"blk.{layer}.attn_output")

    def _latent_attention(self, layer: int, x: Array) -> Array:
        """DeepSeek-V2 (https://arxiv.org/abs/2405.04434, section 2.1), not absorbed: keys and
        values of each head are made of one normalized row, beside which all keys have what is
        rotated. The cache keeps that row."""
        n, n_head, rank = len(x), self.n_head, int(self.key("attention.kv_lora_rank"))
        width, block = int(self.key("attention.key_length_mla")), f"blk.{layer}"
        if f"{block}.attn_q_a.weight" in self._tensors:
            row = self.norm(self.linear(x, f"{block}.attn_q_a"), f"{block}.attn_q_a_norm")
            q = self.linear(row, f"{block}.attn_q_b").reshape(n, n_head, width)
        else:
            q = self.linear(x, f"{block}.attn_q").reshape(n, n_head, width)
        both = self.linear(x, f"{block}.attn_kv_a_mqa")
        row = self.rounded(self.norm(both[:, :rank], f"{block}.attn_kv_a_norm"))
        turned = self.rounded(self._rope(both[:, None, rank:], self._rope_all)[:, 0])
        q_turned = self._rope(q[..., width - self.n_rot :], self._rope_all)
        unseen = np.triu(np.ones((n, n), dtype=bool), 1)
        k_b, v_b = (self.require(f"{block}.attn_{part}_b.weight") for part in "kv")
        out = np.empty((n, n_head, int(self.key("attention.value_length_mla"))))
        for head in range(n_head):
            keys = row @ k_b[head].astype(np.float64)
            scores = q[:, head, : width - self.n_rot] @ keys.T + q_turned[:, head] @ turned.T
            scores *= self._latent_factor() / math.sqrt(width)
            scores[unseen] = -np.inf
            shares = np.exp(scores - scores.max(axis=1, keepdims=True))
            shares /= shares.sum(axis=1, keepdims=True)
            out[:, head] = shares @ (row @ v_b[head].T.astype(np.float64))
        return self.linear(out.reshape(n, -1), f"{block}.attn_output")

    def _latent_factor(self) -> float:
        """Of scores: YaRN's for both sides, by `mscale_all_dim`, of which files have a tenth."""
        by, factor = (
            float(self.key(f"rope.scaling.{key}", 0.0)) for key in ("yarn_log_multiplier", "factor")
        )
        return (1.0 + by * math.log(max(factor, 1.0))) ** 2

    def _delta_rule(self, layer: int, x: Array) -> Array:
        n, d = len(x), int(self.key("ssm.state_size"))
        heads, key_heads = int(self.key("ssm.time_step_rank")), int(self.key("ssm.group_count"))
        vector = lambda name: self.require(f"blk.{layer}.{name}").astype(np.float64)  # noqa: E731
        qkv = causal_convolution(
            self.linear(x, f"blk.{layer}.attn_qkv"), vector("ssm_conv1d.weight")
        )
        qkv = qkv * logistic(qkv)
        q, k, v = np.split(qkv.reshape(n, -1, d), [key_heads, 2 * key_heads], axis=1)
        # Qwen3-Next (https://huggingface.co/docs/transformers/model_doc/qwen3_next) has the heads
        # of values in groups, one a head of keys, and the betas of a group before its alphas.
        grouped = self.arch == "qwen3next"
        if grouped:
            both = self.linear(x, f"blk.{layer}.ssm_ba").reshape(n, key_heads, 2, -1)
            beta, alpha = both[:, :, 0].reshape(n, heads), both[:, :, 1].reshape(n, heads)
        else:
            alpha, beta = (self.linear(x, f"blk.{layer}.ssm_{name}") for name in ("alpha", "beta"))
        out = delta_rule(
            q,
            k,
            v,
            alpha,
            beta,
            vector("ssm_a"),
            vector("ssm_dt.bias"),
            self.eps,
            grouped=grouped,
        )
        z = self.linear(x, f"blk.{layer}.attn_gate").reshape(n, heads, d)
        gate = logistic(z) if self.arch == "qwen4exp" else z * logistic(z)
        out = self.norm(out, f"blk.{layer}.ssm_norm") * gate
        return self.linear(out.reshape(n, -1), f"blk.{layer}.ssm_out")

    def _mamba2(self, layer: int, x: Array) -> Array:
        n, groups = len(x), int(self.key("ssm.group_count"))
        heads, inner = int(self.key("ssm.time_step_rank")), int(self.key("ssm.inner_size"))
        shared = groups * int(self.key("ssm.state_size"))
        vector = lambda name: self.require(f"blk.{layer}.{name}").astype(np.float64)  # noqa: E731
        rows = self.linear(x, f"blk.{layer}.ssm_in")
        z, xbc, t = np.split(rows, [inner, 2 * inner + 2 * shared], axis=1)
        xbc = causal_convolution(xbc, vector("ssm_conv1d.weight")) + vector("ssm_conv1d.bias")
        xbc = xbc * logistic(xbc)
        parts = np.split(xbc, [inner, inner + shared], axis=1)
        parts = [p.reshape(n, of, -1) for p, of in zip(parts, (heads, groups, groups), strict=True)]
        a, dt, d = (vector(name).reshape(-1) for name in ("ssm_a", "ssm_dt.bias", "ssm_d"))
        out = mamba2.gated(mamba2.scan(*parts, t, a, dt, d).reshape(n, -1), z)
        normed = normalized(out.reshape(n, groups, -1), self.eps).reshape(n, -1)
        return self.linear(normed * vector("ssm_norm.weight").reshape(-1), f"blk.{layer}.ssm_out")

    def feed_forward(self, layer: int, x: Array) -> Array:
        if f"blk.{layer}.ffn_gate_inp.weight" in self._tensors:
            return self._experts(layer, x) + self._shared_expert(layer, x)
        up = self.linear(x, f"blk.{layer}.ffn_up")
        if self.arch in NEMOTRON_H:
            return self.linear(squared(up), f"blk.{layer}.ffn_down")
        if f"blk.{layer}.ffn_gate.weight" in self._tensors:
            gate = self.linear(x, f"blk.{layer}.ffn_gate")
        else:
            gate, up = np.split(up, 2, axis=1)
        if self.arch == "gemma3":
            cubed = gate + 0.044715 * gate**3
            gate = 0.5 * gate * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * cubed))
        else:
            with np.errstate(over="ignore"):  # exp(-gate) = inf gives the right limit, 0
                gate = gate / (1.0 + np.exp(-gate))
        return self.linear(gate * up, f"blk.{layer}.ffn_down")

    def _experts(self, layer: int, x: Array) -> Array:
        """The largest of the router's logits, of equals the first; each expert's share is that of
        the softmax over those chosen, which is that over all by what these add up to. In SIGMOID it
        is the largest of sigmoids with a bias each, and the share is that of the sigmoids."""
        logits = self.linear(x, f"blk.{layer}.ffn_gate_inp")
        compared = logits
        # DeepSeek-V2 has softmax without a bias, V3 (https://arxiv.org/abs/2412.19437) sigmoids.
        is_sigmoid = self.arch in SIGMOID and f"blk.{layer}.exp_probs_b.bias" in self._tensors
        if is_sigmoid:
            compared = logistic(logits) + self.require(f"blk.{layer}.exp_probs_b.bias")
        compared = self._of_groups(layer, compared, 2 if is_sigmoid else 1)
        chosen = self.chosen(layer, compared)
        picked = np.take_along_axis(logits, chosen, axis=1)
        shares = np.exp(picked - picked.max(axis=1, keepdims=True))
        if is_sigmoid:
            shares = logistic(picked)
        if self.arch == "deepseek2" and not self.key("expert_weights_norm", False):
            shares /= np.exp(logits - picked.max(axis=1, keepdims=True)).sum(axis=1, keepdims=True)
        else:
            shares /= shares.sum(axis=1, keepdims=True)
        if self.arch in ("glm4moe", "laguna", "nemotron_h_moe", "deepseek2"):
            shares *= float(self.key("expert_weights_scale", 1.0))
        # Of Nemotron 3 Super what they multiply is narrower than rows
        # (https://arxiv.org/abs/2512.20856).
        is_latent = f"blk.{layer}.ffn_latent_down.weight" in self._tensors
        if is_latent:
            x = self.linear(x, f"blk.{layer}.ffn_latent_down")
        out = np.zeros_like(x)
        for expert in np.unique(chosen):
            rows, at = np.nonzero(chosen == expert)
            up = self._expert(layer, "up", expert, x[rows])
            if self.arch in NEMOTRON_H:
                inner = squared(up)
            else:
                inner = self._activation(self._expert(layer, "gate", expert, x[rows]), up)
            out[rows] += shares[rows, at, None] * self._expert(layer, "down", expert, inner)
        return self.linear(out, f"blk.{layer}.ffn_latent_up") if is_latent else out

    def _of_groups(self, layer: int, compared: Array, counted: int) -> Array:
        """Scores of experts, -inf but in the groups of the largest, by the sum of the largest
        `counted` of each: of DeepSeek-V2 one, of V3 two."""
        groups = int(self.key("expert_group_count", 1))
        if groups == 1:
            return compared
        of_groups = compared.reshape(len(compared), groups, -1)
        scores = np.sort(of_groups, axis=2)[..., -counted:].sum(axis=2)
        used = self.chosen(layer + self.n_layer, scores, int(self.key("expert_group_used_count")))
        result = np.full_like(of_groups, -np.inf)
        at = np.arange(len(result))[:, None], used
        result[at] = of_groups[at]
        return result.reshape(compared.shape)

    def chosen(self, layer: int, compared: Array, k: int = 0) -> NDArray[np.int64]:
        """Of each row the experts with the largest scores, or the `k` groups, of equals the first,
        but for `swapped`; scores are [n, n_expert], experts [n, n_expert_used]."""
        k = k or int(self.key("expert_used_count"))
        order = np.argsort(-compared, axis=1, kind="stable")
        last, next_best = np.take_along_axis(compared, order[:, k - 1 : k + 1], axis=1).T
        self.margins[layer] = last - next_best
        for at, row in self.swapped:
            if at == layer:
                order[row, [k - 1, k]] = order[row, [k, k - 1]]
        return order[:, :k]

    def _shared_expert(self, layer: int, x: Array) -> Array | float:
        """Of qwen35moe and qwen3next: one that every row goes to, times the logistic function of
        one number; of glm4moe and laguna the same without a factor."""
        if f"blk.{layer}.ffn_up_shexp.weight" not in self._tensors:
            return 0.0
        if self.arch in NEMOTRON_H:
            up = self.linear(x, f"blk.{layer}.ffn_up_shexp")
            return self.linear(squared(up), f"blk.{layer}.ffn_down_shexp")
        row = self.weight(f"blk.{layer}.ffn_gate_inp_shexp.weight")
        gate, up = (self.linear(x, f"blk.{layer}.ffn_{part}_shexp") for part in ("gate", "up"))
        share = 1.0 if row is None else logistic(x @ row.reshape(-1, 1).astype(np.float64))
        out: Array = share * self.linear(self._activation(gate, up), f"blk.{layer}.ffn_down_shexp")
        return out

    def _expert(self, layer: int, part: str, expert: int, x: Array) -> Array:
        name = f"blk.{layer}.ffn_{part}_exps"
        y: Array = x @ self.require(f"{name}.weight")[expert].T.astype(np.float64)
        scale = self.weight(f"{name}.scale")
        if scale is not None:
            y = y * float(scale[expert])
        bias = self.weight(f"{name}.bias")
        return y if bias is None else y + bias[expert]

    def _activation(self, gate: Array, up: Array) -> Array:
        """SwiGLU, in gpt-oss clamped (https://arxiv.org/abs/2508.10925)."""
        if self.arch == "gpt-oss":
            gate, up = np.minimum(gate, 7.0), np.clip(up, -7.0, 7.0)
            return gate * logistic(1.702 * gate) * (up + 1.0)
        return gate * logistic(gate) * up

    def linear(self, x: Array, name: str) -> Array:
        """The product with a matrix, with its scale and its bias where the file has them."""
        y = x @ self.require(f"{name}.weight").T.astype(np.float64)
        scale = self.weight(f"{name}.scale")
        # Gemma 4's router has a vector of that name.
        if scale is not None and scale.size == 1:
            y = y * float(scale[0])
        bias = self.weight(f"{name}.bias")
        return y if bias is None else y + bias

    def norm(self, x: Array, name: str, eps: float | None = None) -> Array:
        """RMS norm of each part of a row that is as wide as the weight, by the file's epsilon where
        it is none of the architecture's. Cohere's is of what a value differs from the mean."""
        weight = self.require(f"{name}.weight").astype(np.float64)
        parts = x.reshape(len(x), -1, weight.size)
        if self.arch in COHERE:
            parts = parts - parts.mean(axis=-1, keepdims=True)
        eps = self.eps if eps is None else eps
        result: Array = (normalized(parts, eps) * weight).reshape(x.shape)
        return result

    def rounded(self, x: Array) -> Array:
        """Keys or values as the cache has them."""
        result: Array = x.astype(self._kv_dtype).astype(np.float64)
        return result

    def require(self, name: str) -> NDArray[np.float32]:
        """The expanded tensor; KeyError where there is none."""
        weight = self.weight(name)
        if weight is None:
            raise KeyError(name)
        return weight

    def rotated(self, x: Array, positions: NDArray[np.int64]) -> Array:
        """Heads at these positions, rotated by the angles of all layers."""
        return self._rope(x, self._rope_all, positions)

    def _rope(self, x: Array, rope: Rope, positions: NDArray[np.int64] | None = None) -> Array:
        """Rotates as many numbers of each head as there are angles; x is [n, heads, head_dim]."""
        inv_freq, scale = rope
        positions = np.arange(len(x)) if positions is None else positions
        angle = positions[:, None, None] * inv_freq
        cos, sin = np.cos(angle) * scale, np.sin(angle) * scale
        half = len(inv_freq)
        if self.arch in INTERLEAVED:
            first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
        else:
            first, second = slice(0, half), slice(half, 2 * half)
        out = x.copy()
        out[..., first] = x[..., first] * cos - x[..., second] * sin
        out[..., second] = x[..., first] * sin + x[..., second] * cos
        return out

    def _rope_frequencies(self) -> Rope:
        """Radians a position for each rotated pair, and the factor on cos and sin.

        YaRN: Peng et al. 2023, https://arxiv.org/abs/2309.00071, with the metadata keys and the
        rounding of the ramp's ends (floor and ceiling) that GGUF files are made for.
        """
        base = float(self.key("rope.freq_base", 10000.0))
        pair = np.arange(self.n_rot // 2, dtype=np.float64)
        inv_freq = base ** (-2.0 * pair / self.n_rot)
        factors = self.weight("rope_freqs.weight")
        if factors is not None:
            inv_freq = inv_freq / factors.astype(np.float64)
        # LongRoPE: Ding et al. 2024, https://arxiv.org/abs/2402.13753.
        original = int(self.key("rope.scaling.original_context_length", self.key("context_length")))
        which = "long" if self._n_ctx > original else "short"
        factors = self.weight(f"rope_factors_{which}.weight")
        if factors is not None:
            inv_freq = inv_freq / factors.astype(np.float64)
            return inv_freq, float(self.key("rope.scaling.attn_factor", 1.0))
        kind = self.key("rope.scaling.type", "linear")
        factor = float(self.key("rope.scaling.factor", self.key("rope.scale_linear", 0.0)))
        factor = factor or 1.0
        if kind == "none":
            return inv_freq, 1.0
        if kind == "linear":
            return inv_freq / factor, 1.0
        if kind != "yarn":
            raise ValueError(f"the reference knows no rope.scaling.type {kind!r}")
        context = float(
            self.key("rope.scaling.original_context_length", self.key("context_length"))
        )

        def turning_pair(turns: float) -> float:
            """The pair that makes `turns` full turns within the original context."""
            return self.n_rot * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(base))

        low = math.floor(turning_pair(float(self.key("rope.scaling.yarn_beta_fast", 32.0))))
        high = math.ceil(turning_pair(float(self.key("rope.scaling.yarn_beta_slow", 1.0))))
        low, high = max(0, low), min(self.n_rot - 1, high)
        keep = 1.0 - np.clip((pair - low) / max(0.001, high - low), 0.0, 1.0)
        keep = keep * float(self.key("rope.scaling.yarn_ext_factor", 1.0))
        log = 0.1 * math.log(max(factor, 1.0))
        scale = 1.0 + log
        if self.arch == "deepseek2":
            scale = 1.0
        if self.arch == "mistral3":
            scale /= 1.0 + float(self.key("rope.scaling.yarn_log_multiplier", 0.0)) * log
        named = float(self.key("rope.scaling.attn_factor", 1.0))
        # Files of OLMo 3 name the whole, as its published configuration does.
        scale = named if self.arch == "olmo2" and named != 1.0 else scale * named
        return inv_freq / factor * (1.0 - keep) + inv_freq * keep, scale


def normalized(x: Array, eps: float) -> Array:
    """Each row by its root mean square."""
    result: Array = x * (1.0 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps))
    return result


def squared(x: Array) -> Array:
    """The square of what is positive (https://arxiv.org/abs/2109.08668)."""
    result: Array = np.maximum(x, 0.0) ** 2
    return result


def log_softmax(logits: NDArray[np.floating[Any]]) -> Array:
    """Row-wise log-probabilities in float64."""
    x = np.asarray(logits, dtype=np.float64)
    x = x - x.max(axis=-1, keepdims=True)
    result: Array = x - np.log(np.exp(x).sum(axis=-1, keepdims=True))
    return result


def kl(exact: NDArray[np.floating[Any]], other: NDArray[np.floating[Any]]) -> Array:
    """KL(exact || other) of each row of logits, in nats."""
    p, q = log_softmax(exact), log_softmax(other)
    result: Array = (np.exp(p) * (p - q)).sum(axis=-1)
    return result


def mean_kl(exact: NDArray[np.floating[Any]], other: NDArray[np.floating[Any]]) -> float:
    """Mean over rows of KL(exact || other), in nats."""
    return float(kl(exact, other).mean())
