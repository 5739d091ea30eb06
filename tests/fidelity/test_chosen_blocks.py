"""A model whose texts go past what its attention chooses, against the exact pass."""

import dataclasses
from pathlib import Path

import numpy as np
import shapes
import synth
from onegraph import LLM
from support.reference import Reference, mean_kl

TOKENS = 120


def test_rows_see_the_blocks_that_they_choose(tmp_path: Path) -> None:
    shape = shapes.find("tiny-qwen4exp")
    # Of so many heads hardly any block has a score of nothing, which others have too.
    streams = {**shape.streams, "top_k": 32, "index_heads": 8}
    sparse = dataclasses.replace(shape, streams=streams)
    path = tmp_path / "model.gguf"
    synth.write(path, sparse, "F32", seed=3)
    ids = [int(i) for i in np.random.default_rng(0).integers(3, shape.n_vocab, TOKENS)]
    exact = Reference(path).logits(ids)
    with LLM(path, device="cpu", n_ctx=128, max_batch=1, kv_type="f32") as llm:
        found = llm.logits(ids)
        assert np.array_equal(llm.logits(ids, path="decode"), found)
    assert np.abs(found - exact).max() < 1e-3
    assert mean_kl(exact, found) < 1e-10
    # All of them would be another model.
    synth.write(path, dataclasses.replace(shape, streams={**streams, "top_k": 512}), "F32", seed=3)
    whole = Reference(path).logits(ids)
    assert np.abs(whole[:34] - exact[:34]).max() < 1e-9
    assert np.abs(whole[60:] - exact[60:]).max(axis=1).min() > 0.01
