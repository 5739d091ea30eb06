"""What several sequences together count as."""

from __future__ import annotations

from pathlib import Path

import pytest
from onegraph.bench.cases import Case
from onegraph.bench.suite import LEAST_STEPS, Window, _repetition, _run_once
from onegraph.llm import LLM
from onegraph.results import Timings


def timings(begun: float, decode: float, tokens: int) -> Timings:
    """Of a sequence that makes that many tokens after its first."""
    rate = tokens / decode
    return Timings(0.0, begun / 4, begun * 3 / 4, decode, 1.0, rate, rate)


def test_a_sequence_alone_counts_from_its_first_token_to_its_last() -> None:
    found = _repetition(Case(0, 30, 0), [timings(1.0, 2.0, 30)])
    assert (found.n_tokens, found.seconds) == (30, 2.0)


def test_sequences_that_begin_together_count_as_one_step() -> None:
    found = _repetition(Case(0, 30, 0, 8), [timings(1.0, 2.0, 30)] * 8)
    assert found.rate == pytest.approx(8 * 30 / 2.0)
    assert found.together == 1.0


def test_what_was_made_before_the_last_one_began_does_not_count() -> None:
    """Seven of eight made half of their tokens before the last one began, and ended before it: in
    its three seconds eight steps of one second each were one of eight rows and two of one."""
    early = [timings(0.0, 4.0, 2)] * 7
    late = timings(3.0, 2.0, 2)
    found = _repetition(Case(0, 2, 0, 8), [*early, late])
    # The last one alone says 8 rows in each of its steps, 8 tokens a second.
    assert found.rate == pytest.approx((7 * 2 / 4 + 2) / 2)
    assert found.rate < 8


def test_a_sequence_that_ended_before_the_last_one_began_counts_nothing() -> None:
    found = _repetition(Case(0, 4, 0, 2), [timings(0.0, 1.0, 4), timings(5.0, 1.0, 4)])
    assert found.rate == pytest.approx(4.0)
    assert found.together == 0.5


def test_sequences_that_began_apart_are_counted_while_all_ran() -> None:
    apart = [*[timings(0.0, 4.0, 2)] * 7, timings(3.0, 2.0, 2)]
    case = Case(0, 2, 0, 8)
    found = _repetition(case, apart, Window(8 * LEAST_STEPS, 4.0))
    assert found.rate == pytest.approx(8 * LEAST_STEPS / 4.0)
    assert found.together == 1.0
    # Too few steps to tell, or all at once, which the clocks tell.
    few = Window(8 * LEAST_STEPS - 1, 4.0)
    assert _repetition(case, apart, few) == _repetition(case, apart)
    at_once = [timings(1.0, 2.0, 30)] * 8
    case = Case(0, 30, 0, 8)
    assert _repetition(case, at_once, Window(8 * 40, 1.0)) == _repetition(case, at_once)


def test_tokens_are_counted_from_where_all_have_begun_to_where_the_first_ends(tiny: Path) -> None:
    case = Case(0, 400, 100, 4)
    with LLM(tiny, device="cpu", n_ctx=512, max_batch=4, prefix_cache=False) as llm:
        times, window = _run_once(llm, case, seed=1)
        alone = _run_once(llm, Case(0, 400, 100, 1), seed=1)
    assert len(times) == 4 and alone[1] is None
    assert window is not None
    # All of them, 400 after each one's first, less what was made before the last one began.
    assert 0 < window.n_tokens <= 4 * case.n_gen
    assert 0 < window.seconds <= max(t.decode_seconds for t in times)
