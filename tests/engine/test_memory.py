"""Loading and unloading leaves nothing behind."""

import gc
from pathlib import Path

import psutil
from onegraph import LLM


def resident() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def test_memory_after_many_loads(tiny: Path) -> None:
    def cycle() -> None:
        with LLM(tiny, device="cpu", max_batch=2) as llm:
            llm.generate(["tea", "toast"], max_tokens=3)

    for _ in range(30):
        cycle()
    before = resident()
    for _ in range(200):
        cycle()
    assert resident() - before < 8 << 20


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
