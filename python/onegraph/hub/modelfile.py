"""What a Modelfile says of a model in ollama's store: its SYSTEM, PARAMETER and TEMPLATE."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from onegraph.errors import ModelError
from onegraph.hub import ollama

__all__ = ["PARAMETERS", "Modelfile", "read"]

#: Of ollama's parameters, the keywords of `generate`.
PARAMETERS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repeat_penalty": "repeat_penalty",
    "repeat_last_n": "repeat_last_n",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "stop": "stop",
}


@dataclass(frozen=True)
class Modelfile:
    """What it says; nothing of it, of a model that has none."""

    system: str | None = None
    #: Keywords of `generate`.
    sampling: Mapping[str, Any] = field(default_factory=dict)
    n_ctx: int | None = None
    #: The source of a chat template; None too where the TEMPLATE does more than to place a turn.
    template: str | None = None


def read(ref: str) -> Modelfile:
    """That of a reference of `onegraph.hub.meant`.

    Raises `ModelError` where what ollama keeps is damaged, `FileError` where it cannot be read.
    """
    if not ref.startswith("ollama:"):
        return Modelfile()
    layers = ollama.layers(ref)
    try:
        given = json.loads(layers.get("params", "{}"))
        sampling = {ours: given[name] for name, ours in PARAMETERS.items() if name in given}
        if "num_predict" in given:
            sampling["max_tokens"] = given["num_predict"] if given["num_predict"] > 0 else None
        if given.get("seed", -1) != -1:
            sampling["seed"] = given["seed"] % 2**64
        n_ctx = given.get("num_ctx")
        if n_ctx is not None and (not isinstance(n_ctx, int) or n_ctx < 1):
            raise ValueError(f"num_ctx is {n_ctx!r}, not a number of tokens")
    except (ValueError, TypeError, AttributeError, RecursionError) as e:
        raise ModelError(
            f"{ref}: its parameters in ollama's store are damaged: {e}; pull or create it again"
        ) from e
    template = layers.get("template")
    return Modelfile(
        layers.get("system"), sampling, n_ctx, None if template is None else _jinja(template)
    )


#: An action of Go's templates, and the blanks that it takes away on either side.
_ACTION = re.compile(r"(\s*\{\{-\s|\{\{)\s*(.*?)\s*(\s-\}\}\s*|\}\})", re.S)
_FIELDS = {".System": "turn.system", ".Prompt": "turn.prompt", ".Response": "turn.response"}

_TURNS = """\
{%- set turn = namespace(system='', prompt='', response='') -%}
{%- for message in messages -%}
{%- if message.role == 'system' -%}{%- set turn.system = message.content -%}
{%- elif message.role == 'user' -%}{%- set turn.prompt = message.content -%}
{%- elif message.role == 'assistant' -%}{%- set turn.response = message.content -%}
@WHOLE@
{%- set turn.system = '' -%}{%- set turn.prompt = '' -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}@OPEN@{%- endif -%}"""


def _jinja(template: str) -> str | None:
    """The template for whole conversations that a TEMPLATE of one turn stands for; None where it
    has more than .System, .Prompt and .Response, and conditions that one of them is there."""
    parts: list[str] = []
    depth, at, opened = 0, 0, None
    for action in _ACTION.finditer(template):
        parts.append(_literal(template[at : action.start()]))
        at, said = action.end(), action[2]
        condition = re.fullmatch(r"if\s+(\.\w+)", said)
        if said == ".Response":
            if depth or opened is not None:
                return None
            opened = len(parts)
        if said in _FIELDS:
            parts.append(f"{{{{- {_FIELDS[said]} -}}}}")
        elif condition and condition[1] in _FIELDS:
            depth += 1
            parts.append(f"{{%- if {_FIELDS[condition[1]]} -%}}")
        elif said == "else" and depth:
            parts.append("{%- else -%}")
        elif said == "end" and depth:
            depth -= 1
            parts.append("{%- endif -%}")
        else:
            return None
    parts.append(_literal(template[at:]))
    if depth:
        return None
    # As ollama has it, an answer comes last where the TEMPLATE has no place for it.
    whole = "".join(parts if opened is not None else [*parts, "{{- turn.response -}}"])
    opening = "".join(parts[:opened])
    return _TURNS.replace("@WHOLE@", whole).replace("@OPEN@", opening)


def _literal(text: str) -> str:
    return f"{{{{- {json.dumps(text)} -}}}}" if text else ""
