"""What `onegraph check` reports: whether a card's tensor cores sum integers exactly, and how near
one way of computing a model's logits is to another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onegraph import _native, arguments, nvrtc

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Distance", "SumCheck", "check_sums", "measure"]

#: Sums that a check compares: under a second on any card.
SUMS = 10_000_000


@dataclass(frozen=True)
class SumCheck:
    """How a card's sums of the sub-blocks of one tensor type compare with sums of integers."""

    type: str
    #: Sums compared, and those of them that are not exact.
    sums: int
    wrong: int


def check_sums(device: str = "cuda", sums: int = SUMS) -> list[SumCheck]:
    """Compares sums of sub-blocks by a card's tensor cores with sums of integers, at least `sums`
    in all, of every tensor type whose weights are integers with scales.

    A sum is of 16 or 32 products of a weight's integer and one of 15 bits, random or the largest.
    Where it may reach 2^24, as of 32 weights of 32 or more, both halves of `q = 16 hi + lo` are
    summed. That they are exact is what the products of all models stand on.

    Raises `DeviceError` where there is no card or it cannot be used, `ArgumentError` for a number
    that is out of range.
    """
    found = _native.check_sums(device, nvrtc.folders(), arguments.integer("sums", sums))
    return [SumCheck(*each) for each in found]


@dataclass
class Distance:
    """Rows of logits against exact ones, summed up row by row."""

    tokens: int = 0
    _kl: float = 0.0
    max_logit: float = 0.0
    same_best: int = 0

    @property
    def kl(self) -> float:
        """Mean of KL(exact || found) over the tokens, in nats."""
        return self._kl / self.tokens if self.tokens else math.nan

    @property
    def top_1(self) -> float:
        """Share of tokens with the same best next token."""
        return self.same_best / self.tokens if self.tokens else math.nan

    @property
    def is_none(self) -> bool:
        """Whether every logit is the same: every sum of a card is stated."""
        return self.max_logit == 0

    def add(self, exact: NDArray[np.float32], found: NDArray[np.float32]) -> None:
        """Takes in more rows: float32 [tokens, n_vocab] each. What is not a number is infinitely
        far."""
        import numpy as np

        for e32, f32 in zip(exact, found, strict=True):
            e, f = e32.astype(np.float64), f32.astype(np.float64)
            self.tokens += 1
            if not np.isfinite(f).all():
                self._kl = self.max_logit = math.inf
                continue
            log_p, log_q = _log_softmax(e), _log_softmax(f)
            self._kl += float((np.exp(log_p) * (log_p - log_q)).sum())
            self.max_logit = max(self.max_logit, float(np.abs(e - f).max()))
            self.same_best += int(e.argmax() == f.argmax())


def _log_softmax(x: NDArray[np.float64]) -> NDArray[np.float64]:
    import numpy as np

    shifted = x - x.max()
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
    return result


def measure(
    exact: Any, llm: Any, ids: Sequence[int], segment: int, told: Any = None
) -> dict[str, Distance]:
    """`llm`'s logits against those of `exact`, another `LLM` of the same file: through prefill and
    through one-token steps.

    `ids` are cut into segments, each a sequence of its own, so that memory and context are bounded.
    """
    distances = {"prefill": Distance(), "decode": Distance()}
    for first in range(0, len(ids), segment):
        part = list(ids[first : first + segment])
        if told is not None:
            told("comparing tokens", first, len(ids))
        reference = exact.logits(part)
        for path, distance in distances.items():
            distance.add(reference, llm.logits(part, path=path))
    return distances
