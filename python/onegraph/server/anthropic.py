"""Anthropic's dialect: `/v1/messages` and `/v1/messages/count_tokens`."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from onegraph.results import Result
from onegraph.server import conversation, frames
from onegraph.server.answers import Answer, Asked
from onegraph.server.events import Event, Finish, Text
from onegraph.server.fields import Fields, wrong
from onegraph.server.refusals import Refused
from onegraph.server.sampling import options, spelled
from onegraph.server.service import Service
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

#: Parts of a content that a model is not shown: what it thought before an earlier answer.
SKIPPED = ("thinking", "redacted_thinking")

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
        return service.answer(_asked(service, await service.read(request)))

    async def count(request: Request) -> JSONResponse:
        fields = await service.read(request)
        model = service.model(fields)
        said, continues = _messages(fields)
        async with service.models.using(model) as llm:
            ids = await asyncio.get_running_loop().run_in_executor(
                None, lambda: conversation.tokens(llm, said, continues=continues)
            )
        return JSONResponse({"input_tokens": len(ids)})

    return [
        Route("/v1/messages", messages, methods=["POST"]),
        Route("/v1/messages/count_tokens", count, methods=["POST"]),
    ]


def failure(why: Refused) -> dict[str, Any]:
    """A refusal as this dialect writes it."""
    kind = KINDS.get(why.status, "api_error" if why.status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": why.message}}


def _messages(fields: Fields) -> tuple[list[dict[str, Any]], bool]:
    """The conversation, and whether its last message is to be gone on with."""
    fields.absent("tools", conversation.NO_TOOLS)
    found: list[dict[str, Any]] = []
    if system := conversation.text_of(fields, "system"):
        found.append({"role": "system", "content": system})
    for message in conversation.messages(fields):
        role = message.text("role")
        if role not in ("user", "assistant"):
            raise wrong(message.path("role"), role, 'must be "user" or "assistant"')
        message.needed("content")
        text = conversation.text_of(message, "content", skipped=SKIPPED)
        if found[-1:] and found[-1]["role"] == role:
            # Two turns of one side are one: templates expect the sides to take turns.
            found[-1]["content"] += f"\n{text}"
        else:
            found.append({"role": role, "content": text})
    return found, bool(found) and found[-1]["role"] == "assistant"


def _asked(service: Service, fields: Fields) -> Asked:
    model = service.model(fields)
    fields.needed("max_tokens")
    messages, continues = _messages(fields)
    wanted = fields.object("output_config")
    if wanted is not None:
        wanted.absent("format", "text of a given form is not made here")
    chosen = options(fields, NAMES, service.limits)
    head = {
        "id": frames.identifier("msg_"),
        "type": "message",
        "role": "assistant",
        "model": model.name,
    }

    def document(outputs: list[list[Event]]) -> dict[str, Any]:
        (events,) = outputs
        text = "".join(event.text for event in events if isinstance(event, Text))
        assert isinstance(events[-1], Finish)
        result = events[-1].result
        content = [{"type": "text", "text": text}] if text else []
        return {**head, "content": content, **_ending(result), "usage": _usage(result)}

    writer = Writer(head) if fields.flag("stream") else None
    prepare = conversation.chat(messages, chosen, continues=continues)
    return Asked(model, prepare, writer, document, spelled(fields, NAMES))


def _ending(result: Result) -> dict[str, Any]:
    if result.finish_reason == "length":
        return {"stop_reason": "max_tokens", "stop_sequence": None}
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


class Writer:
    """The stream of an answer: blocks of content, each begun and ended."""

    media_type = "text/event-stream"

    def __init__(self, head: dict[str, Any]) -> None:
        self._head = head
        self._open = False
        delta = {"type": "text_delta", "text": frames.MARK}
        frame = {"type": "content_block_delta", "index": 0, "delta": delta}
        self._before, self._behind = frames.around(frames.event("content_block_delta", frame))

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
            begun = b"" if self._open else self._begin()
            return begun + self._before + frames.spelled(event.text) + self._behind
        ended = b""
        if self._open:
            ended = frames.event("content_block_stop", {"type": "content_block_stop", "index": 0})
        last = {
            "type": "message_delta",
            "delta": _ending(event.result),
            "usage": _usage(event.result),
        }
        return (
            ended
            + frames.event("message_delta", last)
            + frames.event("message_stop", {"type": "message_stop"})
        )

    def _begin(self) -> bytes:
        self._open = True
        block = {"type": "text", "text": ""}
        begun = {"type": "content_block_start", "index": 0, "content_block": block}
        return frames.event("content_block_start", begun)

    def idle(self) -> bytes:
        return frames.event("ping", {"type": "ping"})

    def failed(self, why: Refused) -> bytes:
        return frames.event("error", failure(why))
