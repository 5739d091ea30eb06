"""Structured output: what a text has to look like, and the value that it then has."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onegraph import _native, arguments
from onegraph.errors import ArgumentError
from onegraph.functions import Offered, schema_of, value_of

__all__ = ["OBJECT", "Calls", "constraint", "parsed"]

#: The options that constrain a text: of one request, one.
KINDS = ("schema", "regex", "grammar", "choice")

#: As a schema: any JSON object.
OBJECT: Mapping[str, Any] = {"type": "object"}


def constraint(options: Mapping[str, Any]) -> tuple[str, list[str]] | None:
    """The constraint among the options of a request, as the engine takes it.

    Raises `ArgumentError` for a value of the wrong form, and for more than one.
    """
    given = [kind for kind in KINDS if options[kind] is not None]
    if len(given) > 1:
        raise ArgumentError(f"{' and '.join(given)}: give only one of them")
    if not given:
        return None
    kind = given[0]
    value = options[kind]
    if kind == "schema":
        return kind, [_schema_text(value)]
    if kind == "choice":
        return kind, arguments.texts(kind, value)
    return kind, [arguments.text(kind, value)]


def _schema_text(given: Any) -> str:
    """A JSON schema, of what stands for one."""
    if isinstance(given, str):
        return arguments.text("schema", given)
    schema = dict(given) if isinstance(given, Mapping) else _closed(schema_of(given, "schema"))
    return _json_text("schema", schema)


def _json_text(name: str, given: Any) -> str:
    """JSON of an argument of this name: integers as they are, floats as the shortest decimals that
    are read as them."""
    try:
        return json.dumps(given, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as e:
        raise ArgumentError(f"{name}: is not JSON: {e}") from e


def _closed(schema: Any) -> Any:
    """The schema of a type, whose objects have no more than its fields."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        found.setdefault("additionalProperties", False)
    return found


def parsed(schema: Any, text: str) -> Any:
    """The value of a text that was held to a schema; of a type where the schema is one.

    Raises `ArgumentError` where the type refuses it, which may ask for more than its schema says.
    """
    value = json.loads(text)
    return value if isinstance(schema, str | Mapping) else value_of(schema, value, "parsed")


@dataclass(frozen=True)
class Calls:
    """What of the calls in an answer is held to a form."""

    #: Name and schema of the arguments of each tool that may be called.
    tools: list[tuple[str, str]]
    #: Whether there may be several, and whether there has to be one.
    several: bool
    needed: bool
    #: Whether calls are held to anything.
    held_to: bool

    @classmethod
    def asked(cls, offered: Offered, choice: Any, several: bool) -> Calls:
        """Reads the argument `tool_choice`.

        Raises `ArgumentError` where it is none, or names a tool that is not offered.
        """
        allowed = _allowed(choice)
        name = _named(choice) if allowed is None else None
        functions = [schema["function"] for schema in offered.schemas]
        needed = name is not None or choice == "required"
        if allowed is not None:
            needed = choice["mode"] == "required"
            known = {each["name"] for each in functions}
            if unknown := [each for each in allowed if each not in known]:
                raise ArgumentError(
                    f"tool_choice: no tool is named {arguments.shown(unknown[0])}; offered: "
                    f"{arguments.several(known)}"
                )
            functions = [each for each in functions if each["name"] in allowed]
        if needed:
            if not functions:
                raise arguments.refused("tool_choice", choice, "no tools are offered")
            functions = [each for each in functions if name in (None, each["name"])]
            if not functions:
                raise ArgumentError(
                    f"tool_choice: no tool is named {arguments.shown(name)}; offered: "
                    f"{arguments.several(each['function']['name'] for each in offered.schemas)}"
                )

        def arguments_of(function: Mapping[str, Any]) -> str:
            # What is not strict is any object, unless a call is asked for.
            whole = needed or function["name"] in offered.strict
            return _json_text("tools", function["parameters"] if whole else OBJECT)

        tools = [(each["name"], arguments_of(each)) for each in functions]
        held = (
            needed
            or allowed is not None
            or (bool(functions) and (bool(offered.strict) or not several))
        )
        return cls(tools, several and name is None, needed, held)

    def held(
        self,
        tokenizer: _native.Tokenizer,
        reading: _native.Reading,
        prompt: _native.Rendering,
        continues: bool,
        options: dict[str, Any],
    ) -> dict[str, Any]:
        """The options of a request for an answer to a prompt.

        Raises `ArgumentError` where calls in the model's format cannot be held to a form.
        """
        text = options["constraint"]
        if text or self.needed:
            reading = reading.behind(prompt, continues=continues)
        if not self.held_to and (text is None or reading.is_plain):
            return options
        if text and self.needed:
            raise ArgumentError("tool_choice: cannot force a call together with structured output")
        grammar = reading.constraint(
            tokenizer,
            prompt,
            continues=continues,
            text=text,
            tools=self.tools,
            several=self.several,
            needed=self.needed,
        )
        return {**options, "constraint": grammar}


def _allowed(choice: Any) -> list[str] | None:
    """The tools that may be called of those that the model is shown; None where all may."""
    if not isinstance(choice, Mapping) or choice.get("type") != "allowed_tools":
        return None
    names = choice.get("names")
    if choice.get("mode") not in ("auto", "required") or not names:
        raise arguments.refused(
            "tool_choice",
            choice,
            'must be {"type": "allowed_tools", "mode": "auto" or "required", "names": [...]}',
        )
    return arguments.texts("tool_choice names", names)


def _named(choice: Any) -> str | None:
    """The tool that has to be called."""
    if choice in ("auto", "none", "required"):
        return None
    function = choice.get("function") if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise arguments.refused(
            "tool_choice",
            choice,
            'must be "auto", "none", "required" or {"type": "function", "function": {"name": ...}}',
        )
    return name
