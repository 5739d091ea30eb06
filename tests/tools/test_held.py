"""Calls that are held to a form: what is drawn under it is read as a call whose arguments fit."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import onegraph
import pytest
from onegraph import LLM
from support import scripted

pytestmark = pytest.mark.thorough

MARKERS = {
    "hermes": ["<tool_call>", "</tool_call>"],
    "llama3": ["<|python_tag|>"],
    "mistral": ["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"],
    "harmony": ["<|channel|>", "<|constrain|>", "<|message|>", "<|call|>", "<|end|>", "<|start|>"],
    "qwen_xml": ["<tool_call>", "</tool_call>"],
    "gemma4": ["<|tool_call>", "<tool_call|>", '<|"|>'],
    "lfm": ["<|tool_call_start|>", "<|tool_call_end|>"],
}
#: Those whose arguments are no JSON.
NOTATIONS = ["qwen_xml", "gemma4", "lfm"]
#: Those whose calls may stand behind a text.
ALONE = ["hermes", *NOTATIONS]
#: Of these each is a text to the one model, and a control token to the other.
SPELLED = [(name, special) for name in MARKERS for special in (False, True)]

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Rome", "Oslo"]},
        "days": {"type": "array", "items": {"type": "integer", "maximum": 99}, "maxItems": 2},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
NOW = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "now", "parameters": NOW}},
]
STRICT = [{**tool, "function": {**tool["function"], "strict": True}} for tool in TOOLS]
ASKED: list[Any] = [{"role": "user", "content": "What is the weather?"}]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[bool, LLM]]:
    """Models that say "hm" if they are let."""
    every = sorted({marker for markers in MARKERS.values() for marker in markers})
    folder = tmp_path_factory.mktemp("held")
    plain = scripted.write(folder / "plain.gguf", ["hm"])
    special = scripted.write(folder / "special.gguf", ["hm"], markers=every)
    with LLM(plain, device="cpu") as one, LLM(special, device="cpu") as other:
        yield {False: one, True: other}


def valid(call: onegraph.ToolCall) -> None:
    assert call.name in ("weather", "now")
    jsonschema.validate(call.arguments, PARAMETERS if call.name == "weather" else NOW)


@pytest.mark.parametrize(("name", "special"), SPELLED)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_call_that_is_required(
    models: dict[bool, LLM], name: str, special: bool, seed: int
) -> None:
    options: dict[str, Any] = {"tool_format": name, "tools": TOOLS, "max_tokens": 1500}
    options |= {"seed": seed, "temperature": 1.0, "top_k": 0, "min_p": 0.0, "top_p": 1.0}
    llm = models[special]
    result = llm.chat(ASKED, tool_choice="required", parallel_tool_calls=False, **options)
    assert (result.finish_reason, result.text) == ("tool_calls", "")
    (call,) = result.tool_calls
    valid(call)
    one = {"type": "function", "function": {"name": "now"}}
    (call,) = llm.chat(ASKED, tool_choice=one, **options).tool_calls
    assert (call.name, call.arguments) == ("now", {})


@pytest.mark.parametrize(("name", "special"), [s for s in SPELLED if s[0] in ALONE])
def test_strict_holds_calls_alone(models: dict[bool, LLM], name: str, special: bool) -> None:
    options: dict[str, Any] = {"tools": STRICT, "tool_format": name, "max_tokens": 1500}
    llm = models[special]
    free = llm.chat(ASKED, temperature=0.0, **options)
    assert (free.text, free.tool_calls, free.finish_reason) == ("hm", [], "stop")
    # As if the model had begun a call of its own.
    begun = [*ASKED, {"role": "assistant", "content": "I look." + MARKERS[name][0]}]
    for seed in range(3):
        result = llm.chat(
            begun, continue_final_message=True, parse_special=True, seed=seed, **options
        )
        for call in result.tool_calls:
            valid(call)


@pytest.mark.parametrize("name", ALONE)
def test_a_text_of_a_form_or_a_call(models: dict[bool, LLM], name: str) -> None:
    kinds = set()
    for seed in range(40):
        result = models[True].chat(
            ASKED,
            tools=STRICT,
            tool_format=name,
            regex="[0-9]{3}",
            max_tokens=1500,
            temperature=1.5,
            seed=seed,
        )
        kinds.add(result.finish_reason)
        if result.tool_calls:
            valid(result.tool_calls[0])
        else:
            assert len(result.text) == 3 and result.text.isdecimal()
    assert kinds == {"stop", "tool_calls"}


def test_reasoning_comes_before_a_form(tmp_path: Path) -> None:
    path = scripted.write(
        tmp_path / "thinks.gguf",
        ["<think>so</think>\n\nhm"],
        markers=["<think>", "</think>"],
        template=scripted.HERMES.replace("<|im_start|>assistant", "</think><|im_start|>assistant"),
    )
    with LLM(path, device="cpu") as llm:
        result = llm.chat(ASKED, schema={"enum": ["yes", "no"]}, temperature=0.0, max_tokens=200)
    assert result.reasoning == "so"
    assert result.parsed in ("yes", "no") and json.loads(result.text) == result.parsed


def only(parameters: dict[str, Any], name: str = "f") -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": name, "parameters": parameters}}]


def drawn(llm: LLM, name: str, parameters: dict[str, Any], seed: int) -> dict[str, Any] | None:
    """Arguments of a call that is drawn as if all tokens were as likely; None if it was cut."""
    options: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "min_p": 0.0, "top_p": 1.0}
    result = llm.chat(
        ASKED,
        tools=only(parameters),
        tool_format=name,
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=600,
        seed=seed,
        **options,
    )
    if result.finish_reason == "length":
        return None
    (call,) = result.tool_calls
    assert (result.text, call.name) == ("", "f")
    found: dict[str, Any] = call.arguments
    return found


WORDS = ["a", "b c", "12", "true", "null", "[x", "</parameter>", '<|"|>', 'say "hi"\n', "é\\", ""]
KEYS = ["one", "two_2", "drei", "Quatre", "null"]


class Schemas:
    """Schemas that can be held, at random."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def arguments(self) -> dict[str, Any]:
        leaf = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}, "v": self.of(2)}}
        tree = {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/leaf"}, self.of(2)]}
        return {**self.object(0), "$defs": {"leaf": leaf, "node": tree}}

    def of(self, depth: int) -> dict[str, Any]:
        scalars = [self.text, self.number, self.constants, self.word, self.kinds]
        several = [self.object, self.items, self.mapping, self.either, self.reference]
        return self.random.choice(scalars if depth > 2 else scalars + several)(depth)

    def text(self, _: int) -> dict[str, Any]:
        some: list[Any] = [{}, {"maxLength": 3}, {"minLength": 2, "maxLength": 4}]
        some += [{"pattern": "^[a-c]{1,3}$"}]
        some += [{"pattern": "[0-9]", "maxLength": 3}, {"format": "date"}, {"format": "date-time"}]
        return {"type": "string", **self.random.choice(some)}

    def number(self, _: int) -> dict[str, Any]:
        low, high = sorted(round(self.random.uniform(-30, 30), 2) for _ in range(2))
        bounds = [{"minimum": low}, {"exclusiveMaximum": high}, {"minimum": low, "maximum": high}]
        kind = self.random.choice(["integer", "number"])
        if kind == "integer":
            bounds = [{"exclusiveMinimum": int(low)}, {"minimum": int(low), "maximum": int(high)}]
        return {"type": kind, **self.random.choice([{}, *bounds])}

    def constants(self, _: int) -> dict[str, Any]:
        some = [*WORDS, 1, -2.5, True, None, [1, "a", None], {"a b": True, "c": "</parameter>"}]
        if self.random.random() < 0.3:
            return {"const": self.random.choice([word for word in some if word != '<|"|>'])}
        return {"enum": ["sure", *self.random.sample(some, 4)]}

    def word(self, _: int) -> dict[str, Any]:
        return self.random.choice([{"type": "boolean"}, {"type": "null"}, {}])

    def kinds(self, _: int) -> dict[str, Any]:
        names = ["string", "integer", "boolean", "null", "number", "array", "object"]
        schema: dict[str, Any] = {"type": self.random.sample(names, self.random.randint(1, 3))}
        schema |= {"maxLength": 6, "maxItems": 2, "maximum": 99, "items": {"type": "boolean"}}
        return schema

    def object(self, depth: int) -> dict[str, Any]:
        keys = self.random.sample(KEYS, self.random.randint(0, 4))
        properties = {key: self.of(depth + 1) for key in keys}
        required = [key for key in keys if self.random.random() < 0.6]
        return {"type": "object", "properties": properties, "required": required}

    def mapping(self, depth: int) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": self.of(depth + 1)}

    def items(self, depth: int) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "array"}
        if self.random.random() < 0.4:
            schema["prefixItems"] = [self.of(depth + 1) for _ in range(2)]
            schema["minItems"] = self.random.randint(0, 2)
        if self.random.random() < 0.7:
            schema["items"] = self.of(depth + 1)
            schema["maxItems"] = self.random.randint(2, 4)
        return schema

    def either(self, depth: int) -> dict[str, Any]:
        if self.random.random() < 0.3:
            return {"oneOf": [self.text(0), self.number(0), {"type": "boolean"}]}
        return {"anyOf": [self.of(depth + 1) for _ in range(self.random.randint(1, 3))]}

    def reference(self, _: int) -> dict[str, Any]:
        return {"$ref": self.random.choice(["#/$defs/leaf", "#/$defs/node"])}


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("name", NOTATIONS)
def test_what_is_drawn_is_read_as_arguments_that_fit(
    models: dict[bool, LLM], name: str, special: bool
) -> None:
    whole = 0
    for seed in range(60):
        parameters = Schemas(seed).arguments()
        for draw in range(2):
            try:
                found = drawn(models[special], name, parameters, draw)
            except onegraph.ArgumentError as e:
                # A property that has to be there and whose only text this format cannot write.
                assert "nothing matches" in str(e)
                break
            if found is not None:
                jsonschema.validate(found, parameters)
                whole += 1
    assert whole > 60


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("name", NOTATIONS)
def test_a_text_ends_no_value_and_is_read_as_a_text(
    models: dict[bool, LLM], name: str, special: bool
) -> None:
    digits = {"type": "string", "pattern": "^[0-9]{3}$"}
    parameters = {
        "type": "object",
        "properties": {
            "text": {"type": "string", "pattern": r'^(a|</parameter>|<\|"\|>)$'},
            "either": {"anyOf": [digits, {"type": "integer", "minimum": 0, "maximum": 9}]},
            "word": {"enum": ["true", "null", "7", "other", 8, False, None]},
        },
        "required": ["text", "either", "word"],
    }
    found = [drawn(models[special], name, parameters, seed) for seed in range(20)]
    for each in found:
        jsonschema.validate(each, parameters)
    assert {each["text"] for each in found if each} > {"a"}
    assert len({repr(each["word"]) for each in found if each}) > 3


@pytest.mark.parametrize("name", NOTATIONS)
def test_arguments_come_in_the_order_of_the_schema(models: dict[bool, LLM], name: str) -> None:
    one = {"type": "integer", "minimum": 0, "maximum": 0}
    properties = dict.fromkeys("zyxwv", one)
    kinds = set()
    for seed in range(30):
        parameters = {"type": "object", "properties": properties, "required": ["w"]}
        found = drawn(models[False], name, parameters, seed)
        assert found is not None and "w" in found
        assert list(found) == [key for key in properties if key in found]
        kinds.add("".join(found))
    assert len(kinds) > 8


@pytest.mark.parametrize("name", NOTATIONS)
@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"not": {}}, "not"),
        ({"type": "integer", "multipleOf": 3}, "multipleOf"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "array", "contains": {}}, "contains"),
        ({"type": "object", "patternProperties": {"a": {}}}, "patternProperties"),
        ({"type": "object", "minProperties": 1}, "minProperties"),
        ({"type": "object", "maxProperties": 1}, "maxProperties"),
        ({"type": "object", "propertyNames": {}}, "propertyNames"),
        ({"type": "object", "unevaluatedProperties": False}, "unevaluatedProperties"),
        ({"type": "object", "dependentRequired": {}}, "dependentRequired"),
        ({"if": {}, "then": {}}, "if"),
        ({"type": "string", "pattern": "(?=a)b"}, "pattern"),
        ({"type": "string", "minLength": "1"}, "minLength"),
        ({"type": "text"}, 'type "text"'),
        ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, "oneOf"),
        ({"$ref": "https://example.org/a.json"}, "\\$ref"),
        ({"$ref": "#/$defs/none"}, "\\$ref"),
    ],
)
def test_what_cannot_be_held_is_refused_by_its_keyword(
    models: dict[bool, LLM], name: str, schema: dict[str, Any], said: str
) -> None:
    tools = only({"type": "object", "properties": {"x": {"anyOf": [{"type": "null"}, schema]}}})
    said = f"tools = f: {said}.* is not supported in the call format of this model; leave it out"
    with pytest.raises(onegraph.ArgumentError, match=said):
        models[False].chat(ASKED, tools=tools, tool_format=name, tool_choice="required")


@pytest.mark.parametrize(
    ("name", "key"), [("qwen_xml", "a>b"), ("qwen_xml", " a"), ("lfm", "a=b"), ("gemma4", '<|"|>')]
)
def test_a_property_whose_name_cannot_be_written_is_refused(
    models: dict[bool, LLM], name: str, key: str
) -> None:
    tools = only({"type": "object", "properties": {key: {"type": "null"}}})
    with pytest.raises(onegraph.ArgumentError, match=r"a property called .* is not supported"):
        models[False].chat(ASKED, tools=tools, tool_format=name, tool_choice="required")


#: Schemas of a call that say little, or say it by others, and what its arguments may be.
LITTLE: list[dict[str, Any]] = [
    {},
    {"properties": {"n": {"type": "integer"}}},
    {"$ref": "#/$defs/f", "$defs": {"f": {"properties": {"n": {"enum": [1]}}, "required": ["n"]}}},
    {"anyOf": [{"properties": {"n": {"const": 1}}, "required": ["n"]}, {"type": "null"}]},
    {"type": "object", "properties": {"n": {"enum": [1]}}, "allOf": [{"required": ["n"]}]},
    {"properties": {"n": {"allOf": [{"type": "integer"}, {"minimum": 1}, {"maximum": 3}]}}},
    {"properties": {"n": {"type": "integer", "minimum": 2**53 + 1, "maximum": 2**53 + 1}}},
]


@pytest.mark.parametrize("name", MARKERS)
def test_arguments_are_an_object_of_what_is_named_whatever_the_schema_lacks(
    models: dict[bool, LLM], name: str
) -> None:
    for seed, parameters in enumerate(LITTLE):
        found = drawn(models[True], name, parameters, seed)
        if found is None:
            continue
        assert isinstance(found, dict)
        assert not parameters or found.keys() <= {"n"}
        jsonschema.validate(found, parameters)


@pytest.mark.parametrize("name", NOTATIONS)
def test_schemas_that_are_meant_to_do_harm(models: dict[bool, LLM], name: str) -> None:
    node = {"type": "object", "properties": {f"p{i}": {"$ref": "#/$defs/n"} for i in range(40)}}
    wide: dict[str, Any] = {
        f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 99} for i in range(30)
    }
    deep: dict[str, Any] = {"type": "null"}
    for _ in range(45):
        deep = {"items": deep}
    harmful: list[tuple[dict[str, Any], str]] = [
        ({"$ref": "#"}, "nothing matches"),
        ({"properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "nothing matches"),
        (
            {
                "properties": {"a": {"$ref": "#/$defs/d0"}},
                "$defs": {**wide, "d30": {"type": "null"}},
            },
            "as large as this",
        ),
        ({"properties": {"a": {"$ref": "#/$defs/n"}}, "$defs": {"n": node}}, ""),
        ({"properties": {"a": deep}}, ""),
        ({}, ""),
    ]
    for root, said in harmful:
        parameters = {"type": "object", **root} if "properties" in root else root
        try:
            found = drawn(models[True], name, parameters, 0)
        except onegraph.ArgumentError as e:
            assert said and said in str(e)
        else:
            assert not said
            jsonschema.validate({} if found is None else found, parameters)


#: Of formats whose calls begin with no marker of their own, one whose arguments do not fit.
BARE = {
    "llama3": '{"name": "weather", "parameters": {"city": "Bern", "days": [5]}}',
    "harmony": "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
    '{"city": "Bern", "days": [5]}<|call|>',
}


@pytest.mark.parametrize(("name", "special"), [s for s in SPELLED if s[0] in BARE])
def test_strict_leaves_a_text_as_it_is_without_a_marker(
    models: dict[bool, LLM], name: str, special: bool
) -> None:
    options: dict[str, Any] = {"tool_format": name, "temperature": 0.0, "max_tokens": 99}
    for more in ({"tools": STRICT}, {"tools": TOOLS, "parallel_tool_calls": False}):
        result = models[special].chat(ASKED, **more, **options)
        assert (result.text, result.tool_calls, result.finish_reason) == ("hm", [], "stop")


@pytest.mark.parametrize(("name", "special"), [s for s in SPELLED if s[0] in BARE])
def test_strict_holds_a_call_that_begins_without_a_marker(
    tmp_path: Path, name: str, special: bool
) -> None:
    options: dict[str, Any] = {"tool_format": name, "temperature": 0.0, "max_tokens": 1500}
    markers = MARKERS[name] if special else []
    path = scripted.write(tmp_path / "calls.gguf", [BARE[name]], markers=markers)
    with LLM(path, device="cpu") as llm:
        (free,) = llm.chat(ASKED, tools=TOOLS, **options).tool_calls
        several = llm.chat(ASKED, tools=STRICT[:1], **options).tool_calls
        one = llm.chat(ASKED, tools=STRICT[:1], parallel_tool_calls=False, **options)
    assert free.arguments == {"city": "Bern", "days": [5]}
    assert (one.text, one.invalid_tool_calls, one.finish_reason) == ("", [], "tool_calls")
    assert len(one.tool_calls) == 1
    # A turn of Harmony's ends behind a call.
    assert (len(several) > 1) == (name == "llama3")
    for call in [*one.tool_calls, *several]:
        assert call.name == "weather"
        valid(call)


def test_a_choice_that_is_none_is_refused(models: dict[bool, LLM]) -> None:
    for choice, said in [
        ("maybe", 'must be "auto", "none", "required"'),
        ({"type": "function", "function": {"name": "sub"}}, "no tool is named 'sub'"),
    ]:
        with pytest.raises(onegraph.ArgumentError, match=said):
            models[False].chat(ASKED, tools=TOOLS, tool_format="hermes", tool_choice=choice)
    with pytest.raises(onegraph.ArgumentError, match="no tools are offered"):
        models[False].chat(ASKED, tool_choice="required")
    with pytest.raises(onegraph.ArgumentError, match="together with structured output"):
        models[False].chat(
            ASKED, tools=TOOLS, tool_format="hermes", tool_choice="required", regex="a"
        )
