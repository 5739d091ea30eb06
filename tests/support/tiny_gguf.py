"""Tiny models, written by the `gguf` package: the format's other implementation."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

N_LAYER, N_EMBD, N_FF, N_HEAD, N_HEAD_KV, HEAD_DIM, N_VOCAB, N_CTX = 2, 64, 96, 4, 2, 16, 12, 256
TOKENS = [*"abcdefgh", "ab", "cd", "<s>", "</s>"]
CHAT_TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}\nsecond line"

#: What `write` knows.
ARCHITECTURES = [
    *("llama", "qwen2", "qwen3", "gemma3", "granite", "muse-glimmer", "olmo2", "smollm3"),
    *("ernie4_5", "seed_oss", "hunyuan-dense", "glm4", "exaone4", "phi3", "cohere2"),
]


def tensors(arch: str) -> Iterator[tuple[str, NDArray[Any]]]:
    """Name and float values of every tensor, in the order they are written."""
    rng = np.random.default_rng(0)
    n_q, n_kv = N_HEAD * HEAD_DIM, N_HEAD_KV * HEAD_DIM
    yield "token_embd.weight", rng.standard_normal((N_VOCAB, N_EMBD))
    for layer in range(N_LAYER):
        shapes = {
            "attn_norm.weight": (N_EMBD,),
            "attn_q.weight": (n_q, N_EMBD),
            "attn_k.weight": (n_kv, N_EMBD),
            "attn_v.weight": (n_kv, N_EMBD),
            "attn_output.weight": (N_EMBD, n_q),
            "ffn_norm.weight": (N_EMBD,),
            "ffn_gate.weight": (N_FF, N_EMBD),
            "ffn_up.weight": (N_FF, N_EMBD),
            "ffn_down.weight": (N_EMBD, N_FF),
        }
        if arch in ("qwen2", "seed_oss"):
            shapes |= {f"attn_{x}.bias": (n,) for x, n in (("q", n_q), ("k", n_kv), ("v", n_kv))}
        if arch in ("gemma3", "muse-glimmer", "olmo2", "glm4", "exaone4"):
            shapes |= {f"post_{x}_norm.weight": (N_EMBD,) for x in ("attention", "ffw")}
        if arch in ("olmo2", "exaone4"):
            del shapes["attn_norm.weight"], shapes["ffn_norm.weight"]
        if arch == "olmo2":
            shapes |= {f"attn_{x}_norm.weight": (n,) for x, n in (("q", n_q), ("k", n_kv))}
        if arch == "phi3":
            for x in "qkv":
                del shapes[f"attn_{x}.weight"]
            shapes["attn_qkv.weight"] = (n_q + 2 * n_kv, N_EMBD)
        if arch in ("glm4", "phi3"):
            del shapes["ffn_gate.weight"]
            shapes["ffn_up.weight"] = (2 * N_FF, N_EMBD)
        if arch == "seed_oss":
            shapes["post_attention_norm.weight"] = shapes.pop("ffn_norm.weight")
        if arch == "cohere2":
            del shapes["ffn_norm.weight"]
        if arch == "muse-glimmer":
            shapes |= {"attn_gate.weight": (n_q, N_EMBD)}
        if arch in ("qwen3", "gemma3", "muse-glimmer", "hunyuan-dense", "exaone4"):
            shapes |= {f"attn_{x}_norm.weight": (HEAD_DIM,) for x in "qk"}
        for name, shape in shapes.items():
            yield f"blk.{layer}.{name}", rng.standard_normal(shape)
    yield "output_norm.weight", rng.standard_normal(N_EMBD)


def write(
    path: Path,
    arch: str = "llama",
    *,
    split_max_tensors: int = 0,
    vocab_only: bool = False,
    extra: dict[str, tuple[Any, gguf.GGUFValueType]] | None = None,
    alignment: int = 0,
    empty: str = "",
) -> Path:
    """A whole model: matrices Q8_0, vectors F32, a tensor without numbers where `empty` names one.
    Returns the path (of the first shard)."""
    writer = gguf.GGUFWriter(path, arch, split_max_tensors=split_max_tensors)
    if alignment:
        writer.add_custom_alignment(alignment)
    writer.add_name("tiny")
    writer.add_block_count(N_LAYER)
    writer.add_context_length(N_CTX)
    writer.add_embedding_length(N_EMBD)
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(N_HEAD)
    writer.add_head_count_kv(N_HEAD_KV)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(10_000.0)
    if arch == "cohere2":
        writer.add_layer_norm_eps(1e-5)
    else:
        writer.add_layer_norm_rms_eps(1e-5)
    if arch in ("gemma3", "muse-glimmer", "cohere2"):
        writer.add_sliding_window(64)
    if arch == "granite":
        writer.add_logit_scale(8.0)
    if arch in ("muse-glimmer", "cohere2"):
        writer.add_logit_scale(0.5)
    if arch == "muse-glimmer":
        writer.add_final_logit_softcapping(30.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([1] * 10 + [3] * 2)
    writer.add_token_merges(["a b", "c d"])
    writer.add_bos_token_id(10)
    writer.add_eos_token_id(11)
    writer.add_add_bos_token(True)
    writer.add_chat_template(CHAT_TEMPLATE)
    for key, (value, kind) in (extra or {}).items():
        writer.add_key_value(key, value, kind)
    if not vocab_only:
        for name, values in tensors(arch):
            values = values.astype(np.float32)
            if values.ndim == 1:
                writer.add_tensor(name, values)
            else:
                kind = gguf.GGMLQuantizationType.Q8_0
                writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        if empty:
            writer.add_tensor(empty, np.zeros((0, 3), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    shards = sorted(path.parent.glob(f"{path.stem}-00001-of-*.gguf"))
    return shards[0] if shards else path


def header_bytes(path: Path) -> int:
    """Where the tensors' bytes begin."""
    return int(gguf.GGUFReader(path).data_offset)


def as_version_2(path: Path) -> None:
    """Versions 2 and 3 differ in the number alone, for little-endian files."""
    with path.open("r+b") as file:
        file.seek(4)
        file.write(struct.pack("<I", 2))
