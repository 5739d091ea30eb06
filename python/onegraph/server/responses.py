"""OpenAI's newer dialect: `/v1/responses`. Nothing is stored, so each request brings all of its
conversation."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from onegraph.llm import LLM
from onegraph.results import Result
from onegraph.server import conversation, forms, frames, openai
from onegraph.server.answers import Answer, Asked
from onegraph.server.events import Event, Finish
from onegraph.server.fields import Fields, wrong
from onegraph.server.history import History, called
from onegraph.server.items import Items, shown
from onegraph.server.refusals import Refused
from onegraph.server.sampling import options, salt_of, spelled
from onegraph.server.service import Reply, Service
from onegraph.server.tools import flat, flat_name, say_left_out
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

#: Items of a conversation.
TAKEN = (
    *("message", "reasoning", "function_call", "function_call_output"),
    *("custom_tool_call", "custom_tool_call_output"),
)

#: What OpenAI's own servers did for a model: what came of it is in what the model said then.
LEFT_OUT = (
    *("web_search_call", "file_search_call", "image_generation_call", "code_interpreter_call"),
    *("mcp_call", "mcp_list_tools", "tool_search_call", "tool_search_output"),
)

TEXTS = ("input_text", "output_text", "text", "refusal")


def routes(service: Service) -> list[Route]:
    """The endpoints."""

    async def responses(request: Request) -> Answer:
        return service.answer(await service.read(request, _asked))

    async def count(request: Request) -> Reply:
        return await service.read(request, _counted)

    return [
        *(Route(f"{at}/responses", responses, methods=["POST"]) for at in openai.AT),
        *(Route(f"{at}/responses/input_tokens", count, methods=["POST"]) for at in openai.AT),
    ]


def _counted(service: Service, fields: Fields) -> Reply:
    model = service.model(fields)
    messages = _messages(fields)
    _only_text(fields)
    tools, variables = flat(fields), _variables(fields)

    def made(llm: LLM) -> dict[str, Any]:
        ids = conversation.tokens(llm, messages, tools=tools, variables=variables)
        return {"object": "response.input_tokens", "input_tokens": len(ids)}

    return service.reply(model, made)


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
            history.think(_thought(item))
        elif kind in ("function_call", "custom_tool_call"):
            history.call(_called(item, kind))
        elif kind in ("function_call_output", "custom_tool_call_output"):
            item.needed("call_id")
            item.needed("output")
            text = conversation.text_of(item, "output", TEXTS)
            history.returned(item.text("call_id"), text)
        elif kind == "message":
            item.needed("role")
            role = item.text("role")
            if not conversation.may_be_empty(item):
                item.needed("content")
            text = conversation.text_of(item, "content", TEXTS)
            if role in ("developer", "system"):
                history.instruct(text)
            else:
                history.say(role, text)
        else:
            if kind not in LEFT_OUT:
                raise wrong(item.path("type"), kind, f"must be one of {', '.join(TAKEN)}")
            say_left_out(f"an item of type {kind}", "OpenAI")
    return history.messages()


def _variables(fields: Fields) -> dict[str, Any] | None:
    """What `reasoning` is to the template; the reasoning comes whole, so of a summary there is
    nothing to say."""
    reasoning = fields.object("reasoning")
    if reasoning is None:
        return None
    return conversation.thinking(effort=conversation.effort_of(reasoning, "effort"))


def _thought(item: Fields) -> str:
    """What the assistant thought. What another server hid of it cannot be shown to a model."""
    said = conversation.text_of(item, "content", ("reasoning_text",))
    kept = item.text("encrypted_content")
    if said or not kept:
        return said or ""
    if (found := shown(kept)) is None:
        say_left_out("the `encrypted_content` of a reasoning", "OpenAI")
    return found or ""


def _called(item: Fields, kind: str) -> dict[str, Any]:
    """A call as the model was shown the tool."""
    item.needed("call_id")
    item.needed("name")
    name = flat_name(item.text("name") or "", item.text("namespace"))
    if kind == "function_call":
        return called(item.text("call_id"), name, item.text("arguments"))
    item.needed("input")
    return called(item.text("call_id"), name, {"input": item.text("input")})


def _only_text(fields: Fields) -> None:
    """Refuses what would make another kind of answer."""
    fields.absent("previous_response_id", "nothing is stored here; send the whole conversation")
    fields.absent("conversation", "nothing is stored here; send the whole conversation")
    fields.absent("prompt", "nothing is stored here; send `instructions` and `input`")
    fields.absent("moderation", "there is no moderation here; leave it out")
    fields.absent("background", "nothing is stored here; wait for the answer, or stream it")


def _asked(service: Service, fields: Fields) -> Asked:
    model = service.model(fields)
    messages = _messages(fields)
    _only_text(fields)
    tools = flat(fields)
    form = forms.responses(fields)
    included = fields.texts("include") or []
    further = {"logprobs": _logprobs(fields, included), "cache_salt": salt_of(fields)}
    chosen = options(fields, NAMES, service.limits, form, **further)
    head = _Head(model.name, fields)
    hides = "reasoning.encrypted_content" in included

    def made() -> Items:
        return Items(tools.named, hides=hides)

    def document(outputs: list[list[Event]]) -> dict[str, Any]:
        (events,) = outputs
        items = made()
        for event in events:
            items.event(event)
        last = events[-1]
        assert isinstance(last, Finish)
        return head.ended(last.result, items.done)

    writers = [Writer(head, made())] if fields.flag("stream") else []
    prepare = conversation.chat(messages, chosen, tools=tools, variables=_variables(fields))
    return Asked(model, prepare, writers, document, spelled(fields, NAMES, form))


def _logprobs(fields: Fields, included: list[str]) -> int | None:
    """How many log-probabilities are asked for beside each token's own; None where none are."""
    top = fields.integer("top_logprobs", 0, openai.TOP_LOGPROBS) or 0
    return top if top or "message.output_text.logprobs" in included else None


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
            "reasoning": fields.get("reasoning") or {"effort": None, "summary": None},
            "parallel_tool_calls": fields.flag("parallel_tool_calls", True),
            "previous_response_id": None,
            "store": False,
            "temperature": fields.number("temperature"),
            "text": fields.get("text") or {"format": {"type": "text"}},
            "tool_choice": fields.get("tool_choice") or "auto",
            "tools": fields.get("tools") or [],
            "top_logprobs": fields.integer("top_logprobs") or 0,
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
                # What is read is kept without being asked for.
                "input_tokens_details": {
                    "cached_tokens": usage.cached_tokens,
                    "cache_write_tokens": 0,
                },
                "output_tokens": usage.completion_tokens,
                "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
                "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            },
        }


class Writer:
    """The stream of a response: numbered events."""

    media_type = "text/event-stream"

    def __init__(self, head: _Head, items: Items) -> None:
        self._head = head
        self._items = items
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
