"""Requests that arrive at random: when, what of, and what is counted of their answers."""

import statistics
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from onegraph import LLM
from onegraph.bench.arrivals import MIX, Answer, Due, Target, arrivals, play, quantile, report
from onegraph.server import asgi
from support.serving import Served, serving


def test_they_come_as_a_poisson_process_does() -> None:
    made = arrivals(20.0, 4000, seed=3)
    gaps = [b.at - a.at for a, b in pairwise(made)]
    # The mean is 1/20 s and so is the deviation, within four standard errors.
    assert statistics.mean(gaps) == pytest.approx(0.05, rel=4 / 4000**0.5)
    assert statistics.stdev(gaps) == pytest.approx(0.05, rel=0.15)
    assert sum(gap < 0.05 * 0.6931 for gap in gaps) == pytest.approx(2000, abs=4 * 1000**0.5)
    assert made == arrivals(20.0, 4000, seed=3) != arrivals(20.0, 4000, seed=4)


def test_their_lengths_are_the_mix_and_no_two_begin_alike() -> None:
    made = arrivals(1.0, 500, seed=1)
    assert {(len(due.text.split()) - 1, due.tokens) for due in made} == set(MIX)
    assert len({due.text.split()[0] for due in made}) == 500
    short = arrivals(1.0, 500, seed=1, most_words=8)
    assert {len(due.text.split()) for due in short} == {9}


@pytest.fixture(scope="module")
def alone(tiny: Path) -> Iterator[Served]:
    """A server that runs one sequence at a time."""
    with LLM(tiny, device="cpu", max_batch=1) as llm, serving(asgi({"tiny": llm})) as served:
        yield served


@pytest.mark.parametrize("dialect", ["openai", "ollama"])
def test_answers_are_counted_in_each_dialect(dialect: str, alone: Served) -> None:
    options = (("num_ctx", 512),) if dialect == "ollama" else ()
    target = Target(alone.url, dialect, "tiny", options)
    answers = play(target, [Due(0.05 * i, f"tea {i}", 3 + i, i) for i in range(4)])
    assert [answer.failed for answer in answers] == [None] * 4
    for i, answer in enumerate(answers):
        # ollama's way of asking has no word for going on behind the end of a text.
        assert answer.tokens == 3 + i or (dialect == "ollama" and 0 < answer.tokens < 3 + i)
        assert 1 <= len(answer.parts) <= answer.tokens + 1
        assert 0 < answer.parts[0] <= answer.parts[-1] <= answer.ended
        assert list(answer.parts) == sorted(answer.parts)
    dues = [answer.due - answers[0].due for answer in answers]
    assert dues == pytest.approx([0.0, 0.05, 0.1, 0.15])


def test_a_wait_for_another_request_counts_from_when_it_was_due(alone: Served) -> None:
    first, second = play(Target(alone.url), [Due(0.0, "tea", 300, 1), Due(0.0, "jam", 2, 1)])
    if first.parts[0] > second.parts[0]:
        first, second = second, first
    assert second.parts[0] >= first.parts[-1]


def test_what_is_refused_says_why(llm: LLM) -> None:
    with serving(asgi({"tiny": llm}, api_keys=["sesame"])) as served:
        (answer,) = play(Target(served.url), [Due(0.0, "tea", 2, 1)])
    assert answer.tokens == 0 and "key" in (answer.failed or "")
    (answer,) = play(Target(served.url), [Due(0.0, "tea", 2, 1)])
    assert (answer.failed or "").startswith("ConnectionRefusedError")
    made = report([answer], first=1.0, each=1.0)
    assert (made.requests, made.failed, made.good, made.goodput) == (1, 1, 0.0, 0.0)


def test_a_report_is_arithmetic() -> None:
    answers = [
        Answer(due=10.0, parts=(0.5, 1.0, 1.5), ended=2.0, tokens=3),
        Answer(due=11.0, parts=(0.1, 0.2), ended=0.3, tokens=2),
        Answer(due=12.0, parts=(3.0, 3.1), ended=8.0, tokens=2),
        Answer(due=13.0, parts=(), ended=0.1, tokens=0, failed="full"),
    ]
    made = report(answers, first=1.0, each=0.2)
    assert (made.requests, made.failed) == (4, 1)
    assert (made.first_p50, made.first_p99) == (0.5, 3.0)
    assert made.each_p99 == pytest.approx(0.5) and made.each_p50 == pytest.approx(0.1)
    # From 10 s, when the first was due, to 20 s, when the last had ended; one of four was in time.
    assert made.tokens_per_second == pytest.approx(0.7)
    assert (made.good, made.goodput) == (0.25, pytest.approx(0.1))
    assert report(answers, first=5.0, each=1.0).good == 0.75
    assert quantile([], 0.5) == float("inf") and quantile([3.0, 1.0, 2.0], 0.5) == 2.0
