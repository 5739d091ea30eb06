"""Structured output: a text has the form that it was held to."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import time
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal

import jsonschema
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


def random_schema(draw: random.Random, depth: int) -> dict[str, Any]:
    """Of what JSON schemas are made of, with texts and lists that end."""
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "const"]
    kind = draw.choice(kinds + ["array", "object", "anyOf"] * (depth > 0))
    if kind == "string":
        least = draw.randrange(3)
        forms = [
            {"minLength": least, "maxLength": least + draw.randrange(6)},
            {"pattern": draw.choice(["^[a-f]{2,4}$", "^(ab|cd)$", r"^\d\d?$"])},
            {"format": draw.choice(["date", "time", "uuid", "ipv4"])},
        ]
        return {"type": "string", **draw.choice(forms)}
    if kind in ("integer", "number"):
        least = draw.randrange(-50, 50)
        return {"type": kind, "minimum": least, "maximum": least + draw.randrange(1, 400)}
    if kind == "enum":
        return {"enum": draw.sample(["a", "b c", 1, 2.5, None, True, "\u00e9"], 3)}
    if kind == "const":
        return {"const": draw.choice(["x", 3, False, {"a": [1]}])}
    if kind == "array":
        least = draw.randrange(2)
        items = random_schema(draw, depth - 1)
        return {"type": "array", "items": items, "minItems": least, "maxItems": least + 2}
    if kind == "anyOf":
        return {"anyOf": [random_schema(draw, depth - 1) for _ in range(2)]}
    if kind == "object":
        names = draw.sample(["a", "b", "name", "x y", "\u00fc", "d"], draw.randrange(1, 4))
        return {
            "type": "object",
            "properties": {name: random_schema(draw, depth - 1) for name in names},
            "required": names[: draw.randrange(len(names) + 1)],
            "additionalProperties": False,
        }
    return {"type": kind}


def test_answers_to_random_schemas_are_valid(llm: LLM) -> None:
    draw = random.Random(11)
    ended = 0
    schemas = [random_schema(draw, 2) for _ in range(60)]
    for i, schema in enumerate(schemas):
        sampling = Sampling(schema=schema, max_tokens=300, temperature=1.0, seed=i, top_k=0)
        for result in llm.generate("abc", n=4, sampling=sampling):
            if result.finish_reason == "stop":
                ended += 1
                jsonschema.validate(result.parsed, schema)
                assert json.loads(result.text) == result.parsed
    assert ended > 0.95 * 4 * len(schemas)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"schema": "{"}, "schema = {: is no JSON"),
    ({"schema": {"type": "tree"}}, 'schema = {"type": "tree"}: Invalid type: tree'),
    ({"schema": {"not": {}}}, r'Unimplemented keys: \["not"\]'),
    ({"schema": {1, 2}}, "set cannot be described"),
    ({"schema": {"enum": [float("nan")]}}, "schema: is not JSON"),
    ({"regex": "("}, r"regex = \(: .*regex parse error"),
    ({"regex": 3}, "regex = 3"),
    ({"grammar": "start: missing"}, "grammar = start: missing: "),
    ({"grammar": "root ::= nothing"}, "GBNF: the rule nothing is used and not defined"),
    ({"grammar": "root ::= <[5]>"}, "tokens by name or number cannot be converted"),
    ({"choice": []}, "must be from 1 to 4096 texts"),
    ({"choice": ["a", 5]}, "choice = 5: must be a str"),
    ({"regex": "a", "choice": ["a"]}, "regex and choice: a text can be held to one of them"),
    ({"regex": "a", "ignore_eos": True}, "says where the text ends"),
    ({"regex": "a", "echo": True}, "no prompt in front"),
    ({"regex": "a" * (1 << 19)}, "has 524288 bytes; at most 262144 are allowed"),
]


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
