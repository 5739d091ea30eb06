"""Writes a GGUF of any shape and mix of types with random weights, at the speed of the disk.

    python models/synth.py llama-3.2-1b --mix Q4_K_M -o out.gguf [--seed N] [--vocab path.gguf]

Quantized weights are random bits with scales set so that a forward pass behaves like a trained
model's: every activation stays finite, logits have a standard deviation of about 3, no control
token is ever likely, and the text depends on all of the prompt. The same arguments give the same
bytes. Needs NumPy alone.

With --known the next token is known, for measurements of drafts: layers add nothing to the stream,
and the head's row of each token is what the embedding's is of the token before it (`followers`).
A layer that guesses further tokens is then right about all, or with --agree about a share of them,
by a table of embeddings of its own; a model without one is right about that share itself. Sizes,
shapes and what a step computes are as without; the rows need the engine's quantizers.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import gguf_io
import mix as mixes
import numpy as np
import shapes
import vocabulary
from metadata import metadata
from numpy.typing import NDArray
from shapes import Shape

Bytes = NDArray[np.uint8]

#: Standard deviation of the logits.
LOGITS = 3.0
#: Root mean square of the stream before the last norm, in units of one of its inputs: large enough
#: that a tied embedding does not make the model repeat its last token.
STREAM = 12.0
#: Standard deviation of what a router compares.
ROUTER = 2.0
#: Gain of a row for a control token: such a token's logit stays far below the largest.
QUIET = 0.125


#: Gain of a matrix whose output is added to the stream and is to change nothing: of scales in 16
#: bits none is left, of others nothing that float32 keeps beside an embedding.
SILENT = 2.0**-100
#: Matrices whose outputs are added to the stream.
ADDED = {
    "attn_output",
    "ffn_down",
    "ffn_down_exps",
    "ffn_down_shexp",
    "ssm_out",
    "out_proj",
    "proj",
    "ffn_latent_up",
    "ple_value",
    "ple_conv1d",
}


#: Scales of blocks, in units of their root mean square: 512 sizes, then the same negative.
_SIZES = np.linspace(0.5, 1.5, 512) / np.sqrt(np.mean(np.linspace(0.5, 1.5, 512) ** 2))
SCALES = np.concatenate([_SIZES, -_SIZES])


def _halves(scales: NDArray[np.float64]) -> NDArray[np.uint16]:
    return scales.astype("<f2").view(np.uint16)


def _symmetric(step: float, at: int = 0, signed: bool = False) -> Callable[[Bytes, float], None]:
    """Fills a type whose weight is d q; `step` is the root mean square of q."""

    def fill(blocks: Bytes, sigma: float) -> None:
        d = blocks.view("<u2")[:, at // 2]
        d[:] = _halves(SCALES * (sigma / step))[d & (1023 if signed else 511)]

    return fill


def _affine(step: float, middle: float, at: int = 0) -> Callable[[Bytes, float], None]:
    """Fills a type whose weight is d q - m, or d q + m where `middle` < 0: m cancels the mean."""

    def fill(blocks: Bytes, sigma: float) -> None:
        halves = blocks.view("<u2")[:, at // 2 :]
        size = halves[:, 0] & 511
        halves[:, 0] = _halves(SCALES * (sigma / step))[size]
        halves[:, 1] = _halves(SCALES * (sigma / step * middle))[size]

    return fill


def _power(step: float) -> Callable[[Bytes, float], None]:
    """Fills a type whose weight is 2^(e - 128) q: of two neighbouring powers, in such shares that
    the mean square is right."""

    def fill(blocks: Bytes, sigma: float) -> None:
        power = math.floor(math.log2(sigma / step))
        share = ((sigma / step / 2.0**power) ** 2 - 1) / 3
        e = blocks[:, 0]
        e[:] = np.where(e < 256 * share, power + 129, power + 128)

    return fill


def _eighths(step: float) -> Callable[[Bytes, float], None]:
    """Fills a type whose weight is d q, d half an E4M3 number: of two neighbours, in such shares
    that the mean square is right."""
    e, mantissa = np.divmod(np.arange(127), 8)
    numbers = np.where(e == 0, mantissa * 2.0**-10, (8 + mantissa) * 2.0 ** (e - 11.0))

    def fill(blocks: Bytes, sigma: float) -> None:
        code = int(np.searchsorted(numbers, sigma / step)) - 1
        low, high = numbers[code : code + 2] ** 2
        share = ((sigma / step) ** 2 - low) / (high - low)
        scales = blocks[:, :4]
        scales[:] = np.where(scales < 256 * share, code + 1, code)

    return fill


def _rms_of(table: tuple[int, ...]) -> float:
    """Root mean square of the integers of a table."""
    return math.sqrt(sum(q * q for q in table) / len(table))


#: What codes of four bits stand for, after the GGUF format.
IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def _rms(top: int, middle: float = 0.0) -> float:
    """Root mean square of a whole number from 0 to `top`, less `middle`."""
    q = np.arange(top + 1) - middle
    return float(np.sqrt(np.mean(q * q)))


def _superblock(top: int, steps: int = 63) -> float:
    """Standard deviation of sc q - (top / 2) m for uniform sc and m from 0 to steps, q to top."""
    whole = _rms(steps) ** 2 * (_rms(top) ** 2 + top**2 / 4) - 2 * (steps / 2 * top / 2) ** 2
    return math.sqrt(whole)


def _odd(most: int) -> float:
    """Root mean square of the odd numbers from 1 to `most`."""
    s = np.arange(1, most + 1, 2)
    return float(np.sqrt(np.mean(s * s)))


def _quartered(step: float, at: int) -> Callable[[Bytes, float], None]:
    """As `_symmetric`, where d is in the top four bits of four 16-bit numbers, the lowest first."""

    def fill(blocks: Bytes, sigma: float) -> None:
        parts = blocks.view("<u2")[:, at // 2 : at // 2 + 4]
        which = parts[:, 0] >> 12 | parts[:, 1] >> 12 << 4 | (parts[:, 2] >> 12 & 3) << 8
        d = _halves(SCALES * (sigma / step))[which]
        parts[:] = parts & 0xFFF | (d[:, None] >> np.arange(0, 16, 4, dtype=np.uint16) & 15) << 12

    return fill


#: Of types of points of grids: the root mean square of q over all points.
_POINTS = {
    **{"IQ3_XXS": 30.85, "IQ3_S": 7.594, "IQ2_XXS": 23.12, "IQ2_XS": 24.22, "IQ2_S": 24.43},
    "IQ1": 6.247,
}


def _uniform(blocks: Bytes, sigma: float) -> NDArray[np.float32]:
    """Uniform numbers from 16 random bits each."""
    step = sigma * math.sqrt(12) / 2**16
    return (blocks.reshape(-1).view("<i2") + np.float32(0.5)) * np.float32(step)


def _fill_half(blocks: Bytes, sigma: float) -> None:
    blocks.reshape(-1).view("<f2")[:] = _uniform(blocks, sigma)


def _fill_brain(blocks: Bytes, sigma: float) -> None:
    blocks.reshape(-1).view("<u2")[:] = _uniform(blocks, sigma).view("<u4") >> 16


def _fill_float(blocks: Bytes, sigma: float) -> None:
    values = blocks.reshape(-1).view("<f4")
    values[:] = _uniform(np.ascontiguousarray(blocks[:, :2]), sigma)


@dataclass(frozen=True)
class Kind:
    """How to make random blocks of a type."""

    type_id: int
    elems: int
    size: int
    #: Sets the scales of random blocks, [n, size], so that the weights have deviation sigma.
    fill: Callable[[Bytes, float], None]


KINDS = {
    "F32": Kind(0, 1, 4, _fill_float),
    "F16": Kind(1, 1, 2, _fill_half),
    "Q4_0": Kind(2, 32, 18, _symmetric(_rms(15, 8), signed=True)),
    "Q4_1": Kind(3, 32, 20, _affine(_rms(15, 7.5), -7.5)),
    "Q5_0": Kind(6, 32, 22, _symmetric(_rms(31, 16), signed=True)),
    "Q5_1": Kind(7, 32, 24, _affine(_rms(31, 15.5), -15.5)),
    "Q8_0": Kind(8, 32, 34, _symmetric(_rms(255, 128))),
    "Q2_K": Kind(10, 256, 84, _affine(_superblock(3, 15), 1.5, at=80)),
    "Q3_K": Kind(11, 256, 110, _symmetric(_rms(7, 4) * _rms(63, 32), at=108, signed=True)),
    "Q4_K": Kind(12, 256, 144, _affine(_superblock(15), 7.5)),
    "Q5_K": Kind(13, 256, 176, _affine(_superblock(31), 15.5)),
    "Q6_K": Kind(14, 256, 210, _symmetric(_rms(63, 32) * _rms(255, 128), at=208, signed=True)),
    "IQ2_XXS": Kind(16, 256, 66, _symmetric(_POINTS["IQ2_XXS"] * _odd(31) / 8, signed=True)),
    "IQ2_XS": Kind(17, 256, 74, _symmetric(_POINTS["IQ2_XS"] * _odd(31) / 8, signed=True)),
    "IQ3_XXS": Kind(18, 256, 98, _symmetric(_POINTS["IQ3_XXS"] * _odd(31) / 4, signed=True)),
    "IQ1_S": Kind(19, 256, 50, _symmetric(_POINTS["IQ1"] * _odd(15) / 8, signed=True)),
    "IQ4_NL": Kind(20, 32, 18, _symmetric(_rms_of(IQ4), signed=True)),
    "IQ3_S": Kind(21, 256, 110, _symmetric(_POINTS["IQ3_S"] * _odd(31), signed=True)),
    "IQ2_S": Kind(22, 256, 82, _symmetric(_POINTS["IQ2_S"] * _odd(31) / 8, signed=True)),
    "IQ4_XS": Kind(23, 256, 136, _symmetric(_rms(63, 32) * _rms_of(IQ4), signed=True)),
    "IQ1_M": Kind(29, 256, 56, _quartered(_POINTS["IQ1"] * _odd(15) / 8, at=48)),
    "BF16": Kind(30, 1, 2, _fill_brain),
    "MXFP4": Kind(39, 32, 17, _power(_rms_of(E2M1))),
    "NVFP4": Kind(40, 64, 36, _eighths(_rms_of(E2M1))),
}


def _from_the_table(name: str) -> Kind | None:
    """A type that only the engine's table knows: Gaussian weights through its quantizer."""
    try:
        from onegraph import _native
    except ImportError:
        return None
    row = next((t for t in _native.quant_types() if t[0] == name and t[4]), None)
    if row is None:
        return None
    _, type_id, elems, size, _ = row

    def fill(blocks: Bytes, sigma: float) -> None:
        rng = np.random.Generator(np.random.SFC64(int(blocks[0].sum())))
        x = rng.standard_normal(len(blocks) * elems, dtype=np.float32) * np.float32(sigma)
        blocks[:] = np.frombuffer(_native.quantize(name, x), np.uint8).reshape(blocks.shape)

    return Kind(type_id, elems, size, fill)


def kind_of(name: str) -> Kind:
    """The kind of a type's name; ValueError for an unknown one."""
    kind = KINDS.get(name) or _from_the_table(name)
    if kind is None:
        raise ValueError(f"no type {name!r}; use {', '.join(KINDS)}")
    return kind


def llama3_factors(shape: Shape) -> NDArray[np.float32]:
    """What divides each pair's rotary frequency: 1 for the fast, `factor` for the slow, smooth
    between. Formula: Llama 3.1's reference implementation, `apply_scaling`."""
    s = shape.rope_scaling
    pairs = np.arange(0, shape.head_dim, 2) / shape.head_dim
    turns = s["original_context"] * shape.rope_base**-pairs / (2 * math.pi)
    low, high = s["low_freq_factor"], s["high_freq_factor"]
    fast = np.clip((turns - low) / (high - low), 0.0, 1.0)
    factors: NDArray[np.float32] = (1.0 / ((1.0 - fast) / s["factor"] + fast)).astype(np.float32)
    return factors


def deviation(shape: Shape, name: str, cols: int) -> float:
    """Standard deviation of a matrix's weights.

    Each matrix takes a vector of root mean square 1, except for the outputs of attention (less, as
    it averages) and of silu(gate) * up (0.6). So that 2 n_layer outputs add up to STREAM, each has
    STREAM / sqrt(2 n_layer). Factors that the architecture multiplies with are made up for.
    """
    # Biases of experts, one after another.
    if name.endswith(".bias"):
        return 0.1
    if name.endswith("shortconv.conv.weight"):
        return 1.0
    part = name.split(".")[-2]
    if part in ("token_embd", "output"):
        return LOGITS * shape.logit_divisor / math.sqrt(shape.n_embd)
    # The weights of a row's experts add up to 1; the logits that choose them lie well apart.
    if part == "ffn_gate_inp":
        # Gemma 4 divides what it multiplies by sqrt(n_embd).
        return ROUTER if shape.arch.startswith("gemma4") else ROUTER / math.sqrt(cols)
    if part == "ffn_down_exps" and shape.n_latent:
        return 1.0 / math.sqrt(cols)
    if part in ("ffn_down_exps", "ffn_down_shexp"):
        part = "ffn_down"
    # Read from rows that no norm has made small, and told by another embedding.
    if part == "inp_gate":
        return 1.0 / (STREAM * shape.embedding_factor * math.sqrt(cols))
    if part == "per_layer_token_embd":
        return 1.0 / math.sqrt(shape.n_embd_layer or 1)
    share = 1.0 if shape.post_norms else _share(shape)
    # What the scores of attention are multiplied by, where it is not 1 / sqrt(head_dim).
    scale = (shape.attention_scale or shape.head_dim**-0.5) * math.sqrt(shape.head_dim)
    sharp = 1.5 / math.sqrt(scale)
    gain = {"attn_q": sharp, "attn_k": sharp, "attn_output": share, "ffn_down": share / 0.6}
    gain["ssm_out"] = gain["ffn_down"]
    # Norms stand before it; and squares of what is positive are larger, with a mean that is the
    # same for all tokens.
    if shape.mamba2:
        gain["ssm_out"] = share
    if shape.is_nemotron_h:
        gain["ffn_down"] = share / 2.4
    gain["ffn_latent_up"] = share
    if shape.latent:
        # A key is made of the normalized row by the transpose of what queries are multiplied by.
        of_keys = sharp * math.sqrt(cols / shape.latent["rank"])
        gain |= {"attn_q_b": sharp, "attn_kv_a_mqa": sharp, "attn_k_b": of_keys}
    if shape.fused_qkv:
        gain |= {"attn_qkv": sharp, "attn_output": share / sharp}
    # Between them stand a product of two numbers, three factors near 1 each, and another product.
    gain["out_proj"] = share / math.sqrt(shape.conv or 1)
    if shape.streams:
        # A gate is made of numbers that are twice as large (`_vector`), divided by the number of
        # streams, through silu; it has a deviation of 2, and what injects of 1.
        n = shape.streams["count"] / 2
        for name in ("hc_attn", "hc_ffn", "output_hc"):
            gain |= {f"{name}_down": n, f"{name}_up": 2 / 0.6, f"{name}_inject": n}
        gain |= {"ple_value": share, "ple_conv1d": share}
    if shape.sinks:
        # A clamped SwiGLU gives more, as it adds 1 to one factor.
        gain |= {"ffn_gate_exps": 0.7, "ffn_up_exps": 0.7, "ffn_down": share / 0.8}
    return gain.get(part, 1.0) / math.sqrt(cols)


def _share(shape: Shape) -> float:
    """Root mean square of what a block gives, in units of one of its inputs."""
    stream = STREAM * shape.embedding_factor * shape.logit_divisor
    return stream / ((shape.residual_scale or 1.0) * math.sqrt(2 * shape.n_layer))


def _vector(shape: Shape, name: str, n: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Norm weights near 1, biases of a fair size, or rotary frequency factors."""
    if name == "rope_freqs.weight" and shape.arch.startswith("gemma4"):
        # A quarter of the pairs is turned.
        return np.where(np.arange(n) < n // 4, 1, 1e30).astype(np.float32)
    if name == "rope_freqs.weight":
        return llama3_factors(shape)
    noise = rng.standard_normal(n, dtype=np.float32)
    # LongRoPE's: the slower a pair, the more.
    if name.startswith("rope_factors_"):
        most = 8.0 if "long" in name else 1.5
        rising = np.linspace(1.0, most, n).astype(np.float32)
        return (rising + np.float32(0.05) * np.abs(noise)).astype(np.float32)
    # A state that stays for some tokens up to some hundred.
    if name.endswith(".ssm_a"):
        return np.float32(-0.2) - np.abs(noise)
    if name.endswith(".ssm_dt.bias"):
        return np.float32(-3.0) + noise
    if name.endswith("attn_sinks.weight"):
        return noise
    if name.endswith("exp_probs_b.bias"):
        return noise * np.float32(0.2)
    if shape.scales and name.endswith("scale"):
        factors: NDArray[np.float32] = np.exp(np.float32(0.3) * noise)
        return factors
    # A router of one row.
    if name.endswith("ffn_gate_inp_shexp.weight"):
        return noise * np.float32(ROUTER / math.sqrt(n))
    if name.endswith(".bias"):
        return noise * np.float32(0.1 if "attn_v" in name else 0.5)
    # Each head's own norm sets how sharp attention is, as q's and k's deviations do elsewhere.
    middle = 1.5 if "attn_q_norm" in name or "attn_k_norm" in name else 1.0
    # A block reads about half of a stream.
    middle = 2.0 if "hc_" in name else middle
    # Gemma 4's scores are multiplied by nothing.
    if shape.arch.startswith("gemma4") and ("attn_q_norm" in name or "attn_k_norm" in name):
        middle /= n**0.25
    # These stand before a sum that is normalized again.
    if ".post_" in name and not name.endswith(("norm_1.weight", "norm_2.weight")):
        middle = _share(shape)
    weights: NDArray[np.float32] = np.float32(middle) * (1 + np.float32(0.1) * noise)
    return weights


#: Bytes that one thread makes at a time.
PORTION = 2 << 20


def write(
    path: str | os.PathLike[str],
    shape: Shape,
    mix: str = "Q4_K_M",
    *,
    seed: int = 0,
    vocab: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    known: bool = False,
    agree: float = 1.0,
) -> int:
    """Writes the model and returns the size of the file in bytes.

    `mix` is a type, one of `mix.MIXES`, or types joined by "+" for the layers in turn; `vocab` a
    GGUF whose tokenizer is taken over instead of a made-up one; `known` makes a model whose next
    token is that of `followers`, of which the layer that guesses further ones, or a model without
    one itself, is right about `agree`.
    """
    if known and shape.tied and not shape.n_embd_backbone:
        raise ValueError(f"{shape.name} has no head of its own; use a shape whose head is not tied")
    tokenizer, placed = _layout(shape, mix, vocab, agree < 1.0 and shape.n_layer_nextn > 0)
    quiet = vocabulary.controls(tokenizer)
    rows = _known_rows(shape, quiet, agree) if known else {}

    with Path(path).open("wb", buffering=0) as file:
        start, end = _write_frame(file, metadata(shape, mix) | tokenizer, placed)

        def make(job: tuple[int, int, int]) -> None:
            index, first, count = job
            tensor, kind = placed[index]
            rng = np.random.Generator(np.random.SFC64([seed, index, first]))
            if tensor.name in rows:
                data = _known(shape, kind, rows[tensor.name], quiet, seed, first, count)
            elif known and tensor.name.endswith(("nextn.eh_proj.weight", "pre_projection.weight")):
                data = _first_half(shape, kind, first, count)
            elif _is_vector(tensor):
                values = _vector(shape, tensor.name, math.prod(tensor.shape), rng)
                if known and tensor.name.endswith(".bias") and _part(tensor.name) in ADDED:
                    values[:] = 0
                data = values.view(np.uint8)
            else:
                gain = SILENT if known and _part(tensor.name) in ADDED else 1.0
                data = _matrix(shape, tensor, kind, first, count, rng, quiet, gain)
            os.pwrite(file.fileno(), data.data, start + tensor.offset + first * kind.size)

        jobs = []
        for index, (tensor, kind) in enumerate(placed):
            blocks = tensor.n_bytes // kind.size
            step = blocks if _is_vector(tensor) else PORTION // kind.size
            if tensor.name in rows or (known and not _is_vector(tensor)):
                per_row = tensor.shape[0] // kind.elems
                step = max(step // per_row, 1) * per_row
            jobs += [(index, at, min(step, blocks - at)) for at in range(0, blocks, step)]
        with ThreadPoolExecutor(threads or os.cpu_count()) as pool:
            for _ in pool.map(make, jobs):
                pass
    return end


def outline(path: str | os.PathLike[str], shape: Shape, mix: str = "Q4_K_M") -> None:
    """Writes the model without its weights: they are a hole in the file, which takes no room on the
    disk. It is what `onegraph info` reads."""
    tokenizer, placed = _layout(shape, mix, None, False)
    with Path(path).open("wb", buffering=0) as file:
        _write_frame(file, metadata(shape, mix) | tokenizer, placed)


Placed = list[tuple[gguf_io.Tensor, Kind]]


def _tokenizer(shape: Shape, vocab: str | os.PathLike[str] | None) -> dict[str, bytes]:
    """The tokenizer's keys."""
    if vocab is not None:
        return vocabulary.copied(vocab, shape.n_vocab)
    tokenizer = vocabulary.made_up(shape.n_vocab, shape.pre)
    if shape.pooling:
        tokenizer = vocabulary.ended(tokenizer)
    return vocabulary.ranking(tokenizer) if shape.pooling == "rank" else tokenizer


def _layout(
    shape: Shape, mix: str, vocab: str | os.PathLike[str] | None, own_table: bool
) -> tuple[dict[str, bytes], Placed]:
    """The tokenizer's keys, and the tensors with their places and kinds; with a table of embeddings
    of the layer behind the others, where that is to have its own."""
    tokenizer = _tokenizer(shape, vocab)
    names = {*KINDS, *mix.split("+")} - set(mixes.MIXES)
    kinds = {name: kind_of(name) for name in names}
    elems = {name: kind.elems for name, kind in kinds.items()}

    placed = []
    tensors = shape.tensors()
    if own_table:
        tensors.append((_table_of_guesses(shape), (shape.n_embd, shape.n_vocab)))
    for name, dims in tensors:
        kind = kinds[mixes.type_of(shape, mix, name, dims[0], elems)]
        n_bytes = math.prod(dims) // kind.elems * kind.size
        placed.append((gguf_io.Tensor(name, dims, kind.type_id, 0, n_bytes), kind))
    gguf_io.place([tensor for tensor, _ in placed])
    return tokenizer, placed


def _write_frame(file: BinaryIO, keys: dict[str, bytes], placed: Placed) -> tuple[int, int]:
    """Writes all but the data, for which there is room then: where they begin and end."""
    tensors = [tensor for tensor, _ in placed]
    start = gguf_io.write_header(file, keys, tensors)
    end = start + tensors[-1].offset + tensors[-1].n_bytes
    file.truncate(end)
    return start, end


def _is_vector(tensor: gguf_io.Tensor) -> bool:
    """Whether its numbers are no factors of a sum; files have some of these as rows of a matrix."""
    named = tensor.name.endswith((".ssm_a", ".ssm_d", ".ssm_norm.weight"))
    return named or len(tensor.shape) == 1


def _matrix(
    shape: Shape,
    tensor: gguf_io.Tensor,
    kind: Kind,
    first: int,
    count: int,
    rng: np.random.Generator,
    quiet: list[int],
    gain: float = 1.0,
) -> Bytes:
    """Blocks `first` to `first + count` of a matrix of `gain` times the usual deviation."""
    n_bytes = count * kind.size
    words = rng.integers(0, 2**64, -(-n_bytes // 8), dtype=np.uint64)
    blocks = words.view(np.uint8)[:n_bytes].reshape(count, kind.size)
    sigma = deviation(shape, tensor.name, tensor.shape[0]) * gain
    # Rows of the vocabulary's matrices that belong to control tokens are made again, smaller.
    spare = blocks.copy() if tensor.name in ("token_embd.weight", "output.weight") else None
    kind.fill(blocks, sigma)
    if spare is not None:
        per_row = tensor.shape[0] // kind.elems
        for row in quiet:
            low, high = max(row * per_row - first, 0), min((row + 1) * per_row - first, count)
            if low < high:
                part = np.ascontiguousarray(spare[low:high])
                kind.fill(part, sigma * QUIET)
                blocks[low:high] = part
    return blocks.reshape(-1)


def followers(shape: Shape, vocab: str | os.PathLike[str] | None = None) -> NDArray[np.int64]:
    """Of a model made with `known`: the token after each. Ordinary tokens follow each other in the
    order of their numbers, the first one behind the last; behind others, -1, nothing is known."""
    return _followers(shape, vocabulary.controls(_tokenizer(shape, vocab)))


def _followers(shape: Shape, quiet: list[int]) -> NDArray[np.int64]:
    ordinary = np.setdiff1d(np.arange(shape.n_vocab), quiet)
    after = np.full(shape.n_vocab, -1)
    after[ordinary] = np.roll(ordinary, -1)
    return after


def drafted(after: NDArray[np.int64], first: int, right: int, rounds: int) -> list[int]:
    """A prompt that ends with `first`, so that the tokens from there on are known (`after`); of
    what stands in it behind the last two of them `right` tokens are right, and the next one is
    wrong, for so many `rounds`: so far what prompt lookup drafts is accepted."""
    # Behind no run that is looked for, wherever it stands.
    wrong = int(np.flatnonzero(after == first)[0])
    prompt: list[int] = []
    at = first
    for _ in range(rounds):
        run = [at]
        while len(run) < right + 2:
            run.append(int(after[run[-1]]))
        prompt += [*run, wrong]
        at = run[right + 1]
    return [*prompt, first]


def _part(name: str) -> str:
    """What a tensor is of, by its name."""
    return name.split(".")[-2]


def _table_of_guesses(shape: Shape) -> str:
    """The embeddings that the layer behind the others goes by, where they are its own."""
    return f"blk.{shape.n_layer}.nextn.embed_tokens.weight"


def _known_rows(shape: Shape, quiet: list[int], agree: float) -> dict[str, NDArray[np.int64]]:
    """Of each row of the vocabulary's matrices by which number its weights are drawn: rows of one
    number are alike, whatever their types."""
    own = np.arange(shape.n_vocab)
    head = own + shape.n_vocab
    after = _followers(shape, quiet)
    head[after[after >= 0]] = own[after >= 0]
    # Where the table has another token's row, that one's follower is guessed.
    wrong = np.random.default_rng(0).random(shape.n_vocab) >= agree
    guesses = np.where(wrong & (after >= 0), after, own)
    if shape.n_embd_backbone:
        # Its table is a head alone, over the embedding of the model that it drafts for.
        ahead = after[np.where(wrong, after, own)]
        head[ahead[after >= 0]] = own[after >= 0]
        return {"token_embd.weight": head}
    table = _table_of_guesses(shape) if shape.n_layer_nextn else "token_embd.weight"
    return {"token_embd.weight": own, "output.weight": head, table: guesses}


def _first_half(shape: Shape, kind: Kind, first: int, count: int) -> Bytes:
    """Blocks of whole rows of a matrix that takes the first half of what it multiplies as it is."""
    from onegraph import _native

    name = next(t[0] for t in _native.quant_types() if t[1] == kind.type_id)
    per_row = 2 * shape.n_embd // kind.elems
    rows = np.arange(first // per_row, (first + count) // per_row)
    values = np.zeros((len(rows), 2 * shape.n_embd), np.float32)
    values[np.arange(len(rows)), rows] = 1.0
    return np.frombuffer(_native.quantize(name, values), np.uint8)


def _known(
    shape: Shape,
    kind: Kind,
    numbers: NDArray[np.int64],
    quiet: list[int],
    seed: int,
    first: int,
    count: int,
) -> Bytes:
    """Blocks of whole rows, from block `first` on, drawn by their numbers."""
    from onegraph import _native

    name = next(t[0] for t in _native.quant_types() if t[1] == kind.type_id)
    per_row = shape.n_embd // kind.elems
    rows = range(first // per_row, (first + count) // per_row)
    values = np.empty((len(rows), shape.n_embd), np.float32)
    for row, to in zip(rows, values, strict=True):
        rng = np.random.Generator(np.random.SFC64([seed, int(numbers[row])]))
        rng.standard_normal(out=to, dtype=np.float32)
        to *= QUIET if row in quiet else 1.0
    values *= np.float32(deviation(shape, "token_embd.weight", shape.n_embd))
    return np.frombuffer(_native.quantize(name, values), np.uint8)


def main(argv: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Write a GGUF with random weights.")
    parser.add_argument("shape", help="a name in models/shapes.toml")
    parser.add_argument("--mix", default="Q4_K_M", help="a type, a mix, or types joined by +")
    parser.add_argument("-o", "--output", required=True, type=Path)
    parser.add_argument("--seed", default=0, type=int)
    parser.add_argument("--vocab", type=Path, help="a GGUF to take the tokenizer from")
    parser.add_argument("--known", action="store_true", help="the next token is known")
    parser.add_argument(
        "--agree", default=1.0, type=float, help="share of right guesses of further tokens"
    )
    args = parser.parse_args(argv)
    started = time.perf_counter()
    try:
        shape = shapes.find(args.shape)
        more = {"seed": args.seed, "vocab": args.vocab, "known": args.known}
        more["agree"] = args.agree
        size = write(args.output, shape, args.mix, **more)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    seconds = time.perf_counter() - started
    rate = size / seconds / 1e9
    print(
        f"{args.output}: {size / 1e9:.2f} GB in {seconds:.1f} s, {rate:.2f} GB/s", file=sys.stderr
    )


if __name__ == "__main__":
    main()
