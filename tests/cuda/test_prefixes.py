"""Prompts that begin alike are read from where they part, with the same bits, on CPU and card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import shapes
import synth
from support.card_process import few_layers

pytestmark = pytest.mark.thorough

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
    # More than the cache holds: kept prefixes are evicted.
    out["others"] = [both(words(160)) is not None for _ in range(3)]
    out["still"] = same
    stats = llm.graph_stats() if device != "cpu" else None
    out["eager"] = stats.eager if stats else 0
"""


@pytest.mark.parametrize(
    ("device", "kv_type"),
    [("cpu", "i16"), ("cpu", "q8_0"), ("cpu", "f32"), ("cuda", "i16"), ("cuda", "q8_0")],
)
def test_conversations_read_only_what_is_new(on_card: Any, kv_type: str, device: str) -> None:
    found = on_card(TURNS, kv_type=kv_type, device=device)
    # An answer but for its last token, an edited text up to the edit, all but the last token.
    assert found["cached"][:4] == [0, 81, 66, 89]
    assert all(found["same"]) and all(found["still"])
    assert found["together"] == found["alone"]
    assert found["eager"] == 0


@pytest.fixture(scope="module")
def shaped(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Models whose layers keep states of two kinds, or see a window."""
    folder = tmp_path_factory.mktemp("shaped")
    paths = {name: folder / f"{name}.gguf" for name in ("tiny-qwen35", "tiny-lfm2", "tiny-gemma3")}
    for name, path in paths.items():
        synth.write(path, few_layers(shapes.find(name)), "Q4_K_M")
    return paths


#: Turns, an edited message and a branch; what was evicted on the device; a saved prefix in another
#: model; and what the next process finds in the folder.
EVERYWHERE = """
import os
folder, device, kv_type = given["folder"], given["device"], given["kv_type"]
rng = np.random.default_rng(1)
words = lambda n: [int(i) for i in rng.integers(3, 250, n)]
load = {"n_ctx": 256, "max_batch": 2, "kv_type": kv_type, "device": device, "prefill_chunk": 64}
options = {"max_tokens": 12, "temperature": 1.0, "seed": 3, "ignore_eos": True, "logprobs": 2}
def ask(llm, prompt):
    found = llm.generate(prompt, **options)
    numbers = [(t.token_id, t.logprob, [tuple(top[:2]) for top in t.top]) for t in found.logprobs]
    return found.usage.cached_tokens, found.token_ids, numbers
fresh, same = {}, []
def both(llm, prompt):
    key = tuple(prompt)
    if key not in fresh:
        fresh[key] = ask(plain, prompt)
    kept = ask(llm, prompt)
    same.append(fresh[key][0] == 0 and fresh[key][1:] == kept[1:])
    return kept
with onegraph.LLM(path, prefix_cache=False, **load) as plain:
    with onegraph.LLM(path, prefix_host_bytes=1 << 25, cache_dir=folder, **load) as llm:
        prompt, cached = words(70), []
        for _ in range(2):
            kept = both(llm, prompt)
            cached.append(kept[0])
            prompt = prompt + kept[1] + words(10)
        cached.append(both(llm, prompt[:66] + [3] + prompt[67:80])[0])
        cached.append(both(llm, prompt[:90])[0])
        out["cached"] = cached
        # More than the device holds.
        others = [words(200) for _ in range(3)]
        for other in others:
            both(llm, other)
        out["after others"] = both(llm, prompt[:90])[0]
        out["host"] = llm.prefix_bytes["host"]
        out["saved"] = [llm.save_prefix(prompt, folder + "/saved"), len(prompt)]
    with onegraph.LLM(path, **load) as llm:
        out["loaded"] = llm.load_prefix(folder + "/saved")
        out["after load"] = [both(llm, prompt + words(5))[0], both(llm, prompt)[0]]
    with onegraph.LLM(path, cache_dir=folder, **load) as llm:
        out["after restart"] = [both(llm, prompt)[0], both(llm, others[1])[0]]
    with onegraph.LLM(path, prefix_cache=False, cache_dir=folder, **load) as llm:
        out["turned off"] = both(llm, prompt)[0]
out["same"] = same
"""


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("shape", "kv_type"),
    [
        ("tiny-qwen35", "i16"),
        ("tiny-lfm2", "i16"),
        ("tiny-gemma3", "i16"),
        ("tiny-gemma3", "q8_0"),
    ],
)
def test_evicted_and_checkpointed_prefixes_are_not_read_again(
    on_card: Any, shaped: dict[str, Path], tmp_path: Path, shape: str, kv_type: str, device: str
) -> None:
    given = {"folder": str(tmp_path), "device": device, "kv_type": kv_type}
    found = on_card(EVERYWHERE, path=shaped[shape], **given)
    assert all(found["same"])
    assert found["saved"] == [114, 114] and found["loaded"] == 114
    assert found["turned off"] == 0
    if shape == "tiny-gemma3":
        assert found["cached"] == [0, 81, 66, 89]
        assert found["after others"] == 89
        assert found["after load"] == [114, 113]
        assert found["after restart"] == [64, 192]
    else:
        # States are those of an answer's end, of a prompt's, and of the last page before it.
        assert found["cached"] == [0, 81, 64, 81]
        assert found["after others"] == 81
        assert found["after load"] == [114, 64]
        assert found["after restart"] == [64, 192]
    assert 0 < found["host"] <= 1 << 25
