"""The tools that a request offers, in the one form that templates know."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from onegraph.functions import MOST_TOOLS
from onegraph.server.fields import Fields, wrong
from onegraph.server.lark import Irregular, regex_of
from onegraph.server.refusals import Refused

__all__ = ["NONE", "Named", "Tools", "anthropic", "flat", "flat_name", "nested", "say_left_out"]

logger = logging.getLogger("onegraph.server")


@dataclass(frozen=True)
class Named:
    """What a tool is in a dialect whose tools are more than functions."""

    name: str
    namespace: str | None = None
    #: Whether it takes a text, which the model gives as the argument `input`.
    is_custom: bool = False


@dataclass(frozen=True)
class Tools:
    """What a model is shown of tools."""

    #: Descriptions as OpenAI's chat has them.
    offered: list[dict[str, Any]]
    #: As `LLM.chat` takes it.
    choice: str | dict[str, Any] = "auto"
    #: Whether an answer may have several calls.
    parallel: bool = True
    #: Of the names that the model is shown, those that are something else in the dialect.
    named: Mapping[str, Named] = field(default_factory=dict)


NONE = Tools([])

#: Anthropic's names of what a model may do with tools; "tool" is that one.
ANTHROPIC_CHOICES = {"auto": "auto", "none": "none", "any": "required", "tool": ""}

#: How the types of tools begin that OpenAI's own servers run, or that its own models know the
#: arguments of.
OPENAIS = (
    *("web_search", "image_generation", "local_shell", "shell", "mcp", "file_search", "computer"),
    *("code_interpreter", "tool_search", "apply_patch"),
)

#: The same of Anthropic's.
ANTHROPICS = (
    *("web_search_", "web_fetch_", "code_execution_", "computer_", "bash_", "text_editor_"),
    *("memory_", "tool_search_tool_", "advisor_", "mcp_toolset"),
)

#: What stands between the name of a namespace and that of a tool in it.
SEPARATOR = "__"

#: What a model is told of a tool that takes a text of any form.
FREE = {"type": "string", "description": "the text that the tool takes, as it is"}

#: Warnings, of which each is said once.
MOST_SAID = 256
_said: set[str] = set()


def say_left_out(what: str, whose: str) -> None:
    """Warns of what a prompt lacks, each once."""
    _say(f"{what} only works on the servers of {whose}: the model is not shown it")


def _say(what: str) -> None:
    # What comes of texts of clients has no end.
    if what not in _said and len(_said) < MOST_SAID:
        _said.add(what)
        logger.warning("%s; this is logged once", what)


def _is_left_out(tool: Fields, kinds: tuple[str, ...], whose: str) -> bool:
    kind = tool.text("type") or ""
    found = next((each for each in kinds if kind.startswith(each)), None)
    if found is not None:
        say_left_out(f"a tool of type {found.rstrip('_')}", whose)
    return found is not None


def nested(fields: Fields, *, choice: bool = True) -> Tools:
    """Those of OpenAI's chat and of ollama: `{"type": "function", "function": {...}}`; ollama has
    no `choice`."""
    fields.absent("functions", "send them as `tools`")
    offered = []
    for tool in _given(fields):
        _is(tool, "function")
        tool.needed("function")
        function = tool.object("function")
        assert function is not None
        _described(function)
        offered.append(dict(tool.values))
    return Tools(offered, *_choice(fields)) if choice else Tools(offered)


def flat(fields: Fields) -> Tools:
    """Those of OpenAI's responses: `{"type": "function", "name": ...}`, tools that take a text, and
    namespaces of both."""
    offered: list[dict[str, Any]] = []
    named: dict[str, Named] = {}

    def offer(tool: Fields, namespace: str | None = None, about: str = "") -> None:
        if tool.text("type") == "custom":
            function = _custom(tool)
        else:
            _is(tool, "function")
            _described(tool)
            function = {k: v for k, v in tool.values.items() if k != "type"}
        name = tool.text("name") or ""
        if about:
            function["description"] = "\n".join(filter(None, [about, tool.text("description")]))
        function["name"] = flat_name(name, namespace)
        is_custom = tool.text("type") == "custom"
        if namespace is not None or is_custom:
            named[function["name"]] = Named(name, namespace, is_custom)
        offered.append({"type": "function", "function": function})

    for tool in _given(fields):
        if tool.text("type") == "namespace":
            tool.needed("name")
            about = tool.text("description") or ""
            for i, each in enumerate(tool.objects("tools")):
                # Of all of them it is said once.
                offer(each, tool.text("name"), about if i == 0 else "")
        elif not _is_left_out(tool, OPENAIS, "OpenAI"):
            offer(tool)
    return Tools(offered, *_choice(fields, flat=True), named)


def flat_name(name: str, namespace: str | None) -> str:
    """What the model is shown a tool of a namespace by."""
    if namespace is None:
        return name
    return namespace.removesuffix(SEPARATOR) + SEPARATOR + name


def _custom(tool: Fields) -> dict[str, Any]:
    """A tool that takes a text, as a function of one argument."""
    _described(tool)
    form = tool.object("format")
    kind = None if form is None else form.text("type")
    argument: dict[str, Any] = dict(FREE)
    description = tool.text("description")
    if kind == "grammar":
        assert form is not None
        form.needed("syntax")
        form.needed("definition")
        syntax, definition = form.text("syntax"), form.text("definition") or ""
        if syntax not in ("lark", "regex"):
            raise wrong(form.path("syntax"), syntax, 'must be "lark" or "regex"')
        try:
            regex = regex_of(definition) if syntax == "lark" else definition
            argument["pattern"] = f"^(?:{regex})$"
        except Irregular as e:
            _say(f"{form.path('definition')}: not enforced: {e}")
        if syntax == "lark":
            told = f"The input must match this Lark grammar:\n{definition}"
            description = "\n".join(filter(None, [description, told]))
    elif kind not in (None, "text"):
        assert form is not None
        raise wrong(form.path("type"), kind, 'must be "text" or "grammar"')
    parameters = {
        "type": "object",
        "properties": {"input": argument},
        "required": ["input"],
        "additionalProperties": False,
    }
    function: dict[str, Any] = {"name": tool.text("name"), "parameters": parameters}
    if description is not None:
        function["description"] = description
    if "pattern" in argument:
        function["strict"] = True
    return function


def anthropic(fields: Fields) -> Tools:
    """Those of Anthropic: `{"name": ..., "input_schema": {...}}`."""
    offered = []
    if fields.get("mcp_servers"):
        say_left_out("`mcp_servers`", "Anthropic")
    for tool in _given(fields):
        if _is_left_out(tool, ANTHROPICS, "Anthropic"):
            continue
        if tool.text("type") is not None:
            _is(tool, "custom")
        _described(tool)
        tool.needed("input_schema")
        schema = tool.object("input_schema")
        assert schema is not None
        function: dict[str, Any] = {"name": tool.text("name"), "parameters": schema.values}
        if tool.flag("strict"):
            function["strict"] = True
        if (description := tool.text("description")) is not None:
            function["description"] = description
        offered.append({"type": "function", "function": function})
    choice = fields.object("tool_choice")
    if choice is None:
        return Tools(offered)
    kind = choice.text("type")
    if kind not in ANTHROPIC_CHOICES:
        raise wrong(choice.path("type"), kind, f"must be one of {', '.join(ANTHROPIC_CHOICES)}")
    if kind == "tool":
        choice.needed("name")
    wanted = _by_name(choice.text("name")) if kind == "tool" else ANTHROPIC_CHOICES[kind]
    return Tools(offered, wanted, not choice.flag("disable_parallel_tool_use"))


def _given(fields: Fields) -> list[Fields]:
    given = fields.items("tools") or []
    if len(given) > MOST_TOOLS:
        said = f"tools: {len(given)} of them; the limit is {MOST_TOOLS}"
        raise Refused(400, said, field="tools")
    return fields.objects("tools") if given else []


def _is(tool: Fields, kind: str) -> None:
    tool.needed("type")
    if tool.text("type") != kind:
        raise wrong(tool.path("type"), tool.text("type"), f'must be "{kind}"')


def _described(function: Fields) -> None:
    """Raises where a description of a function is not one that a template can show."""
    function.needed("name")
    function.text("name")
    function.text("description")
    function.object("parameters")
    function.flag("strict")


def _choice(fields: Fields, flat: bool = False) -> tuple[str | dict[str, Any], bool]:
    """Whether a tool has to be called, and which, and whether several may be."""
    parallel = fields.flag("parallel_tool_calls", True)
    given = fields.get("tool_choice")
    if given in (None, "auto", "none", "required"):
        return given or "auto", parallel
    choice = fields.object("tool_choice") if isinstance(given, dict) else None
    kind = None if choice is None else choice.text("type")
    if choice is not None and kind == "allowed_tools":
        return _allowed(choice, flat), parallel
    if choice is None or kind not in (("function", "custom") if flat else ("function",)):
        expected = (
            'must be "auto", "none", "required", or an object that names a function or is of '
            'type "allowed_tools"'
        )
        raise wrong("tool_choice", given, expected)
    return _by_name(_chosen(choice, flat)), parallel


def _chosen(choice: Fields, flat: bool) -> str:
    """The name that a choice has for a tool."""
    if not flat:
        choice.needed("function")
    named = choice if flat else choice.object("function")
    assert named is not None
    named.needed("name")
    return flat_name(named.text("name") or "", named.text("namespace") if flat else None)


def _allowed(choice: Fields, flat: bool) -> dict[str, Any]:
    """The tools that may be called; the model is shown all of them, so that its prefix stays."""
    within = choice
    if not flat:
        choice.needed("allowed_tools")
        inside = choice.object("allowed_tools")
        assert inside is not None
        within = inside
    mode = within.text("mode")
    if mode not in ("auto", "required"):
        raise wrong(within.path("mode"), mode, 'must be "auto" or "required"')
    names = []
    for each in within.objects("tools"):
        if not _is_left_out(each, OPENAIS, "OpenAI"):
            names.append(_chosen(each, flat))
    if not names:
        expected = 'must name a function; send "none" where none may be called'
        raise wrong(within.path("tools"), within.get("tools"), expected)
    return {"type": "allowed_tools", "mode": mode, "names": names}


def _by_name(name: str | None) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}
