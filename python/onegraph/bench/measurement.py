"""One generation of one engine, and the one convention for every engine's clock.

The decode rate is steps a second: the tokens after the first, by the time from the first token to
the last. That is what llama-bench's `tg` counts (each step yields one token) and what a reader of a
stream sees. Engines that count the first token in, and time from there, are converted: N tokens in
a duration that starts with the first are N - 1 steps.
"""

from __future__ import annotations

from dataclasses import dataclass

from onegraph.errors import Error

__all__ = ["CONVENTION", "EarlyEnd", "EngineError", "Measurement", "seconds"]

#: The convention in a line, for tables.
CONVENTION = "decode: tokens after the first, by the time from the first token to the last"


class EngineError(Error, RuntimeError):
    """Another engine failed, or did other work than it was asked for."""


class EarlyEnd(EngineError):
    """Another engine's text ended before as many tokens as it was asked for."""


def seconds(nanoseconds: object, what: str) -> float:
    """Seconds of a whole number of nanoseconds.

    Raises `EngineError` for what is no such number.
    """
    if isinstance(nanoseconds, bool) or not isinstance(nanoseconds, int) or nanoseconds < 0:
        raise EngineError(
            f"{what} is {nanoseconds!r}, not a number of nanoseconds; this version of the engine "
            "is not supported"
        )
    return nanoseconds / 1e9


@dataclass(frozen=True, slots=True)
class Measurement:
    """One generation. Times are seconds; a part that the engine does not tell is None."""

    #: Tokens of the prompt.
    n_prompt: int
    #: Of those, the ones whose work was kept from earlier; None where the engine does not say.
    n_cached: int | None
    #: Tokens generated.
    n_generated: int
    #: Work on the prompt, by the engine's own clock.
    prompt_seconds: float | None
    #: First token to last, by the engine's own clock.
    decode_seconds: float | None
    #: From the request to the first token, by the caller's clock.
    first_token_seconds: float | None
    #: First token to last, by the caller's clock.
    wall_decode_seconds: float | None
    #: The generated tokens; None where the engine gives text alone.
    tokens: tuple[int, ...] | None
    #: The generated text; None where the engine gives tokens alone.
    text: str | None
    #: Decode steps a second without choosing tokens and making text; None where it does not tell.
    rate_without_sampling: float | None = None
    #: The bytes of each token, where the engine tells those and not the tokens.
    pieces: tuple[bytes, ...] | None = None

    @property
    def decode_rate(self) -> float | None:
        """Tokens a second by the convention, by the engine's clock; None where it has none."""
        return _rate(self.n_generated - 1, self.decode_seconds, "decode")

    @property
    def wall_decode_rate(self) -> float | None:
        """Tokens a second by the convention, by the caller's clock."""
        return _rate(self.n_generated - 1, self.wall_decode_seconds, "decode")

    @property
    def prompt_rate(self) -> float | None:
        """Prompt tokens a second, those that were cached left out; None where it is not told."""
        return _rate(self.n_prompt - (self.n_cached or 0), self.prompt_seconds, "prompt")

    def check(self, n_prompt: int, n_generated: int, engine: str) -> None:
        """Raises `EngineError` where the engine did other work than it was asked for."""
        if self.n_prompt != n_prompt:
            raise EngineError(
                f"{engine} counts {self.n_prompt} tokens in the prompt, onegraph {n_prompt}: use "
                "a model that both tokenize the same way"
            )
        if self.n_generated != n_generated:
            raise EarlyEnd(
                f"{engine} generated {self.n_generated} of {n_generated} tokens: its text ended "
                "early; use another prompt, or a smaller -n"
            )


def _rate(work: int, took: float | None, part: str) -> float | None:
    if took is None or work <= 0:
        return None
    if took <= 0:
        raise EngineError(
            f"{work} tokens of {part} in {took} seconds: the clock did not advance; use more "
            "tokens, or measure again"
        )
    return work / took
