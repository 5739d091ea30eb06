"""Steps of two to eight rows as wide as have eight parts, which on cards with clusters take a
kernel of their own: what each sequence gives is what it gives alone, and what the CPU gives."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import shapes
import synth

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A layer of 2,048, and of 2,304 inside; keys and values of another type than queries."""
    path = tmp_path_factory.mktemp("wide") / "wide.gguf"
    heads = {"n_head": 32, "n_head_kv": 4, "head_dim": 64}
    tiny = shapes.find("tiny-llama")
    shape = dataclasses.replace(tiny, n_layer=1, n_embd=2048, n_ff=2304, **heads)
    synth.write(path, shape, "Q4_K_M")
    return path


THREE = {"KSIM_MULTIPROCESSORS": "24"}

TOGETHER = """
prompts = [[5 + n, 6, 7 + 2 * n] for n in range(given["rows"])]
options = {"temperature": 0.8, "seed": 3, "ignore_eos": True, "max_tokens": 3, "logprobs": 1}
def numbers(found):
    return [[(t.token_id, t.logprob) for t in one.logprobs] for one in found]
with onegraph.LLM(path, device="cuda", n_ctx=64, max_batch=8, prefix_cache=False) as llm:
    out["together"] = numbers(llm.generate(prompts, **options))
    out["alone"] = numbers([llm.generate(prompts[0], **options)])
    kernels = {kernel.kernel for kernel in llm.profile_graph(given["rows"], repeats=1).kernels}
    out["kernels"] = sorted(kernels)
with onegraph.LLM(path, device="cpu", n_ctx=64, max_batch=8, prefix_cache=False) as llm:
    out["cpu"] = numbers(llm.generate(prompts, **options))
"""


# One cluster of eight blocks, and three.
@pytest.mark.parametrize(
    ("rows", "env"), [(3, {}), (7, {"KSIM_PDL": "early"}), (2, THREE), (8, THREE)]
)
def test_rows_together_are_what_each_is_alone(
    simulated: Any, wide: Path, rows: int, env: dict[str, str]
) -> None:
    found = simulated(TOGETHER, path=wide, rows=rows, env=env)
    assert len(found["together"]) == rows
    assert found["together"] == found["cpu"]
    assert found["together"][:1] == found["alone"]
    assert "skinny" in found["kernels"] and "matmul" not in found["kernels"]
