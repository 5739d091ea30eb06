"""Prompts of an exact number of tokens, the same for every engine and fresh in each round.

Engines that take text must read the tokens that the others are given, so a prompt is a text that
encodes to just those tokens. It is made of ordinary sentences in an order that no other round has,
because a server keeps the work of a prompt that starts like an earlier one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol

from onegraph.bench.engines import Prompt
from onegraph.errors import ArgumentError

__all__ = ["FIXED", "Encoder", "exact", "random_tokens"]

SENTENCES = (
    "The harbour lay quiet under a thin layer of fog.",
    "Every morning the baker carries two heavy sacks of flour up the hill.",
    "A good map shows less than the land and more than the eye.",
    "When the river rose in spring, the lower fields stood under water for a week.",
    "She kept a careful record of the wind, the rain and the first frost.",
    "Nobody in the village could say who had built the old stone bridge.",
    "The train was late again, so we walked along the coast instead.",
    "Copper conducts heat and electricity better than iron does.",
    "In the long evenings they told each other stories about the sea.",
    "The committee met twice and decided nothing of importance.",
    "Light from the nearest star takes more than four years to reach us.",
    "He repaired clocks for a living and was never on time.",
    "Most of the garden is in shade, but beans grow well by the wall.",
    "The library closes at six, except on the last day of the month.",
    "A small engine needs little fuel and a great deal of attention.",
    "They measured the field with a rope and agreed on the result.",
    "Snow fell during the night and covered the tracks of the fox.",
    "The recipe asks for three eggs, a cup of sugar and some patience.",
    "Two roads lead to the summit; the longer one is the safer.",
    "Our neighbour plays the violin at the open window in summer.",
    "The factory made buttons until the war and bicycles after it.",
    "Children learn the names of birds sooner than those of trees.",
    "An honest answer saves more time than a clever one.",
    "The ship carried timber, salt and forty barrels of oil.",
)

#: The text that output is checked on.
FIXED = " ".join(SENTENCES)


class Encoder(Protocol):
    """What is needed of a tokenizer."""

    def encode(
        self, text: str, add_special: bool = True, parse_special: bool = False
    ) -> list[int]: ...

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str: ...


def _text(seed: int, n: int, encode: Callable[[str], list[int]]) -> str:
    """At least `n` tokens of sentences, in the order that `seed` gives."""
    draw = random.Random(seed)
    text = f"{seed}:"
    while len(encode(text)) < n:
        text += " " + " ".join(draw.sample(SENTENCES, len(SENTENCES)))
    return text


def exact(tokenizer: Encoder, n: int, seed: int) -> Prompt:
    """A prompt of exactly `n` tokens, the special ones in front among them.

    Raises `ArgumentError` where the tokenizer reads no start of the text back alike.
    """
    begin = len(tokenizer.encode(""))
    if n <= begin:
        raise ArgumentError(
            f"a prompt of {n} tokens: the model adds {begin} of its own in front; use at "
            f"least -p {begin + 1}"
        )
    whole = tokenizer.encode(_text(seed, n, tokenizer.encode))
    # A cut text may encode to other tokens at its end; then another word is put there.
    fillers = (" a", " the", " x", ".", ",", " of", " and", " 1", "!", "a")
    for back in range(min(16, n - begin)):
        kept = tokenizer.decode(whole[begin : n - back])
        for filler in ("", *fillers):
            text = kept + filler * max(back, 0) if filler else kept
            tokens = tokenizer.encode(text)
            if len(tokens) == n:
                return Prompt(text, tuple(tokens))
    raise ArgumentError(
        f"cannot make a prompt of exactly {n} tokens with this tokenizer; try another -p"
    )


def random_tokens(n: int, n_vocab: int, seed: int, first: int | None) -> list[int]:
    """`n` tokens drawn evenly from a vocabulary, as llama-bench fills its prompts; `first` is the
    token that begins every text, where there is one."""
    draw = random.Random(seed)
    tokens = [draw.randrange(n_vocab) for _ in range(n)]
    if first is not None and tokens:
        tokens[0] = first
    return tokens
