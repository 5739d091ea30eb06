"""Requests that end early: streams left, tasks cancelled, Ctrl-C."""

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import onegraph
import pytest
from onegraph import LLM, Piece


@pytest.fixture
def narrow(tiny: Path) -> LLM:
    """One slot: whoever holds it keeps everyone else waiting."""
    return LLM(tiny, device="cpu", max_batch=1)


def endless(llm: LLM) -> onegraph.Stream:
    return llm.generate("tea", stream=True, max_tokens=500, ignore_eos=True, seed=1)


def test_a_stream_that_is_left_frees_its_slot(narrow: LLM) -> None:
    expected = narrow.generate("toast", max_tokens=5, seed=1).token_ids

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
        begun = time.monotonic()
        result = await asyncio.to_thread(narrow.generate, "toast", max_tokens=3, ignore_eos=True)
        assert len(result.token_ids) == 3
        assert time.monotonic() - begun < 5

    asyncio.run(run())


def test_agenerate_raises_in_the_task(llm: LLM) -> None:
    async def run(**options: object) -> None:
        async for _ in llm.agenerate("tea" * 1000, **options):  # type: ignore[arg-type]
            pass

    with pytest.raises(onegraph.ContextError):
        asyncio.run(run())
    with pytest.raises(onegraph.ArgumentError, match="top_p = 7"):
        asyncio.run(run(top_p=7.0))


#: Loads, then is interrupted in what `{action}` does; says how long each time took to end.
INTERRUPTED = """
import json, os, signal, sys, threading, time
from onegraph import LLM

llm = LLM(sys.argv[1], device="cpu", n_ctx=8192, max_batch=1)
long = llm.tokenize("tea and toast, ") * 1300
actions = {
    "prefill": lambda: llm.generate(long, max_tokens=1),
    "decode": lambda: llm.generate("tea", max_tokens=4000, ignore_eos=True),
    "stream": lambda: list(llm.generate("tea", stream=True, max_tokens=4000, ignore_eos=True)),
    "batch": lambda: llm.generate(["tea"] * 9, max_tokens=900, ignore_eos=True),
    "logits": lambda: llm.logits(long),
}
sent = 0.0

def interrupt():
    global sent
    time.sleep(0.3)
    sent = time.monotonic()
    os.kill(os.getpid(), signal.SIGINT)

took = []
for _ in range(3):
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        actions[sys.argv[2]]()
    except KeyboardInterrupt:
        took.append(time.monotonic() - sent)
    thread.join()
usable = llm.generate("tea", max_tokens=3, seed=1, ignore_eos=True).token_ids
llm.close()
print(json.dumps({"took": took, "usable": len(usable)}))
"""


@pytest.mark.parametrize("action", ["prefill", "decode", "stream", "batch", "logits"])
def test_ctrl_c_ends_the_call_and_the_model_stays_usable(smollm2: Path, action: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(smollm2), action],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["usable"] == 3
    assert len(said["took"]) == 3, "a call was not interrupted"
    # The best of three: the machine may be busy with something else.
    assert min(said["took"]) < 0.1, said


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
