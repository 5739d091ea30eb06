"""`LLM.verify_graph()`: a captured step against the same step launched kernel by kernel, from the
same state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onegraph
import pytest

VERIFY = """
import dataclasses
load = {"device": "cuda", "n_ctx": 256, "max_batch": 4}
out["found"] = []
for mode, kv_type, sizes, tokens in given["cases"]:
    graph = onegraph.GraphOptions(mode=mode)
    with onegraph.LLM(path, **load, graph=graph, kv_type=kv_type) as llm:
        before = llm.generate([5, 6, 7], max_tokens=5, temperature=0, ignore_eos=True).token_ids
        ids = [3 + 7 * i % 400 for i in range(tokens)]
        found = llm.verify_graph(ids, batch_sizes=sizes)
        after = llm.generate([5, 6, 7], max_tokens=5, temperature=0, ignore_eos=True).token_ids
        out["found"].append({"ok": found.ok, "steps": [dataclasses.asdict(s) for s in found.steps],
                             "same": before == after})
"""

# Across a page of the cache, alone; a few steps of a batch, and in pieces.
CASES = [
    ("full", "i16", [1], 66),
    ("full", "q8_0", [4], 6),
    ("piecewise", "i16", [2], 6),
]


@pytest.mark.thorough
def test_replays_equal_eager_steps(on_card: Any) -> None:
    found = on_card(VERIFY, cases=CASES)["found"]
    for (mode, _, sizes, tokens), each in zip(CASES, found, strict=True):
        assert each["ok"] and each["same"]
        (step,) = each["steps"]
        assert (step["kind"], step["batch_size"]) == (mode, sizes[0])
        assert (step["sequences"], step["steps"]) == (sizes[0], tokens)
        assert step["logits"] == tokens * 512 * sizes[0]
        assert step["kv_bytes"] > 0
        wrong = ["logits_wrong", "kv_bytes_wrong", "states_wrong", "max_difference"]
        assert [step[name] for name in wrong] == [0, 0, 0, 0]


@pytest.mark.thorough
def test_padding_changes_nothing_and_the_default_is_a_fixed_text(simulated: Any) -> None:
    found = simulated(
        """
        graph = onegraph.GraphOptions(batch_sizes=[2])
        llm = onegraph.LLM(path, device="cuda", n_ctx=64, max_batch=2, graph=graph)
        stream = llm.generate([5, 6, 7], max_tokens=50, stream=True, ignore_eos=True)
        next(stream)
        # One of the two slots is taken: the other row is padding.
        found = llm.verify_graph(atol=1e-3)
        out["steps"] = [[s.batch_size, s.sequences, s.steps, s.ok] for s in found.steps]
        out["rest"] = sum(len(p.token_ids) for p in stream)
        """
    )
    assert found["steps"] == [[2, 1, 64, True]]
    assert found["rest"] == 49


def test_what_cannot_be_verified_is_an_error(simulated: Any) -> None:
    found = simulated(
        """
        def refused(call):
            try:
                call()
            except onegraph.Error as e:
                return f"{type(e).__name__}: {e}"
        load = {"device": "cuda", "n_ctx": 64}
        graph = onegraph.GraphOptions(mode="none")
        with onegraph.LLM(path, max_batch=2, graph=graph, **load) as llm:
            out["none"] = refused(llm.verify_graph)
        graph = onegraph.GraphOptions(max_batch=2)
        with onegraph.LLM(path, max_batch=4, graph=graph, **load) as llm:
            out["size"] = refused(lambda: llm.verify_graph([1], batch_sizes=[3]))
            out["rtol"] = refused(lambda: llm.verify_graph([1], rtol=-1.0))
            out["ids"] = refused(lambda: llm.verify_graph([1] * 65))
            out["token"] = refused(lambda: llm.verify_graph([512]))
            out["empty"] = refused(lambda: llm.verify_graph([]))
            out["after"] = llm.verify_graph([1, 2]).ok
        """
    )
    said = {
        "none": 'ArgumentError: graph.mode = "none": no graphs are captured',
        "size": "ArgumentError: batch_sizes = 3: not captured; captured sizes are [1, 2]",
        "rtol": "ArgumentError: rtol = -1: must be a finite number, 0 or more",
        "ids": "ArgumentError: ids = 65 tokens: the context holds 64; shorten them",
        "token": "ArgumentError: ids = token 512: the vocabulary has 512 tokens",
        "empty": "ArgumentError: ids = no token",
    }
    for name, words in said.items():
        assert found[name].startswith(words), found[name]
    assert found["after"]


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_it_and_the_model_serves_on(simulated: Any) -> None:
    found = simulated(
        """
        import signal
        with onegraph.LLM(path, device="cuda", n_ctx=256, max_batch=4) as llm:
            interrupt = lambda *_: signal.raise_signal(signal.SIGINT)
            signal.signal(signal.SIGALRM, interrupt)
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            try:
                llm.verify_graph([1 + i % 400 for i in range(256)], batch_sizes=[1, 1, 1, 1])
                out["ended"] = "verified"
            except KeyboardInterrupt:
                out["ended"] = "interrupted"
            text = llm.generate([5, 6], max_tokens=3, temperature=0, ignore_eos=True)
            out["steps"] = llm.graph_stats().full
            out["tokens"] = len(text.token_ids)
            out["verified"] = llm.verify_graph([1, 2]).ok
        """
    )
    assert found["ended"] == "interrupted"
    assert (found["tokens"], found["verified"]) == (3, True)
    # The whole of it would be four times 256 replays.
    assert found["steps"] < 512, found["steps"]


def test_the_cpu_has_no_graphs(tiny_llama: Path) -> None:
    with onegraph.LLM(tiny_llama, device="cpu", n_ctx=64) as llm:
        assert llm.graph_stats() is None
        with pytest.raises(onegraph.DeviceError) as error:
            llm.verify_graph([1, 2, 3])
        said = str(error.value)
        assert "captures no graphs" in said and 'device="cuda"' in said
        # It serves on.
        assert llm.generate([1, 2], max_tokens=2, ignore_eos=True).usage.completion_tokens == 2
