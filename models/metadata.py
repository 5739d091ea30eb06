"""Metadata of synthetic models, but for the tokenizer's."""

from __future__ import annotations

import gguf_io
import mix as mixes
from shapes import Shape

#: Numbers of `pooling_type`.
POOLING = {"mean": 1, "last": 3, "rank": 4}


def metadata(shape: Shape, mix: str) -> dict[str, bytes]:
    """The model's keys, without the tokenizer's."""
    a = shape.arch
    norm = "layer_norm" if a in ("cohere2", "command-r") else "layer_norm_rms"
    out = {
        "general.architecture": gguf_io.string(a),
        "general.type": gguf_io.string("model"),
        "general.name": gguf_io.string(f"synthetic {shape.name} {mix}"),
        "general.quantization_version": gguf_io.u32(2),
        f"{a}.block_count": gguf_io.u32(shape.n_layer + shape.n_layer_nextn),
        f"{a}.context_length": gguf_io.u32(shape.n_ctx),
        f"{a}.embedding_length": gguf_io.u32(shape.n_embd),
        f"{a}.attention.head_count": _heads(shape),
        f"{a}.attention.head_count_kv": _kv_heads(shape),
        f"{a}.attention.key_length": gguf_io.u32(shape.head_dim),
        f"{a}.attention.value_length": gguf_io.u32(shape.latent.get("rank", shape.head_dim)),
        f"{a}.attention.{norm}_epsilon": gguf_io.f32(shape.eps),
        f"{a}.rope.dimension_count": gguf_io.u32(shape.rope_dim or shape.head_dim),
        f"{a}.rope.freq_base": gguf_io.f32(shape.rope_base),
        f"{a}.vocab_size": gguf_io.u32(shape.n_vocab),
    }
    if shape.is_nemotron_h:
        out[f"{a}.feed_forward_length"] = gguf_io.i32s(map(shape.ff, range(shape.n_layer)))
        # Of the norm behind layers that guess further tokens.
        out[f"{a}.attention.layer_norm_epsilon"] = gguf_io.f32(shape.eps)
    elif shape.n_ff:
        out[f"{a}.feed_forward_length"] = gguf_io.u32(shape.n_ff)
    if shape.window:
        out[f"{a}.attention.sliding_window"] = gguf_io.u32(shape.window)
    if shape.window_rope_dim:
        out[f"{a}.rope.dimension_count_swa"] = gguf_io.u32(shape.window_rope_dim)
    if a.startswith("gemma4"):
        out |= _gemma4(shape)
    elif a == "muse-glimmer" and shape.window_pattern:
        pattern = gguf_io.booleans(map(shape.is_local, range(shape.n_layer)))
        out[f"{a}.attention.sliding_window_pattern"] = pattern
    elif shape.window_pattern:
        out[f"{a}.attention.sliding_window_pattern"] = gguf_io.u32(shape.window_pattern)
    for key, factor in {
        "rope.freq_base_swa": shape.window_base,
        "embedding_scale": shape.embedding_scale,
        "residual_scale": shape.residual_scale,
        "attention.scale": shape.attention_scale,
        "attention.temperature_scale": shape.temperature,
        "rope.scaling.yarn_log_multiplier": shape.rope_scaling.get("log_multiplier", 0.0),
        "logit_scale": shape.logit_scale,
        "expert_weights_scale": shape.expert_scale,
        "final_logit_softcapping": shape.logit_cap,
    }.items():
        if factor:
            out[f"{a}.{key}"] = gguf_io.f32(factor)
    if shape.n_expert:
        out[f"{a}.expert_count"] = gguf_io.u32(shape.n_expert)
        out[f"{a}.expert_used_count"] = gguf_io.u32(shape.n_expert_used)
        out[f"{a}.expert_feed_forward_length"] = gguf_io.u32(shape.n_ff_exp)
    if shape.n_layer_dense:
        out[f"{a}.leading_dense_block_count"] = gguf_io.u32(shape.n_layer_dense)
    if shape.sigmoid:
        out[f"{a}.expert_gating_func"] = gguf_io.u32(2)
    if shape.conv:
        out[f"{a}.shortconv.l_cache"] = gguf_io.u32(shape.conv)
    renormalizes = a in ("glm4moe", "laguna", "nemotron_h_moe")
    if renormalizes or (a == "deepseek2" and shape.sigmoid):
        out[f"{a}.expert_weights_norm"] = gguf_io.boolean(True)
    if shape.latent:
        out |= _latent(shape)
    if a in ("glm4moe", "deepseek2"):
        out[f"{a}.expert_shared_count"] = gguf_io.u32(shape.n_ff_shared // shape.n_ff_exp)
    elif shape.n_ff_shared:
        out[f"{a}.expert_shared_feed_forward_length"] = gguf_io.u32(shape.n_ff_shared)
    if shape.pooling:
        out[f"{a}.pooling_type"] = gguf_io.u32(POOLING[shape.pooling])
    if shape.pooling == "rank":
        out[f"{a}.classifier.output_labels"] = gguf_io.strings(["yes", "no"])
    if mix in mixes.FILE_TYPES:
        out["general.file_type"] = gguf_io.u32(mixes.FILE_TYPES[mix])
    if delta := shape.delta:
        out |= _states(a, delta, "head_dim", "k_heads", "v_heads")
        out |= {
            f"{a}.full_attention_interval": gguf_io.u32(delta["interval"]),
            # Sections of the rotation, in pairs; text turns all of them alike.
            f"{a}.rope.dimension_sections": gguf_io.i32s(_sections(shape)),
        }
    if shape.streams:
        out |= _streams(shape)
    if mamba2 := shape.mamba2:
        out |= _states(a, mamba2, "d_state", "n_group", "n_head")
    if shape.n_latent:
        out[f"{a}.moe_latent_size"] = gguf_io.u32(shape.n_latent)
    if a == "granitehybrid":
        # No layer rotates.
        out[f"{a}.rope.scaling.finetuned"] = gguf_io.boolean(False)
    if shape.n_layer_nextn:
        out[f"{a}.nextn_predict_layers"] = gguf_io.u32(shape.n_layer_nextn)
    scaling = shape.rope_scaling
    if scaling.get("type") == "longrope":
        out[f"{a}.rope.scaling.attn_factor"] = gguf_io.f32(scaling["attn_factor"])
        out[f"{a}.rope.scaling.original_context_length"] = gguf_io.u32(scaling["original_context"])
    # llama3 scaling is data: the tensor rope_freqs.weight.
    if scaling.get("type") in ("linear", "yarn"):
        out[f"{a}.rope.scaling.type"] = gguf_io.string(scaling["type"])
        out[f"{a}.rope.scaling.factor"] = gguf_io.f32(scaling["factor"])
        out[f"{a}.rope.scaling.original_context_length"] = gguf_io.u32(scaling["original_context"])
    return out


def _heads(shape: Shape) -> bytes:
    """One number, or one a layer where the layers that see a window have others."""
    if not shape.window_heads:
        return gguf_io.u32(shape.n_head)
    return gguf_io.i32s(map(shape.query_heads, range(shape.n_layer)))


def _kv_heads(shape: Shape) -> bytes:
    """One number, or one a layer where some have no heads of keys: they do not attend."""
    if not (shape.conv or shape.mamba2):
        return gguf_io.u32(shape.n_head_kv)
    heads = [shape.n_head_kv if shape.attends(layer) else 0 for layer in range(shape.n_layer)]
    return gguf_io.i32s(heads)


def _gemma4(shape: Shape) -> dict[str, bytes]:
    """Keys of what differs from layer to layer, or is Gemma 4's own."""
    layers = range(shape.n_layer)
    head_dim = shape.local["head_dim"]
    out = {
        "attention.sliding_window_pattern": gguf_io.booleans(map(shape.is_local, layers)),
        "attention.head_count_kv": gguf_io.i32s(shape.heads(layer)[0] for layer in layers),
        "attention.key_length_swa": gguf_io.u32(head_dim),
        "attention.value_length_swa": gguf_io.u32(head_dim),
        "attention.shared_kv_layers": gguf_io.u32(shape.n_layer_shared_kv),
        "rope.dimension_count_swa": gguf_io.u32(head_dim),
        "embedding_length_per_layer_input": gguf_io.u32(shape.n_embd_layer),
    }
    if shape.n_ff_last:
        out["feed_forward_length"] = gguf_io.i32s(map(shape.ff, layers))
    if shape.n_embd_backbone:
        out["embedding_length_out"] = gguf_io.u32(shape.n_embd_backbone)
        out["nextn_predict_layers"] = gguf_io.u32(shape.n_layer)
    return {f"{shape.arch}.{key}": value for key, value in out.items()}


def _streams(shape: Shape) -> dict[str, bytes]:
    """Keys of hyper-connections, of the choice of blocks, and of embeddings of n-grams."""
    of, grams = shape.streams, shape.ngrams
    layers = range(shape.n_layer)
    out = {
        "hyper_connection.count": gguf_io.u32(of["count"]),
        "hyper_connection.low_rank": gguf_io.u32(of["rank"]),
        "attention.indexer.head_count": gguf_io.u32(of["index_heads"]),
        "attention.indexer.key_length": gguf_io.u32(of["index_dim"]),
        "attention.indexer.top_k": gguf_io.u32(of["top_k"]),
        "attention.compress_ratios": gguf_io.i32s(
            of["ratio"] if shape.attends(layer) else 0 for layer in layers
        ),
    }
    if grams:
        rows = shape.ngram_rows()
        first = [sum(rows[:head]) for head in range(len(rows))]
        # Odd, and such that a token's product has no more than 63 bits.
        spread = [(0x9E3779B97F4A7C15 * (j + 1)) % 2**64 >> 20 | 1 for j in range(grams["size"])]
        out |= {
            "ple.layers": gguf_io.i32s([grams["layer"]]),
            "ple.ngram_size": gguf_io.u32(grams["size"]),
            "ple.heads_per_ngram": gguf_io.u32(grams["heads"]),
            "ple.conv_kernel": gguf_io.u32(grams["conv"]),
            "ple.eos_token_id": gguf_io.u32(grams["eos"]),
            "ple.layer_multipliers": gguf_io.u64s(spread),
            "ple.head_offsets": gguf_io.u64s(first),
            "ple.head_vocab_sizes": gguf_io.u64s(rows),
            "embedding_length_per_layer_input": gguf_io.u32(grams["width"]),
        }
    return {f"{shape.arch}.{key}": value for key, value in out.items()}


def _latent(shape: Shape) -> dict[str, bytes]:
    """Keys of attention over latent rows, and of groups of experts."""
    out = {
        "attention.kv_lora_rank": shape.latent["rank"],
        "attention.key_length_mla": shape.latent["key_dim"],
        "attention.value_length_mla": shape.latent["value_dim"],
    }
    if shape.latent.get("q_rank"):
        out["attention.q_lora_rank"] = shape.latent["q_rank"]
    if shape.groups:
        out["expert_group_count"], out["expert_group_used_count"] = shape.groups
    return {f"{shape.arch}.{key}": gguf_io.u32(value) for key, value in out.items()}


def _states(arch: str, of: dict[str, int], size: str, groups: str, heads: str) -> dict[str, bytes]:
    """Of recurrent layers, by what their shape calls each."""
    out = {
        "conv_kernel": of["conv"],
        "state_size": of[size],
        "group_count": of[groups],
        "time_step_rank": of[heads],
        "inner_size": of[heads] * of["head_dim"],
    }
    return {f"{arch}.ssm.{key}": gguf_io.u32(value) for key, value in out.items()}


def _sections(shape: Shape) -> list[int]:
    """A third of the pairs each for time, height and width, and none for a fourth."""
    pairs = (shape.rope_dim or shape.head_dim) // 2
    third = pairs // 3
    return [pairs - 2 * third, third, third, 0]
