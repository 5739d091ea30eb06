"""Arguments by the names that the command line has for them: `--n-ctx 9002` for `n_ctx = 9002`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import click

__all__ = ["spelled"]

#: A value as a message gives it: a number or word, or a text in quotes.
_VALUE = r"""(?:"[^"]*"|'[^']*'|[\w.+-]*\w)"""
#: What a name must not touch: it would be part of a path, of a longer name or of a quotation.
_BEFORE, _AFTER = r"(?<![\w./\\'\"-])", r"(?![\w/\\'\"-]|\.\w)"


def spelled(said: str, command: click.Command | None = None) -> str:
    """What the library says of its arguments, for somebody who typed a command's options.

    A name is replaced where it cannot be anything else: before `=`, `>=` and a value, and by itself
    where it has an underscore, as no word has. `command` is that of the current context by default;
    what it has no option for stays, but for `max_batch` as an alternative that is none there.
    """
    if command is None:
        context = click.get_current_context(silent=True)
        if context is None:
            return said
        command = context.command
    options = dict(_options(command.params))
    if "max_batch" not in options:
        said = re.sub(r"(?:,| or| and) max_batch\b(?! ?=)|\bmax_batch(?:,| or| and) ", "", said)
        said = re.sub(r" with max_batch=1\b", "", said)
    for name, option in options.items():
        said = _replaced(said, name, option)
    return said


def _options(params: Iterable[click.Parameter]) -> Iterator[tuple[str, str]]:
    """Python name and long spelling of each option."""
    for param in params:
        if isinstance(param, click.Option) and not param.hidden and param.name:
            name = "graph.mode" if param.name == "cuda_graph" else param.name
            yield name, max(param.opts, key=len)


def _replaced(said: str, name: str, option: str) -> str:
    def with_value(found: re.Match[str]) -> str:
        value = found["value"].strip("\"'")
        plain = re.fullmatch(r"[\w.:+-]+", value)
        return f"{option} {value if plain else found['value']}"

    # A message begins with the argument that is wrong, as in `stop = "": ...`, or with the device.
    said = re.sub(rf"^{name} (?P<value>\"[^\"]*\")(?=: )", with_value, said)
    said = re.sub(rf"^{name} = (?P<value>{_VALUE})", with_value, said)
    said = re.sub(rf"^{name} = ", f"{option} ", said)
    said = re.sub(rf"{_BEFORE}{name}=(?P<value>{_VALUE})", with_value, said)
    if "_" in name or "." in name:
        said = re.sub(rf"{_BEFORE}{name} (?:=|>=) (?P<value>{_VALUE})", with_value, said)
        said = re.sub(rf"{_BEFORE}{name}{_AFTER}", option, said)
    return said
