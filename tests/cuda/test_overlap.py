"""Kernels that start as early as programmatic launches let them: the same tokens."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.thorough

# Filters take all four kernels of the sampler, each of which reads what those before it wrote.
DRAW = """
def draw(options):
    graph = onegraph.GraphOptions(**options)
    with onegraph.LLM(path, device="cuda", n_ctx=64, max_batch=2, graph=graph) as llm:
        prompts = [[3, 4, 5, 6, 7, 8, 9, 10, 11], [12]]
        found = llm.generate(prompts, max_tokens=5, temperature=1.0, top_k=20, top_p=0.9, seed=7,
                             ignore_eos=True)
        return [r.token_ids for r in found]
out["tokens"] = [draw(options) for options in given["modes"]]
"""
GRAPH, QUEUED = {"mode": "full"}, {"mode": "none"}


def test_overlapping_kernels_draw_the_same_tokens(simulated: Any) -> None:
    modes = [GRAPH | {"pdl": False}, GRAPH | {"pdl": True}]
    alone, early = simulated(DRAW, modes=modes, env={"KSIM_PDL": "early"})["tokens"]
    assert [len(tokens) for tokens in alone] == [5, 5]
    assert early == alone


def test_launches_that_are_queued_overlap_too(simulated: Any) -> None:
    """Nothing runs before something waits for it, and then all that is queued is there."""
    modes = [QUEUED | {"pdl": False}, QUEUED | {"pdl": True}]
    env = {"KSIM_PDL": "early", "KSIM_LAZY": "1", "KSIM_SEED": "3"}
    alone, early = simulated(DRAW, modes=modes, env=env)["tokens"]
    assert early == alone
