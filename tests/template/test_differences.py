"""What looks the same in two template engines and is not: jinja2's result, or a refusal that says
what is not available. Never another result.
"""

import sys
import unicodedata
from pathlib import Path

import onegraph
import pytest
from support import jinja
from support.jinja import MESSAGES, VALUES

HERE = Path(__file__).parent
#: One a line, of every filter, test, method, operator, literal and type.
EXPRESSIONS = (HERE / "expressions.txt").read_text().splitlines()
STATEMENTS = (HERE / "statements.txt").read_text().split("\n===\n")

#: Each gave something else once.
MENDED = r"""
('<b>' | safe) + '<i>'
'<i>' + ('<b>' | safe)
'<b>' | e | e
{1: 1, true: 2}
{true: 2, 1: 1}
{0: 'a', false: 'b'}
{1: 'a'}[true]
{true: 'a'}[1]
true in {1: 2}
{1: 'a', true: 'b'} | tojson
'²'.isdecimal()
'Ⅷ'.isalpha()
'ǅ'.istitle()
'Straße'.casefold()
'ΣΑΣ'.casefold()
'ﬁ'.casefold()
'ﬁx'.title()
'ﬁx'.capitalize()
'ǆ'.title()
'ǆ' | capitalize
'ß'.title()
'ß' | capitalize
'ΌΣΟΣ'.title()
'ΌΣΟΣ' | title
range(3)
range(1, 10, 2)
range(3) ~ ''
range(3) == [0, 1, 2]
range(3).start
{'a': 1}.keys()
{'a': 1}.values()
{'a': 1}.items()
{}.keys()
{'a': 1}.keys()[0]
{'a': 1}.keys() == ['a']
{'a': 1}.keys() is sequence
namespace(a=1)
namespace()
namespace(a='x') ~ ''
namespace({'a': 1}, b=2)
dict([('a', 1)], b=2)
namespace(a=1) is callable
namespace() and 'x'
not namespace()
2**53 + 1 == 2.0**53
9007199254740993 > 9007199254740992.0
'abc'.find('', 5)
'_1' | int
'1__0' | int
'0x0x1' | int(0, 16)
'1_0.5' | float
{'a': 1} | attr('a')
[] is sameas []
l is sameas l
self is defined
s[:3]
'a' if [] | map('upper') else 'b'
""".strip().split("\n")

#: Each has a result in jinja2, and the error says what is not available.
REFUSED = {
    "['<b>' | e] | string": "cannot hold a value of type text marked safe",
    "('%s' | safe) % '<'": "% of text marked safe",
    "('a' | safe).join(['<', '>'])": '"join" of text marked safe',
    "'½'.isdigit()": r"isdigit\(\) of '½'",
    "'五'.isnumeric()": r"isnumeric\(\) of '五'",
    "range(5)[1:3]": "a slice of range",
    "{'a': 1} | items": "printing a value of type generator",
    "['a'] | map('upper')": "printing a value of type generator",
    "[1, 2] | select('odd')": "printing a value of type generator",
    "[1, 2, 3] | reverse": "printing a value of type generator",
    "range": "printing a value of type object",
    "''.join": "printing a value of type object",
    "cycler('a', 'b').next()": r"cycler\(\) is not available",
    "(-8) ** (1 / 3)": "a complex number is not available",
    r"'\U00000041'": r"the escape \\U in a string",
    r"'\N{BULLET}'": r"the escape \\N in a string",
    r"'\a' | length": r"the escape \\a in a string",
    r"'\/'": r"the escape \\/ in a string",
    r"'\ud83d\ude00' | length": r"the escape \\u in a string",
    "'abc'.count('b', 2)": "2 arguments where at most 1",
    "'abc'.startswith('b', 1)": "2 arguments where at most 1",
    "[1, 2, 1].index(1, 1)": "2 arguments where at most 1",
    "'0x10' | int(0, 0)": "a base from 2 to 36",
    "'٣' | int": "digits of other scripts",
    "'٣.1' | float": "digits of other scripts",
    "('9' * 44) | int": "a number beyond 128 bits",
    "1000000 is sameas 1000000": "sameas of large integers",
    "'a' is sameas 'a'": "sameas of a str",
    "'a' | forceescape": "forceescape is unknown",
}
#: Statements likewise.
REFUSED_STATEMENTS = {
    "{% macro m(a) %}{{ varargs }}{% endmacro %}{{ m(1, 2) }}": "varargs of a macro",
    "{% macro m(a) %}{{ kwargs }}{% endmacro %}{{ m(1, b=2) }}": "kwargs of a macro",
    "{% macro m() %}x{% endmacro %}{{ m }}": "printing a value of type object",
    "{% macro m() %}x{% endmacro %}{{ m.catch_kwargs }}": '"catch_kwargs" is not available',
    "{% for i in l %}{{ loop }}{% endfor %}": "printing a value of type object",
    "{% for i in l %}{% block b %}{{ i }}{% endblock %}{% endfor %}": "a block inside of other",
    "{% set n = namespace() %}{% set n.n = n %}{{ n }}": "a namespace that holds objects",
}


def theirs(source: str) -> str:
    return jinja.render(source, MESSAGES, **VALUES)


def ours(source: str) -> str:
    return onegraph.ChatTemplate(source).render(MESSAGES, **VALUES)


def differs(source: str) -> bool:
    """Whether we give what jinja2 does not; to refuse is allowed."""
    try:
        text = ours(source)
    except onegraph.ModelError as error:
        assert "panicked" not in str(error)
        return False
    try:
        return text != theirs(source)
    except Exception:  # whatever a template made Python raise
        return True


@pytest.mark.filterwarnings("ignore:invalid escape sequence")
def test_no_expression_has_another_result() -> None:
    assert len(EXPRESSIONS) > 900
    assert [e for e in EXPRESSIONS if differs("{{ " + e + " }}")] == []


def test_no_statement_has_another_result() -> None:
    assert len(STATEMENTS) > 90
    assert [s for s in STATEMENTS if differs(s)] == []


@pytest.mark.parametrize("expression", MENDED)
def test_mended(expression: str) -> None:
    source = "{{ " + expression + " }}"
    assert ours(source) == theirs(source)


@pytest.mark.filterwarnings("ignore:invalid escape sequence")
@pytest.mark.parametrize("expression", REFUSED)
def test_refused(expression: str) -> None:
    source = "{{ " + expression + " }}"
    assert theirs(source)
    with pytest.raises(onegraph.ModelError, match=REFUSED[expression]):
        ours(source)


@pytest.mark.parametrize("source", REFUSED_STATEMENTS)
def test_refused_statement(source: str) -> None:
    theirs(source)
    with pytest.raises(onegraph.ModelError, match=REFUSED_STATEMENTS[source]):
        ours(source)


#: Letters that have got another case since, and letters that Python calls lower-case by a property
#: of their own.
NEWER = set("\u019b\u0264\ua7d3\ua7d5\u0295\u10fc\ua7f2\ua7f3\ua7f4\uab69")


@pytest.mark.parametrize(
    "method",
    [
        *("casefold", "title", "capitalize", "swapcase", "upper", "lower", "isalpha", "isalnum"),
        *("isdecimal", "isspace", "islower", "isupper", "istitle"),
    ],
)
def test_every_character_is_what_it_is_in_python(method: str) -> None:
    template = onegraph.ChatTemplate("{% for c in cs %}{{ c." + method + "() }}\t{% endfor %}")
    # Of the characters that Python's older tables know.
    known = [
        c for c in map(chr, range(sys.maxunicode)) if unicodedata.ucd_3_2_0.category(c) != "Cn"
    ]
    known = [c for c in known if unicodedata.category(c) not in ("Cs", "Co") and c not in NEWER]
    known.remove("\t")
    for start in range(0, len(known), 20_000):
        part = known[start : start + 20_000]
        got = template.render([], cs=part).split("\t")
        assert [
            c for c, text in zip(part, got, strict=False) if text != str(getattr(c, method)())
        ] == []
