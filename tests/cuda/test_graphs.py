"""Graphs over many tokens: replay for replay what eager runs give, and nothing that grows.

In the simulator a few dozen tokens of a tiny model; on a card, by `pytest -m gpu tests/cuda`,
thousands, and SmolLM2 against the CPU.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.thorough

FREE_RUNNING = """
tokens = given["tokens"]
settings = [{"temperature": 0}, {"seed": 7, "temperature": 1.0, "repeat_penalty": 1.2}]
load = {"device": "cuda", "n_ctx": 64, "max_batch": 2}
texts = []
for mode in ["none", "full"]:
    with onegraph.LLM(path, graph=onegraph.GraphOptions(mode=mode), **load) as llm:
        texts.append([
            llm.generate([3, 4, 5], max_tokens=tokens, ignore_eos=True, **s).token_ids
            for s in settings
        ])
        stats = llm.graph_stats()
        out[mode] = [stats.full, stats.eager]
out["equal"] = texts[0] == texts[1]
out["lengths"] = [len(t) for t in texts[1]]
"""


def test_free_running_graphs_equal_eager_runs(on_card: Any) -> None:
    found = on_card(FREE_RUNNING, tokens=60)
    assert found["equal"] and found["lengths"] == [60, 60]
    assert found["none"][0] == 0 and found["none"][1] >= 118
    assert found["full"][1] == 0 and found["full"][0] >= 118


IDENTICAL = """
ids = [3 + 5 * i % 200 for i in range(12)]
sampling = {"max_tokens": 12, "seed": 5, "temperature": 1.0, "ignore_eos": True}
runs = given["runs_real"] if given["real"] else given["runs"]
with onegraph.LLM(path, device="cuda", n_ctx=64, max_batch=4) as llm:
    texts, bits = set(), set()
    for run in range(runs):
        # Alone, and beside others that come and go.
        beside = [llm.generate([9, run % 50], max_tokens=1 + run % 9, stream=True)][: run % 2]
        texts.add(tuple(llm.generate(ids, **sampling).token_ids))
        bits.add(llm.logits(ids, path="decode").tobytes())
        for stream in beside:
            stream.close()
out["runs"], out["texts"], out["bits"] = runs, len(texts), len(bits)
"""


def test_every_run_is_identical(on_card: Any) -> None:
    found = on_card(IDENTICAL, runs=4, runs_real=200)
    assert found["runs"] in (4, 200)
    assert (found["texts"], found["bits"]) == (1, 1)


CONSTANT = """
from onegraph import _native, nvrtc
def free():
    return json.loads(_native.cuda_devices(nvrtc.folders()))["cards"][0]["free_bytes"]
tokens, n_ctx = (10_000, 512) if given["real"] else (60, 64)
with onegraph.LLM(path, device="cuda", n_ctx=n_ctx, max_batch=4, warmup=True) as llm:
    prompts = [[3, 4, 5], [6, 7], [8]]
    def generate(n):
        made = 0
        while made < n:
            batch = prompts[: 1 + made % 3]
            made += sum(r.usage.completion_tokens for r in llm.generate(
                batch, max_tokens=n_ctx // 2, ignore_eos=True))
        return made
    generate(n_ctx)
    before, graphs = free(), llm.graph_stats()
    out["made"] = generate(tokens)
    after = llm.graph_stats()
    out["bytes"] = before - free()
    out["captured"] = [len(graphs.captured), len(after.captured)]
    out["shape"] = []
    for size in after.batch_sizes:
        p = llm.profile_graph(size, repeats=1)
        out["shape"].append([p.batch_size, p.nodes - p.launches, p.edges - p.nodes])
out["tokens"] = tokens
"""


@pytest.mark.card_alone
def test_nothing_grows_with_tokens(on_card: Any) -> None:
    """Neither the graphs nor the card's memory; and every launch is a node."""
    found = on_card(CONSTANT)
    assert found["made"] >= found["tokens"]
    assert found["captured"] == [3, 3]
    assert found["bytes"] == 0
    assert found["shape"] == [[1, 0, -1], [2, 0, -1], [4, 0, -1]]


PASSES = """
load = {"device": "cuda", "n_ctx": 256, "prefill_chunk": 64}
ids = list(range(3, 60))
with onegraph.LLM(path, **load) as llm:
    before = llm.generate(ids, max_tokens=3, temperature=0).token_ids
    found = llm.profile_graph(prompt=150, position=70, repeats=1)
    out["launches"] = [[k.kernel, k.operations] for k in found.kernels]
    out["graphs"] = [found.graphs, found.nodes - found.launches, found.edges - found.nodes]
    out["equal"] = llm.generate(ids, max_tokens=3, temperature=0).token_ids == before
"""


def test_a_prompt_is_described_pass_for_pass(on_card: Any) -> None:
    """Chunks of 64, 64 and 22 tokens, and one draw; other requests are as before."""
    found = on_card(PASSES)
    assert found["graphs"] == [3, 0, -3] and found["equal"]
    passes: list[list[tuple[str, int]]] = []
    for kernel, operations in found["launches"]:
        if kernel == "embed":
            passes.append([])
        passes[-1].append((kernel, operations))
    draws = [sum(kernel == "sample_draw" for kernel, _ in each) for each in passes]
    assert draws == [0, 0, 1]
    attention = [sum(n for kernel, n in each if "attention" in kernel) for each in passes]
    pairs = [sum(range(a + 1, b + 1)) for a, b in itertools.pairwise([70, 134, 198, 220])]
    assert attention == [attention[0] // pairs[0] * n for n in pairs]


SMOLLM2 = """
with onegraph.LLM(path, device="cuda", n_ctx=1024, max_batch=4, warmup=True) as llm:
    ids = llm.tokenize(onegraph.graphs.check_text())[:1000]
    found = llm.verify_graph(ids)
    out["verified"] = [[s.batch_size, s.sequences, s.steps, s.ok] for s in found.steps]
    def greedy(llm, **options):
        return llm.generate(ids[:3], max_tokens=1000, temperature=0, ignore_eos=True).token_ids
    replayed = greedy(llm)
    prompts = [ids[i : i + 12 + i % 9] for i in range(0, 800, 40)]
    greedy_texts = [r.token_ids for r in llm.generate(
        prompts, max_tokens=256, temperature=0, ignore_eos=True)]
eager = onegraph.GraphOptions(mode="none")
with onegraph.LLM(path, device="cuda", n_ctx=1024, max_batch=1, graph=eager) as llm:
    out["free_running"] = greedy(llm) == replayed
# The CPU's logits of a prompt and of steps have the same bits: fed the card's text, its best token
# is what it would have drawn, until the two part.
out["partings"] = []
with onegraph.LLM(path, device="cpu", n_ctx=320, max_batch=1) as cpu:
    for prompt, text in zip(prompts, greedy_texts):
        logits = cpu.logits([*prompt, *text[:-1]])[len(prompt) - 1 :]
        best = logits.argmax(axis=1)
        other = np.flatnonzero(best != np.array(text))
        if other.size:
            row = logits[other[0]]
            out["partings"].append(float(row[best[other[0]]] - row[text[other[0]]]))
out["prompts"] = [len(prompts), len(greedy_texts[0])]
"""


@pytest.mark.gpu
def test_smollm2_on_a_card(smollm2: Path, real_card: Any) -> None:
    """1,000 tokens through every captured step, 1,000 greedy tokens, and the CPU's text."""
    found = real_card(SMOLLM2, path=smollm2)
    assert found["verified"] == [[n, n, 1000, True] for n in (1, 2, 4)]
    assert found["free_running"]
    assert found["prompts"] == [20, 256]
    assert all(gap < 1e-3 for gap in found["partings"]), found["partings"]
