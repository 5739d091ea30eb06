"""The Nth driver call fails, for every N of a load, ten tokens and the end of it: an error of
onegraph's own, nothing left behind, and the next load in the same process works."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import shapes
import synth
from support.backends import EXHAUSTIVE
from support.card_process import OnCard

pytestmark = pytest.mark.thorough

#: Values of N in every run; `ONEGRAPH_EXHAUSTIVE=1` takes all.
SAMPLE = 40

BODY = """
import ctypes, gc
sys.path.insert(0, given["tests"])
from pathlib import Path
from support.card import Card

# Keeps the context, or what leaks would go with it.
card = Card(Path(given["library_dir"])).open()
fail_after = lambda n, code: card.lib.ksimFailAfter(ctypes.c_longlong(n), code)

def use():
    with onegraph.LLM(path, device="cuda", n_ctx=64, max_batch=1) as llm:
        result = llm.generate("Hello", max_tokens=10, temperature=0, ignore_eos=True)
    return result.token_ids

wanted = use()
live = card.live()
before = card.lib.ksimCallCount()
assert use() == wanted and card.live() == live
calls = out["calls"] = card.lib.ksimCallCount() - before
sample = given["sample"] or calls
out["runs"] = []
for i in range(sample):
    n = 1 + i * (calls - 1) // max(sample - 1, 1)
    fail_after(n, given["code"])
    raised, text, equal = None, "", None
    try:
        equal = use() == wanted
    except BaseException as e:
        raised, text = type(e).__name__, str(e)
    message = card.message()
    fail_after(0, 0)
    gc.collect()
    leaked = {k: card.live().get(k, 0) - live.get(k, 0) for k in {*live, *card.live()}}
    out["runs"].append({
        "n": n, "call": message.split(" fails with ")[0] if "as asked for" in message else message,
        "raised": raised, "text": text, "equal": equal,
        "leaked": {k: v for k, v in leaked.items() if v},
    })
    live = card.live()
out["afterwards"] = use() == wanted and card.live() == live
"""

#: What a card leaves behind if it refuses to take it back: no program can help that.
GIVE_BACK = {
    "cuMemFree_v2": "allocations",
    "cuMemFreeHost": "host_allocations",
    "cuModuleUnload": "modules",
    "cuGraphDestroy": "graphs",
    "cuGraphExecDestroy": "execs",
    "cuStreamDestroy_v2": "streams",
    "cuEventDestroy_v2": "events",
    "cuDevicePrimaryCtxRelease_v2": "contexts",
}

UNKNOWN, OUT_OF_MEMORY = 999, 2


@pytest.fixture(scope="module")
def one_layer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("one-layer") / "one-layer.gguf"
    synth.write(path, replace(shapes.load()["tiny-llama"], n_layer=1), "Q8_0", seed=1)
    return path


@pytest.mark.parametrize("code", [UNKNOWN, OUT_OF_MEMORY])
def test_every_failing_call_is_survived(
    simulated: OnCard, one_layer: Path, ksim_library_dir: Path, code: int
) -> None:
    given: dict[str, Any] = {
        "tests": str(Path(__file__).parents[1]),
        "library_dir": str(ksim_library_dir),
        "sample": None if EXHAUSTIVE else SAMPLE,
        "code": code,
    }
    found = simulated(BODY, path=one_layer, **given)
    typed = {"DeviceError", "OutOfMemoryError"}
    for run in found["runs"]:
        call = run["call"]
        if run["raised"] is None:
            # Giving back, and asking for what can be done without, may fail unseen.
            assert run["equal"], run
        else:
            assert run["raised"] in typed, run
            assert call in run["text"] or call == "cuInit" or code == OUT_OF_MEMORY, run
            assert code != UNKNOWN or "CUDA_ERROR_UNKNOWN" in run["text"], run
        lost = GIVE_BACK.get(call)
        assert run["leaked"] in ({}, {lost: 1}), run
    assert found["afterwards"]
    assert sum(run["raised"] is not None for run in found["runs"]) > len(found["runs"]) // 4
