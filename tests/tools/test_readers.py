"""A call is what was written, or none: Python's literals against Python, tags in values of XML, and
calls in which a bracket is missing or there twice."""

from __future__ import annotations

import ast
import json
import math
import re
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from onegraph import _native
from support.said import TEMPLATE, Said, read

PROPERTIES: dict[str, Any] = {
    "s": {"type": "string"},
    "n": {"type": "integer"},
    "l": {"type": "array"},
}
F: dict[str, Any] = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": PROPERTIES}},
}


def taken(format: str, text: str) -> Said:
    """What comes of a text, however it is cut."""
    said = read(format, text, [F])
    assert read(format, text, [F], every=1) == said
    return said


# Python's literals.

WORDS = {"true": True, "false": False, "null": None}


class Words(ast.NodeTransformer):
    """JSON's words, as constants."""

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Constant(WORDS[node.id]) if node.id in WORDS else node


def plain(value: Any) -> Any:
    """A value as JSON has it; ValueError where it has none."""
    if isinstance(value, str):
        return value.encode().decode()
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {plain(key): plain(item) for key, item in value.items()}
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise ValueError(value)


def meant(literal: str) -> list[Any]:
    """What Python makes of a literal as an argument, if it makes anything of it."""
    try:
        call = ast.parse(f"f(x={literal})", mode="eval").body
        if not isinstance(call, ast.Call) or call.args or len(call.keywords) != 1:
            return []
        return [plain(ast.literal_eval(Words().visit(call.keywords[0].value)))]
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return []


def called(literal: str) -> list[Any]:
    """What the reader makes of it."""
    said = taken("lfm", f"<|tool_call_start|>[f(x={literal})]<|tool_call_end|>")
    return [arguments["x"] for name, arguments in said.calls if list(arguments) == ["x"]]


def in_quotes(text: str, quote: str, prefix: str) -> str:
    """A text between quotes, its characters as they are or escaped, by their numbers."""
    return prefix + quote + text + quote


ESCAPES = [
    *("\\n", "\\t", "\\\\", "\\'", '\\"', "\\a", "\\v", "\\0", "\\7", "\\12", "\\101", "\\777"),
    *("\\x41", "\\xe9", "\\u00e9", "\\U0001f600", "\\q", "\\/", "\\8", "\\\n", "\\\r\n"),
    *("\\ud83d", "\\N{BULLET}", "\\x4", "\\u12", "\\U00110000"),
]
INSIDE = st.lists(
    st.one_of(
        st.sampled_from([*ESCAPES, "'", '"', "a", " ", "\n", "#", "é", "{x}"]), st.text(max_size=2)
    ),
    max_size=6,
).map("".join)
TEXTS = st.builds(
    in_quotes,
    INSIDE,
    st.sampled_from(['"', "'", '"""', "'''"]),
    st.sampled_from(["", "", "", "r", "R", "u", "b", "f", "rb", "Ur"]),
)
NUMBERS = st.one_of(
    st.integers().map(str),
    st.integers(0, 2**70).map(hex),
    st.integers(0, 2**40).map(oct),
    st.integers(0, 2**40).map(bin),
    st.floats().map(repr),
    st.sampled_from(
        ["1_000", "0_0", "00", "012", "1__0", "1_", "0x_f", "0xF_F", "0b2", "0o8", "1.", ".5"]
    ),
    st.sampled_from(
        ["1.e5", "09.5", "0_9e1_0", "1e+5", "1E-5", "1e", "1j", "1.5J", "-1", "+1", "- 1"]
    ),
    st.sampled_from(
        ["--1", "-0", "-0.0", "1+2j", "1 + 1", "1e999", "-1e999", "~1", ".", "...", "1..2", "0xe+1"]
    ),
)
SPACE = st.sampled_from(["", " ", "\n", "\t", " # so\n", "\\\n", "\r\n", "\x0c", "\xa0"])
PLAIN = st.one_of(
    TEXTS,
    NUMBERS,
    st.sampled_from(["True", "False", "None", "true", "false", "null", "x", "set()", "TRUE"]),
    st.lists(TEXTS, min_size=2, max_size=3).map(" ".join),
)


def nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    items = st.tuples(st.lists(inner, max_size=3), SPACE, st.sampled_from(["", ","]))
    listed = items.map(lambda of: ("," + of[1]).join(of[0]) + of[1] + of[2])
    pairs = st.lists(st.tuples(st.one_of(TEXTS, PLAIN), SPACE, inner), max_size=3)
    return st.one_of(
        listed.map("[{}]".format),
        listed.map("({})".format),
        pairs.map(lambda of: "{" + ", ".join(f"{k}:{s}{v}" for k, s, v in of) + "}"),
        listed.map("{{{}}}".format),
    )


LITERALS = st.builds("{1}{0}{1}".format, st.recursive(PLAIN, nested, max_leaves=6), SPACE)


def check(literal: str) -> None:
    found = called(literal)
    # What JSON calls 1.0 is no 1, nor is true.
    assert found == [] or repr(found) == repr(meant(literal)), literal


@settings(max_examples=300, deadline=None)
@given(LITERALS)
@example("'a' \"b\" r'\\c'")
@example("'''a'b''c'''")
@example("'''a''''")
@example("(1)")
@example("((1,), (2), ())")
@example("(('a' 'b'))")
@example("{'a': (1), 'a': 2}")
@example("{'a', 'b'}")
@example("{1: 2}")
@example("r'\\' '")
@example("'a\\\r\nb'")
@example("'''a\r\nb\rc'''")
@example("'a\nb'")
@example("'it's'")
def test_a_literal_of_python_is_what_python_makes_of_it(literal: str) -> None:
    check(literal)


@settings(max_examples=300, deadline=None)
@given(LITERALS, st.integers(0, 10**6), st.sampled_from([*"'\"()[]{},:\\+-.#rbx_ \n0", ""]))
def test_a_literal_with_a_character_more_or_less_too(literal: str, at: int, more: str) -> None:
    at %= len(literal) + 1
    check(literal[:at] + more + literal[at + (not more) :])


@pytest.mark.parametrize(
    "literal",
    [
        *("'a' 'b'", "u'a'", "r'\\d+'", "R'\\''", '"""a"b\nc"""', "'\\x41\\101\\u00e9\\U0001f600'"),
        *("'a\\\nb'", "'\\q'", "'a' # so\n \"b\"", "0x1F", "0o17", "0b11", "1_000", "1_0.5_0e1_0"),
        *(".5", "1.", "1e5", "00", "- 1", "+2", "-0", "(1)", "()", "(1,)", "[1, 2,]", "{'a': {}}"),
        *(
            "[ # so\n1, \\\n2]",
            "{'a' 'b': (('c'))}",
            "'' ''",
            "''''''",
            "[True, None, false, null]",
        ),
    ],
)
def test_literals_that_json_has_a_value_for_are_taken(literal: str) -> None:
    assert (want := meant(literal)) != []
    assert repr(called(literal)) == repr(want)


# Values of XML.

TAGS = ["</parameter>", "</function>", "</tool_call>", "<tool_call>", "<function=g>", "<function="]
PIECES = [*TAGS, "<parameter=n>", "<parameter=zz>", "<parameter=", "</param", "\n", "\n", " ", "a"]
#: What is a call by the format, wherever it stands: the next parameter, another call, a parameter
#: behind one that nothing ends, a call behind one that a parameter within a value makes none.
WRITTEN = re.compile(
    r"</parameter>\s*<parameter=|</function>\s*(</tool_call>\s*)?<function="
    r"|(</function>|<parameter=)(?s:.*)<tool_call>\s*<function=|(^|\n)<parameter=n>"
)


def in_xml(*parameters: tuple[str, str], name: str = "f") -> str:
    """A call as the template of a model writes it."""
    inside = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<tool_call>\n<function={name}>\n{inside}</function>\n</tool_call>"


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=8).map("".join), st.booleans())
def test_a_value_with_tags_in_it_is_that_value_or_none(value: str, last: bool) -> None:
    parameters = [("s", value)] if last else [("s", value), ("n", "3")]
    said = taken("qwen_xml", in_xml(*parameters))
    if not WRITTEN.search(value):
        expected = {"s": value} if last else {"s": value, "n": 3}
        assert said.calls in ([], [("f", expected)])


@pytest.mark.parametrize(
    "value",
    [
        *("</parameter>", "a</parameter>b", "a\n</parameter>\nb", "</parameter>\n</function>"),
        *("x</parameter></function></tool_call>", "x</parameter></function></tool_call> y"),
        *("a</function>", "a</tool_call>b", "<tool_call> a", "a <parameter=zz> b"),
        in_xml(("x", "1"), name="g"),
        in_xml(("s", "1"), ("n", "2")) + "\n" + in_xml(name="g"),
    ],
)
def test_a_value_may_have_tags_in_it(value: str) -> None:
    for more in ([], [("n", "3")]):
        said = taken("qwen_xml", in_xml(("s", value), *more))
        assert said == Said("", [("f", {"s": value} | {k: int(v) for k, v in more})], [])
    # And a call may follow.
    both = in_xml(("s", value)) + "\n" + in_xml(("n", "3"))
    assert taken("qwen_xml", both).calls == [("f", {"s": value}), ("f", {"n": 3})]


def test_a_tag_that_was_forgotten_is_no_part_of_a_value() -> None:
    begun = "<tool_call>\n<function=f>\n<parameter=s>\na\n"
    for end in ("</function>\n</tool_call>", "</function>", "</function>\n</tool_call> and on"):
        assert taken("qwen_xml", begun + end).calls == [("f", {"s": "a"})]
    next = f"{begun}<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>"
    assert taken("qwen_xml", next).calls == [("f", {"s": "a", "n": 3})]
    # Where it may as well be a part of the text, there is no call.
    for doubtful in ("a <parameter=n> b", "a<parameter=n>3"):
        said = taken("qwen_xml", in_xml(("s", doubtful)))
        assert said.calls == [] and said.invalid == [in_xml(("s", doubtful))]
    cut = "<tool_call>\n<function=f>\n<parameter=s>\na\n</tool_call>\n" + in_xml(name="f")
    assert taken("qwen_xml", cut).calls == []


# All formats.

ARGUMENTS: dict[str, Any] = {"n": 12, "l": [1, [2], {"k": 3}], "s": "a"}
FORMATS = [name for name, _ in _native.tool_formats()]


def written(format: str, arguments: dict[str, Any]) -> str:
    reading = _native.Reading.with_tools(TEMPLATE, format)
    return "".join(text for text, _ in reading.written("f", json.dumps(arguments)))


# What is no list is a text in XML, as it is.
@pytest.mark.parametrize("format", [name for name in FORMATS if name != "qwen_xml"])
def test_a_call_with_a_bracket_more_or_less_is_that_call_or_none(format: str) -> None:
    call = written(format, ARGUMENTS)
    assert taken(format, call) == Said("", [("f", ARGUMENTS)], [])
    wrong = 0
    for at, c in enumerate(call):
        if c not in "{}[]()":
            continue
        for mutated in (call[:at] + call[at + 1 :], call[:at] + c + call[at:]):
            calls = taken(format, mutated).calls
            assert calls in ([], [("f", ARGUMENTS)]), mutated
            wrong += calls == []
    assert wrong > 5


@pytest.mark.parametrize("format", [name for name in FORMATS if name not in ("lfm", "qwen_xml")])
def test_a_brace_too_many_behind_a_call_is_left_out(format: str) -> None:
    call = written(format, ARGUMENTS)
    at = call.rindex("}") + 1
    assert taken(format, f"{call[:at]}}}{call[at:]}") == Said("", [("f", ARGUMENTS)], [])
    # What goes on behind it may have been an argument.
    for more in (', "x": 1}', ', "x": 1', '"x": 1}'):
        assert taken(format, call[:at] + more + call[at:]).calls == []


@pytest.mark.parametrize("format", ["hermes", "llama3", "mistral"])
def test_an_argument_beside_the_arguments_is_no_call(format: str) -> None:
    call = written(format, ARGUMENTS)
    for key in ("x", "argments", "function"):
        beside = call.replace('{"name"', f'{{"{key}": {{"n": 1}}, "name"')
        assert beside != call and taken(format, beside) == Said(beside, [], [])
    twice = call.replace('{"name"', '{"id": "7", "type": "function", "name"')
    assert taken(format, twice).calls == [("f", ARGUMENTS)]


@pytest.mark.parametrize("format", FORMATS)
def test_an_argument_that_is_given_twice_is_no_call(format: str) -> None:
    """As the page says; others take the last of them, and so what another reader did not see."""
    call = written(format, {"n": 1, "s": "a", "l": [{"n": 1}]})
    twice = re.sub(r"\bm\b", "n", written(format, {"n": 1, "m": 2, "l": [{"n": 1}]}))
    assert taken(format, call).calls == [("f", {"n": 1, "s": "a", "l": [{"n": 1}]})]
    said = taken(format, twice)
    assert said.calls == [] and said.invalid, said


def test_a_key_is_given_twice_however_it_is_spelled() -> None:
    for arguments in (r'{"n": 1, "\u006e": 2}', r'{"n\"": 1, "s": "n", "n\"": 2}'):
        text = f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>'
        assert taken("hermes", text).calls == []
    spelled = json.dumps('{"n": 1, "n": 2}')
    text = f'<tool_call>{{"name": "f", "arguments": {spelled}}}</tool_call>'
    assert taken("hermes", text).calls == []
    # Within an argument it is the value's own affair.
    text = '<tool_call>{"name": "f", "arguments": {"n": {"x": 1, "x": 2}, "x": 3}}</tool_call>'
    assert taken("hermes", text).calls == [("f", {"n": {"x": 2}, "x": 3})]


@pytest.mark.parametrize(
    "inside",
    [
        # Templates write a line break behind a tag, whatever the value.
        "<parameter=s><parameter=n>\n3\n</parameter>\n",
        "<parameter=s>\na\n</parameter\n<parameter=n>\n3\n</parameter>\n",
        "<parameter=s>\na</param\n<parameter=n>\n3\n</parameter>\n",
        "<parameter=s>\na\n</parameter\n",
    ],
)
def test_a_tag_that_was_cut_is_no_part_of_a_value(inside: str) -> None:
    text = f"<tool_call>\n<function=f>\n{inside}</function>\n</tool_call>"
    said = taken("qwen_xml", text)
    assert said.calls == [] and said.invalid == [text]


def test_a_bracket_too_many_behind_a_list_of_calls_is_left_out() -> None:
    call = written("mistral", ARGUMENTS)
    for more in ("]", "]]", " ]\n", "}]"):
        assert taken("mistral", call + more) == Said("", [("f", ARGUMENTS)], [])
    assert taken("mistral", call + "] and on").calls == [("f", ARGUMENTS)]
    hermes = '<tool_call>[{"name": "f", "arguments": {"n": 1}}]]</tool_call>'
    assert taken("hermes", hermes) == Said("", [("f", {"n": 1})], [])


@pytest.mark.parametrize("format", ["llama3", "mistral"])
def test_text_behind_a_call_without_an_end_is_text(format: str) -> None:
    """Nothing is lost: the call is run, and the text is shown."""
    call = written(format, ARGUMENTS)
    for text in ("and on", "\n\nand on {x}"):
        assert taken(format, call + text) == Said(text.strip(), [("f", ARGUMENTS)], [])
