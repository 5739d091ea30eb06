"""Activations that a product has no block fixed point for: a card names the product and the place
as the CPU does, and the sequence ends alone."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import shapes
import synth
from support.card_process import OnCard

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
# Keys of float16 are so small that their scores with queries as large as these are numbers.
with onegraph.LLM(path, device=given["device"], kv_type="f16", n_ctx=128, max_batch=2,
                  prefill_chunk=64) as llm:
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
    out["finite"] = bool(np.isfinite(llm.logits([5, 6, 7])).all())
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
"""

MESSAGE = re.compile(
    r"the product with (\S+) at position (\d+) of sequence slot (\d+) has an input of (\S+), .*"
)


def write(path: Path, scale: float, norm: float) -> Path:
    """A random model in which the scales of the bad token's embedding are `scale`, and the weights
    of the first norm `norm` times what they were."""
    synth.write(path, shapes.find("odd-llama-96"), "Q8_0", seed=3)
    tensors = {t.name: t for t in gguf.GGUFReader(path, "r+").tensors}
    table = tensors["token_embd.weight"].data
    table.reshape(len(table), -1, 34)[BAD, :, :2] = np.frombuffer(
        np.float16(scale).tobytes(), np.uint8
    )
    tensors["blk.0.attn_norm.weight"].data[:] *= np.float32(norm)
    table.base.flush()
    return path


def place(message: str) -> tuple[str, int, float]:
    """Product, position and value of a message."""
    found = MESSAGE.fullmatch(message)
    assert found, message
    return found[1], int(found[2]), abs(float(found[4]))


@pytest.mark.parametrize(
    ("scale", "norm"), [(math.inf, 1.0), (6e4, 1e31)], ids=["infinite", "too-large"]
)
def test_names_the_product_and_ends_alone(
    scale: float, norm: float, tmp_path: Path, simulated: OnCard, on_card: OnCard
) -> None:
    path = write(tmp_path / "model.gguf", scale, norm)
    card = on_card(BODY, path=path, device="cuda", bad=BAD)
    cpu = simulated(BODY, path=path, device="cpu", bad=BAD)
    for case, position in [("prompt", 1), ("chunk", 60), ("one", 0), ("prefill", 1), ("decode", 1)]:
        found, stated = place(card[case]), place(cpu[case])
        assert found[:2] == stated[:2] == ("blk.0.attn_q.weight", position), case
        # A card gives eight bits of it.
        assert found[2] == pytest.approx(stated[2], rel=2**-7, nan_ok=True), case
    check_step(card, cpu)


def check_step(card: dict[str, Any], cpu: dict[str, Any]) -> None:
    for out in (card, cpu):
        assert place(out["step"])[:2] == ("blk.0.attn_q.weight", 3)
        # What was drawn before it is not lost.
        assert out["tokens"] == [BAD]
        assert out["others"] and out["after"] and out["finite"]
