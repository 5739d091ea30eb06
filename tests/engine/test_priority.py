"""`priority=` of `generate`, `chat` and their `async` forms, and many requests at a time."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import onegraph
import pytest
from onegraph import LLM

PLAIN: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
SAID = [{"role": "user", "content": "tea"}]


@pytest.fixture(scope="module")
def narrow(tiny: Path) -> Any:
    with LLM(tiny, device="cpu", max_batch=1, prefix_cache=False) as llm:
        yield llm


def waiting(llm: LLM, number: int) -> None:
    late = time.monotonic() + 60
    while llm.stats().queued != number:
        assert time.monotonic() < late, llm.stats()
        time.sleep(0.001)


def test_the_higher_goes_first_and_of_equals_the_first_that_came(narrow: LLM) -> None:
    running = narrow.generate([5], max_tokens=500, stream=True, **PLAIN)
    next(running)
    ended: list[int] = []

    def ask(number: int, priority: int) -> None:
        if number % 2:
            narrow.generate([5 + number], max_tokens=30, priority=priority, **PLAIN)
        else:
            narrow.chat(SAID, max_tokens=30, priority=priority, **PLAIN)
        ended.append(number)

    threads = []
    for number, priority in enumerate([0, -3, 7, 0, 7, 100]):
        threads.append(threading.Thread(target=ask, args=[number, priority]))
        threads[-1].start()
        waiting(narrow, number + 1)
    running.close()
    for thread in threads:
        thread.join()
    assert ended == [5, 2, 4, 0, 3, 1]


def test_tasks_go_by_priority_too_also_where_the_queue_is_full(narrow: LLM) -> None:
    ended: list[str] = []

    async def ask(name: str, **options: Any) -> None:
        await narrow.agenerate([5, 6], **options, **PLAIN)
        ended.append(name)

    async def talk(name: str, priority: int) -> None:
        await narrow.achat(SAID, max_tokens=1, priority=priority, **PLAIN)
        ended.append(name)

    async def run() -> None:
        tasks = [asyncio.create_task(ask("first", max_tokens=500))]
        tasks += [asyncio.create_task(ask("low", max_tokens=1)) for _ in range(300)]
        while narrow.stats().queued < 256:
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        tasks.append(asyncio.create_task(talk("high", 1)))
        await asyncio.gather(*tasks)

    asyncio.run(run())
    assert len(ended) == 302
    # The queue of 256 was full, and more of them stood in line for it.
    assert ended.index("high") < 40, ended.index("high")


def test_a_thousand_tasks_share_the_engine_without_a_thread_each(tiny: Path) -> None:
    """Each result is that of its own call."""
    prompts = [[3 + i % 40, 5 + i % 7] for i in range(1000)]
    options = {"max_tokens": 6, "seed": 3, "temperature": 1.3, "ignore_eos": True}
    with LLM(tiny, device="cpu", max_batch=32) as llm:

        async def run() -> tuple[list[onegraph.Result], int]:
            before = threading.active_count()
            tasks = [asyncio.create_task(llm.agenerate(p, **options)) for p in prompts]
            most = before
            while not all(task.done() for task in tasks):
                most = max(most, threading.active_count())
                await asyncio.sleep(0.002)
            return [task.result() for task in tasks], most - before

        results, more = asyncio.run(run())
        assert more == 0
        alone = {
            tuple(p): llm.generate(p, **options).token_ids
            for p in {tuple(prompt) for prompt in prompts}
        }
        stats = llm.stats()
    for prompt, result in zip(prompts, results, strict=True):
        assert result.token_ids == alone[tuple(prompt)]
    assert stats.requests == 1000 + len(alone)
    assert (stats.running, stats.queued, stats.pages.sequences) == (0, 0, 0)


def test_a_list_longer_than_the_queue_is_told_of_while_it_is_queued(narrow: LLM) -> None:
    told: list[tuple[int, int]] = []

    def tell(_: str, done: int, total: int | None) -> None:
        told.append((done, narrow.stats().queued))
        assert total == 400

    narrow.generate([[5, 6]] * 400, max_tokens=2, progress=tell, **PLAIN)
    assert [done for done, _ in told] == list(range(401))
    # Some have ended, and the rest does not fit the queue yet.
    assert any(done > 0 and waiting >= 250 for done, waiting in told), told


def test_what_is_no_priority_is_refused(narrow: LLM) -> None:
    async def whole(value: Any) -> None:
        await narrow.agenerate("tea", priority=value)

    async def talk(value: Any) -> None:
        await narrow.achat(SAID, priority=value)

    calls: list[Any] = [
        lambda value: narrow.generate("tea", priority=value),
        lambda value: narrow.generate(["tea", "toast"], priority=value),
        lambda value: narrow.generate("tea", stream=True, priority=value),
        lambda value: narrow.chat(SAID, priority=value),
        lambda value: asyncio.run(whole(value)),
        lambda value: asyncio.run(talk(value)),
    ]
    for call in calls:
        for value in [101, -101, 2**40]:
            with pytest.raises(onegraph.ArgumentError, match=r"priority = .*from -100 to 100"):
                call(value)
        for value in [None, "high", 1.5, True, 2**70]:
            with pytest.raises(onegraph.ArgumentError, match="priority = "):
                call(value)
