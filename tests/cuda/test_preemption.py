"""Sequences that are preempted on a card: the same graphs, the same bits, no eager step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import shapes
import synth
from support.card_process import few_layers

pytestmark = pytest.mark.thorough

#: At most four sequences at a time on the pages of one or two; one is given up, some begin alike.
#: Each begins just below a page's end, so that few tokens take it into the next.
CROWD = """
rng = np.random.default_rng(given["seed"])
words = lambda n: [int(i) for i in rng.integers(3, 250, n)]
load = {"device": "cuda", "n_ctx": 192, "kv_type": given["kv_type"], "prefill_chunk": 64,
        "progress": False}
start = words(70)
# So few that they repeat, for drafts of them.
few = {60: float("inf"), 61: float("inf")}
asked = []
for i in range(given["n"]):
    shared = start[: 10 * i] if i % 2 else []
    prompt = shared + words(int(rng.integers(50, 60)) - len(shared))
    asked.append((prompt, {"max_tokens": int(rng.integers(*given["tokens"])), "seed": i,
                           "temperature": 1.0, "ignore_eos": True,
                           "logit_bias": few if given.get("few") else None,
                           "prompt_lookup_num_tokens": given["drafts"]}))
with onegraph.LLM(path, kv_tokens=given["kv_tokens"], max_batch=4, **load) as llm:
    # A fast card may be done with the first before the last has come: then all of them come again.
    for _ in range(50):
        streams = [llm.generate(p, stream=True, priority=i % 3, **o)
                   for i, (p, o) in enumerate(asked)]
        found = [[] for _ in streams]
        def read(i):
            for piece in streams[i]:
                found[i] += piece.token_ids
                if i == 4 and len(found[i]) > 12:
                    streams[i].close()
                    return
        threads = [threading.Thread(target=read, args=(i,)) for i in range(len(streams))]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        if llm.stats().preemptions: break
    late = time.monotonic() + 60
    while (now := llm.stats()).running + now.preempted + now.pages.sequences:
        assert time.monotonic() < late, now
    out["preemptions"], out["pages_swapped_out"] = now.preemptions, now.pages_swapped_out
    out["eager"], out["graphs"] = now.graphs.eager, len(now.graphs.captured)
    out["sizes"], out["accepted"] = len(now.graphs.batch_sizes), now.accepted_tokens
with onegraph.LLM(path, max_batch=1, prefix_cache=False, **load) as alone:
    out["same"] = []
    for i, (prompt, options) in enumerate(asked):
        fresh = alone.generate(prompt, **{**options, "prompt_lookup_num_tokens": 0}).token_ids
        out["same"].append(found[i] == (list(fresh)[: len(found[i])] if i == 4 else list(fresh)))
"""


def crowd(on_card: Any, **given: Any) -> dict[str, Any]:
    given = {"tokens": (20, 28), **given}
    found: dict[str, Any] = on_card("import threading, time\n" + CROWD, **given)
    assert all(found["same"]), found
    assert found["preemptions"] > 0 and found["pages_swapped_out"] == 0
    assert found["eager"] == 0
    if not given["drafts"]:
        assert found["graphs"] <= found["sizes"]
    return found


@pytest.mark.parametrize("kv_type", ["i16", "q8_0"])
def test_sequences_are_preempted_and_resume(on_card: Any, kv_type: str) -> None:
    crowd(on_card, kv_type=kv_type, seed=1, drafts=0, n=6, kv_tokens=256)


def test_drafts_preempt_no_sequence(on_card: Any) -> None:
    crowd(on_card, kv_type="i16", seed=7, drafts=8, n=6, kv_tokens=256)


@pytest.mark.parametrize("drafts", [0, 8])
def test_preempted_sequences_keep_their_states(on_card: Any, tmp_path: Path, drafts: int) -> None:
    path = tmp_path / "hybrid.gguf"
    synth.write(path, few_layers(shapes.find("tiny-qwen35")), "Q4_K_M")
    # With drafts, twenty tokens are two rounds: one would be done before the other has come.
    tokens = (60, 68) if drafts else (20, 28)
    given = {"seed": 3, "n": 2, "kv_tokens": 192, "drafts": drafts, "few": drafts > 0}
    found = crowd(on_card, kv_type="i16", path=path, tokens=tokens, **given)
    assert (found["accepted"] > 0) == (drafts > 0)
