"""The tools that a request offers, in the one form that templates know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onegraph.functions import MOST_TOOLS
from onegraph.server.fields import Fields, wrong
from onegraph.server.refusals import Refused

__all__ = ["NONE", "Tools", "anthropic", "flat", "nested"]


@dataclass(frozen=True)
class Tools:
    """What a model is shown of tools."""

    #: Descriptions as OpenAI's chat has them.
    offered: list[dict[str, Any]]
    #: As `LLM.chat` takes it.
    choice: str | dict[str, Any] = "auto"
    #: Whether an answer may have several calls.
    parallel: bool = True


NONE = Tools([])

#: Anthropic's names of what a model may do with tools; "tool" is that one.
ANTHROPIC_CHOICES = {"auto": "auto", "none": "none", "any": "required", "tool": ""}


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
    """Those of OpenAI's responses: `{"type": "function", "name": ...}`."""
    offered = []
    for tool in _given(fields):
        _is(tool, "function")
        _described(tool)
        function = {k: v for k, v in tool.values.items() if k != "type"}
        offered.append({"type": "function", "function": function})
    return Tools(offered, *_choice(fields, flat=True))


def anthropic(fields: Fields) -> Tools:
    """Those of Anthropic: `{"name": ..., "input_schema": {...}}`."""
    offered = []
    for tool in _given(fields):
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
        said = f"tools: {len(given)} of them; at most {MOST_TOOLS} are taken"
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
    if choice is None or choice.text("type") != "function":
        expected = 'must be "auto", "none", "required", or an object that names a function'
        raise wrong("tool_choice", given, expected)
    if not flat:
        choice.needed("function")
    named = choice if flat else choice.object("function")
    assert named is not None
    named.needed("name")
    return _by_name(named.text("name")), parallel


def _by_name(name: str | None) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}
