"""OpenAI's newer dialect: `/v1/responses`. Nothing is stored, so each request brings all of its
conversation."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
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

__all__ = ["routes"]

#: Sampling keywords. OpenAI has the first three of them.
NAMES = {
    "max_output_tokens": "max_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "seed": "seed",
    "stop": "stop",
    "ignore_eos": "ignore_eos",
}

#: Items of an input that a model is not shown: what it thought before an earlier answer.
SKIPPED = ("reasoning",)

TEXTS = ("input_text", "output_text", "text", "refusal")


def routes(service: Service) -> list[Route]:
    """The endpoints."""

    async def responses(request: Request) -> Answer:
        return service.answer(_asked(service, await service.read(request)))

    return [Route("/v1/responses", responses, methods=["POST"])]


def _messages(fields: Fields) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if instructions := fields.text("instructions"):
        found.append({"role": "system", "content": instructions})
    fields.needed("input")
    if isinstance(fields.get("input"), str):
        return [*found, {"role": "user", "content": fields.text("input")}]
    for item in fields.objects("input"):
        kind = item.text("type") or "message"
        if kind in SKIPPED:
            continue
        if kind in ("function_call", "function_call_output"):
            raise wrong(item.path("type"), kind, conversation.NO_TOOLS)
        if kind != "message":
            raise wrong(item.path("type"), kind, 'must be "message"')
        item.needed("role")
        item.needed("content")
        role = item.text("role")
        text = conversation.text_of(item, "content", TEXTS)
        found.append({"role": "system" if role == "developer" else role, "content": text})
    return found


def _only_text(fields: Fields) -> None:
    """Refuses what would make another kind of answer."""
    fields.absent("tools", conversation.NO_TOOLS)
    fields.absent("previous_response_id", "nothing is stored here; send the whole conversation")
    fields.absent("conversation", "nothing is stored here; send the whole conversation")
    fields.absent("prompt", "nothing is stored here; send `instructions` and `input`")
    fields.absent("background", "nothing is stored here; wait for the answer, or stream it")
    text = fields.object("text")
    wanted = None if text is None else text.object("format")
    if wanted is not None and wanted.text("type") not in (None, "text"):
        raise wrong("text.format.type", wanted.text("type"), 'only "text" is made here')


def _asked(service: Service, fields: Fields) -> Asked:
    model = service.model(fields)
    messages = _messages(fields)
    _only_text(fields)
    chosen = options(fields, NAMES, service.limits)
    head = _Head(model.name, fields)

    def document(outputs: list[list[Event]]) -> dict[str, Any]:
        (events,) = outputs
        text = "".join(event.text for event in events if isinstance(event, Text))
        assert isinstance(events[-1], Finish)
        return head.ended(events[-1].result, text)

    writer = Writer(head) if fields.flag("stream") else None
    prepare = conversation.chat(messages, chosen)
    return Asked(model, prepare, writer, document, spelled(fields, NAMES))


class _Head:
    """The object of a response, before and after it is made."""

    def __init__(self, model: str, fields: Fields) -> None:
        self.item = frames.identifier("msg_")
        metadata = fields.object("metadata")
        self._fields = {
            "id": frames.identifier("resp_"),
            "object": "response",
            "created_at": frames.now(),
            "model": model,
            "error": None,
            "incomplete_details": None,
            "instructions": fields.text("instructions"),
            "max_output_tokens": fields.integer("max_output_tokens"),
            "metadata": {} if metadata is None else metadata.values,
            "output": [],
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "store": False,
            "temperature": fields.number("temperature"),
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_p": fields.number("top_p"),
            "truncation": "disabled",
            "usage": None,
        }

    def begun(self) -> dict[str, Any]:
        return {**self._fields, "status": "in_progress"}

    def failed(self, why: Refused) -> dict[str, Any]:
        error = {"code": "server_error", "message": why.message}
        return {**self._fields, "status": "failed", "error": error}

    def message(self, text: str | None, status: str) -> dict[str, Any]:
        content = [] if text is None else [part(text)]
        return {
            "id": self.item,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": content,
        }

    def ended(self, result: Result, text: str) -> dict[str, Any]:
        cut = result.finish_reason == "length"
        usage = result.usage
        return {
            **self._fields,
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": [self.message(text, "incomplete" if cut else "completed")],
            "usage": {
                "input_tokens": usage.prompt_tokens,
                "input_tokens_details": {"cached_tokens": usage.cached_tokens},
                "output_tokens": usage.completion_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            },
        }


def part(text: str) -> dict[str, Any]:
    """A part of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


class Writer:
    """The stream of a response: numbered events, in which each thing is added, filled and done."""

    media_type = "text/event-stream"

    def __init__(self, head: _Head) -> None:
        self._head = head
        self._number = 0
        self._texts: list[str] = []
        self._at = {"output_index": 0, "content_index": 0}
        delta = {
            "type": "response.output_text.delta",
            "item_id": head.item,
            **self._at,
            "logprobs": [],
            "delta": frames.MARK,
        }
        self._before, _ = frames.around(frames.event("response.output_text.delta", delta))

    def _event(self, kind: str, **more: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return frames.event(kind, {"type": kind, **more, "sequence_number": number})

    def begin(self, job: Job) -> bytes:
        begun, item = self._head.begun(), self._head.message(None, "in_progress")
        return b"".join(
            [
                self._event("response.created", response=begun),
                self._event("response.in_progress", response=begun),
                self._event("response.output_item.added", output_index=0, item=item),
                self._event(
                    "response.content_part.added",
                    item_id=self._head.item,
                    **self._at,
                    part=part(""),
                ),
            ]
        )

    def event(self, event: Event) -> bytes:
        if isinstance(event, Text):
            self._texts.append(event.text)
            number, self._number = self._number, self._number + 1
            behind = b',"sequence_number":%d}\n\n' % number
            return self._before + frames.spelled(event.text) + behind
        text = "".join(self._texts)
        response = self._head.ended(event.result, text)
        here: dict[str, Any] = {"item_id": self._head.item, **self._at}
        return b"".join(
            [
                self._event("response.output_text.done", **here, text=text, logprobs=[]),
                self._event("response.content_part.done", **here, part=part(text)),
                self._event(
                    "response.output_item.done", output_index=0, item=response["output"][0]
                ),
                self._event(f"response.{response['status']}", response=response),
            ]
        )

    def idle(self) -> bytes:
        return b": still waiting\n\n"

    def failed(self, why: Refused) -> bytes:
        return self._event("response.failed", response=self._head.failed(why))
