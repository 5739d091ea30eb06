"""OpenAI's newer dialect: `/v1/responses`. Nothing is stored, so each request brings all of its
conversation."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from onegraph.results import Result
from onegraph.server import conversation, forms, frames
from onegraph.server.answers import Answer, Asked
from onegraph.server.events import Event, Finish
from onegraph.server.fields import Fields, wrong
from onegraph.server.history import History, called
from onegraph.server.items import Items
from onegraph.server.refusals import Refused
from onegraph.server.sampling import options, salt_of, spelled
from onegraph.server.service import Service
from onegraph.server.tools import flat
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

TEXTS = ("input_text", "output_text", "text", "refusal")


def routes(service: Service) -> list[Route]:
    """The endpoints."""

    async def responses(request: Request) -> Answer:
        return service.answer(await service.read(request, _asked))

    return [Route("/v1/responses", responses, methods=["POST"])]


def _messages(fields: Fields) -> list[dict[str, Any]]:
    history = History()
    if instructions := fields.text("instructions"):
        history.instruct(instructions)
    fields.needed("input")
    if isinstance(fields.get("input"), str):
        history.say("user", fields.text("input"))
        return history.messages()
    for item in conversation.messages(fields, "input"):
        kind = item.text("type") or "message"
        if kind == "reasoning":
            # One of another server may be hidden: nothing of it can be shown to a model.
            history.think(conversation.text_of(item, "content", ("reasoning_text",)) or "")
        elif kind == "function_call":
            item.needed("call_id")
            item.needed("name")
            history.call(called(item.text("call_id"), item.text("name"), item.text("arguments")))
        elif kind == "function_call_output":
            item.needed("call_id")
            item.needed("output")
            text = conversation.text_of(item, "output", TEXTS)
            history.returned(item.text("call_id"), text)
        elif kind == "message":
            item.needed("role")
            item.needed("content")
            role = item.text("role")
            text = conversation.text_of(item, "content", TEXTS)
            if role in ("developer", "system"):
                history.instruct(text)
            else:
                history.say(role, text)
        else:
            expected = "must be one of message, reasoning, function_call, function_call_output"
            raise wrong(item.path("type"), kind, expected)
    return history.messages()


def _only_text(fields: Fields) -> None:
    """Refuses what would make another kind of answer."""
    fields.absent("previous_response_id", "nothing is stored here; send the whole conversation")
    fields.absent("conversation", "nothing is stored here; send the whole conversation")
    fields.absent("prompt", "nothing is stored here; send `instructions` and `input`")
    fields.absent("background", "nothing is stored here; wait for the answer, or stream it")


def _asked(service: Service, fields: Fields) -> Asked:
    model = service.model(fields)
    messages = _messages(fields)
    _only_text(fields)
    tools = flat(fields)
    form = forms.responses(fields)
    chosen = options(fields, NAMES, service.limits, form, cache_salt=salt_of(fields))
    head = _Head(model.name, fields)

    def document(outputs: list[list[Event]]) -> dict[str, Any]:
        (events,) = outputs
        items = Items()
        for event in events:
            items.event(event)
        last = events[-1]
        assert isinstance(last, Finish)
        return head.ended(last.result, items.done)

    writers = [Writer(head)] if fields.flag("stream") else []
    prepare = conversation.chat(messages, chosen, tools=tools)
    return Asked(model, prepare, writers, document, spelled(fields, NAMES, form))


class _Head:
    """The object of a response, before and after it is made."""

    def __init__(self, model: str, fields: Fields) -> None:
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
            "parallel_tool_calls": fields.flag("parallel_tool_calls", True),
            "previous_response_id": None,
            "store": False,
            "temperature": fields.number("temperature"),
            "text": fields.get("text") or {"format": {"type": "text"}},
            "tool_choice": fields.get("tool_choice") or "auto",
            "tools": fields.get("tools") or [],
            "top_p": fields.number("top_p"),
            "truncation": "disabled",
            "usage": None,
        }

    def begun(self) -> dict[str, Any]:
        return {**self._fields, "status": "in_progress"}

    def failed(self, why: Refused) -> dict[str, Any]:
        error = {"code": "server_error", "message": why.message}
        return {**self._fields, "status": "failed", "error": error}

    def ended(self, result: Result, output: list[dict[str, Any]]) -> dict[str, Any]:
        cut = result.finish_reason == "length"
        usage = result.usage
        return {
            **self._fields,
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": output,
            "usage": {
                "input_tokens": usage.prompt_tokens,
                "input_tokens_details": {"cached_tokens": usage.cached_tokens},
                "output_tokens": usage.completion_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            },
        }


class Writer:
    """The stream of a response: numbered events."""

    media_type = "text/event-stream"

    def __init__(self, head: _Head) -> None:
        self._head = head
        self._items = Items()
        self._number = 0

    def _event(self, kind: str, more: dict[str, Any]) -> bytes:
        number, self._number = self._number, self._number + 1
        return frames.event(kind, {"type": kind, **more, "sequence_number": number})

    def begin(self, job: Job) -> bytes:
        begun = {"response": self._head.begun()}
        return self._event("response.created", begun) + self._event("response.in_progress", begun)

    def event(self, event: Event) -> bytes:
        said = b"".join(self._event(*each) for each in self._items.event(event))
        if isinstance(event, Finish):
            response = self._head.ended(event.result, self._items.done)
            said += self._event(f"response.{response['status']}", {"response": response})
        return said

    def idle(self) -> bytes:
        return b": still waiting\n\n"

    def failed(self, why: Refused) -> bytes:
        return self._event("response.failed", {"response": self._head.failed(why)})
