"""Means, deviations and ratios."""

import statistics

import onegraph
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onegraph.bench.statistics import mean, ratio, sample_stddev

RATES = st.lists(st.floats(1e-3, 1e6), min_size=2, max_size=9)


@given(RATES)
def test_mean_and_sample_deviation_are_the_textbooks(rates: list[float]) -> None:
    assert mean(rates) == pytest.approx(statistics.fmean(rates))
    by_hand = (sum((r - mean(rates)) ** 2 for r in rates) / (len(rates) - 1)) ** 0.5
    assert sample_stddev(rates) == pytest.approx(by_hand, rel=1e-6, abs=1e-6)


def test_one_repetition_has_no_deviation() -> None:
    assert sample_stddev([3.5]) == 0.0
    with pytest.raises(onegraph.ArgumentError, match="measure at least once"):
        mean([])


def test_the_ratio_is_taken_round_by_round() -> None:
    # The machine was busy in the second round: both were slow, and the ratio stands.
    found = ratio([200, 20, 210], [100, 10, 100])
    assert (found.median, found.least, found.most) == (2.0, 2.0, 2.1)
    assert str(found) == "2.00 (2.00 to 2.10)"


def test_rounds_that_do_not_match_have_no_ratio() -> None:
    for ours, theirs in [([1.0], []), ([], []), ([1.0, 2.0], [1.0])]:
        with pytest.raises(onegraph.ArgumentError, match="measure both in each round"):
            ratio(ours, theirs)
    with pytest.raises(onegraph.ArgumentError, match=r"0 tokens a second.*measure again"):
        ratio([1.0, 0], [1.0, 1.0])


def test_rounds_that_disagree_have_no_headline() -> None:
    near = ratio([124, 100], [100, 100])
    assert near.doubt is None and near.headline == near.median
    far = ratio([131, 296, 657, 3336], [100, 100, 100, 100])
    assert far.headline is None
    assert far.doubt is not None and "from 1.31x to 33.36x, by more than 25%" in far.doubt
    one = ratio([2.0], [1.0])
    assert one.headline is None and one.doubt == "one round has no spread; give more by -r"
