"""Requests that end early: streams left, tasks cancelled, Ctrl-C."""

import asyncio
import gc
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import onegraph
import psutil
import pytest
from onegraph import LLM, Piece, doorbell, streams

SHORT: dict[str, Any] = {"max_tokens": 9, "ignore_eos": True}


@pytest.fixture
def narrow(tiny: Path) -> LLM:
    """One slot: the request that holds it keeps all others waiting."""
    return LLM(tiny, device="cpu", max_batch=1)


def endless(llm: LLM) -> onegraph.Stream:
    return llm.generate("tea", stream=True, max_tokens=500, ignore_eos=True, seed=1)


def test_a_stream_that_is_left_frees_its_slot(narrow: LLM) -> None:
    expected = narrow.generate("toast", max_tokens=5, seed=1).token_ids
    before = narrow.stats().generated_tokens

    def others_turn() -> None:
        assert narrow.generate("toast", max_tokens=5, seed=1).token_ids == expected

    for piece in endless(narrow):  # the iterator goes away with the loop
        assert piece.token_ids
        break
    others_turn()
    with endless(narrow) as stream:
        next(stream)
    others_turn()
    assert list(stream) == [] and stream.result is None
    never_read = endless(narrow)
    del never_read
    others_turn()
    # Three of 500 each, had they gone on.
    assert narrow.stats().generated_tokens - before < 1000


def test_a_cancelled_stream_says_so(narrow: LLM) -> None:
    running, waiting = endless(narrow), endless(narrow)
    first = next(running)
    waiting.cancel()
    assert [p.finish_reason for p in waiting] == ["cancelled"]
    assert waiting.result is not None and waiting.result.token_ids == []
    running.cancel()
    rest = list(running)
    assert rest[-1].finish_reason == "cancelled"
    result = running.result
    assert result is not None and result.finish_reason == "cancelled"
    assert result.token_ids[: len(first.token_ids)] == first.token_ids
    assert result.usage.completion_tokens == len(result.token_ids) < 500
    assert narrow.generate("tea", max_tokens=500, ignore_eos=True, seed=1).text.startswith(
        result.text
    )


def test_agenerate_gives_the_pieces_while_the_loop_runs_on(llm: LLM) -> None:
    async def run() -> tuple[list[Piece], int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.001)
                ticks += 1

        ticker = asyncio.create_task(tick())
        pieces = [p async for p in llm.agenerate("tea", max_tokens=100, seed=9, ignore_eos=True)]
        ticker.cancel()
        return pieces, ticks

    pieces, ticks = asyncio.run(run())
    whole = llm.generate("tea", max_tokens=100, seed=9, ignore_eos=True)
    assert "".join(p.text for p in pieces) == whole.text
    assert [t for p in pieces for t in p.token_ids] == whole.token_ids
    assert pieces[-1].finish_reason == "length"
    assert ticks > 3


def test_many_agenerates_at_once_equal_their_own_calls(llm: LLM) -> None:
    async def one(seed: int) -> str:
        pieces = llm.agenerate("tea", max_tokens=20, seed=seed, ignore_eos=True)
        return "".join([p.text async for p in pieces])

    async def all_at_once() -> list[str]:
        return await asyncio.gather(*(one(seed) for seed in range(20)))

    expected = [llm.generate("tea", max_tokens=20, seed=s, ignore_eos=True).text for s in range(20)]
    assert asyncio.run(all_at_once()) == expected


def test_a_cancelled_task_frees_its_slot(narrow: LLM) -> None:
    async def endless_task() -> None:
        async for _ in narrow.agenerate("tea", max_tokens=500, ignore_eos=True):
            pass

    async def run() -> None:
        task = asyncio.create_task(endless_task())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        pieces = narrow.agenerate("tea", max_tokens=500, ignore_eos=True)
        async for _ in pieces:
            break
        await pieces.aclose()
        before = narrow.stats().generated_tokens
        left = [narrow.agenerate("tea", max_tokens=500, ignore_eos=True) for _ in range(200)]
        for pieces in left:
            await anext(pieces)
            await pieces.aclose()
        result = await asyncio.to_thread(narrow.generate, "toast", max_tokens=3, ignore_eos=True)
        assert len(result.token_ids) == 3
        # 100,000, had they gone on.
        assert narrow.stats().generated_tokens - before < 40_000

    asyncio.run(run())


def test_agenerate_takes_no_thread(llm: LLM) -> None:
    def threads() -> set[int]:
        return {thread.id for thread in psutil.Process().threads()}

    async def one() -> int:
        return sum([len(p.token_ids) async for p in llm.agenerate("tea", **SHORT)])

    async def run() -> None:
        # By their numbers: threads of earlier tests may end meanwhile.
        before = threads()
        running = [asyncio.create_task(one()) for _ in range(50)]
        seen: set[int] = set()
        while any(not task.done() for task in running):
            await asyncio.sleep(0)
            seen |= threads()
        assert [task.result() for task in running] == [9] * 50
        assert seen <= before

    asyncio.run(run())


def test_more_agenerates_than_the_queue_holds_wait_in_line(llm: LLM) -> None:
    async def one() -> int:
        return sum([len(p.token_ids) async for p in llm.agenerate("tea", **SHORT)])

    async def run() -> list[int]:
        return await asyncio.gather(*(one() for _ in range(400)))

    assert asyncio.run(run()) == [9] * 400


def test_the_full_queue_of_one_model_holds_up_no_other(narrow: LLM, llm: LLM) -> None:
    async def hold() -> None:
        await narrow.agenerate("tea", max_tokens=500, ignore_eos=True)

    async def run() -> None:
        held = [asyncio.create_task(hold()) for _ in range(300)]
        while narrow.stats().queued < 256:
            await asyncio.sleep(0.001)
        door = doorbell._doors[asyncio.get_running_loop()]
        async with asyncio.timeout(5):  # the line of the other takes three times as long
            assert len((await llm.agenerate("tea", **SHORT)).token_ids) == 9
        assert narrow.stats().queued >= 250 and len(door.lines) == 1
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)
        # Nobody stands in it any more. What the tasks raised holds what they stood in, and the loop
        # holds that until its next turn.
        held.clear()
        del task
        await asyncio.sleep(0)
        gc.collect()
        assert len(door.lines) == 0

    asyncio.run(run())


def test_a_long_prompt_is_read_beside_the_loop(llm: LLM) -> None:
    async def run() -> None:
        busy = threading.Event()
        # The only thread beside the loop has other work: what waits for it does not hold the loop.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        asyncio.get_running_loop().run_in_executor(None, busy.wait)
        asked = asyncio.ensure_future(anext(llm.agenerate("tea and toast " * 50_000)))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not asked.done()
        busy.set()
        with pytest.raises(onegraph.ContextError, match="at least"):
            await asked

    asyncio.run(run())


def test_two_loops_may_ask_one_model(llm: LLM) -> None:
    async def one() -> int:
        return sum([len(p.token_ids) async for p in llm.agenerate("tea", **SHORT)])

    async def many() -> list[int]:
        return await asyncio.gather(*(one() for _ in range(30)))

    with ThreadPoolExecutor(4) as threads:
        loops = [threads.submit(asyncio.run, many()) for _ in range(4)]
        assert [loop.result() for loop in loops] == [[9] * 30] * 4
    assert doorbell._doors == {}


def test_a_stream_that_cannot_begin_leaves_nothing(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object) -> None:
        raise MemoryError

    monkeypatch.setattr(streams.Taken, "__init__", fail)

    async def read() -> None:
        async for _ in llm.agenerate("tea", max_tokens=500, ignore_eos=True):
            pass

    with pytest.raises(MemoryError):
        asyncio.run(read())
    assert doorbell._doors == {}


def test_agenerate_says_when_the_model_is_closed(narrow: LLM) -> None:
    async def read() -> None:
        async for _ in narrow.agenerate("tea", max_tokens=500, ignore_eos=True):
            pass

    async def run() -> None:
        tasks = [asyncio.create_task(read()) for _ in range(4)]
        await anext(narrow.agenerate("tea", max_tokens=500, ignore_eos=True))
        await asyncio.to_thread(narrow.close)
        for task in tasks:
            with pytest.raises(onegraph.ClosedError):
                await task

    asyncio.run(run())


def test_agenerate_raises_in_the_task(llm: LLM) -> None:
    async def run(**options: object) -> None:
        async for _ in llm.agenerate("tea" * 1000, **options):  # type: ignore[arg-type]
            pass

    with pytest.raises(onegraph.ContextError):
        asyncio.run(run())
    with pytest.raises(onegraph.ArgumentError, match="top_p = 7"):
        asyncio.run(run(top_p=7.0))


#: Loads, then is interrupted in what the second argument says; tells how often that ended it, and
#: how many pieces came. Each call is far more work than a test waits for.
INTERRUPTED = """
import json, os, signal, sys, threading, time
from onegraph import LLM

llm = LLM(sys.argv[1], device="cpu", n_ctx=8192, max_batch=1)
long = llm.tokenize("tea and toast, ") * 1300
endless = {"max_tokens": 8000, "ignore_eos": True}
pieces = []

def stream():
    for piece in llm.generate("tea", stream=True, **endless):
        pieces.append(piece)

actions = {
    "prefill": lambda: llm.generate([long] * 200, max_tokens=1),
    "decode": lambda: llm.generate(["tea"] * 200, **endless),
    "stream": stream,
    "logits": lambda: [llm.logits(long) for _ in range(200)],
}

def interrupt():
    begun.wait()
    time.sleep(0.2)  # most likely it is in the engine by then
    os.kill(os.getpid(), signal.SIGINT)

ended = 0
for _ in range(3):
    begun = threading.Event()
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        begun.set()
        actions[sys.argv[2]]()
    except KeyboardInterrupt:
        ended += 1
    thread.join()
usable = llm.generate("tea", max_tokens=3, seed=1, ignore_eos=True).token_ids
llm.close()
print(json.dumps({"ended": ended, "usable": len(usable), "pieces": len(pieces)}))
"""


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("action", ["prefill", "decode", "stream", "logits"])
def test_ctrl_c_ends_the_call_and_the_model_stays_usable(smollm2: Path, action: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(smollm2), action],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["ended"], said["usable"]) == (3, 3)
    assert said["pieces"] < 3 * 8000


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_while_loading(smollm2: Path) -> None:
    code = """
import os, signal, sys, threading, time
from onegraph import LLM

loading = threading.Event()

def interrupt():
    loading.wait()
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()

def progress(what, done, total):
    if what == "weights":
        loading.set()
        time.sleep(0.02)

try:
    LLM(sys.argv[1], device="cpu", progress=progress)
except KeyboardInterrupt:
    with LLM(sys.argv[1], device="cpu") as llm:
        print(len(llm.generate("tea", max_tokens=3, ignore_eos=True).token_ids))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(smollm2)], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout.strip()) == (0, "3"), done.stderr


def test_streams_end_when_the_model_is_closed(narrow: LLM) -> None:
    stream = endless(narrow)
    next(stream)
    threading.Timer(0.02, narrow.close).start()
    with pytest.raises(onegraph.ClosedError, match="the model is closed; open it again"):
        list(stream)
    assert list(stream) == []


def test_a_process_with_a_running_stream_can_end(tiny: Path) -> None:
    code = """
import sys
from onegraph import LLM
llm = LLM(sys.argv[1], device="cpu")
stream = llm.generate("tea", stream=True, max_tokens=500, ignore_eos=True)
print(len(next(stream).token_ids))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tiny)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONDEVMODE": "1"},
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "1", "")
