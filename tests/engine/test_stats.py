"""`LLM.stats`: what waits, runs and is taken, and what was done."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import onegraph
import pytest
from onegraph import LLM

PLAIN: dict[str, Any] = {"temperature": 0, "ignore_eos": True}


def test_what_was_done_is_counted(tiny: Path) -> None:
    with LLM(tiny, device="cpu", max_batch=2, kv_type="i16") as llm:
        pages = (llm.n_ctx + 63) // 64 * 2
        fresh = llm.stats()
        assert fresh.pages == onegraph.stats.Places(
            total=pages, free=pages, sequences=0, prefixes=0
        )
        assert fresh.states == onegraph.stats.Places(total=0, free=0, sequences=0, prefixes=0)
        assert (fresh.queued, fresh.running, fresh.feeding, fresh.slots) == (0, 0, 0, 2)
        assert fresh.requests == fresh.generated_tokens == fresh.prompt_tokens == 0
        assert fresh.generated_tokens_per_second == fresh.prompt_tokens_per_second == 0
        # On the CPU there are no graphs.
        assert fresh.graphs is None

        prompt = [5 + i % 300 for i in range(70)]
        results = [llm.generate(prompt, max_tokens=12, **PLAIN) for _ in range(2)]
        assert results[0].token_ids == results[1].token_ids
        after = llm.stats()
        assert (after.queued, after.running, after.pages.sequences) == (0, 0, 0)
        assert after.pages.free + after.pages.prefixes == pages and after.pages.prefixes > 0
        cached = sum(result.usage.cached_tokens for result in results)
        assert cached == 69
        assert (after.requests, after.prefix_hits, after.cached_tokens) == (2, 1, cached)
        assert (after.prompt_tokens, after.generated_tokens) == (140 - cached, 24)
        assert after.generated_tokens_per_second > 0 and after.prompt_tokens_per_second > 0
    with pytest.raises(onegraph.ClosedError, match="the model is closed; open it again"):
        llm.stats()


def test_it_says_what_waits_and_runs_while_it_does(tiny: Path) -> None:
    with LLM(tiny, device="cpu", max_batch=2) as llm:
        streams = [llm.generate([5 + i], max_tokens=400, stream=True, **PLAIN) for i in range(5)]
        late = time.monotonic() + 60
        while (during := llm.stats()).running < 2:
            assert time.monotonic() < late
        assert (during.running, during.queued) == (2, 3)
        # Of 401 tokens each in the end; pages come as they are needed.
        assert 2 <= during.pages.sequences < 14
        for stream in streams:
            stream.close()
        while (now := llm.stats()).running or now.queued:
            assert time.monotonic() < late
            time.sleep(0.005)
        assert now.pages.sequences == 0


def test_it_waits_for_nothing(tiny: Path) -> None:
    with LLM(tiny, device="cpu", max_batch=1) as llm:
        stop = threading.Event()
        asked = 0

        def ask() -> None:
            nonlocal asked
            while not stop.is_set():
                llm.stats()
                asked += 1

        thread = threading.Thread(target=ask)
        thread.start()
        plain = llm.generate([5, 6], max_tokens=200, **PLAIN)
        stop.set()
        thread.join()
        assert asked > 10
        assert llm.generate([5, 6], max_tokens=200, **PLAIN).token_ids == plain.token_ids
