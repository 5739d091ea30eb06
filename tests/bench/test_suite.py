"""What several sequences together count as."""

from __future__ import annotations

from pathlib import Path

import pytest
from onegraph.bench.cases import Case
from onegraph.bench.suite import _repetition, measure
from onegraph.errors import OutOfMemoryError
from onegraph.llm import LLM
from onegraph.results import Timings
from onegraph.sampling import resolve


def timings(begun: float, decode: float, tokens: int) -> Timings:
    """Of a sequence that makes that many tokens after its first."""
    rate = tokens / decode
    return Timings(0.0, begun / 4, begun * 3 / 4, decode, 1.0, rate, rate)


def test_a_sequence_alone_counts_from_its_first_token_to_its_last() -> None:
    found = _repetition(Case(0, 30, 0), [timings(1.0, 2.0, 30)])
    assert (found.n_tokens, found.seconds) == (30, 2.0)


def test_sequences_that_begin_together_count_as_one_step() -> None:
    # One was told late of its first token.
    found = _repetition(Case(0, 30, 0, 8), [*[timings(1.0, 2.0, 30)] * 7, timings(1.2, 1.8, 30)])
    assert found.rate == pytest.approx(8 * 30 / 2.0)
    assert found.together == pytest.approx((7 * 2.0 + 1.8) / 16)


@pytest.mark.parametrize("n_seq", [4, 64])
def test_no_sequence_takes_a_step_before_all_have_begun(tiny: Path, n_seq: int) -> None:
    """Prompts are read one after another, for longer than the first one's few steps would take."""
    options = resolve({"max_tokens": 4, "temperature": 0, "ignore_eos": True})
    with LLM(tiny, device="cpu", n_ctx=128, max_batch=n_seq + 1, prefix_cache=False) as llm:
        generations = [
            llm._engine.submit([row] * 100, options, together=n_seq) for row in range(1, n_seq)
        ]
        # Each has its prompt's token, and waits for the last one, while a prompt beside is read.
        assert all(len(each.next().token_ids) == 1 for each in generations)
        beside = llm._engine.submit([7] * 100, {**options, "max_tokens": 1})
        assert beside.collect().usage[1] == 1
        assert [each.poll() for each in generations] == [None] * (n_seq - 1)
        generations.append(llm._engine.submit([n_seq] * 100, options, together=n_seq))
        made = [each.collect().usage[1] for each in generations]
        assert made == [4] * n_seq
        # What comes later waits for nobody.
        assert llm._engine.submit([1] * 100, options).collect().usage[1] == 4


def test_sequences_that_do_not_run_together_have_no_rate(tiny: Path) -> None:
    case = Case(0, 100, 60, 8)
    options = {"n_ctx": 192, "max_batch": 8, "prefix_cache": False, "kv_host_bytes": 0}
    # Room for seven prompts; for all of them, and not for what they generate.
    for tokens, kv_host_bytes in ((7 * 64, 0), (12 * 64, 1 << 24)):
        options |= {"kv_tokens": tokens, "kv_host_bytes": kv_host_bytes}
        with LLM(tiny, device="cpu", **options) as llm:  # type: ignore[arg-type]
            with pytest.raises(OutOfMemoryError, match="8 sequences of 160 tokens do not all run"):
                measure(llm, case, seed=1)
            # And the model is as it was.
            alone = measure(llm, Case(0, 100, 60, 1), seed=1)
            assert alone.n_tokens == 100 and alone.together == 1.0
