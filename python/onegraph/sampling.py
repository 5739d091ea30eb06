"""How tokens are sampled: the keywords that `generate`, `chat` and their `async` versions share."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypedDict, TypeVar

from onegraph import _native, arguments, foreign, structured

__all__ = ["DEFAULTS", "Sampling", "SamplingOptions"]


class SamplingOptions(TypedDict, total=False):
    """Sampling keywords; each is a field of `Sampling`. Their defaults are in `DEFAULTS`."""

    max_tokens: int | None
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    repeat_last_n: int
    logit_bias: Mapping[int, float] | None
    seed: int | None
    stop: str | Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    logprobs: int | None
    ignore_eos: bool
    prompt_lookup_num_tokens: int
    schema: Any
    regex: str | None
    grammar: str | None
    choice: Sequence[str] | None
    cache_salt: str | None
    thinking_token_budget: int | None


#: The defaults. The engine states the numbers; `help(onegraph.LLM.generate)` shows them.
DEFAULTS: Mapping[str, Any] = {
    **_native.sampling_defaults(),
    "logit_bias": None,
    "seed": None,
    "stop": None,
    "stop_token_ids": None,
    "logprobs": None,
    "ignore_eos": False,
    "prompt_lookup_num_tokens": 0,
    "schema": None,
    "regex": None,
    "grammar": None,
    "choice": None,
    "cache_salt": None,
    "thinking_token_budget": None,
}

FLOATS = [name for name, default in DEFAULTS.items() if isinstance(default, float)]

#: What each means; appended to the docstrings of the methods that take them.
MEANING: Mapping[str, str] = {
    "max_tokens": "maximum tokens to generate; the context may end the text earlier. None: until "
    "the text ends or the context is full",
    "temperature": "divides the logits, 0 to 100; 0 is greedy and makes the filters below "
    "irrelevant",
    "top_k": "keep the k most probable tokens; 0 keeps all",
    "top_p": "of those, keep the most probable whose probabilities add up to this; 1 keeps all",
    "min_p": "keep tokens at least this fraction as probable as the best; 0 keeps all",
    "repeat_penalty": "divides positive and multiplies negative logits of tokens in the prompt or "
    "the output, 0.01 to 100; 1 is off",
    "presence_penalty": "subtracted from the logits of tokens generated before, -2 to 2",
    "frequency_penalty": "subtracted for each time that a token was generated, -2 to 2",
    "repeat_last_n": "the three penalties count the last N tokens of prompt and output together; "
    "-1: all of them, 0: none, which turns penalties off",
    "logit_bias": "{token id: number to add to its logit}; -inf bans a token, inf forces one",
    "seed": "0 to 2**64 - 1; a draw depends only on it and the index of the generated token. "
    "None picks a random one, which the result names",
    "stop": "end the output before this text, or any of several",
    "stop_token_ids": "token ids that end the output, even with `ignore_eos`; they are not part of "
    "it",
    "logprobs": "return the log-probability of each token and of this many best ones, 0 to 100",
    "ignore_eos": "continue past tokens that end a text",
    "prompt_lookup_num_tokens": "draft up to this many tokens per step, 0 to 31, from where the "
    "text's last tokens occurred before, and keep those that are right: the same result, faster if "
    "the text repeats itself; see `onegraph help prompt-lookup`",
    "schema": "make the text JSON that matches a type (a Pydantic model, a dataclass, `list[int]`) "
    "or a JSON schema; `Result.parsed` is its value. Only one of this and the next three may be "
    "given; see `onegraph help structured`",
    "regex": "make the whole text match this regular expression, in the syntax of Rust's regex",
    "grammar": "make the text match this grammar: Lark as in llguidance, or GBNF",
    "choice": "make the text one of these",
    "cache_salt": "share cached prefixes only with requests of the same salt, of at most 1,024 "
    "bytes; None and the empty string are no salt",
    "thinking_token_budget": "for `chat`: end the reasoning after this many tokens, using the "
    "model's own end marker; None: no limit",
}


@foreign.options
@dataclass(frozen=True, kw_only=True)
class Sampling:
    """A reusable set of the sampling keywords of `LLM.generate` and `LLM.chat`: pass it as
    `sampling=`; other keywords override it. `dataclasses.replace` makes a changed copy.

    Raises `ArgumentError` for a value of the wrong form or out of range.
    """

    max_tokens: int | None = DEFAULTS["max_tokens"]
    temperature: float = DEFAULTS["temperature"]
    top_k: int = DEFAULTS["top_k"]
    top_p: float = DEFAULTS["top_p"]
    min_p: float = DEFAULTS["min_p"]
    repeat_penalty: float = DEFAULTS["repeat_penalty"]
    presence_penalty: float = DEFAULTS["presence_penalty"]
    frequency_penalty: float = DEFAULTS["frequency_penalty"]
    repeat_last_n: int = DEFAULTS["repeat_last_n"]
    logit_bias: Mapping[int, float] | None = None
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    logprobs: int | None = None
    ignore_eos: bool = False
    prompt_lookup_num_tokens: int = 0
    schema: Any = None
    regex: str | None = None
    grammar: str | None = None
    choice: Sequence[str] | None = None
    cache_salt: str | None = None
    thinking_token_budget: int | None = None

    def __post_init__(self) -> None:
        _native.check_sampling(resolve(self.options()))
        # What the caller changes afterwards was not checked.
        copies = {"logit_bias": dict, "stop": tuple, "stop_token_ids": tuple, "choice": tuple}
        for name, copy in copies.items():
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                object.__setattr__(self, name, copy(value))

    def options(self) -> dict[str, Any]:
        """The options as keywords."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


F = TypeVar("F", bound=Callable[..., Any])


def takes_sampling(method: F) -> F:
    """Adds the sampling keywords, their defaults and meanings to the docstring."""
    lines = [f"{name}={DEFAULTS[name]!r}: {MEANING[name]}" for name in DEFAULTS]
    wrapped = [textwrap.fill(line, 96, subsequent_indent="    ") for line in lines]
    own = inspect.cleandoc(method.__doc__ or "")
    method.__doc__ = "\n".join([own, "", "Sampling, by keyword:", "", *wrapped, ""])
    return method


def resolve(given: Mapping[str, Any], base: Sampling | None = None) -> dict[str, Any]:
    """Fills in `base`, or the defaults, in the form that the engine takes. Ranges it checks itself.

    Raises `ArgumentError` for a value of the wrong form, `TypeError` for a keyword that is none.
    """
    for name in given:
        if name not in DEFAULTS:
            said = foreign.answer(name, is_keyword=True)
            names = ", ".join(DEFAULTS)
            raise TypeError(
                f"unexpected keyword argument {name!r}"
                + (f": {said}" if said else "")
                + f"; sampling takes {names}"
            )
    if base is not None and not isinstance(base, Sampling):
        raise arguments.refused("sampling", base, "must be an onegraph.Sampling")
    merged: dict[str, Any] = {**(DEFAULTS if base is None else base.options()), **given}
    if merged["max_tokens"] is not None:
        merged["max_tokens"] = arguments.integer("max_tokens", merged["max_tokens"])
    for name in ("top_k", "repeat_last_n", "prompt_lookup_num_tokens"):
        merged[name] = arguments.integer(name, merged[name])
    for name in FLOATS:
        merged[name] = arguments.number(name, merged[name])
    for name in ("logprobs", "thinking_token_budget"):
        if merged[name] is not None:
            merged[name] = arguments.integer(name, merged[name])
    if merged["seed"] is not None:
        merged["seed"] = arguments.unsigned("seed", merged["seed"])
    bias = arguments.mapping("logit_bias", merged["logit_bias"])
    merged["logit_bias"] = [
        (arguments.integer("logit_bias", token), arguments.number("logit_bias", number))
        for token, number in bias.items()
    ]
    stop = merged["stop"]
    merged["stop"] = [] if stop is None else arguments.texts("stop", stop)
    ids = merged["stop_token_ids"]
    merged["stop_token_ids"] = [] if ids is None else arguments.integers("stop_token_ids", ids)
    merged["constraint"] = structured.constraint(merged)
    salt = merged["cache_salt"]
    merged["cache_salt"] = None if salt is None else arguments.text("cache_salt", salt)
    merged["ignore_eos"] = arguments.flag("ignore_eos", merged["ignore_eos"])
    # How a conversation's model reasons is known where its template is.
    merged["thought"] = None
    return merged
