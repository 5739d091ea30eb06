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

REPOSITORY = Path(__file__).resolve().parents[2]

# What both ways run, in a process of its own: the simulated driver must be found before any other.
SCRIPT = """
import json, sys
import numpy as np
import onegraph

path, options = sys.argv[1], json.loads(sys.argv[2])
PROMPTS = ["Hello world", "The capital of France is", "a b c d e f g"]
GREEDY = {"temperature": 0, "ignore_eos": True}
SETTINGS = [
    GREEDY,
    {"seed": 7, "temperature": 1.0, "ignore_eos": True},
    {"seed": 3, "top_k": 5, "top_p": 0.9, "repeat_penalty": 1.3, "ignore_eos": True},
]
out = {}
load = {"n_ctx": 256, "max_batch": 4, **options}
graph = onegraph.GraphOptions(**load.pop("graph", {}))
with onegraph.LLM(path, device="cpu", **load) as c, \\
        onegraph.LLM(path, device="cuda", graph=graph, **load) as g:
    out["device"] = g.device
    solo = [[g.generate(p, max_tokens=6, **s).token_ids for p in PROMPTS] for s in SETTINGS]
    out["equal"] = solo == [
        [c.generate(p, max_tokens=6, **s).token_ids for p in PROMPTS] for s in SETTINGS
    ]
    out["batch"] = solo == [
        [r.token_ids for r in g.generate(PROMPTS, max_tokens=6, **s)] for s in SETTINGS
    ]
    out["again"] = g.generate(PROMPTS[0], max_tokens=6, **GREEDY).token_ids == solo[0][0]
    # A stop token ends the text at once, and the slot serves the next request.
    cut = g.generate(PROMPTS[1], max_tokens=6, stop_token_ids=[solo[0][1][2]], **GREEDY)
    out["stop"] = cut.finish_reason == "stop" and len(cut.token_ids) <= 3
    lp = g.generate(PROMPTS[0], max_tokens=4, logprobs=2, **GREEDY).logprobs
    out["logprobs"] = len(lp)
    ids = list(range(3, 76))
    prefill, decode, exact = g.logits(ids), g.logits(ids, path="decode"), c.logits(ids)
    # Steps and prompts add in different orders; a prompt does not, however it is cut.
    out["bits"] = bool(np.array_equal(prefill[:7], g.logits(ids[:7])))
    scale = (exact.astype(np.float64) ** 2).sum()
    errors = [((logits.astype(np.float64) - exact) ** 2).sum() for logits in (prefill, decode)]
    out["nmse"] = float(max(errors) / scale)
    for piece in g.generate("x", max_tokens=50, stream=True, ignore_eos=True):
        break
    out["after_cancel"] = g.generate(PROMPTS[0], max_tokens=6, **GREEDY).token_ids == solo[0][0]
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


def check(found: dict[str, Any], nmse: float) -> None:
    assert found["device"].startswith("cuda:0")
    assert found["equal"], "the card draws other tokens than the CPU"
    assert found["batch"], "a sequence in a batch differs from the same one alone"
    assert found["again"] and found["after_cancel"]
    assert found["stop"]
    assert found["logprobs"] == 4
    assert found["bits"], "a prompt cut short differs from the whole"
    assert found["nmse"] <= nmse


SHAPES = (
    "tiny-llama",
    "tiny-qwen2",
    "tiny-qwen3",
    "tiny-qwen35",
    "tiny-qwen35moe",
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
)


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("shapes")
    found = {}
    for shape in SHAPES:
        found[shape] = folder / f"{shape}.gguf"
        command = [sys.executable, "models/synth.py", shape, "--mix", "Q4_K_M", "-o", found[shape]]
        subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
    return found


#: The card stores keys and values in half precision after rounding its own float32 sums.
F16_NMSE = 1e-6

CASES = [
    # Every sum of it is stated: the same bits.
    ("tiny-llama", {"kv_type": "i16"}, 0.0),
    ("tiny-llama", {"kv_type": "q8_0"}, 0.0),
    ("tiny-llama", {"kv_type": "f32"}, 1e-10),
    ("tiny-qwen35", {}, 0.0),
    ("tiny-qwen35moe", {}, 0.0),
    ("tiny-gpt-oss", {}, 0.0),
    ("tiny-qwen2", {}, F16_NMSE),
    ("tiny-qwen3", {"graph": {"mode": "none"}, "kv_type": "q8_0"}, 0.0),
    # Prompts go past its window.
    ("tiny-gemma3", {"kv_type": "i16"}, 0.0),
    ("tiny-gemma4", {"kv_type": "i16"}, 0.0),
    ("tiny-gemma4-e", {"kv_type": "i16"}, 0.0),
    ("tiny-gemma4-moe", {}, 0.0),
    ("odd-gemma4-512", {"kv_type": "i16"}, 0.0),
    ("odd-gemma4-512", {"kv_type": "f16"}, F16_NMSE),
    ("odd-gemma4-512", {"kv_type": "q8_0"}, 0.0),
    ("tiny-granite", {"kv_type": "i16"}, 0.0),
    ("tiny-lfm2", {"kv_type": "i16"}, 0.0),
    ("tiny-lfm2moe", {"kv_type": "i16"}, 0.0),
    # Its queries are turned by a table of their own; a cache of floats takes keys value by value.
    ("tiny-mistral3", {"kv_type": "i16"}, 0.0),
    ("tiny-mistral3", {"kv_type": "f16"}, F16_NMSE),
]


@pytest.mark.parametrize(("shape", "options", "nmse"), CASES, ids=lambda v: str(v))
def test_simulated_card_equals_cpu(
    shape: str,
    options: dict[str, Any],
    nmse: float,
    shapes: dict[str, Path],
    ksim_env: dict[str, str],
) -> None:
    check(run(shapes[shape], ksim_env, **options), nmse)


@pytest.mark.parametrize(
    ("shape", "kv_type", "nmse"),
    [
        ("tiny-llama", "f16", F16_NMSE),
        ("tiny-llama", "i16", 0.0),
        ("tiny-llama", "q8_0", 0.0),
        ("tiny-qwen35", "i16", 0.0),
    ],
)
def test_early_successors_change_nothing(
    shape: str, kv_type: str, nmse: float, shapes: dict[str, Path], ksim_env: dict[str, str]
) -> None:
    """Every kernel starts before its predecessor has run, as programmatic launches may."""
    env = ksim_env | {"KSIM_PDL": "early"}
    check(run(shapes[shape], env, graph={"pdl": True}, kv_type=kv_type), nmse)


@pytest.mark.gpu
@pytest.mark.parametrize(("shape", "options", "nmse"), CASES, ids=lambda v: str(v))
def test_card_equals_cpu(
    shape: str, options: dict[str, Any], nmse: float, shapes: dict[str, Path]
) -> None:
    if not Path("/dev/nvidia0").exists():
        pytest.skip("no NVIDIA card; `pytest -m gpu` on a machine with one runs this")
    check(run(shapes[shape], dict(os.environ), **options), nmse)
