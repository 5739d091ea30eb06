"""The window that penalties look at, on the card: its tokens are counted there, in the captured
step, and the CPU draws the same from the same logits."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.thorough

#: `i16` has the same logits on every device. Few tokens, so that one leaves the window while others
#: of its kind stay; a window of 64 loses the 3 and the 9, which the long prompt has but once.
WINDOWS = """
short, long = [4, 5, 3], [4, 5, 6] * 3 + [3, 9] + [4, 5, 6] * 19
penalties = {"repeat_penalty": 3.0, "presence_penalty": 0.5, "frequency_penalty": 0.5}
common = {
    "max_tokens": 24, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 0,
    "ignore_eos": True, "logit_bias": dict.fromkeys(range(3, 10), float("inf")),
}
windows = [(long, 64), (short, 1), (short, 2), (short, 5), (short, 0), (long, 255)]
requests = [(p, {**common, **penalties, "repeat_last_n": n}) for p, n in windows]
load = {"n_ctx": 256, "max_batch": 4, "kv_type": "i16"}
with onegraph.LLM(path, device="cpu", **load) as llm:
    out["cpu"] = [llm.generate(p, **options).token_ids for p, options in requests]
    rest = [(short, common), (long, common | penalties)]
    out["none"], out["whole"] = [llm.generate(p, **options).token_ids for p, options in rest]
with onegraph.LLM(path, device="cuda", **load) as llm:
    out["card"] = [llm.generate(p, **options).token_ids for p, options in requests]
    # More than there are slots: those that wait begin where others ended.
    streams = [llm.generate(p, stream=True, **options) for p, options in requests]
    out["together"] = [[i for piece in s for i in piece.token_ids] for s in streams]
    stats = llm.graph_stats()
    out["batches"] = [step.batch_size for step in stats.captured]
    out["eager"] = stats.eager
"""


def test_windows_of_any_length_draw_what_the_cpu_draws(on_card: Any) -> None:
    found = on_card(WINDOWS)
    assert found["card"] == found["cpu"], "the card penalizes other tokens than the CPU"
    assert found["together"] == found["card"], "side by side they are other texts"
    assert found["eager"] == 0 and max(found["batches"]) == 4
    assert len({tuple(text) for text in found["cpu"]}) == len(found["cpu"])
    assert found["cpu"][-2:] == [found["none"], found["whole"]]
