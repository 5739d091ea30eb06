"""Prompts that begin alike are read from where they part, with the same bits, on CPU and card."""

from __future__ import annotations

from typing import Any

import pytest

#: Turns of a conversation, an edited one, an answer that is read again, and many at once.
TURNS = """
kv_type, device = given["kv_type"], given["device"]
rng = np.random.default_rng(1)
words = lambda n: [int(i) for i in rng.integers(3, 250, n)]
load = {"n_ctx": 192, "max_batch": 2, "kv_type": kv_type, "device": device, "prefill_chunk": 64}
options = {"max_tokens": 12, "temperature": 1.0, "seed": 3, "ignore_eos": True, "logprobs": 2}
def ask(llm, prompt):
    found = llm.generate(prompt, **options)
    numbers = [(t.token_id, t.logprob, [tuple(top[:2]) for top in t.top]) for t in found.logprobs]
    return found.usage.cached_tokens, found.token_ids, numbers
with onegraph.LLM(path, prefix_cache=False, **load) as plain, onegraph.LLM(path, **load) as llm:
    prompt, cached, same = words(70), [], []
    def both(prompt):
        fresh, kept = ask(plain, prompt), ask(llm, prompt)
        cached.append(kept[0])
        same.append(fresh[0] == 0 and fresh[1:] == kept[1:])
        return kept[1]
    for _ in range(2):
        prompt = prompt + both(prompt) + words(10)
    both(prompt[:66] + [3] + prompt[67:80])
    both(prompt[:90])
    out["cached"], out["same"] = cached, same
    together = [prompt[:66] + words(5) for _ in range(3)]
    streams = [llm.generate(p, stream=True, **options) for p in together]
    out["together"] = [[i for piece in s for i in piece.token_ids] for s in streams]
    out["alone"] = [ask(plain, p)[1] for p in together]
    # More than the cache holds: what was kept gives way.
    out["others"] = [both(words(160)) is not None for _ in range(3)]
    out["still"] = same
    stats = llm.graph_stats() if device != "cpu" else None
    out["eager"] = stats.eager if stats else 0
"""


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_conversations_read_only_what_is_new(on_card: Any, device: str) -> None:
    found = on_card(TURNS, kv_type="i16", device=device)
    # An answer but for its last token, an edited text up to the edit, all but the last token.
    assert found["cached"][:4] == [0, 81, 66, 89]
    assert all(found["same"]) and all(found["still"])
    assert found["together"] == found["alone"]
    assert found["eager"] == 0


def test_only_what_has_one_arithmetic_is_kept(on_card: Any) -> None:
    """Sums over a card's other caches depend on the pass; a CPU's never do."""
    card = on_card(TURNS, kv_type="f16", device="cuda")
    assert set(card["cached"]) == {0} and all(card["same"])
    cpu = on_card(TURNS, kv_type="f16", device="cpu")
    assert cpu["cached"][:4] == [0, 81, 66, 89] and all(cpu["same"])
