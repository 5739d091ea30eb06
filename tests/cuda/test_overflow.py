"""Numbers that overflowed: activations that a product has no block fixed point for, keys and values
that are not finite. A card names the op and the place as the CPU does, and the sequence ends
alone."""

from __future__ import annotations

import math
import re
from pathlib import Path

import gguf
import numpy as np
import pytest
import shapes
import synth
from support.card_process import OnCard

pytestmark = pytest.mark.thorough

#: The token whose embedding is too large.
BAD = 40

BODY = """
from concurrent.futures import ThreadPoolExecutor
BAD = given["bad"]
def refused(call):
    try:
        call()
    except onegraph.ModelError as error:
        return str(error)
with onegraph.LLM(path, device=given["device"], kv_type=given["kv_type"], n_ctx=128, max_batch=2,
                  prefill_chunk=64, graph=onegraph.GraphOptions(mode=given["mode"])) as llm:
    options = dict(max_tokens=40, ignore_eos=True, seed=1)
    def good():
        return llm.generate([5, 6, 7], logit_bias={BAD: -1e4}, **options).token_ids
    alone = good()
    assert len(alone) == 40
    out["prompt"] = refused(lambda: llm.generate([5, BAD, 7], **options))
    # Its first chunk is not the one that draws.
    out["chunk"] = refused(lambda: llm.generate([5] * 60 + [BAD] + [7] * 30, **options))
    out["one"] = refused(lambda: llm.generate([BAD], **options))
    for path_of in ("prefill", "decode"):
        out[path_of] = refused(lambda: llm.logits([5, BAD, 7], path=path_of))
    # A whole page in one part, which also draws: nobody finds it behind that.
    page = [5] * 40 + [BAD] + [7] * 23
    out["page"] = refused(lambda: llm.generate(page, **options))
    out["behind"] = refused(lambda: llm.generate([*page, 6, 6], **options))
    out["embedded"] = refused(lambda: llm.embed([5, BAD, 7]))
    out["finite"] = bool(np.isfinite(llm.logits([5, 6, 7])).all())
    # A prompt that begins as the one that failed has what came before that.
    out["next"] = llm.generate([5] * 60 + [6] * 30, **options).token_ids
    # In a step, beside one that goes on.
    tokens = []
    def stream():
        for part in llm.generate([9, 8, 7], stream=True, logit_bias={BAD: 1e4}, **options):
            tokens.extend(part.token_ids)
    with ThreadPoolExecutor(1) as thread:
        other = thread.submit(good)
        out["step"] = refused(stream)
        out["others"] = other.result() == alone
    out["tokens"] = tokens
    out["after"] = good() == alone
    # Which a saturated number is none of.
    out["saturated"] = llm.saturated_sequences
"""

MESSAGES = (
    r"the product with (\S+) at position (\d+) of sequence slot \d+ has an input of (\S+), .*",
    r"KV scatter of layer (\d+): a key or value at position (\d+) of sequence slot \d+ is (\S+),.*",
)


def write(path: Path, mix: str, scale: float, norm: float) -> Path:
    """A random model in which the scales of the bad token's embedding are `scale`, or its numbers
    where it has none, and the weights of the first norm `norm` times what they were."""
    synth.write(path, shapes.find("odd-llama-96"), mix, seed=3)
    tensors = {t.name: t for t in gguf.GGUFReader(path, "r+").tensors}
    table = tensors["token_embd.weight"].data
    if mix == "F32":
        table[BAD] = scale
    else:
        blocks = table.reshape(len(table), -1, 34)
        blocks[BAD, :, :2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
    tensors["blk.0.attn_norm.weight"].data[:] *= np.float32(norm)
    if norm > 1:
        # Queries that are nearly too large have no grid to be multiplied on.
        tensors["blk.0.attn_q.weight"].data[:] = 0
    table.base.flush()
    return path


def place(message: str) -> tuple[str, int, float]:
    """Product or layer, position and value of a message."""
    found = [match for match in (re.fullmatch(m, message) for m in MESSAGES) if match]
    assert found, message
    return found[0][1], int(found[0][2]), abs(float(found[0][3]))


#: Products of floats have no grid: there the first that tells is what stores keys and values, which
#: a cache of integers would keep as numbers.
CASES = [
    ("Q8_0", math.inf, 1.0, "i16", "full", "blk.0.attn_q.weight"),
    ("Q8_0", 6e4, 1e31, "q8_0", "full", "blk.0.attn_q.weight"),
    ("F32", math.nan, 1.0, "i16", "full", "0"),
    ("F32", math.inf, 1.0, "q8_0", "none", "0"),
]


@pytest.mark.parametrize(
    ("mix", "scale", "norm", "kv_type", "mode", "op"),
    CASES,
    ids=["infinite", "too-large", "key of i16", "key of q8_0"],
)
def test_names_the_op_and_ends_alone(
    mix: str,
    scale: float,
    norm: float,
    kv_type: str,
    mode: str,
    op: str,
    tmp_path: Path,
    simulated: OnCard,
    on_card: OnCard,
) -> None:
    path = write(tmp_path / "model.gguf", mix, scale, norm)
    options = {"bad": BAD, "kv_type": kv_type}
    card = on_card(BODY, path=path, device="cuda", mode=mode, **options)
    cpu = simulated(BODY, path=path, device="cpu", mode="none", **options)
    cases = [("prompt", 1), ("chunk", 60), ("one", 0), ("prefill", 1), ("decode", 1)]
    cases += [("page", 40), ("behind", 40), ("embedded", 1), ("step", 3)]
    for case, position in cases:
        found, stated = place(card[case]), place(cpu[case])
        assert found[:2] == stated[:2] == (op, position), case
        # A card gives eight bits of it.
        assert found[2] == pytest.approx(stated[2], rel=2**-7, nan_ok=True), case
    assert card["next"] == cpu["next"]
    for out in (card, cpu):
        # What was drawn before it is not lost.
        assert out["tokens"] == [BAD]
        assert out["others"] and out["after"] and out["finite"]
        assert mix != "F32" or out["saturated"] == 0
