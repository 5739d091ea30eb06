"""A model with experts on a card: the CPU's bits, however its rows are batched or cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import shapes
import synth
from support.card_process import OnCard

pytestmark = pytest.mark.thorough

#: Logits of a prompt as one pass and as steps, and sequences together and alone.
BODY = """
ids = [int(i) for i in np.random.default_rng(1).integers(3, 290, 40)]
def bits(x):
    return np.ascontiguousarray(x).view(np.uint32)
with onegraph.LLM(path, device="cpu", n_ctx=128, max_batch=1) as cpu:
    wanted = cpu.logits(ids)
with onegraph.LLM(path, device="cuda", n_ctx=128, max_batch=3, prefill_chunk=64) as llm:
    whole, steps = llm.logits(ids), llm.logits(ids[:6], path="decode")
    sampling = {"max_tokens": 5, "temperature": 0, "ignore_eos": True, "logprobs": 1}
    prompts = [ids[:9], ids[5:12], ids[3:30]]
    together = llm.generate(prompts, **sampling)
    alone = [llm.generate(prompt, **sampling) for prompt in prompts]
out["whole"] = bool(np.array_equal(bits(whole), bits(wanted)))
out["steps"] = bool(np.array_equal(bits(steps), bits(wanted[:6])))
out["alone"] = all(
    a.token_ids == b.token_ids and a.logprobs == b.logprobs
    for a, b in zip(alone, together, strict=True)
)
"""


@pytest.mark.parametrize(
    ("name", "mix"),
    [
        ("odd-qwen3moe-160", "Q8_0"),
        ("tiny-qwen3moe", "Q4_K_M"),
        ("odd-qwen35moe-160", "Q5_0"),
    ],
)
def test_a_card_has_the_bits_of_the_cpu(
    simulated: OnCard, tmp_path: Path, name: str, mix: str
) -> None:
    path = tmp_path / "model.gguf"
    synth.write(path, shapes.find(name), mix, seed=2)
    found: dict[str, Any] = simulated(BODY, path=path)
    assert found["whole"], "a prompt"
    assert found["steps"], "steps"
    assert found["alone"], "alone and in a batch"
