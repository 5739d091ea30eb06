"""Expressions and statements mean what they mean in jinja2, to the character."""

import jinja2
import onegraph
import pytest
from support import jinja
from support.jinja import MESSAGES, VALUES

EXPRESSIONS = r"""
none
yes
no
[none, yes, no]
{'a': none, 'b': [yes, 1.0]}
half ~ '' ~ tiny ~ '' ~ huge ~ '' ~ third ~ '' ~ whole
inf
-inf
big
big + 1
1e3
1.0
10 / 2
10 // 3
-7 // 2
-7 % 3
7 % -3
7.5 // 2
2 ** 10
2 ** -1
2 ** 0.5
1 / 3
1 + 2 * 3 - 4
'a' * 3
3 * 'ab'
[1] * 2
[1] + [2, [3]]
yes + 1
yes == 1
1 == 1.0
'1' == 1
none == no
[1, 2] == [1, 2.0]
{'a': 1, 'b': 2} == {'b': 2, 'a': 1}
1 < 2 < 3
1 < 3 < 2
'a' < 'b'
[1, 2] < [1, 3]
1 != 2
2 in l
'x' in d
'a' in d
'ell' in s
9 not in l
'x' in missing
missing
missing == missing
missing ~ 'x'
missing or 'default'
not missing
missing is defined
missing is undefined
s is defined
d.missing is defined
d.a.x[1]
d['a']['x'][-1]
d.missing
l[5] is defined
l[-1]
l[-9] is defined
s[0] ~ s[-1]
s[1:4]
s[:-3]
s[:2]
s[:-99]
s[::-1]
s[-3:]
s[::2]
s[8:2:-2]
l[1:]
l[::-1]
l[:1] + l[1:]
nested[2:5]
none[0] is defined
none.x is defined
seven.x is defined
2.0 is even
[true | abs, true | round, 3 | round(2), 3 | round(0, 'floor')]
(0 | map('upper') | list) ~ (none | select | list)
'x' % [1]
d[0] is defined
l['a'] is defined
yes and 'x'
no and 'x'
'' or [] or {} or 0 or none
0 and 1
'a' if yes else 'b'
'a' if no
'a' if no else 'b' if no else 'c'
not yes
not (no or none)
s ~ 1 ~ none ~ yes ~ [1, 'a']
s | upper
s | lower
s | length
missing | length
d | length
s | title
'hELLO wORLD-foo (bar) [baz] {x} <y>' | title
s | capitalize
text | trim
'xxaxx' | trim('x')
s | replace('l', 'L')
s | replace('l', 'L', 1)
s | replace('', '-')
l | join
l | join(', ')
nested | join('|')
people | join(', ', attribute='name')
l | sort
l | sort(reverse=true)
words | sort
words | sort(case_sensitive=true)
people | sort(attribute='age') | map(attribute='name') | list
people | sort(attribute='age,name') | map(attribute='name') | list
l | max
l | min
words | max
people | map(attribute='age') | max
l | sum
people | sum(attribute='age')
l | first
l | last
[] | first is defined
s | first
s | last
l | list
s | list
d | list
l | reverse | list
s | reverse
words | unique | list
people | map(attribute='name') | list
people | map(attribute='tags', default='none') | list
people | map(attribute='tags.0', default='-') | list
words | map('upper') | list
words | map('replace', 'a', 'z') | list
l | map('string') | join('+')
people | selectattr('age', 'equalto', 30) | map(attribute='name') | list
people | selectattr('age', 'gt', 26) | list | length
people | selectattr('tags') | list | length
people | selectattr('tags', 'defined') | map(attribute='name') | list
people | rejectattr('age', '==', 30) | map(attribute='name') | list
[1, 0, none, 'x', ''] | select | list
[1, 0, none, 'x', ''] | reject | list
l | select('odd') | list
l | reject('in', [1, 2]) | list
l | select('>', 1) | list
nested | select('string') | list
d | items | list
d.items() | list
missing | items | list
d.keys() | list
d.values() | list
d.get('b')
d.get('zz')
d.get('zz', 'no')
d | dictsort
{'B': 2, 'a': 1} | dictsort
{'B': 2, 'a': 3} | dictsort(true)
{'B': 1, 'a': 3} | dictsort(by='value', reverse=true)
missing | default('x')
none | default('x')
none | default('x', true)
'' | d('x', boolean=true)
0 | default(5)
'42' | int
'4.9' | int
'x' | int
'x' | int(7)
'0x1f' | int(base=16)
4.7 | int
-4.7 | int
true | int
'4.5' | float
'x' | float
'x' | float(1.5)
seven | float
2.5 | round
3.5 | round
2.567 | round(2)
2.567 | round(1, 'floor')
2.1 | round(0, 'ceil')
-3 | abs
-2.5 | abs
nested | string
nested | string | length
text | wordcount
text | indent
text | indent(2, true)
text | indent('> ', blank=true)
html | escape
html | e
html | safe
'%s is %d and %r' | format('x', 3, 'y')
'%.2f%%' | format(12.345)
'%s-%s' % (1, 'b')
'%s' % s
[1, 2, 3, 4, 5] | batch(2) | list
[1, 2, 3] | batch(2, 'x') | list
s | center(20)
s | attr('upper') is defined
nested | tojson
d | tojson
q | tojson
q | tojson(ensure_ascii=true)
d | tojson(indent=2)
nested | tojson(indent=4)
d | tojson(sort_keys=true)
d | tojson(separators=(',', ':'))
schema | tojson(indent='--')
[] | tojson(indent=2)
[[], {}, [[]], {'a': {}}] | tojson(indent=1)
[1.0, 1e16, 1e-7, 1e22, 123456789.125, -0.0, 2.5e-5, inf] | tojson
{7: 'a', 2.5: 'b', true: 'c', none: 'd'} | tojson
half | tojson
none | tojson
q
[q]
[s, q, "'", '"', "'\""]
'%r' % q
s.upper() ~ s.lower() ~ s.title() ~ s.capitalize() ~ s.swapcase()
"they're bill's FRIENDS-x".title()
text.strip()
text.lstrip() ~ '|'
text.rstrip() ~ '|'
'--x--'.strip('-')
'abcba'.lstrip('ab')
'abcba'.rstrip('ab')
text.split()
text.split(none, 1)
text.split('\n')
'a,b,,c'.split(',')
'a,b,,c'.split(',', 1)
'a,b,,c'.rsplit(',', 1)
'  a b  c '.split(maxsplit=1)
'  a b  c '.rsplit(none, 1)
text.splitlines()
text.splitlines(true)
'a\x0bb\x1cc\u2028d\x85e'.splitlines()
s.startswith('He')
s.startswith(('x', 'He'))
s.endswith('ld')
s.find('l')
s.find('ö')
s.find('zz')
s.find('l', 4)
s.rfind('l')
s.index('W')
s.count('l')
s.count('')
s.replace('l', '')
s.replace('l', 'LL', 1)
''.replace('', 'x')
'abc'.replace('', '-')
', '.join(['a', 'b'])
'-'.join('abc')
s.partition(', ')
s.rpartition('zz')
s.removeprefix('Hello')
s.removesuffix('ld')
'7'.zfill(3) ~ '-7'.zfill(4)
'ab'.center(7, '*') ~ 'ab'.ljust(4) ~ 'ab'.rjust(4) ~ '|'
'abc'.center(6, '*')
'{} {} {}'.format(1, 'a', none)
'{0}{1}{0} {x}'.format('a', 'b', x=3)
'{{}}'.format()
'a1'.isalnum() ~ 'a'.isalpha() ~ '1'.isdigit() ~ ' '.isspace() ~ 'a'.islower() ~ 'A'.isupper()
''.isalnum() ~ ''.isspace() ~ ''.isascii() ~ 'aB'.islower() ~ '1a'.islower() ~ '1'.isupper()
'Ab Cd'.istitle() ~ 'AB'.istitle()
l.index(2)
l.count(1)
s is string
l is string
d is mapping
l is mapping
s is sequence
d is sequence
seven is sequence
s is iterable
seven is iterable
missing is sequence
missing is callable
people | map(attribute='age') | unique | list | length
missing is iterable
d is iterable
seven is number
yes is number
half is number
s is number
seven is integer
yes is integer
half is float
yes is boolean
none is none
missing is none
no is false
yes is true
1 is true
seven is odd
seven is even
8 is divisibleby 4
8 is divisibleby(3)
seven is eq 7
seven is ne(7)
seven is gt 3
seven is lt(3)
'a' is in(['a'])
'a' is not in ['a']
'abc' is lower
'ABC' is upper
none is sameas none
namespace is callable
s is callable
range(5) | list
range(2, 9, 3) | list
range(5, 0, -2) | list
range(0) | list
range(3)[1]
dict(a=1, b='x')
d['items']
d.items is defined
d['get'] is defined
schema.properties.items is callable
schema.properties.q['items']
'' ~ (1, 2) | list
"a" "b" 'c'
'\u00e9\n\x41\\'
"tab\tnew"
1 if l else 2
1 if {} else 2
1 if 0.0 else 2
1 if ' ' else 2
(1, 2)[0]
[[1, 2], [3]] | map('length') | list
[[1, 2], [3]] | map('first') | list
[[3, 1], [2]] | sum(start=[])
'a-b_c'.split('-')[1].upper() | length + 1
people[0].name | lower ~ '!'
people[0]['tags'][0]
people[-1].get('tags', [])
strftime_now('%Y-%m-%d')
strftime_now('%d %b %Y, %A %B %j %y %%')
""".strip().split("\n")

STATEMENTS = [
    "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}"
    "{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}:{{ x }} {% endfor %}",
    "{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }}{{ loop.cycle('a', 'b') }}"
    "{{ loop.changed(x > 1) }};{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in d | items %}{{ k }}={{ v }};{% endfor %}",
    "{% for k in d %}{{ k }}{% endfor %}",
    "{% for c in 'añb' %}{{ c }}.{% endfor %}",
    "{% for x in [] %}x{% else %}none{% endfor %}",
    "{% for x in missing %}x{% else %}none{% endfor %}",
    "{% for x in l if x > 1 %}{{ loop.index }}{{ x }}{{ loop.last }}{% endfor %}",
    "{% for x in l if x > 9 %}{{ x }}{% else %}e{% endfor %}",
    "{% for x in range(9) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 5 %}{% break %}"
    "{% endif %}{{ x }}{% endfor %}",
    "{% for a in [1, 2] %}{% for b in [3, 4] %}{{ a }}{{ b }}{{ loop.index }} {% endfor %}"
    "{{ loop.index }}{% endfor %}",
    "{% for x in [[1, [2, [3]]]] recursive %}{% if x is iterable %}({{ loop(x) }}){% else %}"
    "{{ x }}{{ loop.depth }}{% endif %}{% endfor %}",
    "{% set x = 1 %}{% for i in l %}{% set x = i %}{{ x }}{% endfor %}{{ x }}",
    "{% for i in l %}{{ x is defined }}{% set x = i %}{% endfor %}{{ x is defined }}",
    "{% if yes %}{% set y = 3 %}{% endif %}{{ y }}",
    "{% set ns = namespace(n=0, l=[]) %}{% for i in l %}{% set ns.n = ns.n + i %}"
    "{% set ns.l = ns.l + [i * 2] %}{% endfor %}{{ ns.n }}{{ ns.l }}{{ ns.zz is defined }}",
    "{% set a, b = 1, 2 %}{{ a + b }}",
    "{% set a, b = [1, 2] %}{{ a }}{{ b }}",
    "{% set x %}<{{ s }}>{% endset %}{{ x | length }}{{ x }}",
    "{% set x | upper %}ab{{ s }}{% endset %}{{ x }}",
    "{% filter upper %}ab{{ s }}{% endfilter %}",
    "{% with a = 1, b = s %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}",
    "{% macro m(a, b='x', c=none) %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}"
    "{{ m(1) }}{{ m(1, 2) }}{{ m(1, c=3) }}{{ m(b=1, a=2) }}{{ m() }}",
    "{% macro fact(n) %}{% if n > 1 %}{{ n }}*{{ fact(n - 1) }}{% else %}1{% endif %}"
    "{% endmacro %}{{ fact(5) }}",
    "{% macro outer(x) %}({{ caller(x) }}){% endmacro %}"
    "{% call(y) outer('v') %}{{ y }}{{ s }}{% endcall %}",
    "{% macro m(x) %}{{ x }}{{ s }}{{ late is defined }}{% endmacro %}{% set late = 1 %}{{ m(1) }}",
    "{% macro a() %}A{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}",
    "{% macro m() %}{% set x = 2 %}{{ x }}{% endmacro %}{% set x = 1 %}{{ m() }}{{ x }}",
    "{% block b %}in {{ s }}{% endblock %}",
    "{% raw %}{{ x }}{% if %}{% endraw %}",
    "{# comment {{ x }} #}a{#- b -#} c",
    "a\n{% if yes %}\nb\n{% endif %}\nc\n",
    "  {% if yes %}  \n  b  {% endif %}  \n  c  ",
    "a  {%- if yes -%}  b  {%- endif -%}  c",
    "a  {%+ if yes %}  b  {% endif +%}\n  c",
    "a {{- s -}} b",
    "\n\n{{ s }}\n\n",
    "x\n\n\n",
    "{% if yes %}a{% elif no %}b{% else %}c{% endif %}",
    "{% if no %}a{% elif none %}b{% elif 1 %}d{% else %}c{% endif %}",
    "{% generation %}{{ s }}{% endgeneration %}",
    "{% for x in l %}\n{% generation %}\n{{ x }}{{ loop.index }}\n{%- endgeneration %}\n"
    "{% endfor %}",
    "{% set x = 1 %}{%- generation -%}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}",
    "{{ '{% generation %}' }}",
    "{% for m in people %}{{ '\\n' if not loop.first }}{{ m.name }}: {{ m['age'] }}{% endfor %}",
    "{% if d.a.x[0] == 1 and 'b' in d and not (no or d.zz) %}ok{% endif %}",
    "{% if messages | length > 0 and messages[0].role == 'user' %}u{% endif %}"
    "{{ messages | tojson }}",
    "{{ tools is none }}{{ tools is defined }}{{ documents }}{{ bos_token }}{{ eos_token }}",
    "{{ add_generation_prompt }}",
    "{% set messages = messages[1:] %}{{ messages }}",
    "{% for item in people | selectattr('age', 'ge', 30) %}{{ loop.index }}{{ item.name }}"
    "{% endfor %}",
]

ERRORS = """
missing.x
missing[0]
missing[1:]
seven[1:]
d[1:]
missing | int
missing | float
seven | indent
[] in d
[[1]] | unique | list
missing.x.y
d.zz.x
missing + 1
missing + 'a'
1 + missing
1 + 'a'
'a' + 1
none + 'a'
[1] + 'a'
s + none
1 < 'a'
none < 1
d < d
'a' - 'b'
1 / 0
1 % 0
1 // 0
-'a'
1 in 2
1 in 'a'
missing | tojson
range | tojson
namespace() | tojson
5 | length
none | list
5 | list
5 | join
s | nofilter
s is notest
nofunction()
s.nomethod()
l.append(1)
l.pop()
d.update({})
d.pop('a')
d.setdefault('x', 1)
d.clear()
''.__class__.__mro__
s.__class__.__init__.__globals__
d.__class__.x
(1).__class__.__base__.__subclasses__()
namespace.__globals__.x
range.__self__.x
raise_exception('boom')
raise_exception()
range(10 ** 9)
range('a')
range(1, 2, 0)
'x' | tojson(indent='y', zz=1)
people | sum(attribute='name')
[1, 'a'] | sort
[1, 'a'] | max
'abc'.index('z')
l.index(99)
s.split('')
l.x.y
{[1]: 2}
{{}: 2}
'%d' | format('x')
'%s %s' | format(1)
'%s' | format(1, 2)
dict(1)
l | map('nofilter') | list
l | select('notest') | list
d['a']['zz']['y']
messages[7]['role']
messages[0].content.zz.y
""".strip().split("\n")

SYNTAX = [
    *("{{", "{% if %}", "{% if yes %}", "{% endif %}", "{{ 1 + }}", "{% for x %}{% endfor %}"),
    *("{% for x in l %}", "{{ x y }}", "{% nosuch %}", "{{ 'a }}", "{% macro %}{% endmacro %}"),
    *("{% set %}", "{% set 1 = 2 %}", "{{ a.1b.. }}", "{% break %}", "{% if x %}{% endfor %}"),
    *("{% include 'x' %}", "{% import 'x' as y %}", "{% from 'x' import y %}", "{% extends 'x' %}"),
    *("{% block a %}{% endblock %}{% block a %}{% endblock %}", "{{ [1, 2 }}", "{{ (1 }}"),
    *("{% generation %}", "{{ {'a' 1} }}", "{% raw %}x", "{{ x | }}", "{{ x is }}", "{% else %}"),
]


def ours(source: str) -> str:
    return onegraph.ChatTemplate(source).render(MESSAGES, **VALUES)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expression(expression: str) -> None:
    source = "{{ " + expression + " }}"
    assert ours(source) == jinja.render(source, MESSAGES, **VALUES)


@pytest.mark.parametrize("source", STATEMENTS)
def test_statement(source: str) -> None:
    assert ours(source) == jinja.render(source, MESSAGES, **VALUES)


@pytest.mark.parametrize("expression", ERRORS)
def test_error(expression: str) -> None:
    source = "{{ " + expression + " }}"
    with pytest.raises((jinja2.exceptions.TemplateError, TypeError, ValueError, ArithmeticError)):
        pytest.fail(f"jinja2 gives {jinja.render(source, MESSAGES, **VALUES)!r}")
    with pytest.raises(onegraph.ModelError, match=r"^chat template: .+; .+"):
        pytest.fail(f"onegraph gives {ours(source)!r}")


@pytest.mark.parametrize("source", SYNTAX)
def test_syntax_error(source: str) -> None:
    with pytest.raises((jinja2.exceptions.TemplateError, SyntaxError, TypeError)):
        pytest.fail(f"jinja2 gives {jinja.render(source, MESSAGES, l=[1], yes=True)!r}")
    with pytest.raises(onegraph.ModelError, match=r"^chat template: line \d+: "):
        onegraph.ChatTemplate(source)
