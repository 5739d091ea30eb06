"""Drafts of a model's own layer and of draft models on a card: rounds are graphs that need no host,
and draw what steps draw."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shapes
import synth
from support.card_process import few_layers

pytestmark = pytest.mark.thorough

ROUNDS = """
prompt, kv_type = given["prompt"], given["kv_type"]
kinds = [
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 7, "logprobs": 2},
    {"temperature": 0.0, "repeat_penalty": 1.2, "frequency_penalty": 2.0},
    {"temperature": 1.0, "seed": 3, "frequency_penalty": 2.0, "repeat_last_n": 2, "top_k": 9},
    {"temperature": 0.0, "stop_token_ids": [given["stop"]]},
    {"temperature": 0.0, "prompt_lookup_num_tokens": 5},
    {"temperature": 1.0, "seed": 8, "max_tokens": 3},
]
options = {"max_tokens": 20, "ignore_eos": True}
asked = [{**options, **kind} for kind in kinds]
asked.append({"max_tokens": 9, "seed": 9, "regex": "(one, two; )+"})
def numbers(found):
    logprobs = [(t.token_id, t.logprob) for t in found.logprobs or []]
    return found.token_ids, found.finish_reason, logprobs
load = {"n_ctx": 128, "max_batch": 3, "kv_type": kv_type, "prefill_chunk": 64, "progress": False}
drafts = {"speculate": given["speculate"], "draft": given["draft"]}
with onegraph.LLM(path, device="cpu", speculate="off", **load) as llm:
    plain = [llm.generate(prompt, **kind) for kind in asked]
    out["plain"] = [numbers(found) for found in plain]
    turn = prompt + list(plain[2].token_ids) + [5, 6, 60]
    out["turn"] = numbers(llm.generate(turn, **asked[3]))
with onegraph.LLM(path, device="cpu", **drafts, **load) as llm:
    found = [llm.generate(prompt, **kind) for kind in asked[:5]]
    out["cpu"] = [(r.usage.accepted_tokens, numbers(r)) for r in found]
with onegraph.LLM(path, device="cuda", **drafts, **load) as llm:
    drafted = [llm.generate(prompt, **kind) for kind in asked]
    out["drafted"] = [numbers(found) for found in drafted]
    out["accepted"] = [found.usage.accepted_tokens for found in drafted]
    graphs = llm.graph_stats()
    out["eager"] = graphs.eager
    ranked = [{"priority": i % 2, **kind} for i, kind in enumerate(asked)]
    streams = [llm.generate(prompt, stream=True, **kind) for kind in ranked]
    streams[1].close()
    out["together"] = [[t for piece in stream for t in piece.token_ids] for stream in streams]
    out["kept"] = numbers(llm.generate(turn, **asked[3]))
    again = llm.generate(prompt, **asked[0])
    out["again"] = numbers(again)
    out["more_graphs"] = len(llm.graph_stats().captured) - len(graphs.captured)
"""


def drafting(name: str) -> shapes.Shape:
    shape = dataclasses.replace(few_layers(shapes.find(name)), tied=False)
    return dataclasses.replace(shape, n_layer_nextn=1) if shape.delta else shape


def alone(shape: shapes.Shape) -> tuple[shapes.Shape, int]:
    """The shape of what drafts for it from a file of its own, and by which seed that knows it."""
    if shape.arch == "gemma4":
        its = {"arch": "gemma4-assistant", "n_layer_shared_kv": 2, "n_embd_backbone": shape.n_embd}
        return dataclasses.replace(shape, tied=True, **its), 1
    return dataclasses.replace(shape, n_layer=1, n_vocab=shape.n_vocab - 40), 2


@pytest.mark.parametrize(
    ("name", "kv_type", "speculate"),
    [
        ("tiny-qwen35", "i16", "mtp:3"),
        ("tiny-qwen35", "q8_0", "auto"),
        ("tiny-qwen35moe", "i16", "mtp:2"),
        ("tiny-qwen3next", "i16", "mtp:7"),
        ("tiny-llama", "i16", "draft:3"),
        ("tiny-llama", "q8_0", "auto"),
        ("tiny-gemma4", "i16", "draft:3"),
        ("tiny-gemma4", "q8_0", "auto"),
    ],
)
def test_guesses_change_no_token(
    on_card: Any, tmp_path: Path, name: str, kv_type: str, speculate: str
) -> None:
    path, shape = tmp_path / "known.gguf", drafting(name)
    draft = None
    if shape.n_layer_nextn:
        synth.write(path, shape, "Q4_K_M", seed=1, known=True, agree=0.8)
    else:
        draft = str(tmp_path / "draft.gguf")
        synth.write(path, shape, "Q4_K_M", seed=1, known=True)
        its, seed = alone(shape)
        synth.write(draft, its, "Q4_K_M", seed=seed, known=True, agree=0.8)
    after, prompt = synth.followers(shape), [60]
    while len(prompt) < 9:
        prompt.append(int(after[prompt[-1]]))
    given = {"prompt": prompt, "stop": prompt[-1] + 6, "kv_type": kv_type, "speculate": speculate}
    found = on_card(ROUNDS, path=path, draft=draft, **given)
    plain = found["plain"]
    assert found["drafted"] == plain
    assert [own[1] for own in found["cpu"]] == plain[:5]
    for i, tokens in enumerate(found["together"]):
        assert tokens == plain[i][0][: len(tokens)]
        assert i == 1 or len(tokens) == len(plain[i][0])
    assert found["kept"] == found["turn"] and found["again"] == plain[0]
    assert sum(found["accepted"]) > 5 and found["eager"] == 0
    if speculate != "auto":
        # The card guesses what the CPU guesses.
        assert found["accepted"][:5] == [own[0] for own in found["cpu"]]


ITSELF = """
load = {"n_ctx": 128, "max_batch": 2, "prefill_chunk": 64, "progress": False}
options = {"max_tokens": 21, "ignore_eos": True, "temperature": 0.0}
with onegraph.LLM(path, device="cpu", **load) as llm:
    out["plain"] = [llm.generate(p, **options).token_ids for p in given["prompts"]]
with onegraph.LLM(path, device="cuda", draft=path, speculate="draft:3", **load) as llm:
    found = llm.generate(given["prompts"], **options)
    out["drafted"] = [r.token_ids for r in found]
    out["accepted"] = [r.usage.accepted_tokens for r in found]
    # Of keys that the cache has of another text.
    again = llm.generate(given["prompts"][0] + list(out["plain"][0])[:9], **options)
    out["again"] = again.usage.accepted_tokens, again.usage.cached_tokens
    # Of a text that nothing was drafted for.
    bound = llm.generate(given["prompts"][1], regex="[a-z ]{300}", max_tokens=20, temperature=0.0)
    turn = given["prompts"][1] + list(bound.token_ids) + [7]
    later = llm.generate(turn, **options)
    out["later"] = later.usage.accepted_tokens, later.usage.cached_tokens
"""


def test_a_model_that_drafts_for_itself_is_always_right(on_card: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    synth.write(path, dataclasses.replace(shapes.find("tiny-llama"), tied=False), "Q4_K_M", seed=5)
    prompts = [[int(i) for i in np.random.default_rng(n).integers(3, 500, n)] for n in (90, 9)]
    found = on_card(ITSELF, path=path, prompts=prompts)
    assert found["drafted"] == found["plain"] and found["accepted"] == [15, 15]
    assert found["again"] == [15, 98] and found["later"] == [15, 28]
