"""How tokens are chosen: the keywords that `generate`, `agenerate` and `chat` share."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, TypeVar

from onegraph import _native, arguments

__all__ = ["DEFAULTS", "SamplingOptions"]


class SamplingOptions(TypedDict, total=False):
    """Keywords of `generate`, `agenerate` and `chat`; their defaults are in `DEFAULTS`."""

    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float] | None
    seed: int | None
    stop: str | Sequence[str] | None
    logprobs: int | None
    ignore_eos: bool


#: The defaults. The engine states the numbers; `help(onegraph.LLM.generate)` shows them.
DEFAULTS: Mapping[str, Any] = {
    **_native.sampling_defaults(),
    "logit_bias": None,
    "seed": None,
    "stop": None,
    "logprobs": None,
    "ignore_eos": False,
}

FLOATS = [name for name, default in DEFAULTS.items() if isinstance(default, float)]

#: What each means; appended to the docstrings of the methods that take them.
MEANING: Mapping[str, str] = {
    "max_tokens": "most tokens to generate; the context may end the text earlier",
    "temperature": "divides the logits, 0 to 100; 0 is greedy, and no filter below matters then",
    "top_k": "keep the k most probable tokens; 0 keeps all",
    "top_p": "of those, keep the most probable that have this probability together; 1 keeps all",
    "min_p": "keep tokens at least this many times as probable as the best; 0 keeps all",
    "repeat_penalty": "divides positive and multiplies negative logits of tokens that are in the "
    "prompt or the output, 0.01 to 100; 1 is off",
    "presence_penalty": "subtracted from the logits of tokens generated before, -2 to 2",
    "frequency_penalty": "subtracted for each time that a token was generated, -2 to 2",
    "logit_bias": "{token id: number to add to its logit}; -inf bans a token, inf forces one",
    "seed": "0 to 2**64 - 1; a draw depends on it and on the index of the generated token alone. "
    "None draws one, which the result names",
    "stop": "a text, or several, before which the output ends",
    "logprobs": "give the log-probability of each token and this many best ones, 0 to 100",
    "ignore_eos": "go on after tokens that end a text",
}

F = TypeVar("F", bound=Callable[..., Any])


def takes_sampling(method: F) -> F:
    """Adds the sampling keywords, their defaults and meanings to the docstring."""
    lines = [f"{name}={DEFAULTS[name]!r}: {MEANING[name]}" for name in DEFAULTS]
    wrapped = [textwrap.fill(line, 96, subsequent_indent="    ") for line in lines]
    own = inspect.cleandoc(method.__doc__ or "")
    method.__doc__ = "\n".join([own, "", "Sampling, by keyword:", "", *wrapped, ""])
    return method


def resolve(given: SamplingOptions) -> dict[str, Any]:
    """Fills in the defaults, in the form that the engine takes. Ranges it checks itself.

    Raises `ArgumentError` for a value of the wrong form, `TypeError` for a keyword that is none.
    """
    for name in given:
        if name not in DEFAULTS:
            names = ", ".join(DEFAULTS)
            raise TypeError(f"unexpected keyword argument {name!r}; sampling takes {names}")
    merged: dict[str, Any] = {**DEFAULTS, **given}
    for name in ("max_tokens", "top_k"):
        merged[name] = arguments.integer(name, merged[name])
    for name in FLOATS:
        merged[name] = arguments.number(name, merged[name])
    if merged["logprobs"] is not None:
        merged["logprobs"] = arguments.integer("logprobs", merged["logprobs"])
    if merged["seed"] is not None:
        merged["seed"] = arguments.unsigned("seed", merged["seed"])
    bias = arguments.mapping("logit_bias", merged["logit_bias"])
    merged["logit_bias"] = [
        (arguments.integer("logit_bias", token), arguments.number("logit_bias", number))
        for token, number in bias.items()
    ]
    stop = merged["stop"]
    merged["stop"] = [] if stop is None else arguments.texts("stop", stop)
    merged["ignore_eos"] = arguments.flag("ignore_eos", merged["ignore_eos"])
    return merged
