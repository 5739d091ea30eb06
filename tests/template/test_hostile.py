"""Templates that mean harm end in an error, in little memory, and reach nothing.

How much work they may make is counted in work, where the engine can be asked what a rendering cost:
`rust/engine/src/template/tests.rs`. Nothing here depends on how fast the machine is.
"""

import subprocess
import sys
import textwrap
from typing import Any

import onegraph
import pytest

pytestmark = pytest.mark.thorough

MIB = 1 << 20
#: Each must end in a ModelError. `xs` is a list of 100 messages of 1,000 characters.
HOSTILE = {
    # Loops.
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}"
    "{% endfor %}",
    "output in loops": "{% for a in range(99999) %}{% for b in range(999) %}{{ xs }}{% endfor %}"
    "{% endfor %}",
    "raw text in loops": "{% for a in range(99999) %}" + "x" * 100_000 + "{% endfor %}",
    "captured raw text": "{% set c %}{% for a in range(99999) %}" + "x" * 100_000 + "{% endfor %}"
    "{% endset %}",
    "recursive loop": "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "loop over itself": "{% for x in [[1]] recursive %}{{ loop([x, x]) }}{% endfor %}",
    # Growth by one step.
    "huge repetition": "{{ 'x' * 99999999999 }}",
    "repetition of repetition": "{% set a = 'x' * 999999 %}{% set b = a * 99999 %}",
    "huge list": "{{ [1] * 99999999999 }}",
    "huge range": "{{ range(99999999999) | length }}",
    "huge power": "{{ 9 ** 9 ** 9 }}",
    "huge padding": "{{ 'x'.center(99999999999) }}",
    "huge padding by filter": "{{ 'x' | center(99999999999) }}",
    "huge zeros": "{{ 'x'.zfill(99999999999) }}",
    "huge indent": "{{ xs | string | indent(99999999999) }}",
    "huge JSON indent": "{{ xs | tojson(indent=99999999999) }}",
    "huge replacement": "{% set a = 'x' * 99999 %}{{ a.replace('x', a) }}",
    "huge replacement of nothing": "{% set a = 'x' * 99999 %}{{ a.replace('', a) }}",
    "huge replacement by filter": "{% set a = 'x' * 99999 %}{{ a | replace('x', a) }}",
    "huge join": "{% set a = 'x' * 99999 %}{{ a.join(range(99999) | map('string')) }}",
    "huge join by filter": "{{ range(99999) | join('x' * 99999) }}",
    "huge batch": "{{ [1] | batch(99999999999, 0) }}",
    "huge format": "{{ ('%s' * 9999) % ('x' * 99999) }}{{ ('{0}' * 99999).format('x' * 99999) }}",
    "huge round": "{{ 1.5 | round(99999999999) }}",
    # Growth by doubling.
    "doubled by ~": "{% set x = 'ab' %}" + "{% set x = x ~ x %}" * 70,
    "doubled by +": "{% set x = 'ab' %}" + "{% set x = x + x %}" * 70,
    "doubled lists": "{% set x = [1, 2] %}" + "{% set x = x + x %}" * 70 + "{{ x | length }}",
    "doubled captures": "{% set x = 'ab' %}" + "{% set x %}{{ x }}{{ x }}{% endset %}" * 70,
    "doubled filters": "{% set x = 'ab' %}" + "{% filter replace('a', 'aaba') %}" * 99 + "ab"
    "{% endfilter %}" * 99,
    "doubled in a loop": "{% set n = namespace(x='ab') %}{% for i in range(99) %}"
    "{% set n.x = n.x ~ n.x %}{% endfor %}",
    "doubled by macros": "{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}"
    "{{ " + "m(" * 99 + "'ab'" + ")" * 99 + " }}",
    "doubled by join": "{% set x = 'ab' %}" + "{% set x = [x, x] | join %}" * 70,
    # Trees that are small to hold and exponential to walk.
    "tree printed": "{% set x = [1] %}" + "{% set x = [x, x] %}" * 90 + "{{ x }}",
    "tree to JSON": "{% set x = [1] %}"
    + "{% set x = {'a': x, 'b': x} %}" * 90
    + "{{ x | tojson }}",
    "tree to text": "{% set x = [1] %}" + "{% set x = [x, x] %}" * 90 + "{{ x ~ '' }}",
    "trees compared": "{% set x = [1] %}{% set y = [1] %}"
    + "{% set x = [x, x] %}{% set y = [y, y] %}" * 90
    + "{{ x == y }}",
    "trees ordered": "{% set x = [1] %}{% set y = [1] %}"
    + "{% set x = [x, x] %}{% set y = [y, y] %}" * 90
    + "{{ x < y }}",
    "trees searched": "{% set x = [1] %}{% set y = [1] %}"
    + "{% set x = [x, x] %}{% set y = [y, y] %}" * 90
    + "{{ x in [y] }}",
    "trees made unique": "{% set x = [1] %}{% set y = [1] %}"
    + "{% set x = [x, x] %}{% set y = [y, y] %}" * 90
    + "{{ [x, y] | unique }}",
    "tree of empty lists": "{% set x = [] %}" + "{% set x = [x, x] %}" * 90 + "{{ x }}",
    # Strings that came with the messages take more than others.
    "letters of messages": "{{ (xs[0].content * 2000) | list | length }}",
    "words of messages": "{{ ((xs[0].content[0] ~ ' ') * 1500000).split() | length }}",
    # Depth.
    "nested lists": "{% set n = namespace(x=[]) %}{% for i in range(99999) %}"
    "{% set n.x = [n.x] %}{% endfor %}",
    "nested mappings": "{% set n = namespace(x={}) %}{% for i in range(99999) %}"
    "{% set n.x = {'a': n.x} %}{% endfor %}",
    # Work inside of one step.
    "long lengths": "{% set a = 'x' * 9999999 %}{% for i in range(99999) %}{{ a | length }}"
    "{% endfor %}",
    "long prefixes": "{% set a = 'x' * 999999 %}{% set t = (a ~ 1, a ~ 2, a ~ 3) * 999 %}"
    "{% for i in range(99999) %}{% if (a ~ 4).startswith(t) %}{% endif %}{% endfor %}",
    "long needles": "{% set a = 'x' * 9999999 %}{% for i in range(99999) %}"
    "{% if 'y'.find(a) or 'y'.split(a) or a in 'y' %}{% endif %}{% endfor %}",
    "long needles by name": "{% set a = 'x' * 9999999 %}{% for i in range(99999) %}"
    "{% if 'y'.split(sep=a) %}{% endif %}{% endfor %}",
    "long keys of mappings": "{% set a = 'x' * 9999999 %}{% for i in range(99999) %}"
    "{% set d = {a: i} %}{% endfor %}",
    "long keys compared": "{% set a = 'x' * 9999999 %}{% set d = {a: 1} %}{% set e = {a: 1} %}"
    "{% for i in range(99999) %}{% if d == e %}{% endif %}{% endfor %}",
    "long keys copied": "{% set d = {'x' * 9999999: 1} %}{% for i in range(99999) %}"
    "{% set e = d.copy() %}{% endfor %}",
    "long keys sorted": "{% set a = 'x' * 9999999 %}{% set d = {a ~ 1: 1, a ~ 2: 1} %}"
    "{% for i in range(99999) %}{{ d | tojson(sort_keys=true) | length }}{% endfor %}",
    "long attributes": "{% set a = 'x' * 9999999 %}{% for i in range(99999) %}"
    "{% if xs[0] | attr(a) %}{% endif %}{% endfor %}",
    "long values changed": "{% set a = 'x' * 9999999 %}{% for i in range(99999) %}"
    "{{ loop.changed(a) }}{% endfor %}",
    "trees changed": "{% set x = [1] %}{% set y = [1] %}"
    + "{% set x = [x, x] %}{% set y = [y, y] %}" * 90
    + "{% for i in [x, y] %}{{ loop.changed(i) }}{% endfor %}",
    "long strings looped over": "{% set a = 'x' * 9999999 %}{% for i in range(99999) recursive %}"
    "{% if i is number %}{{ loop(a) }}{% else %}{% break %}{% endif %}{% endfor %}",
    "names of macros": "{% macro m(" + ",".join(f"a{i}" for i in range(2000)) + ") %}{% endmacro %}"
    "{% for i in range(99999) %}{% if m.arguments %}{% endif %}{% endfor %}",
    "many attributes": "{% set n = namespace(" + ",".join(f"a{i}=1" for i in range(1000)) + ") %}"
    "{% for i in range(99999) %}{% if (n ~ '') %}{% endif %}{% endfor %}",
    "many parts": "{% set a = 'x' * 30000000 %}{{ a.split('x') | length }}",
    "many lines": "{% set a = '\n' * 30000000 %}{{ a.splitlines() | length }}",
    "a failing sort": "{{ (range(5000) | list + ['a'] + range(5000) | list) | sort }}",
    "nested namespaces": "{% set n = namespace(x=1) %}{% for i in range(99999) %}"
    "{% set n.x = namespace(x=n.x) %}{% endfor %}",
    "nested macros": "{% set n = namespace(x=1) %}{% macro keep() %}{% set n.x = caller %}"
    "{% endmacro %}{% for i in range(99999) %}{% set p = n.x %}{% call keep() %}{{ p }}"
    "{% endcall %}{% endfor %}",
    "recursive macro": "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
    "macros in turn": "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}"
    "{{ a() }}",
    "recursive call": "{% macro m() %}{% call m() %}{% endcall %}{% endmacro %}{{ m() }}",
    # Slow steps.
    "long strip": "{% set a = 'x' * 99999 %}{{ a.strip('y' * 99999 ~ 'x') }}",
    "long searches": "{% set a = 'x' * 9999999 %}{% for i in range(99999) %}{{ 'y' in a }}"
    "{% endfor %}",
    "long subscripts": "{% set a = 'x' * 9999999 %}{% for i in range(99999) %}{{ a[-5000000] }}"
    "{% endfor %}",
    "long slices": "{% set a = 'x' * 9999999 %}{% for i in range(99999) %}{{ a[5:-9] }}"
    "{% endfor %}",
    "long keys": "{% set a = 'x' * 9999999 %}{% for i in range(99999) %}{{ a in {} }}{{ {}[a] }}"
    "{% endfor %}",
    "long counts": "{% set a = 'x' * 9999999 %}{% for i in range(99999) %}{{ a.count('xy') }}"
    "{% endfor %}",
    "long compares": "{% set a = 'x' * 9999999 ~ 'a' %}{% set b = 'x' * 9999999 ~ 'a' %}"
    "{% for i in range(99999) %}{{ a == b }}{{ a < b }}{% endfor %}",
    "many unique": "{{ range(99999) | unique | list | length }}",
    "many sorts": "{% for i in range(99999) %}{{ range(9999) | sort(reverse=true) }}{% endfor %}",
    "many maps": "{% for i in range(99999) %}{% set x = range(9999) | map('string') | list %}"
    "{% endfor %}",
    "long formats": "{% for i in range(99999) %}{{ strftime_now('%A' * 9999) }}{% endfor %}",
    # Ways out.
    "classes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals": "{{ raise_exception.__globals__['os'].system('true') }}",
    "builtins": "{{ self.__init__.__globals__.__builtins__ }}",
    "attr filter": "{{ ''|attr('__class__')|attr('__mro__') }}",
    "format of attributes": "{{ '{0.__class__.__mro__}'.format('') }}",
    "map of attributes": "{{ ['']|map(attribute='__class__.__mro__')|list }}",
    "environment": "{{ environ['HOME'] }}",
    "changes what it is given": "{{ xs.append(1) }}{{ xs[0].update({'role': 'system'}) }}",
}
#: Refused when they are read.
MALFORMED = {
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}",
    "from": "{% from 'os' import system %}",
    "extends": "{% extends '/etc/passwd' %}",
    "unpacked arguments": "{{ range(*[1, 2]) }}",
    "unpacked names": "{{ dict(**{'a': 1}) }}",
    "deep parentheses": "{{ " + "(" * 100_000 + "1" + ")" * 100_000 + " }}",
    "deep lists": "{{ " + "[" * 100_000 + "]" * 100_000 + " }}",
    "deep not": "{{ " + "not " * 100_000 + "1 }}",
    "deep minus": "{{ " + "- " * 100_000 + "1 }}",
    "deep if": "{{ " + "1 if 1 else " * 100_000 + "1 }}",
    "deep attributes": "{{ a" + ".a" * 100_000 + " }}",
    "deep subscripts": "{{ a" + "[0]" * 100_000 + " }}",
    "deep calls": "{{ a" + "()" * 100_000 + " }}",
    "deep filters": "{{ a" + "|e" * 100_000 + " }}",
    "deep sums": "{{ 1" + "+1" * 100_000 + " }}",
    "deep and": "{{ 1" + " and 1" * 100_000 + " }}",
    "deep tests": "{{ 1" + " is odd" * 100_000 + " }}",
    "deep comparison": "{{ 1" + "<1" * 100_000 + " }}",
    "deep blocks": "{% if 1 %}" * 50_000 + "{% endif %}" * 50_000,
    "deep elif": "{% if 1 %}" + "{% elif 1 %}" * 80_000 + "{% endif %}",
    "deep loops": "{% for a in b %}" * 30_000 + "{% endfor %}" * 30_000,
    "many tags": "{{ a }}" * 100_000,
    "long list": "{{ [" + "1," * 200_000 + "] }}",
    "many arguments": "{{ a(" + "1," * 200_000 + ") }}",
    "too long": " " * (MIB + 1),
    "a long variable": "{{ " + "a" * 900_000 + " }}",
    "a long attribute": "{{ messages." + "a" * 900_000 + " }}",
    "a long keyword": "{{ dict(" + "a" * 900_000 + "=1) }}",
    "a long filter": "{{ 1 | " + "a" * 900_000 + " }}",
    "a long macro": "{% macro " + "a" * 900_000 + "() %}{% endmacro %}",
    "a long attribute set": "{% set n." + "a" * 900_000 + " = 1 %}",
    "nested macros": "{% macro a() %}" * 40
    + ("{{ " + "+".join("abcdefgh") + " }}") * 8000
    + "{% endmacro %}" * 40,
    "cycle of nothing": "{% for x in [1] %}{{ loop.cycle() }}{% endfor %}",
    "a loop that is none": "{% set loop = range %}{{ loop(1) }}",
    "changes of another": "{% for x in [1] %}{% set l = loop %}{{ l.changed(x) }}{% endfor %}",
}
MESSAGES = [{"role": "user", "content": "x" * 1000}] * 100


LEGAL = {
    "not": ("{{ " + "not " * 4000 + "1 }}", "True"),
    "if": ("{{ " + "1 if 1 else " * 1000 + "1 }}", "1"),
    "and": ("{{ 1" + " and 1" * 2000 + " }}", "1"),
    "sum": ("{{ 1" + "+1" * 2000 + " }}", "2001"),
    "filters": ("{{ 'a'" + "|upper" * 2000 + " }}", "A"),
    "attributes": ("{{ namespace(a=1)" + ".a|string" * 1 + " }}", "1"),
    "elif": ("{% if 0 %}" + "{% elif 0 %}" * 8000 + "{% else %}x{% endif %}", "x"),
    "lines": ("\n" * 200_000 + "{{ 1 }}", "\n" * 200_000 + "1"),
}


@pytest.mark.parametrize("name", LEGAL)
def test_what_is_not_refused_for_its_length_exhausts_no_stack(name: str) -> None:
    source, expected = LEGAL[name]
    assert onegraph.ChatTemplate(source).render(MESSAGES) == expected


@pytest.mark.parametrize("name", MALFORMED)
def test_refused_when_read(name: str) -> None:
    with pytest.raises(onegraph.ModelError, match=r"^chat template: "):
        onegraph.ChatTemplate(MALFORMED[name])


@pytest.mark.parametrize("name", HOSTILE)
def test_ends_in_an_error(name: str) -> None:
    template = onegraph.ChatTemplate(HOSTILE[name])
    with pytest.raises(onegraph.ModelError, match=r"^chat template: "):
        pytest.fail(template.render(MESSAGES, xs=MESSAGES)[:200])


def test_memory_stays_bounded() -> None:
    """All of them in one process that may not take more than 640 MiB above where it starts."""
    script = textwrap.dedent("""
        import resource, sys
        import onegraph
        from test_hostile import HOSTILE, MESSAGES
        start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for name, source in HOSTILE.items():
            try:
                onegraph.ChatTemplate(source).render(MESSAGES, xs=MESSAGES)
            except onegraph.ModelError:
                pass
            used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start
            if used > 640 * 1024:
                sys.exit(f"{name}: {used // 1024} MiB")
        print(used // 1024)
    """)
    folder = __file__.rpartition("/")[0]
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=folder
    )
    assert done.returncode == 0, done.stderr


def test_the_arguments_stay_as_they_are() -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "x", "l": [1]}]
    source = (
        "{% set messages = [] %}{% for m in messages %}{% set m = 1 %}{% endfor %}{{ messages }}"
    )
    assert onegraph.ChatTemplate(source).render(messages) == "[]"
    assert messages == [{"role": "user", "content": "x", "l": [1]}]


def test_arguments_that_no_template_takes() -> None:
    template = onegraph.ChatTemplate("{{ messages }}")
    loop: list[Any] = []
    loop.append(loop)
    for value, message in (
        (object(), "a object: templates take dicts, lists"),
        ({1, 2}, "a set: templates take"),
        (b"x", "a bytes: templates take"),
        (loop, "nest more than 200 deep"),
        ({(1, 2): 3}, "cannot be a key"),
        (2**200, "more than 127 bits"),
    ):
        with pytest.raises(onegraph.ArgumentError, match=message):
            template.render([{"role": "user", "content": value}])
    deep: list[Any] = []
    for _ in range(150):
        deep = [deep]
    with pytest.raises(onegraph.ArgumentError, match="nest more than 100 deep"):
        template.render(deep)


def test_a_long_conversation_is_no_attack() -> None:
    source = (
        "{% set ns = namespace(text='') %}{% for m in messages %}"
        "{% set ns.text = ns.text ~ m.role ~ (m | tojson) %}{{ m.content | trim }}{% endfor %}"
        "{{ ns.text | length }}"
    )
    messages = [{"role": "user", "content": "x" * 1000}] * 300
    text = onegraph.ChatTemplate(source).render(messages)
    assert text.startswith("x" * 300_000)


def test_a_long_name_is_named_with_its_length() -> None:
    with pytest.raises(onegraph.ModelError, match=r"line 1: a name of 900000 bytes, at most 256"):
        onegraph.ChatTemplate(MALFORMED["a long variable"])
    assert onegraph.ChatTemplate("{{ " + "a" * 256 + " }}").render([], **{"a" * 256: 1}) == "1"


def test_messages_quote_little_of_a_template() -> None:
    long = "'x' * 9999999"
    for source in (
        "{{ raise_exception(" + long + ") }}",
        "{{ [1] | map(" + long + ") | list }}",
        "{{ [1] | select(" + long + ") | list }}",
        "{{ {} | dictsort(by=" + long + ") }}",
        "{{ strftime_now('%' ~ " + long + ") }}",
    ):
        with pytest.raises(onegraph.ModelError) as caught:
            onegraph.ChatTemplate(source).render([])
        assert len(str(caught.value)) < 1200


def test_a_signal_ends_the_rendering() -> None:
    """Its handler raises from within `render`, before the template has used up what it may."""
    script = textwrap.dedent("""
        import signal
        import onegraph
        from test_hostile import HOSTILE, MESSAGES

        class Stopped(Exception):
            pass

        def stop(*_):
            raise Stopped

        signal.signal(signal.SIGALRM, stop)
        template = onegraph.ChatTemplate(HOSTILE["output in loops"])
        refused = False
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        try:
            try:
                template.render(MESSAGES, xs=MESSAGES)
            except onegraph.ModelError:
                refused = True
            while True:
                pass
        except Stopped:
            print(f"refused: {refused}")
        print(onegraph.ChatTemplate("{{ 1 }}").render([]))
    """)
    folder = __file__.rpartition("/")[0]
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=folder
    )
    assert done.stdout == "refused: False\n1\n", done.stderr
