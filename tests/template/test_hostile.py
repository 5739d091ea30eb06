"""Templates that mean harm end in an error, soon and in little memory, and reach nothing."""

import subprocess
import sys
import textwrap
import time
from typing import Any

import onegraph
import pytest

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
    start = time.process_time()
    with pytest.raises(onegraph.ModelError, match=r"^chat template: "):
        onegraph.ChatTemplate(MALFORMED[name])
    assert time.process_time() - start < 1


@pytest.mark.parametrize("name", HOSTILE)
def test_ends_in_an_error(name: str) -> None:
    template = onegraph.ChatTemplate(HOSTILE[name])
    start = time.process_time()
    with pytest.raises(onegraph.ModelError, match=r"^chat template: "):
        pytest.fail(template.render(MESSAGES, xs=MESSAGES)[:200])
    assert time.process_time() - start < 1


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
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=folder, timeout=300
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
