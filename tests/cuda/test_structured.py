"""Texts that are held to a form on a card: the mask is taken in the step's graphs, and draws are
those of the CPU."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.thorough

#: Constrained and free sequences, alone and together, of every way to draw.
HELD = """
schema = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "kind": {"enum": ["one", "two"]}},
    "required": ["name", "kind"], "additionalProperties": False,
}
kinds = [
    {"schema": schema, "temperature": 0.0},
    {"schema": schema, "temperature": 1.2, "seed": 7, "logprobs": 2},
    {"regex": "[a-z]{3,12}", "temperature": 1.0, "seed": 3, "top_k": 5, "repeat_penalty": 1.3},
    {"temperature": 0.7, "seed": 1, "max_tokens": 40},
    {"choice": ["a long choice of words", "a long choice of letters"], "temperature": 0.0},
    {"regex": "(ab){1,9}", "temperature": 0.9, "seed": 5, "logit_bias": {70: 2.0}},
]
options = {"max_tokens": 110}
prompt = [60, 61, 62, 60, 61]
def numbers(found):
    logprobs = [t.token_id for t in found.logprobs or []]
    return found.text, found.token_ids, found.finish_reason, logprobs
def run(device, **more):
    with onegraph.LLM(path, n_ctx=192, max_batch=4, device=device, **more) as llm:
        asked = [{**options, **kind} for kind in kinds]
        alone = [numbers(llm.generate(prompt, **each)) for each in asked]
        streams = [llm.generate(prompt, stream=True, **each) for each in asked]
        together = [[t for piece in stream for t in piece.token_ids] for stream in streams]
        stats = llm.graph_stats() if device == "cuda" else None
        again = [numbers(llm.generate(prompt, **each)) for each in asked[1:3]]
        more = llm.graph_stats() if device == "cuda" else None
        return alone, together, again, stats, more
cpu = run("cpu")
card = run("cuda", graph=onegraph.GraphOptions(mode=given["mode"]))
out["cpu"], out["card"] = [list(each) for each in (cpu[:3], card[:3])]
out["eager"] = card[4].eager
out["more_graphs"] = len(card[4].captured) - len(card[3].captured)
"""


@pytest.mark.parametrize("mode", ["full", "none"])
def test_forms_on_a_card_are_those_of_the_cpu(on_card: Any, mode: str) -> None:
    found = on_card(HELD, mode=mode)
    assert found["card"] == found["cpu"]
    alone, together, again = found["card"]
    assert together == [tokens for _, tokens, _, _ in alone]
    assert again == alone[1:3]
    assert {reason for _, _, reason, _ in alone[1:3] + alone[4:]} == {"stop"}
    if mode == "full":
        assert found["eager"] == 0 and found["more_graphs"] == 0
