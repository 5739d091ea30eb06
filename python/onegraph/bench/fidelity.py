"""Whether the output is right: no speed is printed without this."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from onegraph.bench.measurement import Measurement
from onegraph.bench.prompts import FIXED
from onegraph.llm import LLM

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["BAR", "GREEDY_BAR", "Check", "agreement", "answered", "check", "mean_kl"]

#: Most mean KL, in nats, of two ways with float16 keys and values: either may be 2e-6 from the
#: exact pass by roundings of its own, and KL grows with the square of a difference.
BAR = 4e-6
#: Least part of another engine's greedy tokens that must be the first choice here too. Engines that
#: round activations to 8 bits have 0.95 to 0.98.
GREEDY_BAR = 0.9
#: Tokens that are checked.
N_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Check:
    """How near two ways to compute the same logits are."""

    #: Mean Kullback-Leibler divergence, nats.
    mean_kl: float
    #: Part of the positions where both have the same first choice.
    top_1: float
    #: What was compared.
    what: str
    n_tokens: int

    @property
    def ok(self) -> bool:
        return self.mean_kl <= BAR

    def __str__(self) -> str:
        return (
            f"{'KL' if self.ok else 'WRONG: KL'} {self.mean_kl:.1e}, first choice "
            f"{self.top_1:.1%} ({self.what}, {self.n_tokens} tokens)"
        )


def mean_kl(exact: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    """Mean of KL(exact || other) over rows of logits [n, n_vocab], in nats."""
    import numpy as np

    total = 0.0
    for p, q in zip(exact, other, strict=True):  # row by row: a vocabulary is large in float64
        log_p, log_q = _log_softmax(p), _log_softmax(q)
        total += float(np.sum(np.exp(log_p) * (log_p - log_q)))
    return total / max(len(exact), 1)


def _log_softmax(row: NDArray[np.float32]) -> NDArray[np.float64]:
    import numpy as np

    shifted = row.astype(np.float64) - float(row.max())
    out: NDArray[np.float64] = shifted - np.log(np.sum(np.exp(shifted)))
    return out


def check(llm: LLM) -> Check:
    """Compares the steps that generate with an independent way: on a GPU with the interpreter on
    the CPU, which defines what every operation means; on the CPU with the pass over whole prompts.
    """
    ids = llm.tokenize(FIXED)[: min(N_TOKENS, llm.n_ctx)]
    ours = llm.logits(ids, path="decode")
    if llm.device == "cpu":
        exact, what = llm.logits(ids, path="prefill"), "steps against a prompt"
    else:
        n_ctx = max(len(ids), 2)
        with LLM(
            llm.path, device="cpu", n_ctx=n_ctx, max_batch=1, kv_type=llm.kv_type
        ) as interpreter:
            exact, what = interpreter.logits(ids), "GPU against CPU interpreter"
    same = exact.argmax(axis=1) == ours.argmax(axis=1)
    return Check(max(mean_kl(exact, ours), 0.0), float(same.mean()), what, len(ids))


def answered(llm: LLM, made: Measurement) -> list[int] | None:
    """The tokens that an engine generated, up to the first that cannot be told; None where it says
    nothing of its output."""
    if made.tokens is not None:
        return list(made.tokens)
    if made.pieces is None:
        return None if made.text is None else llm.tokenize(made.text, add_special=False)
    known = {llm.tokenizer.token_bytes(t): t for t in reversed(range(llm.n_vocab))}
    ids = [known.get(piece) for piece in made.pieces]
    return [t for t in ids[: ids.index(None) if None in ids else len(ids)] if t is not None]


def agreement(llm: LLM, prompt: Sequence[int], answer: Sequence[int]) -> float:
    """The part of `answer` that is the first choice here, each token after the ones before."""
    import numpy as np

    if not answer:
        return 0.0
    logits = llm.logits([*prompt, *answer])[len(prompt) - 1 : -1]
    return float((logits.argmax(axis=1) == np.array(answer)).mean())
