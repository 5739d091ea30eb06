"""`agenerate` and `achat`: whole results and pieces for event loops."""

import asyncio
import select
import threading
from pathlib import Path
from typing import Any

import onegraph
import pytest
from onegraph import LLM, Result, _native
from onegraph.sampling import resolve

OPTIONS: dict[str, Any] = {"max_tokens": 12, "seed": 5, "ignore_eos": True}
SAID = [{"role": "user", "content": "tea"}]
ASKED = [{"role": "user", "content": "toast"}]


def same(a: Result, b: Result) -> bool:
    return (a.text, a.token_ids, a.finish_reason, a.seed) == (
        b.text,
        b.token_ids,
        b.finish_reason,
        b.seed,
    )


def test_awaiting_gives_the_result_of_the_plain_call(llm: LLM) -> None:
    async def run() -> list[Result]:
        one = await llm.agenerate("tea", **OPTIONS)
        two = await llm.agenerate(["tea", "toast"], **OPTIONS)
        three = await llm.achat(SAID, **OPTIONS)
        four = await llm.achat([SAID, ASKED], **OPTIONS)
        five = await llm.agenerate("tea", n=2, **OPTIONS)
        return [one, *two, three, *four, *five]

    found = asyncio.run(run())
    plain = [llm.generate("tea", **OPTIONS), *llm.generate(["tea", "toast"], **OPTIONS)]
    plain += [llm.chat(SAID, **OPTIONS), *llm.chat([SAID, ASKED], **OPTIONS)]
    plain += llm.generate("tea", n=2, **OPTIONS)
    assert all(same(a, b) for a, b in zip(found, plain, strict=True))
    assert found[0].usage.completion_tokens == 12 and found[0].timings.decode_seconds > 0


def test_achat_streams_and_keeps_the_result(llm: LLM) -> None:
    async def run() -> tuple[str, Result | None]:
        async with llm.achat(SAID, **OPTIONS) as stream:
            assert stream.result is None
            text = "".join([piece.text async for piece in stream])
            return text, stream.result

    text, result = asyncio.run(run())
    assert result is not None and result.text == text
    assert same(result, llm.chat(SAID, **OPTIONS))


def test_event_loops_take_it_as_a_coroutine(llm: LLM) -> None:
    expected = llm.generate("tea", **OPTIONS)

    async def run() -> list[Result]:
        task = asyncio.create_task(llm.agenerate("tea", **OPTIONS))
        many = await asyncio.gather(*(llm.agenerate("tea", **OPTIONS) for _ in range(9)))
        timed = await asyncio.wait_for(llm.agenerate("tea", **OPTIONS), 60)
        return [await task, *many, timed]

    assert all(same(expected, found) for found in asyncio.run(run()))
    assert same(expected, asyncio.run(llm.agenerate("tea", **OPTIONS)))


def test_a_result_takes_no_thread_and_runs_beside_others(llm: LLM) -> None:
    async def run() -> tuple[int, int]:
        before = threading.active_count()
        tasks = [asyncio.create_task(llm.agenerate("tea", **OPTIONS)) for _ in range(40)]
        most, ticks = before, 0
        while not all(task.done() for task in tasks):
            most = max(most, threading.active_count())
            ticks += 1
            await asyncio.sleep(0.001)
        assert len({task.result().text for task in tasks}) == 1
        return most - before, ticks

    more, ticks = asyncio.run(run())
    assert more == 0 and ticks > 3


def test_a_cancelled_result_frees_its_slots(llm: LLM) -> None:
    async def run() -> Result:
        long: dict[str, Any] = {"max_tokens": None, "ignore_eos": True}
        before = llm.stats().generated_tokens
        for _ in range(20):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(llm.agenerate(["tea"] * 4, **long), 0.002)
        result = await llm.agenerate("toast", **OPTIONS)
        # 40,000, had they gone on, before it.
        assert llm.stats().generated_tokens - before < 20_000
        return result

    assert same(asyncio.run(run()), llm.generate("toast", **OPTIONS))


def test_one_is_for_the_whole_or_for_pieces(llm: LLM) -> None:
    async def run() -> None:
        read = llm.agenerate("tea", **OPTIONS)
        await anext(read)
        with pytest.raises(onegraph.ArgumentError, match="already iterated"):
            await read
        await read.aclose()
        awaited = llm.agenerate("tea", **OPTIONS)
        await awaited
        with pytest.raises(onegraph.ArgumentError, match="already awaited"):
            await anext(awaited)
        with pytest.raises(onegraph.ArgumentError, match="2 prompts were given, but a stream"):
            await anext(llm.agenerate(["tea", "toast"], **OPTIONS))
        with pytest.raises(onegraph.ArgumentError, match="n = 2: a stream has one output"):
            await anext(llm.agenerate("tea", n=2, **OPTIONS))
        with pytest.raises(onegraph.ContextError, match=r"prompt\[1\]: the prompt has"):
            await llm.agenerate(["tea", "tea " * 600], **OPTIONS)
        # Before anything is awaited.
        with pytest.raises(onegraph.ArgumentError, match="top_p = 2: must be"):
            await llm.agenerate("tea", top_p=2)

    asyncio.run(run())


def test_one_wake_serves_all_that_a_step_gave(tiny: Path) -> None:
    """A bell is rung once a step, however many streams it is for: a task that wakes at once finds
    news of all of them."""
    tokens, streams = 60, 8
    with LLM(tiny, device="cpu", max_batch=streams) as llm:
        bell = _native.Doorbell()
        options = resolve({"max_tokens": tokens, "ignore_eos": True, "seed": 1})
        prompt = llm.tokenize("tea")
        asked = (prompt, options, bell)
        made = [llm._engine.offer(*asked, i, False, priority=0, waited=0.0) for i in range(streams)]
        news: list[list[int]] = []
        left = set(range(streams))
        while left:
            assert select.select([bell.fileno()], [], [], 60)[0]
            news.append(bell.answer())
            for i in news[-1]:
                generation = made[i]
                assert generation is not None
                while i in left and (piece := generation.poll()) is not None:
                    if piece.finish_reason is not None:
                        left.remove(i)

    def runs(i: int) -> range:
        """The wakes from its first to its last."""
        of = [at for at, each in enumerate(news) if i in each]
        return range(of[0], of[-1] + 1)

    spans = [runs(i) for i in range(streams)]
    # One that comes while others run has its first token, and that alone, out before their step.
    partial = [
        at
        for at, each in enumerate(news)
        if any(at in span and i not in each for i, span in enumerate(spans))
    ]
    assert len(partial) <= 2 * streams
