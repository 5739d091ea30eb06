"""The form that a request wants its text in, as each dialect says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from onegraph.server.fields import Fields, wrong
from onegraph.server.refusals import Refused
from onegraph.structured import OBJECT

__all__ = ["Form", "anthropic", "chat", "ollama", "responses"]

#: Names that servers of open models have for what OpenAI's has no name for: of each, ours.
FURTHER: Mapping[str, str] = {
    "guided_json": "schema",
    "guided_regex": "regex",
    "guided_grammar": "grammar",
    "guided_choice": "choice",
    "json_schema": "schema",
    "grammar": "grammar",
}

#: The same within the object `structured_outputs`.
WITHIN: Mapping[str, str] = {
    "json": "schema",
    "regex": "regex",
    "grammar": "grammar",
    "choice": "choice",
}


@dataclass(frozen=True)
class Form:
    """The form that a request asks for, if any."""

    #: As a keyword of the engine.
    keywords: dict[str, Any] = field(default_factory=dict)
    #: Of that keyword, where the request says it.
    paths: dict[str, str] = field(default_factory=dict)

    def add(self, fields: Fields, theirs: str, ours: str, value: Any) -> None:
        """Raises where the request names another form too."""
        path = fields.path(theirs)
        if self.keywords:
            raise Refused(400, f"{path}: the request sets two output formats; send one", field=path)
        self.keywords[ours] = value
        self.paths[ours] = path


def chat(fields: Fields) -> Form:
    """Of OpenAI's chat and completions: `response_format`, and what vLLM's and llama.cpp's servers
    take beside it."""
    found = Form()
    wanted = fields.object("response_format")
    if wanted is not None:
        kind = wanted.text("type")
        if kind == "json_object":
            found.add(wanted, "type", "schema", OBJECT)
        elif kind == "json_schema":
            wanted.needed("json_schema")
            within = wanted.object("json_schema")
            assert within is not None
            within.needed("schema")
            found.add(within, "schema", "schema", _schema(within, "schema"))
        elif kind not in (None, "text"):
            expected = 'must be "text", "json_object" or "json_schema"'
            raise wrong(wanted.path("type"), kind, expected)
    for theirs, ours in FURTHER.items():
        if theirs in fields:
            found.add(fields, theirs, ours, _read(fields, theirs, ours))
    within = fields.object("structured_outputs")
    if within is not None:
        if within.flag("json_object"):
            found.add(within, "json_object", "schema", OBJECT)
        for theirs, ours in WITHIN.items():
            if theirs in within:
                found.add(within, theirs, ours, _read(within, theirs, ours))
    return found


def responses(fields: Fields) -> Form:
    """Of OpenAI's responses: `text.format`."""
    text = fields.object("text")
    wanted = None if text is None else text.object("format")
    return _format(wanted, ("text", "json_object", "json_schema"))


def anthropic(fields: Fields) -> Form:
    """Of Anthropic: `output_config.format`, or `output_format` as it was called before."""
    config = fields.object("output_config")
    wanted = None if config is None else config.object("format")
    return _format(fields.object("output_format") if wanted is None else wanted, ("json_schema",))


def ollama(fields: Fields) -> Form:
    """Of ollama: `format`, "json" or a schema."""
    found = Form()
    wanted = fields.get("format")
    if wanted in (None, ""):
        return found
    if wanted != "json" and not isinstance(wanted, dict):
        raise wrong("format", wanted, 'must be "json" or a JSON schema')
    found.add(fields, "format", "schema", OBJECT if wanted == "json" else wanted)
    return found


def _format(wanted: Fields | None, kinds: tuple[str, ...]) -> Form:
    found = Form()
    if wanted is None:
        return found
    kind = wanted.text("type")
    if kind not in kinds:
        raise wrong(wanted.path("type"), kind, f"must be one of {', '.join(kinds)}")
    if kind == "json_object":
        found.add(wanted, "type", "schema", OBJECT)
    elif kind == "json_schema":
        wanted.needed("schema")
        found.add(wanted, "schema", "schema", _schema(wanted, "schema"))
    return found


def _schema(fields: Fields, name: str) -> Mapping[str, Any]:
    found = fields.object(name)
    assert found is not None
    return found.values


def _read(fields: Fields, theirs: str, ours: str) -> Any:
    if ours == "schema":
        given = fields.get(theirs)
        return given if isinstance(given, str) else _schema(fields, theirs)
    return fields.texts(theirs) if ours == "choice" else fields.text(theirs)
