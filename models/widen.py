"""Widens a model with zeros so that every row is whole superblocks; its function stays the same.

    python models/widen.py smollm2.gguf --mix Q4_K -o wide.gguf

SmolLM2's rows of 576 weights take no type with superblocks of 256. Widened to 768 columns, 9 heads
to 12 and 3 key-value heads to 4, they take all. Why the function does not change:

- The new columns of the stream are zero and stay so: every matrix that adds to it has zero rows
  there, and the embedding has zeros.
- RMS norms divide by the mean over more columns: sqrt(S / n + eps), for the wider mean, is
  sqrt(m / n) sqrt(S / m + eps n / m). So norm weights are multiplied by sqrt(n / m), eps by n / m.
- New heads come after the old ones, whose key-value head (head // ratio) stays the same as the
  ratio does. New heads see zero values, and their columns of the output matrix are zero.
- silu(0) * 0 = 0 for new columns of the feed-forward network.

In F32 the result equals the source up to the rounding of the norm weights; in a quantized type it
is a real model in that type. Needs the native module, for its quantizers.
"""

from __future__ import annotations

import argparse
import math
import os
from dataclasses import dataclass, replace
from pathlib import Path

import gguf_io
import mix as mixes
import numpy as np
from numpy.typing import NDArray
from onegraph import _native
from shapes import Shape

SUPERBLOCK = 256


@dataclass(frozen=True)
class _Type:
    name: str
    type_id: int
    elems: int
    size: int


TYPES = {t[0]: _Type(*t[:4]) for t in _native.quant_types()}
_BY_ID = {t.type_id: t for t in TYPES.values()}


def shape_of(source: gguf_io.Reader) -> Shape:
    """The shape of a file, by its metadata."""
    meta = source.metadata
    arch = meta["general.architecture"]

    def key(name: str) -> int:
        return int(meta[f"{arch}.{name}"])

    n_head = key("attention.head_count")
    return Shape(
        name=str(meta.get("general.name", "model")),
        arch=arch,
        pre=str(meta.get("tokenizer.ggml.pre", "default")),
        n_layer=key("block_count"),
        n_embd=key("embedding_length"),
        n_ff=key("feed_forward_length"),
        n_head=n_head,
        n_head_kv=int(meta.get(f"{arch}.attention.head_count_kv", n_head)),
        head_dim=int(meta.get(f"{arch}.attention.key_length", key("embedding_length") // n_head)),
        n_vocab=source.tensors["token_embd.weight"].shape[1],
        n_ctx=key("context_length"),
        eps=float(meta[f"{arch}.attention.layer_norm_rms_epsilon"]),
        rope_base=float(meta.get(f"{arch}.rope.freq_base", 10000.0)),
        rope_scaling={},
        tied="output.weight" not in source.tensors,
    )


def wider(shape: Shape) -> Shape:
    """The least shape of whole superblocks with the same head size and ratio of heads."""
    ratio = shape.n_head // shape.n_head_kv
    n_head_kv = shape.n_head_kv
    # Rows of the attention's output matrix hold all heads.
    while n_head_kv * ratio * shape.head_dim % SUPERBLOCK:
        n_head_kv += 1
    return replace(
        shape,
        n_embd=-(-shape.n_embd // SUPERBLOCK) * SUPERBLOCK,
        n_ff=-(-shape.n_ff // SUPERBLOCK) * SUPERBLOCK,
        n_head=n_head_kv * ratio,
        n_head_kv=n_head_kv,
    )


def _wider_dims(name: str, dims: tuple[int, ...], old: Shape, new: Shape) -> tuple[int, ...]:
    """GGUF shape of tensor `name` in the wider model."""
    if name == "rope_freqs.weight" or "_q_norm" in name or "_k_norm" in name:
        return dims
    q = (old.n_head * old.head_dim, new.n_head * new.head_dim)
    kv = (old.n_head_kv * old.head_dim, new.n_head_kv * new.head_dim)
    embd, ff = (old.n_embd, new.n_embd), (old.n_ff, new.n_ff)
    vocab = (old.n_vocab, old.n_vocab)
    part = name.split(".")[-2]
    columns, rows = {
        "attn_q": (embd, q),
        "attn_k": (embd, kv),
        "attn_v": (embd, kv),
        "attn_output": (q, embd),
        "ffn_gate": (embd, ff),
        "ffn_up": (embd, ff),
        "ffn_down": (ff, embd),
        "token_embd": (embd, vocab),
        "output": (embd, vocab),
    }.get(part, (embd, embd))
    expected = (rows[0],) if len(dims) == 1 else (columns[0], rows[0])
    if dims != expected:
        raise ValueError(f"{name} has the shape {dims}; expected {expected}")
    return (rows[1],) if len(dims) == 1 else (columns[1], rows[1])


def widen(source: str | os.PathLike[str], target: str | os.PathLike[str], mix: str = "F32") -> None:
    """Writes `source`, widened and requantized to `mix` (see mix.type_of), to `target`."""
    reader = gguf_io.Reader(source)
    old = shape_of(reader)
    new = wider(old)
    elems = {t.name: t.elems for t in TYPES.values()}
    arch = old.arch
    metadata = dict(reader.encoded)
    metadata |= {
        "general.name": gguf_io.string(f"{old.name} widened to {new.n_embd}"),
        f"{arch}.embedding_length": gguf_io.u32(new.n_embd),
        f"{arch}.feed_forward_length": gguf_io.u32(new.n_ff),
        f"{arch}.attention.head_count": gguf_io.u32(new.n_head),
        f"{arch}.attention.head_count_kv": gguf_io.u32(new.n_head_kv),
        f"{arch}.attention.key_length": gguf_io.u32(new.head_dim),
        f"{arch}.attention.value_length": gguf_io.u32(new.head_dim),
        f"{arch}.attention.layer_norm_rms_epsilon": gguf_io.f32(old.eps * old.n_embd / new.n_embd),
    }
    for key in ("general.file_type", "general.alignment"):
        metadata.pop(key, None)
    if mix in mixes.FILE_TYPES:
        metadata["general.file_type"] = gguf_io.u32(mixes.FILE_TYPES[mix])

    tensors, types = [], []
    for tensor in reader.tensors.values():
        dims = _wider_dims(tensor.name, tensor.shape, old, new)
        kind = TYPES[mixes.type_of(new, mix, tensor.name, dims[0], elems)]
        n_bytes = math.prod(dims) // kind.elems * kind.size
        tensors.append(gguf_io.Tensor(tensor.name, dims, kind.type_id, 0, n_bytes))
        types.append(kind)
    gguf_io.place(tensors)
    with Path(target).open("wb") as file:
        start = gguf_io.write_header(file, metadata, tensors)
        for tensor, kind in zip(tensors, types, strict=True):
            weights = _widened(reader, tensor, old, new)
            file.seek(start + tensor.offset)
            file.write(_native.quantize(kind.name, weights.reshape(-1)))


def _widened(
    reader: gguf_io.Reader, tensor: gguf_io.Tensor, old: Shape, new: Shape
) -> NDArray[np.float32]:
    """The tensor's weights, rows first, with zeros where it is wider."""
    source = reader.tensors[tensor.name]
    kind = _BY_ID.get(source.type_id)
    if kind is None:
        known = ", ".join(TYPES)
        raise ValueError(f"{tensor.name} has type number {source.type_id}; known are {known}")
    data = reader.bytes_of(tensor.name, math.prod(source.shape) // kind.elems * kind.size)
    weights = np.frombuffer(_native.dequantize(kind.name, data), np.float32)
    out = np.zeros(tensor.shape[::-1], np.float32)
    out[tuple(slice(0, n) for n in source.shape[::-1])] = weights.reshape(source.shape[::-1])
    # A norm of one head is no wider.
    if "norm" in tensor.name and tensor.shape != source.shape:
        out *= np.float32(math.sqrt(old.n_embd / new.n_embd))
    return out


def main(argv: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Widen a GGUF to whole superblocks.")
    parser.add_argument("source", type=Path)
    parser.add_argument("--mix", default="F32", help="a type, a mix, or types joined by +")
    parser.add_argument("-o", "--output", required=True, type=Path)
    args = parser.parse_args(argv)
    try:
        widen(args.source, args.output, args.mix)
    except (ValueError, OSError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
