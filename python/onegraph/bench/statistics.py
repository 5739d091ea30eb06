"""What is said of repeated measurements."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from onegraph.errors import ArgumentError

__all__ = ["MOST_SPREAD", "Ratio", "doubt", "mean", "ratio", "sample_stddev"]

#: The most by which the largest ratio of a round, or the largest rate of a repetition, may exceed
#: the least for one number to stand.
MOST_SPREAD = 0.25


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean of at least one value."""
    if not values:
        raise ArgumentError("values = []: no measurements; measure at least once")
    return math.fsum(values) / len(values)


def sample_stddev(values: Sequence[float]) -> float:
    """Sample standard deviation, with n - 1 below the sum of squares; 0 for one value, as
    llama-bench prints it."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def doubt(rates: Sequence[float], what: str) -> str | None:
    """Why no one number stands for these rates, where they disagree by more than `MOST_SPREAD`;
    `what` they are, such as "repetitions"."""
    if not rates or max(rates) <= min(rates) * (1 + MOST_SPREAD):
        return None
    return (
        f"the {len(rates)} {what} disagree, from {min(rates):.4g} to {max(rates):.4g} t/s, by more "
        f"than {MOST_SPREAD:.0%}; end what else runs and give more by -r"
    )


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times as fast, round by round."""

    median: float
    least: float
    most: float
    rounds: int

    @property
    def doubt(self) -> str | None:
        """Why no one number stands for the rounds, and what to do; None where it does."""
        if self.rounds < 2:
            return "one round has no spread; give more by -r"
        if self.most > self.least * (1 + MOST_SPREAD):
            return (
                f"the {self.rounds} rounds disagree, from {self.least:.2f}x to {self.most:.2f}x, "
                f"by more than {MOST_SPREAD:.0%}; end what else runs and give more rounds by -r"
            )
        return None

    @property
    def headline(self) -> float | None:
        """The median, where the rounds agree; None where they do not."""
        return None if self.doubt else self.median

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.least:.2f} to {self.most:.2f})"


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Ratios of rates that were measured in the same round: what slows the machine down for a while
    slows both, and cancels.

    Raises `ArgumentError` for lists of other lengths, empty ones, and rates that are not positive.
    """
    if len(ours) != len(theirs) or not ours:
        raise ArgumentError(
            f"{len(ours)} rounds of one engine and {len(theirs)} of the other have no ratio; "
            "measure both in each round"
        )
    if min(*ours, *theirs) <= 0:
        raise ArgumentError(
            f"a rate of {min(*ours, *theirs)} tokens a second has no ratio; measure again"
        )
    rounds = [a / b for a, b in zip(ours, theirs, strict=True)]
    return Ratio(statistics.median(rounds), min(rounds), max(rounds), len(rounds))
