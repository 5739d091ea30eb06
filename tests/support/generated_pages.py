"""Writes what of the documentation is said by the code: `python/onegraph/pages/api.md`, `gpu.md`
and `tools.md` behind their introductions, from docstrings and signatures; `command-line.md` behind
its own, from the commands.

    python tests/support/generated_pages.py

A test says where a page is not what this writes.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import operator
import re
from collections.abc import Iterator
from pathlib import Path

import click
import onegraph
import onegraph._native
from onegraph import cli
from onegraph.cli.help import PAGES
from onegraph.sampling import DEFAULTS, MEANING

COMMAND = "python tests/support/generated_pages.py"
MARK = f"<!-- From here on written by `{COMMAND}`. -->"

#: The public names below `onegraph`, in the order of a reader; an error where one at the top is in
#: no group.
GROUPS = {
    "The model": ["LLM"],
    "Sampling": ["Sampling", "SamplingOptions"],
    "Results": [
        *["Result", "Piece", "results.Usage", "results.Timings"],
        *["results.TokenLogprob", "results.TopLogprob"],
        *["Stream", "AsyncStream"],
    ],
    "Statistics": ["Stats", "stats.Places"],
    "Text and tokens": ["Tokenizer", "StreamDecoder", "ChatTemplate", "Rendering"],
    "Calls and events": [
        *["ToolCall", "InvalidToolCall", "TextDelta", "ReasoningDelta"],
        *["ToolCallBegun", "ToolCallDelta", "ToolCallEnded", "ToolCallFailed"],
    ],
    "Graphs": [
        *["GraphOptions", "graphs.GraphStats", "graphs.CapturedStep", "graphs.GraphVerification"],
        *["graphs.StepCheck", "graphs.GraphProfile", "graphs.GraphKernel"],
    ],
    "Errors": [
        *["Error", "ModelError", "ArgumentError", "ContextError", "OutOfMemoryError"],
        *["DeviceError", "FileError", "ClosedError", "CancelledError", "InternalError"],
    ],
}

#: What pages written by hand tell of: the server's.
BY_HAND = {"asgi"}
#: The groups that stand on a page of their subject; all others are on that of Python.
ELSEWHERE = {"Calls and events": "tools.md", "Graphs": "gpu.md"}

Function = ast.FunctionDef | ast.AsyncFunctionDef

#: What is made by methods alone.
MADE = {"Stream", "AsyncStream"}

#: How the docstrings of methods begin that nobody calls by name.
INTERNAL = ("Of the protocol of coroutines", "The figures as the engine", "The findings as")

#: Columns of a signature, and of help: what a terminal of 80 shows unwrapped.
WIDTH = 76


def written() -> dict[str, str]:
    """The pages as they should be, by file name."""
    generated = {name: api(name) for name in ("api.md", *ELSEWHERE.values())}
    generated["command-line.md"] = command_line()
    return {
        name: introduction((PAGES / name).read_text()) + MARK + "\n\n" + text
        for name, text in generated.items()
    }


def introduction(page: str) -> str:
    """What of a page is written by hand."""
    before, mark, _ = page.partition(MARK)
    if not mark:
        raise ValueError(f"the line {MARK!r} is missing: behind it stands what is generated")
    return before


def api(page: str) -> str:
    """The public names of a page with signatures and docstrings."""
    named = [name for names in GROUPS.values() for name in names]
    left = set(onegraph.__all__) - set(named) - {"__version__", *BY_HAND}
    if left or len(set(named)) != len(named):
        raise ValueError(f"GROUPS of {__name__}: {left} in none, or one in two")
    parts = []
    for group, names in GROUPS.items():
        if ELSEWHERE.get(group, "api.md") != page:
            continue
        parts.append(f"## {group}")
        items = {name: operator.attrgetter(name)(onegraph) for name in names}
        # An error is told by a line, but for the one that has more to it than its name.
        lines = [_error(name, item) for name, item in items.items() if _is_plain(item)]
        for name, item in items.items():
            if not _is_plain(item):
                parts += _class(name, item)
        if lines:
            parts.append("\n".join(lines))
    if page == "api.md":
        parts.append("`onegraph.__version__` is the version, a str.")
    return "\n\n".join(parts) + "\n"


def _is_plain(item: type) -> bool:
    return issubclass(item, Exception) and item is not onegraph.Error


def _error(name: str, item: type) -> str:
    bases = ", ".join(f"`{base.__name__}`" for base in item.__bases__)
    return f"- `{name}` ({bases}): {_joined(inspect.getdoc(item) or '')}"


def _class(name: str, item: type) -> Iterator[str]:
    yield f"### {name}"
    bodies = list(_bodies(item))
    doc = ast.get_docstring(bodies[-1][0]) or ""
    if item is onegraph.Sampling:
        kinds = {field.name: field.type for field in dataclasses.fields(item)}
        fields = [
            (f"{each}: {kinds[each]} = {default!r}", MEANING[each])
            for each, default in DEFAULTS.items()
        ]
    elif item is onegraph.SamplingOptions:
        # Those of `Sampling`.
        fields = []
    else:
        fields = [field for body in bodies for field in _fields(*body)]
    functions = {each.name: each for body, _ in bodies for each in _functions(body)}
    made = functions.pop("__init__", None) or functions.pop("__new__", None)
    if made and name not in MADE:
        yield _code(_signature(made, name))
    yield _prose(doc, made)
    if fields:
        yield "\n".join(f"- `{field}`{meaning and ': ' + meaning}" for field, meaning in fields)
    properties = []
    for function in functions.values():
        said = ast.get_docstring(function) or ""
        if any(each.endswith("property") for each in _decorators(function)):
            kind = ast.unparse(function.returns) if function.returns else ""
            properties.append(f"- `{function.name}: {kind}`{said and ': ' + _joined(said)}")
        elif said and not said.startswith(INTERNAL):
            yield _code(_signature(function, f".{function.name}"))
            yield _prose(said, function)
    if properties:
        yield "\n".join(properties)


def _bodies(item: type) -> Iterator[tuple[ast.ClassDef, list[str]]]:
    """The class as its source or its stub has it, and the lines of that file; before it the same of
    those of its bases that are not public themselves."""
    for base in reversed(item.__mro__):
        public = base is not item and base.__name__ in onegraph.__all__
        native = getattr(onegraph._native, base.__name__, None) is base
        if public or not (native or base.__module__.startswith("onegraph.")):
            continue
        stub = Path(onegraph.__file__).with_name("_native.pyi")
        text = (stub if native else Path(inspect.getfile(base))).read_text()
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef) and node.name == base.__name__:
                yield node, text.splitlines()


def _fields(body: ast.ClassDef, lines: list[str]) -> Iterator[tuple[str, str]]:
    """Each field with its type, and what the `#:` comment above it says."""
    for field in body.body:
        name = ast.unparse(field.target) if isinstance(field, ast.AnnAssign) else "_"
        if not isinstance(field, ast.AnnAssign) or name.startswith("_"):
            continue
        said: list[str] = []
        at = field.lineno - 2
        while lines[at].strip().startswith("#:"):
            said.insert(0, lines[at].strip().removeprefix("#:").strip())
            at -= 1
        shown = f"{name}: {ast.unparse(field.annotation)}".replace("'", '"')
        yield shown, _escaped(" ".join(said))


def _functions(body: ast.ClassDef) -> Iterator[Function]:
    for each in body.body:
        if not isinstance(each, Function) or "overload" in _decorators(each):
            continue
        if each.name in ("__init__", "__new__") or not each.name.startswith("_"):
            yield each


def _decorators(function: Function) -> list[str]:
    return [ast.unparse(each) for each in function.decorator_list]


def _signature(function: Function, name: str) -> str:
    given = function.args
    positional = given.args if "staticmethod" in _decorators(function) else given.args[1:]
    none: list[ast.expr | None] = [None] * (len(positional) - len(given.defaults))
    defaults = [*none, *given.defaults[-len(positional) :]] if positional else []
    shown = [_parameter(*each) for each in zip(positional, defaults, strict=True)]
    if given.kwonlyargs:
        shown.append("*")
        shown += map(_parameter, given.kwonlyargs, given.kw_defaults)
    if given.kwarg:
        shown.append("**" + _parameter(given.kwarg, None))
    returned = ast.unparse(function.returns) if function.returns else "None"
    result = "" if returned in ("None", "Any", "Self") else f" -> {returned}"
    name = f"async {name}" if isinstance(function, ast.AsyncFunctionDef) else name
    line = f"{name}({', '.join(shown)}){result}"
    if len(line) > WIDTH:
        line = "\n".join([f"{name}(", *_filled(shown), f"){result}"])
    return line.replace("_native.", "").replace("'", '"')


def _filled(parameters: list[str]) -> Iterator[str]:
    """Indented lines of parameters, as many as fit."""
    line = "   "
    for each in parameters:
        if len(line) + len(each) + 2 > WIDTH and line.strip():
            yield line
            line = "   "
        line += f" {each},"
    yield line


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    annotation = f": {ast.unparse(argument.annotation)}" if argument.annotation else ""
    value = f" = {ast.unparse(default)}" if default else ""
    return argument.arg + annotation + value


def _prose(doc: str, function: Function | None = None) -> str:
    """A docstring as Markdown: what it says of an argument becomes an item of a list."""
    names = []
    if function:
        given = function.args
        names = [each.arg for each in [*given.args, *given.kwonlyargs]]
    argument = re.compile(rf"((?:{'|'.join(names) or '(?!)'})(?:, \w+)*): (.*)")
    parts = []
    for paragraph in doc.strip().split("\n\n"):
        lines = paragraph.split("\n")
        if not argument.match(lines[0]):
            parts.append("\n".join(map(_escaped, lines)))
            continue
        items = []
        for line in lines:
            found = argument.match(line)
            if found:
                named = ", ".join(f"`{name}`" for name in found[1].split(", "))
                items.append(f"- {named}: {_escaped(found[2])}")
            else:
                items.append("  " + _escaped(line.strip()))
        parts.append("\n".join(items))
    if function and "takes_sampling" in _decorators(function):
        parts.append("Also accepts the fields of `Sampling` as keywords.")
    return "\n\n".join(parts)


def _joined(doc: str) -> str:
    return _escaped(" ".join(doc.split()))


def _escaped(text: str) -> str:
    """A text in which Markdown would read signs of its own, outside of code."""
    return re.sub(r"(`[^`]*`)|(\*|<(?=\w))", lambda m: m[1] or "\\" + m[2], text)


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


def command_line() -> str:
    """The help of every command."""
    root = cli.cli
    parts = []
    shown: dict[click.Command, str] = {}
    with click.Context(root, info_name="onegraph", **root.context_settings) as above:
        for name, row in cli.COMMANDS.items():
            parts.append(f"## onegraph {name}")
            command: click.Command = importlib.import_module(row.module).command
            if command in shown:
                parts.append(f"The same as `onegraph {shown[command]}`.")
                continue
            shown[command] = name
            with click.Context(
                command,
                info_name=name,
                parent=above,
                terminal_width=WIDTH,
                max_content_width=WIDTH,
            ) as context:
                parts.append(f"```text\n{command.get_help(context).rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def main() -> None:
    for name, text in written().items():
        (PAGES / name).write_text(text)


if __name__ == "__main__":
    main()
