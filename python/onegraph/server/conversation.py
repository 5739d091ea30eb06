"""Conversations as all dialects have them in the end, and what becomes of them and of prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from onegraph import _native
from onegraph.conversations import EFFORTS, UNREAD, UNREADABLE, needs_content, thinking
from onegraph.llm import LLM
from onegraph.prompts import is_short
from onegraph.sampling import resolve
from onegraph.server import placed
from onegraph.server.fields import Fields, wrong
from onegraph.server.refusals import Refused
from onegraph.server.requests import MOST_VALUES
from onegraph.server.tools import NONE, Tools
from onegraph.streams import Job

__all__ = [
    "Prepare",
    "chat",
    "effort_of",
    "may_be_empty",
    "messages",
    "prompt",
    "text_of",
    "thinking",
    "tokens",
]

#: Parts of a content that a model which reads text cannot take.
_SEEN = {"image", "image_url", "input_image", "input_audio", "audio", "video_url", "file"}
_SEEN |= {"document", "input_file", "video"}

#: Messages, and parts of their contents. A question and an answer take two; more than this many are
#: no conversation, and to look at each keeps others waiting.
MOST_MESSAGES = 100_000

#: Characters of a prompt whose tokens the event loop makes itself, well within a millisecond: to
#: have a thread make them costs it more.
QUICK = 1 << 10


@dataclass(frozen=True)
class Prepare:
    """What a request is to the engine."""

    #: Renders and tokenizes.
    job: Callable[[LLM], Job]
    #: Whether the event loop may wait for it.
    is_quick: bool
    #: Whether a form is compiled for it.
    compiles: bool = False


def text_of(
    fields: Fields,
    name: str,
    kinds: tuple[str, ...] = ("text",),
    skipped: tuple[str, ...] = (),
) -> str | None:
    """A content: a string, or a list of parts of these kinds that have a `text`, joined; parts of
    the kinds `skipped` are left out."""
    value = fields.get(name)
    if not isinstance(value, list):
        return fields.text(name)
    few(fields.path(name), len(value), "parts")
    texts = []
    for part in fields.objects(name):
        kind = part.text("type")
        if kind in skipped:
            continue
        if kind in _SEEN:
            raise wrong(part.path("type"), kind, UNREADABLE)
        if kind not in kinds:
            expected = f"must be one of {', '.join(kinds)}"
            raise wrong(part.path("type"), kind, expected)
        part.needed("text")
        texts.append(part.text("text") or "")
    return "".join(texts)


def effort_of(fields: Fields, name: str) -> str | None:
    """How much a model is to think, as a request says it."""
    given = fields.text(name)
    if given is not None and given != "none" and given not in EFFORTS:
        expected = f"must be one of none, {', '.join(EFFORTS)}"
        raise wrong(fields.path(name), given, expected)
    return given


def may_be_empty(message: Fields) -> bool:
    """Whether a message may have no text; a null is what clients send for an assistant's empty
    one."""
    is_null = message.get("role") == "assistant" and "content" in message.values
    return is_null or not needs_content(message.values)


def chat(
    messages: list[dict[str, Any]],
    options: dict[str, Any],
    *,
    n: int | None = None,
    tools: Tools = NONE,
    continues: bool = False,
    variables: dict[str, Any] | None = None,
    most: int | None = None,
) -> Prepare:
    """Of a conversation, `n` outputs; of at most so many tokens where that is said, else as many as
    leave room in the context."""

    def prepare(llm: LLM) -> Job:
        return llm._conversations(
            placed.placed(llm, messages),
            options,
            n,
            tools=tools.offered or None,
            tool_choice=tools.choice,
            parallel=tools.parallel,
            tool_format=None,
            chat_template=None,
            continues=continues,
            template_kwargs=variables,
            parse_special=False,
            most=most,
        )

    # A template takes as long as it likes.
    compiles = options["constraint"] is not None or bool(tools.offered)
    return Prepare(prepare, is_quick=False, compiles=compiles)


def prompt(
    given: Any,
    options: dict[str, Any],
    *,
    n: int | None = None,
    echo: bool = False,
    parse_special: bool = False,
    suffix: str | None = None,
) -> Prepare:
    """Of a prompt, or several, `n` outputs each; with a `suffix` what stands between.
    `parse_special` lets their texts spell control tokens."""

    def prepare(llm: LLM) -> Job:
        return llm._prompts(given, options, n, echo, parse_special, suffix)

    compiles = options["constraint"] is not None
    is_quick = not compiles and not suffix and is_short(given, QUICK)
    return Prepare(prepare, is_quick, compiles)


def few(name: str, count: int, what: str) -> None:
    """Raises where there are more messages, or parts of them, than are taken."""
    if count > MOST_MESSAGES:
        raise Refused(400, f"{name}: {count} {what}; send at most {MOST_MESSAGES}", field=name)


def _parts(of: Any) -> list[Any]:
    """The parts of a message, or of a tool's result among them."""
    content = of.get("content") or of.get("output") if isinstance(of, dict) else None
    return content if isinstance(content, list) else []


def messages(fields: Fields, name: str = "messages") -> Iterator[Fields]:
    """The messages of a body, as long as somebody wants them."""
    given = fields.items(name) or []
    few(name, len(given), "messages")
    parts = (1 + len(_parts(part)) for message in given for part in _parts(message))
    few(name, sum(parts), "parts of contents")
    for message in fields.objects(name):
        _native.go_on()
        for key in UNREAD:
            message.absent(key, UNREADABLE)
        yield message


def tokens(
    llm: LLM,
    given: list[dict[str, Any]],
    *,
    tools: Tools = NONE,
    continues: bool = False,
    variables: dict[str, Any] | None = None,
) -> list[int]:
    """The tokens that a conversation is to the model, at most as many as a body has values."""
    prepare = chat(
        given,
        resolve({}),
        tools=tools,
        continues=continues,
        variables=variables,
        most=MOST_VALUES,
    )
    return prepare.job(llm).asks[0].ids
