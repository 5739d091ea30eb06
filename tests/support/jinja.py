"""jinja2 set up as `transformers` sets it up for chat templates: the oracle.
And what the templates of tests are given."""

import datetime
import functools
import json
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox
from jinja2 import nodes
from jinja2.parser import Parser

#: The variables of a template, and its messages.
VALUES: dict[str, Any] = {
    "none": None,
    "yes": True,
    "no": False,
    "zero": 0,
    "seven": 7,
    "minus": -7,
    "big": 2**70,
    "half": 0.5,
    "tiny": 1e-07,
    "huge": 1e16,
    "third": 1 / 3,
    "whole": 3.0,
    "inf": float("inf"),
    "empty": "",
    "s": "Hello, Wörld",
    "q": 'it\'s "q" \\ \n\t\x07 é \u2028 \U0001f600 \xa0 \u200b',
    "l": [3, 1, 2],
    "nested": [1, "a", None, True, 2.5, [], {}, {"k": [False]}, "it's"],
    "words": ["b", "A", "c", "a"],
    "d": {"b": 1, "a": {"x": [1, 2]}, "items": "i", "n": None, "1": "one"},
    "people": [
        {"name": "Zoe", "age": 30, "tags": ["x"]},
        {"name": "adam", "age": 25, "tags": []},
        {"name": "Eve", "age": 30},
    ],
    "schema": {"type": "object", "properties": {"q": {"type": "string", "items": [1]}}},
    "text": "  one two\n  three\r\n\nfour  ",
    "html": "<a href=\"x\">'&'</a>",
}
MESSAGES = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": None}]


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks what an assistant said; it changes no text."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_same")
        return nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _same(self, caller: Any) -> Any:
        return caller()


def _raise_exception(message: str) -> None:
    raise jinja2.exceptions.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def environment() -> jinja2.Environment:
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = _tojson
    env.globals["raise_exception"] = _raise_exception
    env.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return env


@functools.cache
def _compiled(source: str) -> jinja2.Template:
    return environment().from_string(source)


def render(
    source: str,
    messages: Any,
    tools: Any = None,
    add_generation_prompt: bool = True,
    bos_token: str = "<s>",
    eos_token: str = "</s>",
    **kwargs: Any,
) -> str:
    return _compiled(source).render(
        **(
            {"bos_token": bos_token, "eos_token": eos_token, "documents": None}
            | kwargs
            | {
                "messages": messages,
                "tools": tools,
                "add_generation_prompt": add_generation_prompt,
            }
        )
    )
