"""OpenAI's dialect: `/v1/chat/completions`, `/v1/completions`, `/v1/embeddings`, `/v1/models`."""

from __future__ import annotations

import dataclasses
import functools
from abc import ABC, abstractmethod
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from onegraph._native import __version__
from onegraph.answers import ReasoningDelta, ToolCallBegun, ToolCallDelta
from onegraph.results import Result, Scored, Timings, TokenLogprob
from onegraph.server import conversation, forms, frames
from onegraph.server.answers import Answer, Asked
from onegraph.server.embeddings import MOST_TEXTS, Vectors, of_openai
from onegraph.server.events import Event, Finish, Text, said
from onegraph.server.fields import Fields, wrong
from onegraph.server.history import with_reasoning
from onegraph.server.models import Model
from onegraph.server.ranking import of_rerank
from onegraph.server.refusals import Refused
from onegraph.server.sampling import options, salt_of, spelled
from onegraph.server.service import Service
from onegraph.server.tools import nested, say_left_out
from onegraph.streams import Job

__all__ = ["endless", "failure", "listed", "logprobs", "messages", "routes", "usage", "variables"]

FINGERPRINT = f"onegraph-{__version__}"

#: In front of the paths.
AT = ("/v1", "")

#: Sampling keywords. Those that OpenAI has not are the ones that other servers added.
NAMES = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "repetition_penalty": "repeat_penalty",
    "repeat_penalty": "repeat_penalty",
    "logit_bias": "logit_bias",
    "seed": "seed",
    "stop": "stop",
    "stop_token_ids": "stop_token_ids",
    "ignore_eos": "ignore_eos",
    "max_tokens": "max_tokens",
}
CHAT_NAMES = {
    **NAMES,
    "max_completion_tokens": "max_tokens",
    # Of vLLM, and of llama-server.
    "thinking_token_budget": "thinking_token_budget",
    "thinking_budget_tokens": "thinking_token_budget",
}
COMPLETION_NAMES = {**NAMES, "logprobs": "logprobs"}

#: Tokens that a completion has where nobody says how many.
COMPLETION_TOKENS = 16

#: Outputs of one prompt: as many as OpenAI makes.
MOST_OUTPUTS = 128

#: Log-probabilities that may be asked for beside that of the token.
TOP_LOGPROBS = 20


def routes(service: Service) -> list[Route]:
    """The endpoints."""

    async def chat(request: Request) -> Answer:
        return service.answer(await service.read(request, _chat))

    async def completions(request: Request) -> Answer:
        return service.answer(await service.read(request, _completion))

    async def models(request: Request) -> JSONResponse:
        data = [listed(model) for model in service.models.all()]
        # Of Anthropic, pages of which there is one. Codex looks for `models`: what it knows of its
        # own models, instructions included, which none here has to put in the place of its own.
        ends = [entry["id"] for entry in (data[:1] + data[-1:])] or [None]
        pages = {"first_id": ends[0], "last_id": ends[-1], "has_more": False}
        return JSONResponse({"object": "list", "data": data, **pages, "models": []})

    async def model(request: Request) -> JSONResponse:
        return JSONResponse(listed(service.models.find(request.path_params["name"])))

    async def embeddings(request: Request) -> Vectors:
        return await service.read(request, of_openai)

    async def rerank(request: Request) -> Vectors:
        return await service.read(request, of_rerank)

    posted = {"chat/completions": chat, "completions": completions, "embeddings": embeddings}
    posted |= {"rerank": rerank, "reranking": rerank}
    return [
        Route("/v2/rerank", rerank, methods=["POST"]),  # Cohere's
        # As llama.cpp's server has them too.
        *(Route(f"{at}/{name}", posted[name], methods=["POST"]) for at in AT for name in posted),
        *(Route(f"{at}/models", models, methods=["GET"]) for at in AT),
        Route("/v1/models/{name:path}", model, methods=["GET"]),
    ]


def listed(model: Model) -> dict[str, Any]:
    """A model in a list of them, with Anthropic's fields beside OpenAI's."""
    entry = {"id": model.name, "object": "model", "created": model.created, "owned_by": "onegraph"}
    created = datetime.fromtimestamp(model.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    entry |= {"type": "model", "display_name": model.name, "created_at": created}
    if model.llm is not None:
        entry["max_model_len"] = model.llm.n_ctx
    return entry


def failure(why: Refused) -> dict[str, Any]:
    """A refusal as this dialect writes it."""
    kinds = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
    kinds[429] = "rate_limit_error"
    kind = "server_error" if why.status >= 500 else "invalid_request_error"
    return {
        "error": {
            "message": why.message,
            "type": kinds.get(why.status, kind),
            "param": why.field,
            "code": why.code,
        }
    }


def usage(results: list[Result], n: int = 1) -> dict[str, Any]:
    """Counts of tokens; of `n` outputs the prompt counts once."""
    prompts = results[::n]
    read = sum(result.usage.prompt_tokens for result in prompts)
    made = sum(result.usage.completion_tokens for result in results)
    cached = sum(result.usage.cached_tokens for result in prompts)
    reasoned = sum(result.usage.reasoning_tokens for result in results)
    return {
        "prompt_tokens": read,
        "completion_tokens": made,
        "total_tokens": read + made,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": reasoned},
    }


def _only_text(fields: Fields) -> None:
    """Refuses what would make another kind of answer."""
    if fields.integer("best_of") not in (None, 1):
        raise wrong("best_of", fields.get("best_of"), "is not supported; send n and pick the best")
    fields.absent("audio", "only text is supported")
    fields.absent("moderation", "moderation is not supported; leave it out")
    if "web_search_options" in fields:
        say_left_out("`web_search_options`", "OpenAI")
    if fields.integer("min_tokens"):
        raise wrong("min_tokens", fields.get("min_tokens"), "is not supported; leave it out")
    if any(kind != "text" for kind in fields.texts("modalities") or []):
        raise wrong("modalities", fields.get("modalities"), 'must be ["text"]')


def endless(fields: Fields, *further: str) -> Fields:
    """Without a number of tokens that is -1: as many as there is room for, as llama.cpp has it.
    `further` are more names of it."""
    names = ("max_tokens", "max_completion_tokens", *further)
    if all(fields.get(name) != -1 for name in names):
        return fields
    kept = {k: v for k, v in fields.values.items() if k not in names or v != -1}
    return Fields(kept, fields.within, fields.owner)


def _outputs(fields: Fields) -> int:
    return fields.integer("n", 1, MOST_OUTPUTS) or 1


def _stream_usage(fields: Fields) -> bool:
    wanted = fields.object("stream_options")
    return wanted is not None and wanted.flag("include_usage")


def messages(fields: Fields) -> list[dict[str, Any]]:
    """The conversation of a request."""
    found = []
    for message in conversation.messages(fields):
        message.needed("role")
        role = message.text("role")
        kept = dict(message.values)
        # What templates know the instructions of a program by.
        kept["role"] = "system" if role == "developer" else role
        kept["content"] = conversation.text_of(message, "content", ("text", "refusal"))
        if kept["content"] is None:
            if not conversation.may_be_empty(message):
                message.needed("content")
            kept["content"] = ""
        found.append(with_reasoning(kept, message.text("reasoning_content")))
    return found


def logprobs(fields: Fields) -> int | None:
    """How many log-probabilities of tokens a conversation asks for beside that of its own; None
    where it asks for none."""
    top = fields.integer("top_logprobs", 0, TOP_LOGPROBS)
    if top and not fields.flag("logprobs"):
        raise wrong("top_logprobs", top, "needs logprobs = true")
    return (top or 0) if fields.flag("logprobs") else None


def variables(fields: Fields) -> dict[str, Any] | None:
    """Further variables of the template."""
    effort = conversation.thinking(effort=conversation.effort_of(fields, "reasoning_effort"))
    found = fields.object("chat_template_kwargs")
    return {**(effort or {}), **({} if found is None else found.values)} or None


def _chat(service: Service, fields: Fields) -> Asked:
    model = service.model(fields)
    given = messages(fields)
    _only_text(fields)
    fields = endless(fields)
    tools = nested(fields)
    form = forms.chat(fields)
    further = {"logprobs": logprobs(fields), "cache_salt": salt_of(fields)}
    chosen = options(fields, CHAT_NAMES, service.limits, form, **further)
    head = _Head("chatcmpl-", "chat.completion", model.name)
    n = _outputs(fields)
    stream = _Stream(head, n, n, _stream_usage(fields))
    writers = [ChatWriter(stream, i) for i in range(n)] if fields.flag("stream") else []
    continues = fields.flag("continue_final_message")

    scores = _scores(fields)
    if writers and scores is not None:
        raise wrong(
            "stream", True, "log-probabilities of a prompt cannot be streamed: leave `stream` out"
        )

    def document(outputs: list[list[Event]]) -> dict[str, Any]:
        found = _document(head, outputs, n, _chat_choice)
        if scores is not None:
            found["prompt_logprobs"] = _by_id(said(outputs[0]).result.prompt_logprobs)
        return found

    prepare = conversation.chat(
        given, chosen, n=n, tools=tools, continues=continues, variables=variables(fields)
    )
    named = spelled(fields, CHAT_NAMES, form)
    return Asked(model, prepare, writers, document, named, scores)


def _completion(service: Service, fields: Fields) -> Asked:
    model = service.model(fields)
    fields.needed("prompt")
    given = fields.get("prompt")
    if not isinstance(given, str | list):
        raise wrong("prompt", given, "must be a string, tokens, or a list of either")
    # What begins with a number is one prompt, of tokens.
    many = isinstance(given, list) and bool(given) and not isinstance(given[0], int)
    if many and len(given) > MOST_TEXTS:
        found = f"{len(given)} prompts"
        raise Refused(400, f"prompt: {found}; the limit is {MOST_TEXTS}", field="prompt")
    _only_text(fields)
    fields.absent("tools", "send messages, to /v1/chat/completions")
    form = forms.chat(fields)
    further: dict[str, Any] = {"cache_salt": salt_of(fields)}
    if "max_tokens" not in fields:
        further["max_tokens"] = COMPLETION_TOKENS
    fields = endless(fields)
    echo = fields.flag("echo")
    scores = _scores(fields)
    if echo and scores is None:
        scores = fields.integer("logprobs")
    is_read_only = fields.get("max_tokens") == 0 and (echo or scores is not None)
    if is_read_only:
        further["max_tokens"] = 1
        fields = Fields({**fields.values, "max_tokens": None}, fields.within, fields.owner)
    chosen = options(fields, COMPLETION_NAMES, service.limits, form, **further)
    head = _Head("cmpl-", "text_completion", model.name)
    n = _outputs(fields)
    all = n * (len(given) if many else 1)
    if all > MOST_TEXTS:
        raise wrong("n", n, f"makes {all} outputs of these prompts; the limit is {MOST_TEXTS}")
    stream = _Stream(head, all, n, _stream_usage(fields))
    writers = [CompletionWriter(stream, i) for i in range(all)] if fields.flag("stream") else []

    def document(outputs: list[list[Event]]) -> dict[str, Any]:
        choice = functools.partial(_completion_choice, echo=echo)
        return _document(head, outputs, n, choice)

    if writers and (is_read_only or scores is not None):
        raise wrong(
            "stream", True, "log-probabilities of a prompt cannot be streamed: leave `stream` out"
        )
    prepare = conversation.prompt(
        given,
        chosen,
        n=n,
        echo=echo,
        parse_special=fields.flag("parse_special"),
        suffix=fields.text("suffix"),
    )
    named = spelled(fields, COMPLETION_NAMES, form)
    return Asked(model, prepare, writers, document, named, scores, is_read_only)


def _scores(fields: Fields) -> int | None:
    """vLLM's field for how probable the tokens of a prompt are."""
    return fields.integer("prompt_logprobs", 0, TOP_LOGPROBS)


class _Head:
    """What every frame of an answer repeats."""

    def __init__(self, prefix: str, kind: str, model: str) -> None:
        self.fields = {
            "id": frames.identifier(prefix),
            "object": kind,
            "created": frames.now(),
            "model": model,
            "system_fingerprint": FINGERPRINT,
        }

    def __call__(self, choices: list[Any], *, chunk: bool = False, **more: Any) -> dict[str, Any]:
        found: dict[str, Any] = {**self.fields, "choices": choices, **more}
        if chunk and found["object"] == "chat.completion":
            found["object"] = "chat.completion.chunk"
        return found


def _document(head: _Head, outputs: list[list[Event]], n: int, choice: Any) -> dict[str, Any]:
    results = [events[-1].result for events in outputs if isinstance(events[-1], Finish)]
    choices = [choice(i, events) for i, events in enumerate(outputs)]
    return head(choices, usage=usage(results, n), timings=_timings(results[0]))


TIMINGS = [field.name for field in dataclasses.fields(Timings)]


def _timings(result: Result) -> dict[str, float]:
    """Seconds and rates, which no other server has to say the same way."""
    return {name: round(getattr(result.timings, name), 6) for name in TIMINGS}


def _chat_choice(index: int, events: list[Event]) -> dict[str, Any]:
    whole = said(events)
    message: dict[str, Any] = {"role": "assistant", "content": whole.text, "refusal": None}
    if whole.reasoning:
        message["reasoning_content"] = whole.reasoning
    if whole.calls:
        message["content"] = whole.text or None
        message["tool_calls"] = [call.to_openai() for call in whole.calls]
    return {
        "index": index,
        "message": message,
        "logprobs": _chat_logprobs(whole.logprobs),
        "finish_reason": whole.result.finish_reason,
    }


def _completion_choice(index: int, events: list[Event], *, echo: bool) -> dict[str, Any]:
    whole = said(events)
    read = whole.result.prompt_logprobs
    found = {
        "index": index,
        "text": whole.text,
        "logprobs": _completion_logprobs(whole.logprobs, 0, read if echo else None),
        "finish_reason": whole.result.finish_reason,
    }
    if read is not None and not echo:
        found["prompt_logprobs"] = _by_id(read)
    return found


def _by_id(read: list[Scored] | None) -> list[dict[str, Any] | None]:
    """The tokens of a prompt as vLLM writes them: of each place that which stands there and the
    most probable ones, by id."""
    found: list[dict[str, Any] | None] = []
    for each in read or []:
        best = enumerate(each.top, start=1)
        places = {t.token_id: (t.logprob, rank, t.text) for rank, t in best}
        if each.logprob is not None and each.rank is not None:
            places[each.token_id] = (each.logprob, each.rank, each.text)
        of = {
            str(id): {"logprob": logprob, "rank": rank, "decoded_token": text}
            for id, (logprob, rank, text) in places.items()
        }
        found.append(of or None)
    return found


def _chat_logprobs(logprobs: list[TokenLogprob] | None) -> dict[str, Any] | None:
    if logprobs is None:
        return None
    return {"content": [each.to_openai() for each in logprobs], "refusal": None}


def _completion_logprobs(
    made: list[TokenLogprob] | None, at: int, read: list[Scored] | None = None
) -> dict[str, Any] | None:
    """Of the tokens that were `made`, behind those that were `read`; the first begins at character
    `at`."""
    if made is None:
        return None
    tokens: list[Scored | TokenLogprob] = [*(read or []), *made]
    offsets = []
    for each in tokens:
        offsets.append(at)
        at += len(each.text)
    return {
        "tokens": [each.text for each in tokens],
        "token_logprobs": [each.logprob for each in tokens],
        "top_logprobs": [
            None if each.logprob is None else {t.text: t.logprob for t in each.top}
            for each in tokens
        ],
        "text_offset": offsets,
    }


DONE = b"data: [DONE]\n\n"


class _Stream:
    """What the writers of a stream share: what stands around each frame, and behind the last."""

    def __init__(self, head: _Head, outputs: int, n: int, with_usage: bool) -> None:
        """`n` of the outputs are of one prompt."""
        self._head = head
        self._n = n
        self._results: list[Result | None] = [None] * outputs
        # Where the last frame has the usage, all others say that it is still to come.
        self._more: dict[str, Any] = {"usage": None} if with_usage else {}
        frame = frames.data(head([frames.MARK], chunk=True, **self._more))
        self._opening, self._closing = frames.around(frame)

    def frame(self, choice: dict[str, Any]) -> bytes:
        """A frame of one choice."""
        return self._opening + frames.encoded(choice) + self._closing

    def ended(self, index: int, result: Result) -> bytes:
        """What stands behind the last frame of an output: nothing where others are still made."""
        self._results[index] = result
        results = [each for each in self._results if each is not None]
        if len(results) < len(self._results):
            return b""
        if not self._more:
            return DONE
        told = {"usage": usage(results, self._n), "timings": _timings(results[0])}
        return frames.data(self._head([], chunk=True, **told)) + DONE


class _Writer(ABC):
    """What the writers of both streams have in common; each writes one output."""

    media_type = "text/event-stream"

    def __init__(self, stream: _Stream, index: int) -> None:
        self._stream = stream
        self._index = index
        self._frame = stream.frame
        self._before, self._behind = frames.around(self._frame(self._choice(frames.MARK)))

    @abstractmethod
    def _choice(self, text: str, logprobs: list[TokenLogprob] | None = None) -> dict[str, Any]:
        """A choice that says more of the text."""

    def event(self, event: Event) -> bytes:
        if isinstance(event, Text):
            if event.logprobs is None:
                return self._before + frames.spelled(event.text) + self._behind
            return self._frame(self._choice(event.text, event.logprobs))
        if not isinstance(event, Finish):
            return self._of_chat(event)
        return self._frame(self._last(event)) + self._stream.ended(self._index, event.result)

    def _of_chat(self, event: Event) -> bytes:
        """What answers to conversations alone have."""
        return b""

    @abstractmethod
    def _last(self, event: Finish) -> dict[str, Any]:
        """The choice that says how the answer ended."""

    def idle(self) -> bytes:
        return b": still waiting\n\n"

    def failed(self, why: Refused) -> bytes:
        return frames.data(failure(why))


class ChatWriter(_Writer):
    """The stream of a chat completion."""

    @functools.cached_property
    def _thought(self) -> tuple[bytes, bytes]:
        """What stands around the text in a frame of reasoning."""
        return frames.around(self._frame(self._delta({"reasoning_content": frames.MARK})))

    def begin(self, job: Job) -> bytes:
        delta = {"role": "assistant", "content": "", "refusal": None}
        return self._frame(self._delta(delta))

    def _choice(self, text: str, logprobs: list[TokenLogprob] | None = None) -> dict[str, Any]:
        return self._delta({"content": text}, logprobs)

    def _delta(
        self, delta: dict[str, Any], logprobs: list[TokenLogprob] | None = None
    ) -> dict[str, Any]:
        return {
            "index": self._index,
            "delta": delta,
            "logprobs": _chat_logprobs(logprobs),
            "finish_reason": None,
        }

    def _of_chat(self, event: Event) -> bytes:
        if isinstance(event, ReasoningDelta):
            before, behind = self._thought
            return before + frames.spelled(event.text) + behind
        call: dict[str, Any]
        if isinstance(event, ToolCallBegun):
            function = {"name": event.name, "arguments": ""}
            call = {"index": event.index, "id": event.id, "type": "function", "function": function}
        elif isinstance(event, ToolCallDelta):
            call = {"index": event.index, "function": {"arguments": event.arguments}}
        else:
            return b""  # the end of a call is not said
        return self._frame(self._delta({"tool_calls": [call]}))

    def _last(self, event: Finish) -> dict[str, Any]:
        return {
            "index": self._index,
            "delta": {},
            "logprobs": None,
            "finish_reason": event.result.finish_reason,
        }


class CompletionWriter(_Writer):
    """The stream of a completion."""

    _at = 0

    def begin(self, job: Job) -> bytes:
        return b""

    def _choice(self, text: str, logprobs: list[TokenLogprob] | None = None) -> dict[str, Any]:
        said = _completion_logprobs(logprobs, self._at)
        self._at += sum(len(each.text) for each in logprobs or [])
        return {"index": self._index, "text": text, "logprobs": said, "finish_reason": None}

    def _last(self, event: Finish) -> dict[str, Any]:
        return {
            "index": self._index,
            "text": "",
            "logprobs": None,
            "finish_reason": event.result.finish_reason,
        }
