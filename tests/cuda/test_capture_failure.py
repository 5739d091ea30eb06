"""A capture that fails names its cause and numbers its advice, never eager in silence."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.thorough

OUT_OF_MEMORY, INVALID_HANDLE, INVALIDATED, ILLEGAL_ADDRESS = 2, 400, 901, 700

# The first model leaves every kernel in the cache; from then on the same calls come each time.
SCRIPT = """
import ctypes, json, sys
import onegraph
path, fail_after, code = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
load = {"device": "cuda", "n_ctx": 64, "max_batch": 2,
        "graph": onegraph.GraphOptions(batch_sizes=[1, 2])}
with onegraph.LLM(path, **load) as llm:
    assert llm.verify_graph([1], batch_sizes=[2]).ok
llm = onegraph.LLM(path, **load)
print("MARK", file=sys.stderr, flush=True)
ctypes.CDLL("libcuda.so.1").ksimFailAfter(ctypes.c_longlong(fail_after), code)
out = {"error": None}
try:
    llm.verify_graph([1], batch_sizes=[2])
except onegraph.Error as e:
    out["error"] = [type(e).__name__, str(e)]
out["captured"] = [s.batch_size for s in llm.graph_stats().captured]
if code != 700:
    # The others are as they were, and the next attempt succeeds.
    greedy = {"max_tokens": 3, "temperature": 0, "ignore_eos": True}
    out["alone"] = len(llm.generate([5, 6], **greedy).token_ids)
    out["again"] = llm.verify_graph([1], batch_sizes=[1, 2]).ok
    out["eager"] = llm.graph_stats().eager
print(json.dumps(out))
"""


def run(
    path: Path, env: dict[str, str], fail_after: int = 0, code: int = 0
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path), str(fail_after), str(code)],
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done


@pytest.fixture(scope="module")
def calls(simulator: dict[str, str], tiny_llama: Path) -> list[str]:
    """The driver calls that capture and compare a step of two rows, in order."""
    done = run(tiny_llama, simulator | {"KSIM_VERBOSE": "1"})
    after = done.stderr.split("MARK\n", 1)[1]
    return re.findall(r"^ksim: (\w+)$", after, re.MULTILINE)


#: Which call fails (the first one of this name after another), with what, and what is said of it.
CASES = [
    (
        ("cuStreamBeginCapture_v2", "cuGraphInstantiateWithFlags"),
        OUT_OF_MEMORY,
        "OutOfMemoryError",
        ["MiB were free before it", "2. capture less", "graph.max_batch", "4. load with"],
    ),
    (
        ("cuStreamBeginCapture_v2", "cuLaunchKernelEx"),
        INVALID_HANDLE,
        "DeviceError",
        ["the cause is a missing kernel", "cuLaunchKernelEx", "1. empty the kernel cache"],
    ),
    (
        ("cuStreamBeginCapture_v2", "cuStreamEndCapture"),
        INVALIDATED,
        "DeviceError",
        ["the cause is an illegal call", "cuStreamEndCapture", "1. load again", "2. report"],
    ),
    (
        ("cuStreamBeginCapture_v2", "cuGraphUpload"),
        ILLEGAL_ADDRESS,
        "DeviceError",
        ["the cause is a kernel that failed", "1. restart the process", "2. report"],
    ),
]


@pytest.mark.parametrize(("place", "code", "kind", "words"), CASES, ids=lambda v: str(v))
def test_a_failed_capture_names_its_cause(
    place: tuple[str, str],
    code: int,
    kind: str,
    words: list[str],
    calls: list[str],
    simulator: dict[str, str],
    tiny_llama: Path,
) -> None:
    import json

    after, failing = place
    n = calls.index(failing, calls.index(after)) + 1
    found: Any = json.loads(run(tiny_llama, simulator, n, code).stdout)
    assert found["error"][0] == kind, found
    said = found["error"][1]
    assert "capturing the decode step of 2 rows" in said
    assert all(word in said for word in [*words, 'graph=GraphOptions(mode="none")']), said
    assert found["captured"] == [1], "what failed is not counted as captured"
    if code != ILLEGAL_ADDRESS:
        assert (found["alone"], found["again"], found["eager"]) == (3, True, 0)
