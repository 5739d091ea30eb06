"""Cards before compute capability 9.0, simulated: less shared memory, no programmatic launches, no
bulk copies. They have the CPU's bits all the same."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import shapes
import synth
from support.card_process import OnCard

pytestmark = pytest.mark.thorough

BODY = """
asked = {"temperature": 0, "ignore_eos": True, "max_tokens": 3}
prompts = ["Hello world", "a b c"]
for device in ("cpu", "cuda"):
    with onegraph.LLM(path, device=device, n_ctx=256, max_batch=2) as llm:
        alone = [llm.generate(p, **asked).token_ids for p in prompts]
        together = [r.token_ids for r in llm.generate(prompts, **asked)]
        out[device] = [alone, together, llm.logits(list(range(3, 40))).tolist()]
"""


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A layer of the width of a 1B: what a product of one row takes is near all that a T4 has."""
    path = tmp_path_factory.mktemp("models") / "wide.gguf"
    shape = replace(
        shapes.find("tiny-llama"),
        n_layer=1, n_embd=2048, n_head=32, n_head_kv=8, head_dim=64, n_ff=256,
    )  # fmt: skip
    synth.write(path, shape, "Q4_0", seed=1)
    return path


# A T4, and a card of the same generation as an RTX 3090 with as many processors.
@pytest.mark.parametrize(("sm", "processors"), [(75, 40), (86, 82)])
def test_a_wide_layer_runs_on(sm: int, processors: int, wide: Path, simulated: OnCard) -> None:
    card = {"KSIM_SM": str(sm), "KSIM_MULTIPROCESSORS": str(processors)}
    out = simulated(BODY, path=wide, env=card)
    assert out["cuda"] == out["cpu"]


def test_prompts_attend_without_warpgroups(ksim_env: dict[str, str]) -> None:
    """The tests of one sum, of 9.0 where they run by themselves."""
    tests = Path(__file__).parents[1] / "ops" / "test_attention_exact.py"
    picked = "simulated and (head_widths or different_pages)"
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-k", picked, str(tests)],
        env=ksim_env | {"KSIM_SM": "86"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed[1]) >= 4, done.stdout[-4000:]
