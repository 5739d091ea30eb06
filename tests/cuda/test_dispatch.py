"""Which decode steps are replays, and that every way of running them gives the same tokens."""

from __future__ import annotations

from typing import Any

import pytest

# Three sequences of unequal length, so that a batch of 3 shrinks to 2 and to 1.
GENERATE = """
PROMPTS = [[3, 4, 5], [6, 7], [8, 9, 10, 11]]
LENGTHS = [8, 9, 10]
def generate(options):
    stages, options = [], dict(options)
    warmup = options.pop("warmup", False)
    graph = onegraph.GraphOptions(**options)
    with onegraph.LLM(path, device="cuda", n_ctx=64, max_batch=4, graph=graph, warmup=warmup,
                      progress=lambda what, done, total: stages.append([what, done, total])) as llm:
        streams = [
            llm.generate(p, max_tokens=n, temperature=0, ignore_eos=True, stream=True)
            for p, n in zip(PROMPTS, LENGTHS)
        ]
        texts = [[t for piece in stream for t in piece.token_ids] for stream in streams]
        stats = llm.graph_stats()
    return {
        "texts": texts,
        "stages": stages,
        "mode": stats.mode,
        "sizes": stats.batch_sizes,
        "captured": [[s.kind, s.batch_size, s.graphs, s.nodes] for s in stats.captured],
        "ways": [stats.full, stats.piecewise, stats.eager],
        "missed": {k: v for k, v in stats.missed.items() if v},
    }
out["runs"] = [generate(options) for options in given["modes"]]
"""

EAGER = {"mode": "none"}
MODES = [
    {"mode": "full", "warmup": True},
    {"mode": "piecewise"},
    {"mode": "full_and_piecewise", "max_batch": 2, "warmup": True},
    {"mode": "full", "batch_sizes": [2, 1, 2]},
    {"mode": "full", "batch_sizes": [2, 4], "padding": False},
]


@pytest.mark.thorough
def test_every_mode_gives_the_same_tokens(simulated: Any) -> None:
    eager, *runs = simulated(GENERATE, modes=[EAGER, *MODES])["runs"]
    assert eager["mode"] == "none"
    assert eager["captured"] == [] and eager["ways"][:2] == [0, 0]
    assert eager["missed"] == {"graphs are on": eager["ways"][2]}
    assert [len(text) for text in eager["texts"]] == [8, 9, 10]
    for options, found in zip(MODES, runs, strict=True):
        assert found["texts"] == eager["texts"], options
        assert found["mode"] == options["mode"]
        full, piecewise, stepwise = found["ways"]
        assert full + piecewise + stepwise >= max(len(t) for t in eager["texts"]) - 1
        captured = [tuple(step[:2]) for step in found["captured"]]
        graphs = {
            kind: {step[2] for step in found["captured"] if step[0] == kind} for kind, _ in captured
        }
        if options["mode"] == "piecewise":
            assert full == stepwise == 0
            # Two layers, each cut at its attention.
            assert graphs == {"piecewise": {3}}
        elif options["mode"] == "full_and_piecewise":
            # Above the largest whole step, pieces; those first, the largest first.
            assert captured == [("piecewise", 4), ("full", 2), ("full", 1)]
            assert full > 0 and piecewise > 0 and stepwise == 0
        elif options.get("padding") is False:
            assert found["sizes"] == [2, 4]
            assert found["missed"] == {"a graph of this very size, or padding": stepwise}
            assert stepwise > 0
        elif "batch_sizes" in options:
            assert found["sizes"] == [1, 2]
            assert {size for _, size in captured} <= {1, 2}
            if stepwise:
                assert found["missed"] == {"the batch fits the largest graph": stepwise}
        else:
            assert stepwise == piecewise == 0 and graphs == {"full": {1}}
        if options.get("warmup"):
            sizes = [size for _, size in captured]
            assert sorted(sizes) == found["sizes"]
            told = [s for s in found["stages"] if s[0].startswith("capture")]
            assert told and all(f"capture batch {sizes[done]}, " in what for what, done, _ in told)
            assert all("GiB free" in what and total == len(sizes) for what, _, total in told)


def test_pieces_wait_for_each_other(simulated: Any) -> None:
    """Where kernels may start early, the first of a piece must not: what it follows is no kernel of
    its graph."""
    modes = [EAGER | {"pdl": False}, {"mode": "piecewise", "pdl": True}]
    alone, early = simulated(GENERATE, modes=modes, env={"KSIM_PDL": "early"})["runs"]
    assert early["ways"][1] > 0
    assert early["texts"] == alone["texts"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_sizes": []}, ["graph.batch_sizes = []", "at least one"]),
        ({"batch_sizes": [1, 5]}, ["graph.batch_sizes = 5", "1 to 4", "max_batch = 4"]),
        ({"batch_sizes": [0]}, ["graph.batch_sizes = 0", "1 to 4"]),
        (
            {"batch_sizes": [1, 4], "max_batch": 2},
            ["graph.batch_sizes = 4", "1 to 2", "graph.max_batch = 2"],
        ),
        ({"max_batch": 5}, ["graph.max_batch = 5", "1 to 4"]),
        ({"mode": "half"}, ['graph.mode = "half"', "piecewise, full_and_piecewise, none"]),
    ],
)
def test_nonsense_is_refused_with_its_numbers(
    options: dict[str, Any], words: list[str], tiny_llama: Any
) -> None:
    import onegraph

    with pytest.raises(onegraph.ArgumentError) as error:
        graph = onegraph.GraphOptions(**options)
        onegraph.LLM(tiny_llama, device="cpu", max_batch=4, graph=graph)
    assert all(word in str(error.value) for word in words)
