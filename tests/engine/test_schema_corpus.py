"""Numbers and keys of JSON schemas: what is drawn from all tokens that are allowed, each as likely,
is valid, and what is valid is taken. The package `jsonschema` judges; schemas come from a seed."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import jsonschema
import onegraph
import pytest
from onegraph import LLM

pytestmark = pytest.mark.thorough

#: All tokens that are allowed are about as likely: weights are random, and small beside this.
UNIFORM: dict[str, Any] = {"temperature": 50.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}

NAMES = ["a", "ab", "name", "b\u00e9", 'q"', "x y", "_1"]
BOUNDS = [0, 1, -1, 9, 10, 99, 100, 0.5, 99.95, 10.5, -0.75, 1e-7, 2**53 + 1, 2**63 - 1, 1e16]


class Schemas:
    """Schemas of numbers, and of objects of them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def number(self) -> dict[str, Any]:
        pick = self.random
        kind = pick.choice(["integer", "number"])
        way = pick.randrange(5)
        if way == 0:
            return {"enum": pick.sample(BOUNDS, 3)}
        if way == 1:
            return {"type": kind, "multipleOf": pick.choice([3, 7, 100, 0.5])}
        low = pick.choice(BOUNDS)
        high = low + pick.choice([0, 0.5, 1, 3, 1000, 2**40])
        least = pick.choice(["minimum", "exclusiveMinimum"])
        most = pick.choice(["maximum", "exclusiveMaximum"])
        bounds = [{least: low}, {most: high}, {least: low, most: high}]
        return {"type": kind, **pick.choice(bounds)}

    def object(self) -> dict[str, Any]:
        pick = self.random
        names = pick.sample(NAMES, pick.randrange(5))
        schema: dict[str, Any] = {"type": "object"}
        schema["properties"] = {name: self.number() for name in names}
        schema["required"] = pick.sample(names, pick.randrange(len(names) + 1))
        others = pick.choice([None, False, {"type": "integer"}, {"type": "null"}])
        if others is not None:
            schema["additionalProperties"] = others
        if pick.random() < 0.3:
            schema["minProperties"] = pick.randrange(3)
        if pick.random() < 0.3:
            schema["maxProperties"] = len(names) + pick.randrange(3)
        if pick.random() < 0.3:
            schema["patternProperties"] = {"^n": {"minimum": -5}}
        return schema

    def value(self, schema: dict[str, Any]) -> Any:
        """One that is likely to be valid."""
        pick = self.random
        if "properties" in schema:
            names = [
                n for n in schema["properties"] if n in schema["required"] or pick.random() < 0.5
            ]
            pick.shuffle(names)
            found = {name: self.value(schema["properties"][name]) for name in names}
            if schema.get("additionalProperties") is not False and pick.random() < 0.5:
                found["other"] = pick.choice([5, None])
            return found
        if "enum" in schema:
            return pick.choice(schema["enum"])
        bounds = [schema[key] for key in schema if key.startswith(("min", "max", "excl"))]
        near = pick.choice([*bounds, 0]) + pick.choice([0, 1, -1, 0.25, 12])
        return int(near) if schema["type"] == "integer" else near


def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len({key for key, _ in found}) == len(found), f"a key twice: {found}"
    return dict(found)


def judged(schema: Any, text: str) -> None:
    """Raises where a text is not valid, or has a key twice."""
    jsonschema.Draft202012Validator(schema).validate(json.loads(text, object_pairs_hook=pairs))


def test_what_is_drawn_of_numbers_and_keys_is_valid(llm: LLM) -> None:
    kinds = Counter[str]()
    for seed in range(90):
        schemas = Schemas(seed)
        schema = schemas.number() if seed % 3 == 0 else schemas.object()
        sampling = onegraph.Sampling(schema=schema, max_tokens=160, seed=seed, **UNIFORM)
        try:
            results = llm.generate("abc", n=3, sampling=sampling)
        except onegraph.ArgumentError as e:
            assert "is not supported" in str(e)
            kinds["refused"] += 1
            continue
        for result in results:
            if result.finish_reason == "stop":
                judged(schema, result.text)
            kinds[str(result.finish_reason)] += 1
    assert kinds["stop"] > 120 and kinds["refused"] < 12, kinds


def test_what_is_valid_is_taken(llm: LLM) -> None:
    kinds = Counter[bool]()
    for seed in range(200):
        schemas = Schemas(seed)
        schema = schemas.number() if seed % 2 else schemas.object()
        value = schemas.value(schema)
        valid = jsonschema.Draft202012Validator(schema).is_valid(value)
        text = json.dumps(value)
        try:
            taken = llm.fits(text, schema=schema)
        except onegraph.ArgumentError:
            continue
        assert valid or not taken, f"{text} is not of {schema}"
        if valid:
            kinds[taken] += 1
    assert kinds[True] > 60 and kinds[True] > 0.8 * kinds.total(), kinds


OPEN = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
INTEGERS = {"type": "object", "additionalProperties": {"type": "integer"}}
BIG = 1187654321098765433


@pytest.mark.parametrize(
    ("schema", "taken", "refused"),
    [
        ({"const": BIG}, [str(BIG)], ["1187654321098765312", "1.1876543210987654e18"]),
        ({"enum": [2**53 + 1]}, ["9007199254740993"], ["9007199254740992"]),
        ({"type": "integer", "minimum": BIG}, [str(BIG)], [str(BIG - 1)]),
        ({"type": "integer", "maximum": 2**64 - 1}, [str(2**64 - 1)], [str(2**64)]),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, ["0.5", "0.1"], ["0", "0.0"]),
        ({"type": "number", "exclusiveMinimum": 10, "exclusiveMaximum": 10.5}, ["10.1"], ["10"]),
        ({"type": "number", "maximum": 99.95}, ["99.9", "99.95", "12", "-1"], ["99.951"]),
        ({"type": "number"}, ["1e300", "-12.5E-3"], ["1e999", "1" * 40, "0." + "1" * 40]),
        (OPEN, ['{"age": 1, "name": "x"}', '{"\\u0061ge": 5}'], ['{"\\u0061ge": "x"}']),
        (OPEN, ['{"nam": 1, "name_1": 2}'], ['{"name": "x", "name_1": 2}', '{"name": 1}']),
        (OPEN, ['{"name": "x", "n": 1}'], ['{"name": "x", "name": "y"}', '{"n": 1, "\\u006e": 2}']),
        (INTEGERS, ['{"\\u0061\\n": 5, "b": 6}'], ['{"a": 5, "\\u0061": 6}', '{"a": 5, "a": 6}']),
        ({**INTEGERS, "minProperties": 2}, ['{"a": 1, "b": 2}'], ['{"a": 1, "a": 2}']),
        ({"type": "array", "uniqueItems": False}, ["[1, 1]"], ["{}"]),
        ({"type": "string", "format": "password"}, ['"x"'], ["1"]),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"type": "null"}}}, ["null"], ["1"]),
    ],
)
def test_texts_that_are_taken_and_that_are_not(
    llm: LLM, schema: dict[str, Any], taken: list[str], refused: list[str]
) -> None:
    assert [text for text in taken if not llm.fits(text, schema=schema)] == []
    assert [text for text in refused if llm.fits(text, schema=schema)] == []


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({"schema": {"multipleOf": 0.1}}, r"multipleOf 0\.1 \(.*is not supported"),
        (
            {"schema": '{"const": 18446744073709551616}'},
            "18446744073709551616 has more than 64 bits",
        ),
        ({"schema": {"enum": []}}, "nothing matches"),
        (
            {"schema": {"properties": {"a": {"$ref": "#"}}, "required": ["a"], "type": "object"}},
            "nothing",
        ),
        ({"grammar": 'start: "a" start'}, "allows nothing"),
        ({"grammar": 'root ::= "a" x\nx ::= "b" x'}, "allows nothing"),
        ({"regex": r"[^\s\S]"}, "allows nothing"),
    ],
)
def test_a_form_that_allows_nothing_or_cannot_be_held_says_so_when_it_comes(
    llm: LLM, form: dict[str, Any], said: str
) -> None:
    with pytest.raises(onegraph.ArgumentError, match=said):
        llm.fits("a", **form)


def chain(n: int, link: Any) -> dict[str, Any]:
    links = {f"a{i}": link({"$ref": f"#/$defs/a{i + 1}"}) for i in range(n)}
    return {"$ref": "#/$defs/a0", "$defs": {**links, f"a{n}": {"type": "string"}}}


LINKS: dict[str, Any] = {
    "allOf": lambda of: {"allOf": [of]},
    "anyOf": lambda of: {"anyOf": [of, {"type": "null"}]},
    "properties": lambda of: {"type": "object", "properties": {"x": of}, "required": ["x"]},
    "items": lambda of: {"type": "array", "items": of, "minItems": 1},
    "prefixItems": lambda of: {"type": "array", "prefixItems": [of], "minItems": 1},
    "patternProperties": lambda of: {"type": "object", "patternProperties": {"^a": of}},
    "additionalProperties": lambda of: {"type": "object", "additionalProperties": of},
}


@pytest.mark.parametrize("link", LINKS)
def test_a_chain_of_references_is_counted_before_it_is_followed(llm: LLM, link: str) -> None:
    assert not llm.fits("", schema=chain(60, LINKS[link]))
    with pytest.raises(onegraph.ArgumentError, match="chain of more than 400"):
        llm.fits("", schema=json.dumps(chain(1500, LINKS[link])))


@pytest.mark.parametrize(
    "rule",
    [
        'root ::= r0\n{}\nr{n} ::= "c"|r{i} ::= "a" r{j}',
        'root ::= r0 | "x" root\n{}\nr{n} ::= "c"|r{i} ::= r{j}',
        'start: r0\n{}\nr{n}: "c"|r{i}: "a" r{j}',
        'start: T0\n{}\nT{n}: "c"|T{i}: "a" T{j}',
        'start: T0\n{}\nT{n}: "c"|T{i}: ~T{j}',
        'start: "x"\n%ignore T0\n{}\nT{n}: "c"|T{i}: "a" T{j}',
    ],
)
def test_a_chain_of_rules_is_counted_before_it_is_followed(llm: LLM, rule: str) -> None:
    whole, _, line = rule.replace(' | "x"', ' ! "x"').rpartition("|")

    def grammar(n: int) -> str:
        lines = (line.replace("{i}", str(i)).replace("{j}", str(i + 1)) for i in range(n))
        text = whole.replace("{n}", str(n)).replace(" ! ", " | ")
        return text.replace("{}", "\n".join(lines))

    assert not llm.fits("y", grammar=grammar(60))
    with pytest.raises(onegraph.ArgumentError, match="chain of more than 400"):
        llm.fits("y", grammar=grammar(3000))


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({"grammar": "start: " + "(" * 5000 + '"a"' + ")" * 5000}, "400 nested parentheses"),
        (
            {"grammar": 'start: r::0\nr::_: "a" %if ' + "not(" * 5000 + "true" + ")" * 5000},
            "400 nested par",
        ),
        (
            {"grammar": "start: " + "%lark { start: " * 900 + '"a"' + " }" * 900},
            "400 nested gr",
        ),
        ({"grammar": 'start: %json {"a": ' + "[" * 900 + "]" * 900 + "}"}, "deeper than 120"),
        ({"schema": '{"items":' * 9000 + "{}" + "}" * 9000}, "deeper than 120"),
        ({"regex": "(" * 9000 + "a" + ")" * 9000}, "250 nested parentheses"),
    ],
)
def test_what_is_nested_deep_is_refused(llm: LLM, form: dict[str, Any], said: str) -> None:
    with pytest.raises(onegraph.ArgumentError, match=said):
        llm.fits("a", **form)


def test_a_schema_within_a_grammar_is_held_as_one_alone(llm: LLM) -> None:
    grammar = 'start: "n = " %json {"type": "number", "exclusiveMinimum": 10, "maximum": 10.5}'
    assert llm.fits("n = 10.5", grammar=grammar) and not llm.fits("n = 10", grammar=grammar)


@pytest.mark.parametrize(
    "text",
    [
        r'{"\x":1}',
        r'{"\u12":1}',
        '{"a\nb":1}',
        '{"a\x00b":1}',
        r'{"\ud800":1}',
        r'{"\ud800":1,"\uD800":2}',
    ],
)
def test_keys_that_are_none_of_json_do_not_fit(llm: LLM, text: str) -> None:
    assert not llm.fits(text, schema={})
    assert not llm.fits(text, schema={"type": "object"})


@pytest.mark.parametrize("pattern", ["^$", "^()$", "^(?:)$", "^a{0}$", "^.{0}$"])
def test_a_pattern_of_the_empty_text_alone_is_held(llm: LLM, pattern: str) -> None:
    schema = {"type": "string", "pattern": pattern}
    assert llm.fits('""', schema=schema) and not llm.fits('"a"', schema=schema)


@pytest.mark.parametrize("bound", ["1e19", "1e21", "1e22"])
def test_a_long_bound_that_is_excluded_is_not_taken(llm: LLM, bound: str) -> None:
    digits = format(int(float(bound)), "d")
    for name, sign in [("exclusiveMaximum", ""), ("exclusiveMinimum", "-")]:
        schema = f'{{"type": "number", "{name}": {sign}{bound}}}'
        assert not llm.fits(sign + digits, schema=schema)
        assert llm.fits("7", schema=schema)


def test_patterns_that_are_held_together_are_few(llm: LLM) -> None:
    """What many have in common takes time that doubles with each."""
    each = [{"pattern": f"(a|b)*a(a|b){{{n}}}c"} for n in range(13)]
    assert llm.fits('"aac"', schema={"type": "string", "allOf": each[:2]})
    with pytest.raises(onegraph.ArgumentError, match="13 patterns for one text"):
        llm.fits('""', schema={"type": "string", "allOf": each})
    terms = " & ".join(f"/(a|b)*a(a|b){{{n}}}/" for n in range(14))
    with pytest.raises(onegraph.ArgumentError, match="has 13 of `&`"):
        llm.fits("", grammar=f"start: X\nX: {terms}")


def test_no_comment_of_a_grammar_makes_it_another(llm: LLM) -> None:
    twice = '{"a":1,"a":2}'
    quoted = json.dumps(twice)
    assert llm.fits(twice, grammar=f"# keys: []\nstart: {quoted}")


def test_no_key_comes_twice_in_a_schema_within_a_grammar(llm: LLM) -> None:
    """Nobody knows where JSON begins in such a text: a name of its own has one member at most."""
    named: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {}}}
    free: dict[str, Any] = {"type": "object", "additionalProperties": {"type": "integer"}}
    for schema, once, twice in [
        (named, '{"b": 1, "a": 2, "x": 3}', '{"a": 1, "x": 2, "x": 3}'),
        (named, '{"x": 3}', '{"a": 1, "a": 2}'),
        (free, '{"x": 3}', '{"x": 3, "x": 4}'),
        ({**named, "required": ["b"]}, '{"b": 1, "x": {}}', '{"b": 1, "b": 2}'),
        ({**named, "minProperties": 2}, '{"a": 1, "x": 2}', '{"x": 1, "x": 2}'),
        ({}, '[{"x": {"y": 1}}]', '[{"x": 1, "x": 1}]'),
    ]:
        grammar = f'start: "so " %json {json.dumps(schema)}'
        for text, fits in ((once, True), (twice, False)):
            assert llm.fits(f"so {text}", grammar=grammar) is fits, (schema, text)
            assert llm.fits(text, schema=schema) is fits, (schema, text)
    with pytest.raises(onegraph.ArgumentError, match="minProperties"):
        llm.fits("", grammar=f"start: %json {json.dumps({**free, 'minProperties': 2})}")


def test_a_property_without_a_name_closes_no_other(llm: LLM) -> None:
    schema = {"type": "object", "properties": {"": {"type": "integer"}, "a": {}}, "required": [""]}
    for text in ('{"": 1}', '{"": 1, "b": 2}', '{"a": 1, "": 1, "bc": {}}'):
        assert llm.fits(text, schema=schema), text
    for text in ('{"a": 1}', '{"": "x"}', '{"": 1, "b": 2, "": 3}'):
        assert not llm.fits(text, schema=schema), text


@pytest.mark.parametrize("number", ["1e16", "1e+16", "1E16", "10000000000000000.0"])
def test_a_constant_is_a_number_and_not_its_spelling(llm: LLM, number: str) -> None:
    for schema in (f'{{"const": {number}}}', f'{{"enum": ["x", {number}]}}'):
        for text in ("10000000000000000", "10000000000000000.0"):
            assert llm.fits(text, schema=schema), text
        assert not llm.fits("10000000000000001", schema=schema)


def test_a_bound_of_a_long_double_is_the_double(llm: LLM) -> None:
    """1e23 is a double below the decimal, and a reader compares with the double."""
    for text, fits in ((int(1e23), True), (10**23, False), (int(1e23) + 1, False)):
        assert llm.fits(str(text), schema='{"type": "number", "maximum": 1e23}') is fits


@pytest.mark.parametrize(
    "form",
    [
        {"regex": "((a{100}){100}){100}"},
        {"grammar": "start: /((a{100}){100}){100}/"},
        {"grammar": 'root ::= (("a"{100}){100}){100}'},
        {"grammar": 'start: X\nX: (("(" /a{100}/){100} ["b"]){100}'},
        {"grammar": "start: X\nX: /b/ | /((a{100}){100}){100}/"},
        {"schema": {"type": "string", "pattern": "^((a{100}){100}){100}$"}},
        {"schema": {"type": "object", "patternProperties": {"((a{100}){100}){100}": {}}}},
    ],
)
def test_repetitions_within_one_another_are_counted_before_they_are_compiled(
    llm: LLM, form: dict[str, Any]
) -> None:
    with pytest.raises(onegraph.ArgumentError, match=r"1000000 times|attern.* is not supported"):
        llm.fits("a", **form)


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({"regex": "a$b"}, r"regex = a\$b: has an assertion, such as \^, \$ or \\b"),
        ({"regex": r"\b"}, r"regex = \\b: has an assertion"),
        ({"grammar": "start: /a^b/"}, "has an assertion"),
        ({"regex": "(?=a)"}, "is not a valid regular expression: look-around"),
        ({"regex": "(a"}, "is not a valid regular expression: unclosed group"),
        ({"grammar": 'start: x{0}\nx: "a"'}, "has a repetition of zero times"),
        (
            {"schema": {"type": "string", "pattern": "(x{1,100}y{1,100}){100}"}},
            r'pattern "\(x\{1,100\}y\{1,100\}\)\{100\}" is not supported',
        ),
    ],
)
def test_an_error_of_a_form_speaks_of_the_form(llm: LLM, form: dict[str, Any], said: str) -> None:
    with pytest.raises(onegraph.ArgumentError, match=said) as error:
        llm.fits("a", **form)
    assert "1(" not in str(error.value) and "supported yet" not in str(error.value)
