"""A card has the CPU's bits at the widths that people run, in prompts, steps and batches: a few
layers of each family, with their own mixes of types. Small shapes reach neither the kernels that a
card prefers for wide rows nor all of its multiprocessors."""

from __future__ import annotations

import dataclasses
import gc
from pathlib import Path

import numpy as np
import onegraph
import pytest
import shapes
import synth

#: Of each family a shape, a mix, and the layers that have one of each kind.
FAMILIES = [
    ("llama-3.1-8b", "Q4_K_M", 2),
    ("llama-3.2-1b", "Q8_0", 2),
    ("qwen2.5-1.5b", "Q5_K_M", 2),
    ("qwen3-8b", "Q6_K", 2),
    ("qwen3-30b-a3b", "Q4_K_M", 2),
    ("gpt-oss-20b", "MXFP4", 2),
    ("gemma-3-12b", "IQ4_XS", 6),
    # The last half of its layers read what the first has stored.
    ("gemma-4-e2b", "Q4_K_M", 10),
    ("gemma-4-12b", "Q4_K_M", 6),
    ("gemma-4-26b-a4b", "Q4_K_M", 6),
    ("granite-3.3-8b", "Q3_K_M", 2),
    ("qwen3.5-27b", "Q4_K_M", 4),
    ("qwen3.5-35b-a3b", "Q4_K_M", 4),
    ("lfm2-1.2b", "Q4_K_M", 3),
    ("lfm2-8b-a1b", "Q4_K_M", 3),
    ("ministral-3-8b", "Q4_K_M", 2),
]
#: Longer than a chunk of a prompt, and than the pages of a split.
PROMPT = 600
#: More than one tile of an instruction, and no power of two.
SEQUENCES = 24
#: Each takes kernels of another shape.
ROWS = [2, 8, 16, 24, 40, 64, 100, 200]


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "mix", "n_layer"), FAMILIES, ids=[f[0] for f in FAMILIES])
def test_a_card_has_the_cpus_bits(tmp_path: Path, name: str, mix: str, n_layer: int) -> None:
    shape = dataclasses.replace(shapes.find(name), n_layer=n_layer, n_vocab=8192)
    if shape.n_layer_shared_kv:
        shape = dataclasses.replace(shape, n_layer_shared_kv=n_layer // 2)
    path = tmp_path / "model.gguf"
    synth.write(path, shape, mix)
    ids = [(7919 * i + 13) % 8000 + 100 for i in range(PROMPT)]
    texts = [" ".join(map(str, range(n, n + 8 + 7 * n))) for n in range(SEQUENCES)]
    options = {"max_tokens": 12, "temperature": 0.0, "ignore_eos": True}
    found = {}
    for device in ("cpu", "cuda"):
        with onegraph.LLM(path, device=device, n_ctx=1024, max_batch=SEQUENCES) as llm:
            found[device] = (
                llm.logits(ids),
                [llm.logits(ids[:n]) for n in ROWS] if device == "cuda" else [],
                llm.logits(ids[:80], path="decode"),
                [r.token_ids for r in llm.generate(texts, **options)],
                [llm.generate(text, **options).token_ids for text in texts[:2]],
            )
        gc.collect()
    prompt, _, steps, batch, alone = found["cpu"]
    assert np.isfinite(prompt).all()
    assert np.array_equal(steps, prompt[: len(steps)])
    card, prefixes, card_steps, card_batch, card_alone = found["cuda"]
    for logits in [card, *prefixes, card_steps]:
        differ = np.flatnonzero((prompt[: len(logits)] != logits).any(axis=1))
        assert differ.size == 0, f"{differ.size} of {len(logits)} rows differ, from {differ[0]} on"
    assert batch == card_batch
    assert alone == card_alone == batch[:2]
