"""The CUDA backend through the public interface, against the CPU backend.

The real kernels, captured and replayed: on the simulated driver in every run, and on a card by
`pytest -m gpu`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import shapes
import synth
from support.card_process import OnCard, few_layers

# What both ways run, in a process of its own: the simulated driver must be found before any other.
SCRIPT = """
import json, sys
import numpy as np
import onegraph

path, options = sys.argv[1], json.loads(sys.argv[2])
PROMPTS = ["Hello world", "The capital of France is"]
GREEDY = {"temperature": 0, "ignore_eos": True}
SETTINGS = [
    GREEDY,
    {"seed": 3, "top_k": 5, "top_p": 0.9, "repeat_penalty": 1.3, "ignore_eos": True},
]
out = {}
load = {"n_ctx": 256, "max_batch": 2, **options}
graph = onegraph.GraphOptions(**load.pop("graph", {}))
with onegraph.LLM(path, device="cpu", **load) as c, \\
        onegraph.LLM(path, device="cuda", graph=graph, **load) as g:
    out["device"] = g.device
    solo = [[g.generate(p, max_tokens=3, **s).token_ids for p in PROMPTS] for s in SETTINGS]
    out["equal"] = solo == [
        [c.generate(p, max_tokens=3, **s).token_ids for p in PROMPTS] for s in SETTINGS
    ]
    out["batch"] = solo == [
        [r.token_ids for r in g.generate(PROMPTS, max_tokens=3, **s)] for s in SETTINGS
    ]
    out["again"] = g.generate(PROMPTS[0], max_tokens=3, **GREEDY).token_ids == solo[0][0]
    # A stop token ends the text at once, and the slot serves the next request.
    cut = g.generate(PROMPTS[1], max_tokens=3, stop_token_ids=[solo[0][1][2]], **GREEDY)
    out["stop"] = cut.finish_reason == "stop" and len(cut.token_ids) <= 2
    lp = g.generate(PROMPTS[0], max_tokens=3, logprobs=2, **GREEDY).logprobs
    out["logprobs"] = len(lp)
    ids = list(range(3, 76))
    prefill, decode, exact = g.logits(ids), g.logits(ids[:9], path="decode"), c.logits(ids)
    # Also of a prompt that is cut.
    found = (prefill[:9], decode), (prefill[:7], g.logits(ids[:7])), (prefill, exact)
    out["bits"] = [bool(np.array_equal(a, b)) for a, b in found]
    for piece in g.generate("x", max_tokens=50, stream=True, ignore_eos=True):
        break
    out["after_cancel"] = g.generate(PROMPTS[0], max_tokens=3, **GREEDY).token_ids == solo[0][0]
print(json.dumps(out))
"""


def run(path: Path, env: dict[str, str], **options: Any) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path), json.dumps(options)],
        # Compiled kernels of the simulator, or of a test, are not the user's.
        env=env | {"ONEGRAPH_CACHE_DIR": str(path.parent / "cache")},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def check(found: dict[str, Any]) -> None:
    """Every sum of a card is stated: the same bits."""
    assert found["device"].startswith("cuda:0")
    assert found["equal"], "the card draws other tokens than the CPU"
    assert found["batch"], "a sequence in a batch differs from the same one alone"
    assert found["again"] and found["after_cancel"]
    assert found["stop"]
    assert found["logprobs"] == 3
    assert found["bits"] == [True] * 3, "steps, a prompt cut short or the CPU differ"


SHAPES = (
    "tiny-llama",
    "tiny-qwen2",
    "tiny-qwen3",
    "tiny-qwen35",
    "tiny-qwen35moe",
    "tiny-qwen3next",
    "tiny-gpt-oss",
    "tiny-gemma3",
    "tiny-gemma4",
    "tiny-gemma4-e",
    "tiny-gemma4-moe",
    "odd-gemma4-512",
    "tiny-granite",
    "tiny-lfm2",
    "tiny-lfm2moe",
    "tiny-mistral3",
    "tiny-muse-glimmer",
    "tiny-olmo2",
    "tiny-smollm3",
    "tiny-seed-oss",
    "tiny-hunyuan-dense",
    "tiny-glm4",
    "odd-exaone4-96",
    "tiny-glm4moe",
    "tiny-phi",
    "tiny-cohere2",
    "tiny-laguna",
    "tiny-nemotron-h",
    "tiny-nemotron-h-moe",
    "tiny-granite-hybrid",
    "tiny-deepseek2",
    "odd-deepseek2-96",
    "tiny-qwen4exp",
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("shapes")
    paths = {name: folder / f"{name}.gguf" for name in SHAPES}
    for name, path in paths.items():
        synth.write(path, few_layers(shapes.find(name)), "Q4_K_M")
    return paths


CASES = [
    ("tiny-llama", {"kv_type": "i16"}),
    ("tiny-llama", {"kv_type": "q8_0"}),
    ("tiny-qwen35", {}),
    ("tiny-qwen35moe", {}),
    # Its heads of values are in groups.
    ("tiny-qwen3next", {}),
    ("tiny-gpt-oss", {}),
    ("tiny-qwen2", {}),
    ("tiny-qwen3", {"graph": {"mode": "none"}, "kv_type": "q8_0"}),
    # Prompts go past its window.
    ("tiny-gemma3", {"kv_type": "i16"}),
    ("tiny-gemma4", {"kv_type": "i16"}),
    ("tiny-gemma4-e", {"kv_type": "i16"}),
    ("tiny-gemma4-moe", {}),
    ("odd-gemma4-512", {"kv_type": "i16"}),
    ("odd-gemma4-512", {"kv_type": "q8_0"}),
    ("tiny-granite", {"kv_type": "i16"}),
    ("tiny-lfm2", {"kv_type": "i16"}),
    ("tiny-lfm2moe", {"kv_type": "i16"}),
    # Its queries are rotated by a table of their own.
    ("tiny-mistral3", {"kv_type": "i16"}),
    # Of its layers those with a window alone are rotated, and all have a gate.
    ("tiny-muse-glimmer", {"kv_type": "i16"}),
    # One norm over all heads of queries, none before a product.
    ("tiny-olmo2", {"kv_type": "i16"}),
    # Its last layer is not rotated.
    ("tiny-smollm3", {"kv_type": "i16"}),
    ("tiny-seed-oss", {"kv_type": "i16"}),
    # Its heads are normalized behind the rotation.
    ("tiny-hunyuan-dense", {"kv_type": "i16"}),
    # One matrix gives gate and up, and half of a head is rotated.
    ("tiny-glm4", {"kv_type": "i16"}),
    # Its last layer sees all and is not rotated.
    ("odd-exaone4-96", {"kv_type": "i16"}),
    # Its expert of every row has no gate.
    ("tiny-glm4moe", {"kv_type": "i16"}),
    # One matrix gives queries, keys and values.
    ("tiny-phi", {"kv_type": "i16"}),
    # Its norm takes the mean away, and stands before attention and the feed-forward part.
    ("tiny-cohere2", {"kv_type": "i16"}),
    # Its layers have heads and rotations of their own, and a gate a head.
    ("tiny-laguna", {"kv_type": "i16"}),
    # Layers of one block each, and no gate of what is squared.
    ("tiny-nemotron-h", {"kv_type": "i16"}),
    ("tiny-nemotron-h-moe", {"kv_type": "i16"}),
    ("tiny-granite-hybrid", {"kv_type": "i16"}),
    # Its values are in its keys, which its heads share; experts are in groups.
    ("tiny-deepseek2", {"kv_type": "i16"}),
    ("odd-deepseek2-96", {"kv_type": "q8_0"}),
    # Streams side by side, and rows of n-grams.
    ("tiny-qwen4exp", {"kv_type": "i16"}),
]


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        pytest.param(*case, marks=[] if case == CASES[0] else [pytest.mark.thorough])
        for case in CASES
    ],
    ids=lambda v: str(v),
)
def test_simulated_card_equals_cpu(
    shape: str, options: dict[str, Any], models: dict[str, Path], simulator: dict[str, str]
) -> None:
    check(run(models[shape], simulator, **options))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("shape", "kv_type"),
    [("tiny-llama", "i16"), ("tiny-llama", "q8_0"), ("tiny-qwen35", "i16")],
)
def test_early_successors_change_nothing(
    shape: str, kv_type: str, models: dict[str, Path], simulator: dict[str, str]
) -> None:
    """Every kernel starts before its predecessor has run, as programmatic launches may."""
    env = simulator | {"KSIM_PDL": "early"}
    check(run(models[shape], env, graph={"pdl": True}, kv_type=kv_type))


REFUSALS = """
damaged = path + ".damaged"
with open(damaged, "w") as file:
    file.write("no model")
for kv_type in ("f16", "f32", "q4_0"):
    try:
        onegraph.LLM(damaged, device="cuda", kv_type=kv_type)
    except onegraph.ArgumentError as e:
        out[kv_type] = str(e)
"""


def test_keys_and_values_of_the_cpu_alone_are_refused_before_a_file_is_opened(
    simulated: OnCard,
) -> None:
    found = simulated(REFUSALS)
    assert list(found) == ["f16", "f32", "q4_0"]
    for kv_type, bits in [("f16", 16), ("f32", 32), ("q4_0", 4.5)]:
        assert f"kv_type = {kv_type}: " in found[kv_type]
        assert f"({bits:.1f} bits per value)" in found[kv_type]
        assert "on a GPU use i16 (16.1 bits) or q8_0 (8.5 bits)" in found[kv_type]


@pytest.mark.gpu
@pytest.mark.parametrize(("shape", "options"), CASES, ids=lambda v: str(v))
def test_card_equals_cpu(shape: str, options: dict[str, Any], models: dict[str, Path]) -> None:
    check(run(models[shape], dict(os.environ), **options))
