"""Which type each tensor of a model gets: one type throughout, or llama.cpp's own mixes."""

from __future__ import annotations

from collections.abc import Mapping

from shapes import Shape

#: Mix: the type of what no rule of `_by_rule` names. Q2_K_M is what llama.cpp calls Q2_K: here
#: that is one type throughout.
MIXES = {
    **{"Q2_K_M": "Q2_K", "Q2_K_S": "Q2_K", "Q3_K_S": "Q3_K", "Q3_K_M": "Q3_K", "Q3_K_L": "Q3_K"},
    **{"Q4_K_M": "Q4_K", "Q5_K_M": "Q5_K"},
}

#: `general.file_type` by the name of the mix or of its one type.
FILE_TYPES = {
    **{"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "BF16": 32},
    **{"Q2_K": 10, "Q2_K_M": 10, "Q2_K_S": 21},
    **{"Q3_K": 11, "Q3_K_S": 11, "Q3_K_M": 12, "Q3_K_L": 13},
    **{"IQ1_S": 24, "IQ1_M": 31, "IQ2_XXS": 19, "IQ2_XS": 20, "IQ2_S": 28, "IQ3_XXS": 23},
    **{"IQ3_S": 26, "Q4_K": 14, "Q4_K_M": 15, "Q5_K": 16, "Q5_K_M": 17, "Q6_K": 18},
    **{"IQ4_NL": 25, "IQ4_XS": 30, "MXFP4": 38, "NVFP4": 39},
}

#: What llama.cpp falls back to where a row is no whole number of blocks.
FALLBACK = {
    **{"Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"},
    "IQ4_XS": "IQ4_NL",
}


def more_bits(layer: int, n_layer: int) -> bool:
    """llama.cpp's choice: the first and last eighth of the layers, and every third between."""
    eighth = n_layer // 8
    return layer < eighth or layer >= 7 * n_layer // 8 or (layer - eighth) % 3 == 2


def type_of(shape: Shape, mix: str, name: str, cols: int, block_elems: Mapping[str, int]) -> str:
    """The type of tensor `name` with rows of `cols` weights.

    `mix` is a key of MIXES, a type, or several types joined by "+" that the layers take in turn
    (the matrices outside the layers take the first). Norms, biases, frequencies and what chooses
    experts are F32.
    `block_elems` has the weights of a block of each type that may be used.
    """
    stays = (
        "norm" in name
        or "ffn_gate_inp" in name
        or "attn_sinks" in name
        or "layer_output_scale" in name
        or name.startswith("rope_")
    )
    if stays or not name.endswith(".weight"):
        return "F32"
    if name.endswith(("ssm_conv1d.weight", "shortconv.conv.weight", "ple_conv1d.weight")):
        return "F32"
    layer = int(name.split(".")[1]) if name.startswith("blk.") else None
    if mix in MIXES:
        chosen = _by_rule(shape, mix, name, layer)
    else:
        cycle = mix.split("+")
        chosen = cycle[(layer or 0) % len(cycle)]
    if chosen not in block_elems:
        raise ValueError(f"no type or mix {chosen!r}; use {', '.join([*MIXES, *block_elems])}")
    while cols % block_elems[chosen]:
        chosen = FALLBACK.get(chosen, "F16")
    return chosen


def _by_rule(shape: Shape, mix: str, name: str, layer: int | None) -> str:
    base = MIXES[mix]
    if layer is None:
        # A tied embedding is the output matrix too.
        return "Q6_K" if name == "output.weight" or shape.tied else base
    part = name.split(".")[2].removesuffix("_exps").removesuffix("_shexp")
    if shape.n_expert == 8:
        # As small as they are, they may have more bits beside eight experts.
        if part in ("attn_k", "attn_v"):
            return "Q8_0"
        if part == "attn_output" and base == "Q4_K":
            return "Q5_K"
    if part == "attn_v":
        chosen = _of_values(shape, mix, layer)
        # The 70B model: eight query heads share one of values, so it is small and counts much.
        large = shape.arch == "llama" and shape.n_layer == 80
        few = large and shape.n_head == 8 * shape.n_head_kv
        return "Q5_K" if few and chosen in ("Q3_K", "Q4_K") else chosen
    if part == "ffn_down":
        return _of_down(shape, mix, layer)
    if part == "attn_output":
        return {"Q2_K_M": "Q3_K", "Q3_K_M": "Q4_K", "Q3_K_L": "Q5_K"}.get(mix, base)
    return base


def _of_values(shape: Shape, mix: str, layer: int) -> str:
    shared = shape.n_head >= 4 * shape.n_head_kv
    if mix == "Q2_K_M":
        return "Q4_K" if shared else "Q3_K"
    if mix == "Q2_K_S":
        return "Q4_K" if shared else "Q2_K"
    if mix == "Q3_K_M":
        return "Q5_K" if layer < 2 else "Q4_K"
    if mix == "Q3_K_L":
        return "Q5_K"
    if mix in ("Q4_K_M", "Q5_K_M") and more_bits(layer, shape.n_layer):
        return "Q6_K"
    return MIXES[mix]


def _of_down(shape: Shape, mix: str, layer: int) -> str:
    if mix == "Q2_K_M":
        return "Q3_K"
    if mix == "Q2_K_S":
        return "Q4_K" if layer < shape.n_layer // 8 else "Q2_K"
    if mix == "Q3_K_M":
        return "Q5_K" if layer < shape.n_layer // 16 else "Q4_K"
    if mix == "Q3_K_L":
        return "Q5_K"
    if mix in ("Q4_K_M", "Q5_K_M") and more_bits(layer, shape.n_layer):
        return "Q6_K"
    return MIXES[mix]
