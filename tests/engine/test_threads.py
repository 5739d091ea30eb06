"""One model under many threads, several models, and what must not share one."""

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import onegraph
import pytest
from onegraph import LLM, Piece, Stream
from support.turns import turns_beside

pytestmark = pytest.mark.usefixtures("all_cores")


@pytest.mark.thorough
def test_eight_threads_on_one_model_equal_their_own_calls(smol: LLM) -> None:
    jobs = [(f"Thread {i} says", 100 + i) for i in range(16)]

    def run(job: tuple[str, int]) -> list[int]:
        prompt, seed = job
        return smol.generate(prompt, max_tokens=8, seed=seed, temperature=1.0).token_ids

    expected = [run(job) for job in jobs]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(run, jobs)) == expected


def test_threads_that_mix_everything(llm: LLM) -> None:
    expected = llm.logits([5, 6, 7]).tolist()
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(6):
                seed = number * 10 + turn
                whole = llm.generate("tea", max_tokens=15, seed=seed, ignore_eos=True)
                stream = llm.generate("tea", stream=True, max_tokens=15, seed=seed, ignore_eos=True)
                assert "".join(p.text for p in stream) == whole.text
                assert llm.logits([5, 6, 7]).tolist() == expected
                with pytest.raises(onegraph.ArgumentError):
                    llm.generate("tea", top_p=2.0)
                next(llm.generate("toast", stream=True, max_tokens=300))
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_other_threads_run_while_one_waits(smol: LLM) -> None:
    def work() -> None:
        smol.generate("Count to a hundred:", max_tokens=60, ignore_eos=True)

    assert turns_beside(work) > 50


def test_two_models_side_by_side(tiny: Path, smol: LLM) -> None:
    with LLM(tiny, device="cpu", max_batch=2) as other:
        alone = [m.generate("tea", max_tokens=15, seed=1).token_ids for m in (smol, other)]
        with ThreadPoolExecutor(2) as threads:
            together = [
                threads.submit(m.generate, "tea", max_tokens=15, seed=1) for m in (smol, other)
            ]
            assert [f.result().token_ids for f in together] == alone
    assert smol.generate("tea", max_tokens=15, seed=1).token_ids == alone[0]


def test_threads_that_share_a_stream_get_each_piece_once(llm: LLM) -> None:
    whole = llm.generate("tea", max_tokens=60, seed=3, ignore_eos=True)
    for _ in range(20):
        stream = llm.generate("tea", stream=True, max_tokens=60, seed=3, ignore_eos=True)
        begun = threading.Barrier(4)

        def read(stream: Stream = stream, begun: threading.Barrier = begun) -> list[Piece]:
            begun.wait()
            return list(stream)

        with ThreadPoolExecutor(4) as threads:
            shares = [f.result() for f in [threads.submit(read) for _ in range(4)]]
        result = stream.result
        assert result is not None
        assert (result.text, result.token_ids) == (whole.text, whole.token_ids)
        # Each share is in order, and together they are the whole: no piece was lost or given twice.
        left = [p for share in shares for p in share]
        assert sorted(t for p in left for t in p.token_ids) == sorted(whole.token_ids)
        assert [p.finish_reason for p in left if p.finish_reason] == ["length"]
        for share in shares:
            rest = iter(whole.token_ids)
            assert all(token in rest for p in share for token in p.token_ids)


def test_a_stream_that_is_closed_under_its_readers_just_ends(llm: LLM) -> None:
    for turn in range(20):
        stream = llm.generate("tea", stream=True, max_tokens=400, seed=3, ignore_eos=True)
        with ThreadPoolExecutor(4) as threads:
            shares = [threads.submit(list, stream) for _ in range(4)]
            time.sleep(turn / 4000)
            stream.close()
            pieces = [piece for share in shares for piece in share.result()]
        assert len(pieces) < 400
        assert list(stream) == [] and stream.result is None


def test_a_closed_model_refuses_everything(tiny: Path) -> None:
    llm = LLM(tiny, device="cpu")
    llm.close()
    llm.close()
    calls = [
        lambda: llm.generate("tea"),
        lambda: llm.generate("tea", stream=True),
        lambda: llm.chat([{"role": "user", "content": "tea"}]),
        lambda: llm.tokenize("tea"),
        lambda: llm.detokenize([5]),
        lambda: llm.logits([5]),
    ]
    for call in calls:
        with pytest.raises(onegraph.ClosedError, match="the model is closed; open it again"):
            call()
    assert llm.path == tiny and "tiny.gguf" in repr(llm)


def test_closing_while_others_generate(tiny: Path) -> None:
    llm = LLM(tiny, device="cpu", max_batch=2)
    begun = threading.Barrier(5)

    def work() -> str:
        begun.wait()
        try:
            while True:
                llm.generate("tea", max_tokens=400, ignore_eos=True)
        except onegraph.ClosedError as e:
            return str(e)

    with ThreadPoolExecutor(4) as threads:
        answers = [threads.submit(work) for _ in range(4)]
        begun.wait()
        llm.close()
        assert {a.result(timeout=30) for a in answers} == {"the model is closed; open it again"}


def test_a_fork_is_refused(tiny: Path) -> None:
    code = """
import os, sys
import onegraph
llm = onegraph.LLM(sys.argv[1], device="cpu")
stream = llm.generate("tea", stream=True, max_tokens=200, ignore_eos=True)
next(stream)
child = os.fork()
if child == 0:
    for call in (lambda: llm.generate("tea"), lambda: next(stream), lambda: llm.logits([5])):
        try:
            call()
        except onegraph.ClosedError as e:
            assert f"loaded by process {os.getppid()}" in str(e) and "spawn" in str(e), e
            assert f"its fork {os.getpid()}" in str(e), e
        else:
            os._exit(1)
    llm.close()
    del stream, llm
    sys.exit(0)  # a whole exit: destructors must not wait for threads that are not here
assert os.waitpid(child, 0)[1] == 0
assert sum(len(p.token_ids) for p in stream) == 199
llm.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tiny)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
