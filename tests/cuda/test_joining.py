"""Sequences that join and leave: what is compiled and captured for them, and that each gets what it
would get alone."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import shapes
import synth
from support.card_process import few_layers

pytestmark = pytest.mark.thorough

COUNTING = """
import ctypes
driver = ctypes.CDLL("libcuda.so")
def counts():
    stats = (ctypes.c_uint64 * 32)()
    driver.ksimStats(stats, ctypes.sizeof(stats))
    return {"modules": stats[6], "execs": stats[8], "replays": stats[15], "compiles": stats[17]}
PLAIN = {"temperature": 0, "ignore_eos": True}
def prompt(n, first=7):
    return [first + i % 400 for i in range(n)]
"""

GROWTH = (
    COUNTING
    + """
with onegraph.LLM(path, device="cuda", n_ctx=128, max_batch=20, prefill_chunk=64, warmup=True,
                  prefix_cache=False) as llm:
    loaded = counts()
    alone = {n: llm.generate(prompt(n), max_tokens=6, **PLAIN).token_ids for n in (1, 9, 40, 100)}
    out["same"] = True
    for rows in (2, 3, 7, 12, 20):
        lengths = [(1, 9, 40, 100)[i % 4] for i in range(rows)]
        batch = llm.generate([prompt(n) for n in lengths], max_tokens=6, **PLAIN)
        out["same"] &= all(alone[n] == r.token_ids for n, r in zip(lengths, batch))
    stats = llm.stats()
    out["sizes"], out["eager"] = stats.graphs.batch_sizes, stats.graphs.eager
    out["most"] = max(step.batch_size for step in stats.graphs.captured)
    served = counts()
    out["more"] = {name: served[name] - loaded[name] for name in ("modules", "compiles")}
"""
)


def test_joining_a_warm_engine_compiles_nothing(simulated: Any) -> None:
    found = simulated(GROWTH)
    assert found["same"]
    assert found["more"] == {"modules": 0, "compiles": 0}
    assert found["sizes"] == [1, 2, 4, 8, 16, 20] and found["most"] == 20
    assert found["eager"] == 0


LARGE = """
graph = onegraph.GraphOptions(batch_sizes=[1, 240, 256])
with onegraph.LLM(path, device="cuda", n_ctx=64, max_batch=256, graph=graph,
                  prefill_chunk=64) as llm:
    out["sizes"] = llm.graph_stats().batch_sizes
    ids = [3, 4]
    found = llm.verify_graph(ids, batch_sizes=[240, 256])
    out["steps"] = [[s.batch_size, s.sequences, s.ok] for s in found.steps]
"""


def test_a_step_of_256_sequences_is_one_graph(simulated: Any) -> None:
    found = simulated(LARGE)
    assert found["sizes"] == [1, 240, 256]
    assert found["steps"] == [[240, 240, True], [256, 256, True]]


PROMPTS = (
    COUNTING
    + """
load = {"device": "cuda", "n_ctx": 512, "max_batch": 1, "prefill_chunk": 64,
        "prefix_cache": False}
options = {"max_tokens": 1, "logprobs": 1, **PLAIN}
with onegraph.LLM(path, **load) as llm:
    loaded = counts()
    def run(n):
        before = counts()
        made = llm.generate(prompt(n), **options)
        after = counts()
        return [after[name] - before[name] for name in ("execs", "replays")], made.logprobs
    # One chunk each: two warm the list up, the third captures it.
    short = [run(20) for _ in range(4)]
    out["warmed"] = [seen for seen, _ in short]
    # Last chunks of every size, captured with few tokens before them; then with many.
    runs = {n: [run(n) for _ in range(3)] for n in (8, 16, 64)} | {20: short}
    runs |= {n: [run(n) for _ in range(3)] for n in (264, 272, 288, 320)}
    out["instances"] = counts()["execs"] - loaded["execs"]
    out["replays"] = runs[320][2][0][1]
with onegraph.LLM(path, graph=onegraph.GraphOptions(mode="none"), **load) as llm:
    eager = {n: llm.generate(prompt(n), **options).logprobs for n in (8, 20, 64, 264, 320)}
out["wrong"] = [n for n, made in runs.items()
                if any(logprobs != eager.get(n, made[0][1]) for _, logprobs in made)]
"""
)


def test_prompts_warm_their_graphs_up(simulated: Any, tmp_path: Path) -> None:
    path = tmp_path / "long.gguf"
    shape = dataclasses.replace(shapes.find("tiny-llama"), n_ctx=512)
    synth.write(path, shape, "Q4_K_M", seed=1)
    found = simulated(PROMPTS, path=path)
    assert found["wrong"] == []
    # Instances made, and replays, by each of four prompts.
    assert found["warmed"] == [[0, 0], [0, 0], [1, 1], [0, 1]]
    assert found["replays"] > 0
    # Of four sizes with a token drawn behind them, and of one without, or of a few more where a
    # busy machine cuts prompts into smaller pieces: positions need no instances of their own, or
    # there would be ten at least.
    assert 4 <= found["instances"] <= 9


RANDOM = """
import asyncio, random
chance = random.Random(given["seed"])
def ask():
    kind = chance.randrange(3)
    alike = [7 + kind * 31 + i % 90 for i in range(chance.randrange(1, 100))]
    options = {
        "max_tokens": chance.randrange(1, 24), "seed": chance.randrange(2**32),
        "temperature": chance.choice([0, 0.7, 1.5]), "top_k": chance.choice([0, 20]),
        "repeat_penalty": chance.choice([1.0, 1.2]), "ignore_eos": chance.random() < 0.5,
        "stop_token_ids": [chance.randrange(400) for _ in range(chance.choice([0, 40]))],
        "logprobs": chance.choice([None, None, 2]),
    }
    tail = [chance.randrange(400) for _ in range(chance.randrange(8))]
    return alike + tail, options, chance.randrange(-100, 101), chance.choice([None] * 4 + [3])

asked = [ask() for _ in range(2000 if given["real"] else 40)]

async def follow(llm, prompt, options, priority, cut):
    stream = llm.agenerate(prompt, priority=priority, **options)
    if cut is None:
        return await stream
    pieces = []
    async for piece in stream:
        pieces += piece.token_ids
        if len(pieces) >= cut:
            break
    await stream.aclose()
    return pieces

async def all_of(llm):
    tasks = []
    for one in asked:
        tasks.append(asyncio.create_task(follow(llm, *one)))
        await asyncio.sleep(chance.random() * (0.01 if given["real"] else 0.05))
    return [await task for task in tasks]

load = {"device": "cuda", "n_ctx": 128, "prefill_chunk": 64}
with onegraph.LLM(path, max_batch=6, warmup=True, **load) as llm:
    found = asyncio.run(all_of(llm))
    while llm.stats().running:
        pass
    stats = llm.stats()
out["left"] = [stats.queued, stats.running, stats.pages.sequences,
               stats.pages.total - stats.pages.free - stats.pages.prefixes]
out["ways"] = [stats.graphs.full, stats.graphs.eager, len(stats.graphs.captured)]
out["hits"] = stats.prefix_hits
out["wrong"] = []
with onegraph.LLM(path, max_batch=1, prefix_cache=False, **load) as llm:
    for number, ((prompt, options, _, cut), got) in enumerate(zip(asked, found)):
        alone = llm.generate(prompt, **options)
        if cut is None:
            same = (got.token_ids, got.finish_reason, got.logprobs) == (
                alone.token_ids, alone.finish_reason, alone.logprobs)
        else:
            same = alone.token_ids[: len(got)] == got
        if not same:
            out["wrong"].append(number)
"""


def test_random_requests_equal_their_solo_runs_and_leave_nothing(on_card: Any) -> None:
    found = on_card(RANDOM, seed=5)
    assert found["wrong"] == []
    assert found["left"] == [0, 0, 0, 0]
    # Captured at load, as many as there are sizes; no step was launched kernel by kernel.
    full, eager, captured = found["ways"]
    assert full > 0 and (eager, captured) == (0, 4)
    assert found["hits"] > 0


BESIDE = """
import asyncio

async def joined(llm):
    async def decode(prompt, begun):
        pieces = []
        async for piece in llm.agenerate(prompt, max_tokens=40, **PLAIN):
            pieces += piece.token_ids
            begun.set()
        return pieces
    events = [asyncio.Event() for _ in range(3)]
    tasks = [asyncio.create_task(decode(prompt(5 + n, 7 + n), e)) for n, e in enumerate(events)]
    for event in events:
        await event.wait()
    long = await llm.agenerate(prompt(110, 50), max_tokens=9, **PLAIN)
    return [await task for task in tasks] + [long.token_ids]

load = {"device": "cuda", "n_ctx": 128, "prefill_chunk": 64, "prefix_cache": False}
with onegraph.LLM(path, max_batch=4, **load) as llm:
    out["found"] = [asyncio.run(joined(llm)) for _ in range(3)]
with onegraph.LLM(path, max_batch=1, **load) as llm:
    asked = [(prompt(5 + n, 7 + n), 40) for n in range(3)] + [(prompt(110, 50), 9)]
    out["alone"] = [llm.generate(ids, max_tokens=n, **PLAIN).token_ids for ids, n in asked]
"""


@pytest.mark.parametrize(
    "shape", ["tiny-llama", "tiny-qwen35", "tiny-lfm2", "tiny-gemma3", "tiny-gpt-oss"]
)
def test_a_prompt_beside_those_that_decode_changes_none_of_them(
    on_card: Any, tmp_path: Path, shape: str
) -> None:
    path = tmp_path / f"{shape}.gguf"
    synth.write(path, few_layers(shapes.find(shape)), "Q8_0", seed=1)
    found = on_card(COUNTING + BESIDE, path=path)
    assert found["found"] == [found["alone"]] * 3
