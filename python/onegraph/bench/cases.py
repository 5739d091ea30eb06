"""Which tests to run: llama-bench's options, lists and ranges, and its test names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from onegraph.errors import ArgumentError

__all__ = ["Case", "cases", "context", "numbers", "pairs"]

#: Most values of one option: past this a range was mistyped.
MOST = 1000

_RANGE = re.compile(r"(\d+)-(\d+)(?:([+*])(\d+))?")


@dataclass(frozen=True, slots=True)
class Case:
    """One test. A prompt of `n_prompt` tokens, then `n_gen` generated ones, after `n_depth` tokens
    that are not timed, by `n_seq` sequences together."""

    n_prompt: int
    n_gen: int
    n_depth: int = 0
    n_seq: int = 1

    @property
    def name(self) -> str:
        """As llama-bench names it: `pp512`, `tg128 @ d4096`, `pp512+tg128`."""
        parts = [f"pp{self.n_prompt}"] if self.n_prompt else []
        parts += [f"tg{self.n_gen}"] if self.n_gen else []
        depth = f" @ d{self.n_depth}" if self.n_depth else ""
        return "+".join(parts) + depth + (f" x {self.n_seq}" if self.n_seq > 1 else "")

    @property
    def n_ctx(self) -> int:
        """Tokens that a sequence has at its end, the one that starts an empty one among them."""
        return self.n_depth + self.n_prompt + self.n_gen + 1


def numbers(name: str, given: Sequence[str], default: Sequence[int], least: int = 0) -> list[int]:
    """The values of an option: `512`, `128,256`, `1-4`, `0-4096+1024`, `1-64*2`; given often.

    Raises `ArgumentError` for what is no such list, and for a value below `least`.
    """
    out: list[int] = []
    for text in (part.strip() for one in given for part in one.split(",")):
        if text.isdecimal() and text.isascii():
            out.append(int(text))
        elif found := _RANGE.fullmatch(text):
            out += _range(name, text, *found.groups())
        else:
            raise ArgumentError(
                f"{name} {text!r} is not a number or a range such as 1-4, 0-4096+1024 or 1-64*2"
            )
        if len(out) > MOST:
            raise ArgumentError(f"{name} has over {MOST} values; use a larger step")
    if wrong := [n for n in out if n < least]:
        raise ArgumentError(f"{name} {wrong[0]}: must be at least {least}")
    return out or list(default)


def _range(
    name: str, text: str, first: str, last: str, sign: str | None, step: str | None
) -> list[int]:
    at, end, by = int(first), int(last), int(step or 1)
    grows = by >= 1 if sign != "*" else by >= 2 and at >= 1
    if end < at or not grows:
        raise ArgumentError(
            f"{name} {text!r} never reaches its end: write first-last with first <= last, and a "
            "step by + of at least 1 or by * of at least 2 (from 1 on)"
        )
    out: list[int] = []
    while at <= end and len(out) <= MOST:
        out.append(at)
        at = at * by if sign == "*" else at + by
    return out


def pairs(name: str, given: Sequence[str]) -> list[tuple[int, int]]:
    """Prompt and generation of combined tests, each given as `512,128`."""
    out = []
    for text in given:
        parts = [part.strip() for part in text.split(",")]
        if len(parts) != 2 or not all(p.isascii() and p.isdecimal() for p in parts):
            raise ArgumentError(f"{name} {text!r} is not two numbers such as 512,128")
        prompt, gen = int(parts[0]), int(parts[1])
        if prompt == 0 or gen == 0:
            raise ArgumentError(f"{name} {text!r} has a zero; use -p or -n for one of the two")
        out.append((prompt, gen))
    return out


def cases(
    n_prompt: Iterable[int],
    n_gen: Iterable[int],
    combined: Iterable[tuple[int, int]] = (),
    n_depth: Iterable[int] = (0,),
    n_seq: Iterable[int] = (1,),
) -> list[Case]:
    """The tests in llama-bench's order. A zero leaves a kind out; prompts are for one sequence.

    Raises `ArgumentError` where nothing is left.
    """
    n_prompt, n_gen, combined, n_seq = list(n_prompt), list(n_gen), list(combined), list(n_seq)
    out: list[Case] = []
    for depth in n_depth:
        out += [Case(p, 0, depth) for p in n_prompt if p]
        out += [Case(0, n, depth, seqs) for seqs in n_seq for n in n_gen if n]
        out += [Case(p, n, depth) for p, n in combined]
    if not out:
        raise ArgumentError("-p 0 -n 0 leaves no test; set one of them")
    return list(dict.fromkeys(out))


def context(cases: Sequence[Case], trained: int | None, step: int) -> int:
    """Tokens of a context in which each of these fits, a multiple of `step` or as many as the model
    was `trained` for.

    Raises `ArgumentError` where that is too little.
    """
    longest = max(cases, key=lambda case: case.n_ctx)
    if trained and longest.n_ctx > trained:
        raise ArgumentError(
            f"{longest.name} needs a context of {longest.n_ctx} tokens, but the model was trained "
            f"for {trained}; reduce -p, -n, -pg or -d"
        )
    rounded = -(-longest.n_ctx // step) * step
    return min(rounded, trained) if trained else rounded
