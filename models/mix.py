"""Which type each tensor of a model gets: one type throughout, or llama.cpp's own mixes."""

from __future__ import annotations

from collections.abc import Mapping

from shapes import Shape

#: Mix: (default type, type of the tensors that get more bits).
MIXES = {"Q4_K_M": ("Q4_K", "Q6_K"), "Q5_K_M": ("Q5_K", "Q6_K")}

#: `general.file_type` by the name of the mix or of its one type.
FILE_TYPES = {
    **{"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "BF16": 32},
    **{"Q4_K": 14, "Q4_K_M": 15, "Q5_K": 16, "Q5_K_M": 17, "Q6_K": 18},
    **{"IQ4_NL": 25, "IQ4_XS": 30, "MXFP4": 38, "NVFP4": 39},
}

#: What llama.cpp falls back to where a row is no whole number of blocks.
FALLBACK = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0", "IQ4_XS": "IQ4_NL"}


def more_bits(layer: int, n_layer: int) -> bool:
    """llama.cpp's choice: the first and last eighth of the layers, and every third between."""
    eighth = n_layer // 8
    return layer < eighth or layer >= 7 * n_layer // 8 or (layer - eighth) % 3 == 2


def type_of(shape: Shape, mix: str, name: str, cols: int, block_elems: Mapping[str, int]) -> str:
    """The type of tensor `name` with rows of `cols` weights.

    `mix` is a key of MIXES, a type, or several types joined by "+" that the layers take in turn
    (the matrices outside the layers take the first). Norms, biases and frequencies are F32.
    `block_elems` has the weights of a block of each type that may be used.
    """
    if not name.endswith(".weight") or "norm" in name or name == "rope_freqs.weight":
        return "F32"
    layer = int(name.split(".")[1]) if name.startswith("blk.") else None
    if mix in MIXES:
        chosen = _by_rule(shape, *MIXES[mix], name, layer)
    else:
        cycle = mix.split("+")
        chosen = cycle[(layer or 0) % len(cycle)]
    if chosen not in block_elems:
        raise ValueError(f"no type or mix {chosen!r}; use {', '.join([*MIXES, *block_elems])}")
    while cols % block_elems[chosen]:
        chosen = FALLBACK.get(chosen, "F16")
    return chosen


def _by_rule(shape: Shape, base: str, more: str, name: str, layer: int | None) -> str:
    if layer is None:
        # A tied embedding is the output matrix too.
        return "Q6_K" if name == "output.weight" or shape.tied else base
    part = name.split(".")[2]
    if part == "attn_v" and base == "Q4_K" and not more_bits(layer, shape.n_layer):
        # The 70B model: eight query heads share one of values, so it is small and counts much.
        large = shape.arch == "llama" and shape.n_layer == 80
        return "Q5_K" if large and shape.n_head == 8 * shape.n_head_kv else base
    if part in ("attn_v", "ffn_down") and more_bits(layer, shape.n_layer):
        return more
    return base
