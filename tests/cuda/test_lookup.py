"""Prompt lookup on a card: rounds are graphs, and draw what steps draw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import shapes
import synth
from support.card_process import few_layers

pytestmark = pytest.mark.thorough

#: Requests with lookup and without, alone and together; of few tokens, so that they repeat.
ROUNDS = """
kv_type = given["kv_type"]
few = {token: float("inf") for token in range(60, 63)}
prompt = [60, 61, 62, 60, 61, 62, 60, 61, 9, 60, 61]
kinds = [
    {"temperature": 0.0},
    {"temperature": 1.5, "seed": 7, "logprobs": 2},
    # Whichever came least goes next, of all and of the last two.
    {"temperature": 0.0, "repeat_penalty": 1.2, "frequency_penalty": 2.0},
    {"temperature": 0.0, "frequency_penalty": 2.0, "repeat_last_n": 2},
    {"temperature": 0.0, "stop_token_ids": [62], "logit_bias": {60: 5.0, 61: 5.0, 62: 4.0}},
]
options = {"max_tokens": 24, "logit_bias": few, "ignore_eos": True}
def numbers(found):
    logprobs = [(t.token_id, t.logprob) for t in found.logprobs or []]
    return found.token_ids, found.finish_reason, logprobs
with onegraph.LLM(path, n_ctx=192, max_batch=3, kv_type=kv_type, device="cuda") as llm:
    plain = [llm.generate(prompt, **{**options, **kind}) for kind in kinds]
    with_lookup = {**options, "prompt_lookup_num_tokens": 7}
    drafted = [llm.generate(prompt, **{**with_lookup, **kind}) for kind in kinds]
    out["plain"] = [numbers(found) for found in plain]
    out["drafted"] = [numbers(found) for found in drafted]
    out["accepted"] = sum(found.usage.accepted_tokens for found in drafted)
    out["tokens"] = sum(len(found.token_ids) for found in drafted)
    streams = [
        llm.generate(prompt, stream=True, **{**(with_lookup if i % 2 else options), **kind})
        for i, kind in enumerate(kinds)
    ]
    out["together"] = [[t for piece in stream for t in piece.token_ids] for stream in streams]
    stats = llm.graph_stats()
    out["eager"] = stats.eager
    out["graphs"] = len(stats.captured)
    again = [llm.generate(prompt, **{**with_lookup, **kind}) for kind in kinds]
    out["again"] = [found.token_ids for found in again]
    out["more_graphs"] = len(llm.graph_stats().captured) - out["graphs"]
"""


@pytest.mark.parametrize("kv_type", ["i16", "q8_0"])
def test_lookups_draw_what_steps_draw(on_card: Any, kv_type: str) -> None:
    judge(on_card(ROUNDS, kv_type=kv_type))


@pytest.mark.parametrize(
    "shape", ["tiny-qwen35", "tiny-qwen3next", "tiny-lfm2", "tiny-nemotron-h", "tiny-qwen4exp"]
)
def test_states_roll_back(on_card: Any, tmp_path: Path, shape: str) -> None:
    path = tmp_path / "states.gguf"
    synth.write(path, few_layers(shapes.find(shape)), "Q4_K_M", seed=1)
    judge(on_card(ROUNDS, path=path, kv_type="i16"))


def judge(found: dict[str, Any]) -> None:
    assert found["drafted"] == found["plain"]
    tokens = [own[0] for own in found["plain"]]
    assert found["together"] == found["again"] == tokens
    # A text that repeats itself, of a random model.
    assert found["accepted"] > found["tokens"] / 6
    # Steps of 1 to 3 sequences, rounds of 2 to 32 rows; all of them replays, and no more come.
    assert found["eager"] == 0 and found["graphs"] <= 8
    assert found["more_graphs"] == 0
