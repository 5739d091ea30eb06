"""The tools that a request offers, in the one form that templates know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onegraph.server.fields import Fields, wrong
from onegraph.server.refusals import Refused

__all__ = ["NONE", "Tools", "anthropic", "flat", "nested"]

NOT_ENFORCED = (
    "a call cannot be enforced, as output cannot be constrained yet; ask for it in a message, and "
    "offer the one tool"
)


@dataclass(frozen=True)
class Tools:
    """What a model is shown of tools."""

    #: Descriptions as OpenAI's chat has them.
    offered: list[dict[str, Any]]
    #: "auto" or "none".
    choice: str = "auto"


NONE = Tools([])


def nested(fields: Fields, *, choice: bool = True) -> Tools:
    """Those of OpenAI's chat and of ollama: `{"type": "function", "function": {...}}`; ollama has
    no `choice`."""
    fields.absent("functions", "send them as `tools`")
    offered = []
    for tool in fields.objects("tools") if "tools" in fields else []:
        _is(tool, "function")
        tool.needed("function")
        function = tool.object("function")
        assert function is not None
        _described(function)
        offered.append(dict(tool.values))
    return Tools(offered, _choice(fields, offered) if choice else "auto")


def flat(fields: Fields) -> Tools:
    """Those of OpenAI's responses: `{"type": "function", "name": ...}`."""
    offered = []
    for tool in fields.objects("tools") if "tools" in fields else []:
        _is(tool, "function")
        _described(tool)
        function = {k: v for k, v in tool.values.items() if k not in ("type", "strict")}
        offered.append({"type": "function", "function": function})
    return Tools(offered, _choice(fields, offered))


def anthropic(fields: Fields) -> Tools:
    """Those of Anthropic: `{"name": ..., "input_schema": {...}}`."""
    offered = []
    for tool in fields.objects("tools") if "tools" in fields else []:
        if tool.text("type") is not None:
            _is(tool, "custom")
        _described(tool)
        tool.needed("input_schema")
        schema = tool.object("input_schema")
        assert schema is not None
        function = {"name": tool.text("name"), "parameters": schema.values}
        if (description := tool.text("description")) is not None:
            function["description"] = description
        offered.append({"type": "function", "function": function})
    choice = fields.object("tool_choice")
    kind = None if choice is None else choice.text("type")
    if kind not in (None, "auto", "none"):
        expected = f'must be "auto" or "none": {NOT_ENFORCED}'
        raise wrong("tool_choice.type", kind, expected)
    alone = choice is not None and choice.flag("disable_parallel_tool_use")
    if offered and alone and kind != "none":
        expected = "must be false: one call alone cannot be enforced yet"
        raise wrong("tool_choice.disable_parallel_tool_use", True, expected)
    return Tools(offered, kind or "auto")


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
    if function.flag("strict"):
        path = function.path("strict")
        raise Refused(
            400,
            f"{path} = True: must be false: arguments cannot be held to a schema yet, so check "
            "them before use",
            field=path,
        )


def _choice(fields: Fields, offered: list[dict[str, Any]]) -> str:
    choice = fields.get("tool_choice")
    if choice not in (None, "auto", "none"):
        raise wrong("tool_choice", choice, f'must be "auto" or "none": {NOT_ENFORCED}')
    if offered and choice != "none" and not fields.flag("parallel_tool_calls", True):
        expected = "must be true: one call alone cannot be enforced yet"
        raise wrong("parallel_tool_calls", False, expected)
    return choice or "auto"
