"""Anthropic's dialect: `/v1/messages` and `/v1/messages/count_tokens`."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from onegraph.answers import (
    ReasoningDelta,
    ToolCallBegun,
    ToolCallDelta,
    ToolCallEnded,
    ToolCallFailed,
)
from onegraph.llm import LLM
from onegraph.results import Result
from onegraph.server import conversation, forms, frames
from onegraph.server.answers import Answer, Asked
from onegraph.server.events import Event, Text, said
from onegraph.server.fields import Fields, wrong
from onegraph.server.history import History, called
from onegraph.server.refusals import Refused
from onegraph.server.sampling import options, salt_of, spelled
from onegraph.server.service import Reply, Service
from onegraph.server.tools import anthropic as tools_of
from onegraph.server.tools import say_left_out
from onegraph.streams import Job

__all__ = ["failure", "routes"]

#: Sampling keywords.
NAMES = {
    "max_tokens": "max_tokens",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "stop_sequences": "stop",
}

#: Parts of a content that are no text, and are looked at apart from it; what was hidden of a
#: reasoning cannot be shown to a model.
APART = ("thinking", "redacted_thinking", "tool_use", "tool_result")

#: Tokens of a budget for reasoning, and the least that are such an effort.
BUDGETS = {"high": 16384, "medium": 4096}

#: Parts that are of tools which Anthropic's own servers run.
SERVERS = (
    *("server_tool_use", "web_search_tool_result", "web_fetch_tool_result"),
    *("code_execution_tool_result", "bash_code_execution_tool_result"),
    *("text_editor_code_execution_tool_result", "tool_search_tool_result"),
    *("mcp_tool_use", "mcp_tool_result"),
)

#: How the line begins that Claude Code has at the head of its instructions, for who bills it.
NONCE = "x-anthropic-billing-header:"

KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def routes(service: Service) -> list[Route]:
    """The endpoints."""

    async def messages(request: Request) -> Answer:
        return service.answer(await service.read(request, _asked))

    async def count(request: Request) -> Reply:
        return await service.read(request, _counted)

    return [
        Route("/v1/messages", messages, methods=["POST"]),
        Route("/v1/messages/count_tokens", count, methods=["POST"]),
    ]


def _counted(service: Service, fields: Fields) -> Reply:
    model = service.model(fields)
    messages, continues = _messages(fields)
    tools, (variables, _) = tools_of(fields), _thinking(fields)

    def made(llm: LLM) -> dict[str, Any]:
        ids = conversation.tokens(
            llm, messages, tools=tools, continues=continues, variables=variables
        )
        return {"input_tokens": len(ids)}

    return service.reply(model, made)


def failure(why: Refused) -> dict[str, Any]:
    """A refusal as this dialect writes it."""
    kind = KINDS.get(why.status, "api_error" if why.status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": why.message}}


def _messages(fields: Fields) -> tuple[list[dict[str, Any]], bool]:
    """The conversation, and whether its last message is to be gone on with."""
    history = History()
    if system := _system(fields):
        history.instruct(system)
    last: str | None = None
    for message in conversation.messages(fields):
        role = message.text("role")
        if role not in ("user", "assistant", "system"):
            raise wrong(message.path("role"), role, 'must be "user", "assistant" or "system"')
        if not conversation.may_be_empty(message):
            message.needed("content")
        if role == "system":
            history.instruct(conversation.text_of(message, "content"))
            last = role
            continue
        parts = message.objects("content") if isinstance(message.get("content"), list) else []
        skipped = APART + (SERVERS if role == "assistant" else ())
        text = conversation.text_of(message, "content", skipped=skipped) or ""
        # Two turns of one side are one: templates expect the sides to take turns.
        joins = last == role
        if role == "assistant":
            _answer(history, parts, text, joins)
            last = role
        else:
            results = [part for part in parts if _part(part, "assistant") == "tool_result"]
            for part in results:
                _returned(history, part)
            if text or not results:
                history.say(role, text, joins=joins and not results)
            last = role if text or not results else "tool"
    found = history.messages()
    if last == "assistant" and found[-1] == {"role": last, "content": ""}:
        return found[:-1], False  # there is nothing to go on with
    return found, last == "assistant"


def _system(fields: Fields) -> str | None:
    """The instructions, less a first line that has another value in each request: no prefix of the
    conversation would be found again behind it."""
    given = fields.get("system")
    text = conversation.text_of(fields, "system")
    if text is None or not text.startswith(NONCE):
        return text
    first = given if isinstance(given, str) else given[0]["text"]
    # A block of that line alone has no end of line.
    return text[len(first.partition("\n")[0]) :].removeprefix("\n")


def _part(part: Fields, elsewhere: str) -> str | None:
    """The kind of a part, which is none that stands in messages of the other side alone."""
    kind = part.text("type")
    of_the_assistant = ("tool_use", "thinking", "redacted_thinking")
    if kind in (of_the_assistant if elsewhere == "assistant" else ("tool_result",)):
        raise wrong(part.path("type"), kind, f"only allowed in {elsewhere} messages")
    return kind


def _answer(history: History, parts: list[Fields], text: str, joins: bool) -> None:
    """A message of the assistant."""
    calls = []
    for part in parts:
        kind = _part(part, "user")
        if kind == "thinking":
            history.think(part.text("thinking") or "")
        elif kind == "tool_use":
            part.needed("id")
            part.needed("name")
            given = part.object("input")
            arguments = {} if given is None else given.values
            calls.append(called(part.text("id"), part.text("name"), arguments))
        elif kind in SERVERS:
            say_left_out(f"a part of type {kind}", "Anthropic")
    history.answer(text, calls, joins=joins)


def _returned(history: History, part: Fields) -> None:
    """What a call gave back; of a failure its text tells."""
    part.needed("tool_use_id")
    history.returned(part.text("tool_use_id"), conversation.text_of(part, "content"))


def _thinking(fields: Fields) -> tuple[dict[str, Any] | None, int | None]:
    """What `thinking` and `effort` are to a template that has such a switch, and most tokens of
    reasoning."""
    thinking = fields.object("thinking")
    kind = None if thinking is None else thinking.text("type")
    if kind not in (None, "enabled", "disabled", "adaptive"):
        raise wrong("thinking.type", kind, 'must be "enabled", "disabled" or "adaptive"')
    config = fields.object("output_config")
    effort = None if config is None else conversation.effort_of(config, "effort")
    if thinking is None or kind != "enabled":
        # An effort is not asked for alone here: it says how much, and not whether.
        found = conversation.thinking(kind != "disabled", effort) or {}
        of = found if kind == "disabled" else {"reasoning_effort"} & found.keys()
        return {name: found[name] for name in of}, None
    if (budget := thinking.integer("budget_tokens", 1)) is not None and effort is None:
        effort = next((word for word, least in BUDGETS.items() if budget >= least), "low")
    return conversation.thinking(True, effort), budget


def _asked(service: Service, fields: Fields) -> Asked:
    model = service.model(fields)
    fields.needed("max_tokens")
    messages, continues = _messages(fields)
    tools = tools_of(fields)
    form = forms.anthropic(fields)
    variables, budget = _thinking(fields)
    further = {"cache_salt": salt_of(fields), "thinking_token_budget": budget}
    chosen = options(fields, NAMES, service.limits, form, **further)
    head = {
        "id": frames.identifier("msg_"),
        "type": "message",
        "role": "assistant",
        "model": model.name,
    }

    def document(outputs: list[list[Event]]) -> dict[str, Any]:
        (events,) = outputs
        whole = said(events)
        content: list[dict[str, Any]] = []
        if whole.reasoning:
            content.append({"type": "thinking", "thinking": whole.reasoning, "signature": ""})
        if whole.text:
            content.append({"type": "text", "text": whole.text})
        for call in whole.calls:
            block = {"type": "tool_use", "id": call.id, "name": call.name}
            content.append({**block, "input": call.arguments})
        result = whole.result
        return {**head, "content": content, **_ending(result), "usage": _usage(result)}

    writers = [Writer(head)] if fields.flag("stream") else []
    prepare = conversation.chat(
        messages, chosen, tools=tools, continues=continues, variables=variables
    )
    return Asked(model, prepare, writers, document, spelled(fields, NAMES, form))


def _ending(result: Result) -> dict[str, Any]:
    if result.finish_reason == "length":
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    if result.finish_reason == "tool_calls":
        return {"stop_reason": "tool_use", "stop_sequence": None}
    if isinstance(result.stop_reason, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": result.stop_reason}
    return {"stop_reason": "end_turn", "stop_sequence": None}


def _usage(result: Result) -> dict[str, Any]:
    """Counts of tokens; what was kept is not part of the input here."""
    usage = result.usage
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


#: What is added to a block of each kind, and the field that it is in.
DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}


class Writer:
    """The stream of an answer: blocks of content, each begun and ended."""

    media_type = "text/event-stream"

    def __init__(self, head: dict[str, Any]) -> None:
        self._head = head
        #: The kind of the block that is open, and the blocks that were begun.
        self._open: str | None = None
        self._begun = 0
        # What stands around the text in frames of the block that is open.
        self._before = self._behind = b""

    def begin(self, job: Job) -> bytes:
        # How much of it was kept is known once it was read: the last event says it.
        usage = {
            "input_tokens": len(job.asks[0].ids),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 0,
        }
        ending: dict[str, Any] = {
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }
        message = {"type": "message_start", "message": self._head | ending}
        return frames.event("message_start", message) + self.idle()

    def event(self, event: Event) -> bytes:
        if isinstance(event, Text):
            if not event.text:
                return b""
            begun = b"" if self._open == "text" else self._begin({"type": "text", "text": ""})
            return begun + self._more(event.text)
        if isinstance(event, ReasoningDelta):
            block = {"type": "thinking", "thinking": "", "signature": ""}
            begun = b"" if self._open == "thinking" else self._begin(block)
            return begun + self._more(event.text)
        if isinstance(event, ToolCallBegun):
            block = {"type": "tool_use", "id": event.id, "name": event.name}
            return self._begin({**block, "input": {}})
        if isinstance(event, ToolCallDelta):
            return self._more(event.arguments)
        if isinstance(event, ToolCallEnded | ToolCallFailed):
            return self._end()
        last = {
            "type": "message_delta",
            "delta": _ending(event.result),
            "usage": _usage(event.result),
        }
        return (
            self._end()
            + frames.event("message_delta", last)
            + frames.event("message_stop", {"type": "message_stop"})
        )

    def _begin(self, block: dict[str, Any]) -> bytes:
        ended = self._end()
        kind = block["type"]
        self._open = kind
        self._begun += 1
        at = self._begun - 1
        delta_kind, field = DELTAS[kind]
        delta = {"type": delta_kind, field: frames.MARK}
        frame = {"type": "content_block_delta", "index": at, "delta": delta}
        self._before, self._behind = frames.around(frames.event("content_block_delta", frame))
        begun = {"type": "content_block_start", "index": at, "content_block": block}
        return ended + frames.event("content_block_start", begun)

    def _more(self, text: str) -> bytes:
        return self._before + frames.spelled(text) + self._behind

    def _end(self) -> bytes:
        if self._open is None:
            return b""
        self._open = None
        end = {"type": "content_block_stop", "index": self._begun - 1}
        return frames.event("content_block_stop", end)

    def idle(self) -> bytes:
        return frames.event("ping", {"type": "ping"})

    def failed(self, why: Refused) -> bytes:
        return frames.event("error", failure(why))
