"""Loading and unloading leaves nothing behind."""

import gc
import os
import re
import subprocess
import sys
from pathlib import Path

import onegraph
import psutil
import pytest
from onegraph import LLM


def resident() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


LOADS = """
import gc, sys
import psutil
from onegraph import LLM

def resident():
    gc.collect()
    return psutil.Process().memory_info().rss

def cycles(n):
    for _ in range(n):
        with LLM(sys.argv[1], device="cpu", max_batch=2) as llm:
            llm.generate(["tea", "toast"], max_tokens=3)

cycles(30)
sizes = [resident()]
for _ in range(5):
    cycles(40)
    sizes.append(resident())
print(min(after - before for before, after in zip(sizes, sizes[1:])))
"""


def test_memory_after_many_loads(tiny: Path) -> None:
    # What is left behind grows with every load; how many threads were alive at once, whose stacks
    # stay, does not. So the least growth of five times forty loads is judged, in a process and one
    # arena of its own: with one arena per thread the resident set swings by 12 MB.
    command = [sys.executable, "-c", LOADS, str(tiny)]
    one_arena = {**os.environ, "MALLOC_ARENA_MAX": "1"}
    done = subprocess.run(
        command, env=one_arena, capture_output=True, text=True, check=True, timeout=300
    )
    assert int(done.stdout) < 1 << 18


def test_a_model_that_is_only_dropped_goes_away_too(smollm2: Path) -> None:
    def cycle() -> None:
        LLM(smollm2, device="cpu", n_ctx=256).generate("tea", max_tokens=2)

    for _ in range(4):
        cycle()
    before, threads = resident(), psutil.Process().num_threads()
    for _ in range(12):
        cycle()
    # A dropped model is let go by its own thread, soon: one or two may still be there.
    assert resident() - before < 300 << 20
    assert psutil.Process().num_threads() - threads < 12


def test_a_cache_that_cannot_fit_is_foreseen(smollm2: Path) -> None:
    # 30 layers x 3 heads x 64 x 4 bytes x 2, for 1024 sequences of 8192 tokens: 360 GiB.
    total = psutil.virtual_memory().total
    if total > 360 << 30:
        pytest.skip("this machine could hold it")
    with pytest.raises(onegraph.OutOfMemoryError) as caught:
        LLM(smollm2, device="cpu", n_ctx=8192, max_batch=1024, kv_type="f32")
    text = str(caught.value)
    assert "1024 sequences of 8192 tokens need 360.0 GiB, but this machine has" in text
    batch = int(re.search(r"max_batch=(\d+) would fit", text)[1])  # type: ignore[index]
    with LLM(smollm2, device="cpu", n_ctx=8192, max_batch=batch // 2, kv_type="f32") as llm:
        assert llm.generate("tea", max_tokens=2, ignore_eos=True).token_ids
