"""What a generation gives back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Piece", "Result", "Timings", "TokenLogprob", "Usage"]


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a request."""

    prompt_tokens: int
    #: Tokens of the result; the token that ended the text is not counted.
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Timings:
    """Wall clock of a request, in seconds, and rates, in tokens a second."""

    #: Loading the model.
    load_seconds: float
    #: From the call to the first work on it.
    queue_seconds: float
    #: From there to the first token.
    prefill_seconds: float
    #: From the first token to the last.
    decode_seconds: float
    prefill_tokens_per_second: float
    #: Tokens after the first, by `decode_seconds`.
    decode_tokens_per_second: float
    #: The same without the time for choosing tokens and making text.
    decode_tokens_per_second_without_sampling: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural logarithm of a token's probability under the model's unmodified logits."""

    token_id: int
    logprob: float
    #: The most probable tokens and their log-probabilities, best first.
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """What is new in a stream."""

    #: Whole characters only; text that may become a stop string waits for a later piece.
    text: str
    token_ids: list[int]
    #: Set on the last piece; see `Result`.
    finish_reason: Literal["stop", "length", "cancelled"] | None
    #: One for each of `token_ids` where `logprobs` was given.
    logprobs: list[TokenLogprob] | None


@dataclass(frozen=True, slots=True)
class Result:
    """A finished generation."""

    #: The generated text, without the prompt and the stop string.
    text: str
    #: The generated tokens, without the one that ended the text.
    token_ids: list[int]
    #: "stop": the model ended its text, or a stop string came up. "length": `max_tokens`, or the
    #: context is full. "cancelled": the stream was cancelled.
    finish_reason: Literal["stop", "length", "cancelled"]
    usage: Usage
    timings: Timings
    #: One for each of `token_ids` where `logprobs` was given.
    logprobs: list[TokenLogprob] | None
    #: What the draws depended on; the same seed gives the same text.
    seed: int
