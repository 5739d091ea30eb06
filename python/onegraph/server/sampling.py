"""How a dialect's names of sampling keywords become the engine's."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from typing import Any

from onegraph import _native
from onegraph.sampling import resolve
from onegraph.server.fields import Fields, wrong
from onegraph.server.forms import Form
from onegraph.server.limits import Limits
from onegraph.server.refusals import Refused, refusal

__all__ = ["Names", "options", "salt_of", "spelled"]

#: Tokens with a bias: more than any vocabulary has.
MOST_BIASES = 1 << 19

#: Of each of a dialect's names, the engine's.
Names = Mapping[str, str]


def _seed(fields: Fields, name: str) -> int | None:
    """Any 64 bits; a negative number is the one that has the same."""
    found = fields.integer(name, -(2**63), 2**64 - 1)
    return None if found is None else found % 2**64


def _top_k(fields: Fields, name: str) -> int | None:
    """-1 keeps all, as vLLM has it."""
    found = fields.integer(name)
    return 0 if found == -1 else found


def _bias(fields: Fields, name: str) -> dict[int, float] | None:
    if isinstance(fields.get(name), list):
        fields = _by_token(fields, name)
    found = fields.object(name)
    if found is None:
        return None
    if len(found.values) > MOST_BIASES:
        what = f"{len(found.values)} tokens; at most {MOST_BIASES} are taken"
        raise Refused(400, f"{fields.path(name)}: {what}", field=fields.path(name))
    bias = {}
    for token in found.values:
        if not token.isdecimal():
            raise wrong(fields.path(name), token, "must have ids of tokens for keys")
        bias[int(token[:20])] = float(found.number(token) or 0.0)
    return bias


def _by_token(fields: Fields, name: str) -> Fields:
    """Biases that are a list of pairs, as llama.cpp has them; false is never."""
    found: dict[str, Any] = {}
    for i, pair in enumerate((fields.items(name) or [])[: MOST_BIASES + 1]):
        path = f"{name}[{i}]"
        if not isinstance(pair, list) or len(pair) != 2 or type(pair[0]) is not int:
            raise wrong(fields.path(path), pair, "must be the id of a token and a number")
        found[str(pair[0])] = -math.inf if pair[1] is False else pair[1]
    return Fields({name: found}, fields.within)


def salt_of(body: Fields) -> str | None:
    """Under which a body's prefixes are found: what it says itself, and who sent it."""
    said = body.text("cache_salt") or ""
    size = len(said.encode())
    if size > _native.MAX_SALT_BYTES:
        expected = f"at most {_native.MAX_SALT_BYTES} bytes are allowed; send a hash of it"
        raise Refused(400, f"cache_salt = a text of {size} bytes: {expected}", field="cache_salt")
    if not body.owner:
        return said or None
    return hashlib.sha256(f"{body.owner}{said}".encode()).hexdigest()


def _ids(fields: Fields, name: str) -> list[int] | None:
    # Before any is looked at: others wait meanwhile.
    if (count := len(fields.items(name) or [])) > _native.MAX_STOP_TOKENS:
        expected = f"{count} tokens: at most {_native.MAX_STOP_TOKENS} are allowed"
        raise Refused(400, f"{fields.path(name)} = {expected}", field=fields.path(name))
    return fields.integers(name, "must be the id of a token")


_READ: Mapping[str, Callable[[Fields, str], Any]] = {
    "max_tokens": Fields.integer,
    "top_k": _top_k,
    "repeat_last_n": Fields.integer,
    "logprobs": Fields.integer,
    "thinking_token_budget": Fields.integer,
    "seed": _seed,
    "logit_bias": _bias,
    "stop": Fields.texts,
    "stop_token_ids": _ids,
    "ignore_eos": Fields.flag,
}


def options(
    fields: Fields, names: Names, limits: Limits, form: Form, **further: Any
) -> dict[str, Any]:
    """The keywords that a request gives, those that it does not give at their defaults, as the
    engine takes them. `further` are keywords that are known already.

    Raises `Refused` for what is wrong, by the dialect's name of it.
    """
    given: dict[str, Any] = {"max_tokens": None}
    for theirs, ours in _given(fields, names):
        found = _READ.get(ours, Fields.number)(fields, theirs)
        if found is not None:
            given[ours] = found
    given |= further | form.keywords
    given["max_tokens"] = limits.tokens(given["max_tokens"])
    try:
        resolved = resolve(given)
        _native.check_sampling(resolved)
    except Exception as e:
        raise refusal(e, spelled(fields, names, form)) from e
    return resolved


def spelled(fields: Fields, names: Names, form: Form) -> dict[str, str]:
    """Of the engine's keywords that a request gives, the dialect's names."""
    return {ours: fields.path(theirs) for theirs, ours in _given(fields, names)} | form.paths


def _given(fields: Fields, names: Names) -> list[tuple[str, str]]:
    """Those of the names that a request has, few of many, and the engine's of each."""
    values = fields.values
    return [
        (theirs, ours)
        for theirs, ours in names.items()
        if theirs in values and values[theirs] is not None
    ]
