"""Structured output: a text has the form that it was held to."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal

import onegraph
import pytest
from onegraph import LLM, Sampling
from pydantic import BaseModel, Field, field_validator


class Kind(Enum):
    CAT = "cat"
    DOG = "dog"


@dataclass
class Pet:
    name: str
    kind: Kind
    age: int | None = None


class Person(BaseModel):
    name: str
    pets: Annotated[list[Literal["cat", "dog"]], Field(max_length=2)]

    @field_validator("name")
    @classmethod
    def no_bob(cls, name: str) -> str:
        if name == "Bob":
            raise ValueError("not Bob")
        return name


PROMPT = "Rex is a dog of four years. As JSON: "


@pytest.mark.parametrize(
    "sampling", [{"temperature": 0.0}, {"temperature": 0.9, "seed": 3, "logprobs": 2}]
)
def test_a_type_gives_a_value_of_it(smol: LLM, sampling: dict[str, Any]) -> None:
    result = smol.generate(PROMPT, schema=Pet, max_tokens=100, **sampling)
    assert result.finish_reason == "stop"
    pet = result.parsed
    assert isinstance(pet, Pet) and isinstance(pet.kind, Kind)
    assert json.loads(result.text)["name"] == pet.name
    assert smol.generate(PROMPT, max_tokens=5).parsed is None


def test_a_model_of_pydantic_is_made_and_may_refuse(smol: LLM) -> None:
    options: dict[str, Any] = {"schema": Person, "max_tokens": 100, "temperature": 0.0}
    result = smol.generate("Anna has a cat. As JSON: ", **options)
    assert isinstance(result.parsed, Person)
    forced = {**Person.model_json_schema()}
    forced["properties"]["name"] = {"const": "Bob"}
    refused = smol.generate(PROMPT, **{**options, "schema": forced})
    assert refused.parsed["name"] == "Bob"
    held = onegraph.Result(
        **{f: getattr(refused, f) for f in refused.__dataclass_fields__ if f != "schema"},
        schema=Person,
    )
    with pytest.raises(onegraph.ArgumentError, match=r"must be a Person: (?s:.*)not Bob"):
        _ = held.parsed


def test_a_type_that_is_no_class(smol: LLM) -> None:
    result = smol.generate("1, 2, 3: ", schema=list[int], max_tokens=60, temperature=0.0)
    assert result.finish_reason == "stop" and all(type(n) is int for n in result.parsed)


FORMS: list[tuple[dict[str, Any], str]] = [
    ({"regex": r"\d{4}-\d{2}-\d{2}"}, r"\d{4}-\d{2}-\d{2}"),
    ({"choice": ["yes", "no", "no, never"]}, "yes|no(, never)?"),
    ({"grammar": 'start: NUMBER ("+" NUMBER){1,3}\nNUMBER: /[0-9]{1,3}/'}, r"\d+(\+\d+){1,3}"),
    ({"grammar": 'root ::= "a" rest | "ab"\nrest ::= "b" [c-d] "c"{2}'}, "ab[cd]cc|ab"),
    ({"grammar": 'root ::= "(" root? ")"'}, r"\(+\)+"),
]


@pytest.mark.parametrize(("form", "pattern"), FORMS)
@pytest.mark.parametrize("seed", [1, 2])
def test_texts_of_every_form(llm: LLM, form: dict[str, Any], pattern: str, seed: int) -> None:
    result = llm.generate("abc", max_tokens=400, temperature=1.0, seed=seed, top_k=0, **form)
    assert result.finish_reason == "stop"
    assert re.fullmatch(pattern, result.text), result.text
    assert result.text.count("(") == result.text.count(")")


@pytest.mark.thorough
def test_a_batch_mixes_forms_and_none_and_each_equals_its_own_run(smol: LLM) -> None:
    kinds: list[dict[str, Any]] = [
        {"schema": Pet},
        {},
        {"choice": ["tea", "coffee"]},
        {"regex": "[a-z ]{5,20}", "prompt_lookup_num_tokens": 9},
        {"prompt_lookup_num_tokens": 9},
    ]
    options: dict[str, Any] = {"max_tokens": 60, "temperature": 0.8, "seed": 5}
    alone = [smol.generate(PROMPT, **options, **kind) for kind in kinds]
    streams = [smol.generate(PROMPT, stream=True, **options, **kind) for kind in kinds]
    together = ["".join(piece.text for piece in stream) for stream in streams]
    assert together == [result.text for result in alone]
    awaited = asyncio.run(_gathered(smol, [{**options, **kind} for kind in kinds]))
    assert awaited == together


async def _gathered(llm: LLM, kinds: list[dict[str, Any]]) -> list[str]:
    results = await asyncio.gather(*(llm.agenerate(PROMPT, **kind) for kind in kinds))
    return [result.text for result in results]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"schema": "{"}, "schema = {: is not JSON"),
    ({"schema": {"type": "tree"}}, 'schema = {"type": "tree"}: type "tree" is not supported'),
    ({"schema": {"not": {}}}, "not is not supported"),
    (
        {"schema": {"oneOf": [{}, {"type": "null"}]}},
        "oneOf with alternatives that can match together is not supported",
    ),
    ({"schema": {1, 2}}, "set is not supported"),
    ({"schema": {"enum": [float("nan")]}}, "schema: is not JSON"),
    ({"regex": "("}, r"regex = \(: .*unclosed group"),
    ({"regex": 3}, "regex = 3"),
    ({"grammar": "start: missing"}, "grammar = start: missing: "),
    ({"grammar": "root ::= nothing"}, "GBNF: the rule nothing is used but not defined"),
    ({"grammar": "root ::= <[5]>"}, "tokens by name or number cannot be converted"),
    ({"choice": []}, "must be from 1 to 4096 texts"),
    ({"choice": ["a", 5]}, "choice = 5: must be a str"),
    ({"regex": "a", "choice": ["a"]}, "regex and choice: give only one of them"),
    ({"regex": "a", "ignore_eos": True}, "cannot be combined with a schema"),
    ({"regex": "a", "echo": True}, "cannot be combined with structured output"),
    ({"regex": "a" * (1 << 19)}, "has 524288 bytes; at most 262144 are allowed"),
]


@pytest.mark.parametrize(
    ("form", "of_it", "not_of_it"),
    [
        ({"schema": Pet}, '{"name": "Rex", "kind": "dog", "age": null}', '{"name": "Rex"}'),
        ({"regex": "a{3}"}, "aaa", "aaaa"),
        ({"grammar": 'root ::= "é"+'}, "éé", ""),
        ({"choice": ["yes", "yes, sir"]}, "yes, sir", "yes, "),
    ],
)
def test_whether_a_text_is_of_a_form(
    llm: LLM, form: dict[str, Any], of_it: str, not_of_it: str
) -> None:
    assert llm.fits(of_it, **form) is True and llm.fits(not_of_it, **form) is False
    with pytest.raises(onegraph.ArgumentError, match="give one of schema, regex, grammar, choice"):
        llm.fits(of_it)


@pytest.mark.parametrize(("options", "expected"), REFUSED)
def test_what_is_no_form_is_refused_with_the_reason(
    llm: LLM, options: dict[str, Any], expected: str
) -> None:
    with pytest.raises(onegraph.ArgumentError, match=expected):
        llm.generate("abc", max_tokens=4, **options)
    assert llm.generate("abc", max_tokens=4).usage.completion_tokens == 4


def test_a_form_of_millions_of_states_costs_a_refusal_or_little(llm: LLM) -> None:
    bombs: list[dict[str, Any]] = [
        {"regex": "(.*a.{900}b.{900}c.{900})|(.*d.{1000}){9}"},
        {"regex": "((a{1,300}){1,300}){1,300}"},
        {"schema": {"enum": ["x" * n for n in range(600)]}},
        {"schema": {"type": "string", "minLength": 100_000}},
        {"grammar": "root ::= " + " ".join(["[a-z]?"] * 3000)},
        {"grammar": "root ::= root root | [a-z] | " + "(" * 60 + "[0-9]" + ")*" * 60},
        {"choice": ["y" * n for n in range(1, 600)]},
    ]
    for bomb in bombs:
        begun = time.monotonic()
        with contextlib.suppress(onegraph.ArgumentError):
            llm.generate("abc", max_tokens=16, top_k=0, seed=1, **bomb)
        assert time.monotonic() - begun < 30, bomb
        assert llm.generate("abc", max_tokens=4).usage.completion_tokens == 4


def test_forms_in_a_sampling_are_checked_and_kept() -> None:
    with pytest.raises(onegraph.ArgumentError, match="schema and regex"):
        Sampling(schema=int, regex="a")
    texts = ["a", "b"]
    sampling = Sampling(choice=texts)
    texts.append("c")
    assert sampling.choice == ("a", "b")
