"""Options that commands share. Each carries the name it has in Python, and passes nothing unless
given: defaults are stated once, by the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, get_args

import click
from click.core import ParameterSource

from onegraph._native import DEFAULT_KV_TYPE
from onegraph.loaded import KvType
from onegraph.sampling import DEFAULTS

__all__ = [
    "KV_TYPES",
    "MODEL",
    "SAMPLING",
    "UNLIMITED",
    "flag",
    "given",
    "model_options",
    "refuse_given",
    "sampling_options",
]

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


#: What `--max-tokens` says for Python's None: click takes that for an option that was not given.
UNLIMITED = "none"


def _max_tokens(text: str) -> int | str:
    if text.lower() == UNLIMITED:
        return UNLIMITED
    try:
        return int(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is neither an integer nor {UNLIMITED}") from None


def _bias(text: str) -> tuple[int, float]:
    token, _, bias = text.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not a token id, '=' and a number, such as 42=-1.5"
        ) from None


#: Encodings of keys and values: of every device, and of the CPU alone.
KV_TYPES = get_args(KvType)

#: Arguments of `onegraph.LLM`: name, type, help.
MODEL: list[tuple[str, Any, str]] = [
    ("device", str, "cpu, cuda, cuda:1, cuda:0,1 or auto.  [default: auto]"),
    ("n_ctx", int, "Context length in tokens.  [default: the model's, at most 8192]"),
    ("threads", int, "CPU threads.  [default: all that the machine has]"),
    (
        "kv_type",
        str,
        f"Type of keys and values: i16, q8_0, or on the CPU f32.  [default: {DEFAULT_KV_TYPE}]",
    ),
    (
        "speculate",
        str,
        "What drafts tokens: auto, off, mtp or draft, mtp:N or draft:N for N tokens a round.  "
        "[default: auto]",
    ),
    ("draft", str, "A small model of the same vocabulary, which drafts tokens."),
]

#: Keywords of `onegraph.LLM.generate`: name, type, help.
SAMPLING: list[tuple[str, Any, str]] = [
    (
        "max_tokens",
        _max_tokens,
        "Maximum tokens to generate; none: until the text ends or the context is full.",
    ),
    ("temperature", float, "Divides the logits; 0 always picks the most probable token."),
    ("top_k", int, "Keep the K most probable tokens; 0 keeps all."),
    ("top_p", float, "Keep the most probable tokens whose probabilities add up to this."),
    ("min_p", float, "Keep tokens that are at least this fraction as probable as the best."),
    ("repeat_penalty", float, "Makes tokens that occurred before less probable; 1: off."),
    ("presence_penalty", float, "Subtracted from the logits of tokens that were generated before."),
    ("frequency_penalty", float, "Subtracted for each time that a token was generated."),
    ("repeat_last_n", int, "Penalties count the last N tokens; 0: none, -1: all."),
    ("logit_bias", _bias, "Add to the logit of a token id. May be repeated."),
    ("seed", int, "The same seed gives the same text.  [default: random; --verbose shows it]"),
    ("stop", str, "End the output before this text. May be repeated."),
    ("stop_token_ids", int, "End the output at this token id. May be repeated."),
    ("logprobs", int, "With --json, log-probabilities of the N best tokens at each step."),
    ("ignore_eos", bool, "Continue past tokens that end a text."),
    (
        "prompt_lookup_num_tokens",
        int,
        "Draft up to N tokens per step from the text so far: the same output, faster; 0: off.",
    ),
    ("schema", str, "Make the output JSON that matches this JSON schema."),
    ("regex", str, "Make the whole output match this regular expression."),
    ("grammar", str, "Make the output match this grammar, in Lark or GBNF."),
    ("choice", str, "Make the output one of these. May be repeated."),
    ("cache_salt", str, "Share cached prefixes only with requests of the same salt."),
    ("thinking_token_budget", int, "End the reasoning after N tokens."),
]


def flag(name: str) -> str:
    """The option of a Python name: `--n-ctx`."""
    return "--" + name.replace("_", "-")


def _option(name: str, kind: Any, said: str, default: object) -> Callable[[Decorated], Decorated]:
    if kind is bool:
        return click.option(flag(name), name, is_flag=True, default=None, help=said)
    if default is not None:
        said += f"  [default: {default:g}]"
    metavar = {"logit_bias": "TOKEN=BIAS", "max_tokens": "INTEGER|none"}.get(name)
    multiple = name in ("stop", "stop_token_ids", "logit_bias", "choice")
    return click.option(flag(name), name, type=kind, multiple=multiple, metavar=metavar, help=said)


def model_options(command: Decorated) -> Decorated:
    """The options of `MODEL`."""
    for name, kind, said in reversed(MODEL):
        command = _option(name, kind, said, None)(command)
    return command


def sampling_options(command: Decorated) -> Decorated:
    """The options of `SAMPLING`, with the defaults of `onegraph.sampling`."""
    for name, kind, said in reversed(SAMPLING):
        command = _option(name, kind, said, DEFAULTS.get(name))(command)
    return command


def given(table: list[tuple[str, Any, str]], values: dict[str, Any]) -> dict[str, Any]:
    """Of the options in a table, those that the user gave, as keyword arguments."""
    chosen = {name: values[name] for name, _, _ in table if values[name] not in (None, ())}
    if chosen.get("max_tokens") == UNLIMITED:
        chosen["max_tokens"] = None
    if "logit_bias" in chosen:
        chosen["logit_bias"] = dict(chosen["logit_bias"])
    return chosen


def refuse_given(names: Sequence[str], why: str) -> None:
    """Ends with a `click.UsageError` where the user gave one of these options of the command that
    runs: they would change nothing. `why` says when they would."""
    context = click.get_current_context()
    typed = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
    idle = [flag(name) for name in names if context.get_parameter_source(name) in typed]
    if idle:
        raise click.UsageError(f"{', '.join(idle)}: {why}")
