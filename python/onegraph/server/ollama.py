"""ollama's dialect: lines of JSON, times in nanoseconds. What ollama does with files is done here
by commands, which the refusals name."""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from onegraph.answers import ReasoningDelta, ToolCall, ToolCallEnded
from onegraph.conversations import UNREAD, UNREADABLE
from onegraph.errors import ModelError
from onegraph.hub.modelfile import PARAMETERS
from onegraph.llm import LLM
from onegraph.results import Result, TokenLogprob
from onegraph.server import conversation, forms, frames, openai
from onegraph.server.answers import Asked
from onegraph.server.embeddings import Vectors, named, of_ollama, of_ollama_before
from onegraph.server.events import Event, Finish, Text, said
from onegraph.server.facts import Facts, facts
from onegraph.server.fields import Fields, wrong
from onegraph.server.history import Unanswered, called, with_reasoning
from onegraph.server.models import LATEST, Model
from onegraph.server.pulling import pull_of
from onegraph.server.refusals import Refused
from onegraph.server.sampling import options, salt_of, spelled
from onegraph.server.service import Service
from onegraph.server.tools import nested
from onegraph.streams import Job

__all__ = ["RUNNING", "capabilities", "failure", "routes"]

#: What the root of ollama's server answers, by which programs look for it.
RUNNING = "Ollama is running"

#: Of ollama, the version whose dialect this is: clients ask for at least one.
API_VERSION = "0.12.0"

#: What to do in place of what changes files.
INSTEAD = {
    "pull": "start the server with --allow-pull, or with a model from `onegraph pull NAME`",
    "create": "start the server with the path of a .gguf file, and send options with requests",
    "push": "onegraph publishes nothing",
    "copy": "start the server with --alias NAME",
    "delete": "`onegraph rm NAME` removes a downloaded model",
    "blobs/{digest}": "start the server with the path of a .gguf file",
}


def routes(service: Service) -> list[Route]:
    """The endpoints."""

    async def me(request: Request) -> JSONResponse:
        raise Refused(401, "this server has no accounts")

    async def version(request: Request) -> JSONResponse:
        return JSONResponse({"version": API_VERSION})

    async def tags(request: Request) -> JSONResponse:
        listed = [(model, await facts(model)) for model in service.models.all()]
        return JSONResponse({"models": [_listed(*each) for each in listed if each[1]]})

    async def ps(request: Request) -> JSONResponse:
        listed = []
        for model in service.models.all():
            found = await facts(model) if model.llm is not None else None
            if found is not None and model.llm is not None:
                on_card = found.bytes if model.llm.device != "cpu" else 0
                more = {"expires_at": _expires(model), "size_vram": on_card}
                listed.append(_listed(model, found) | more | {"context_length": model.llm.n_ctx})
        return JSONResponse({"models": listed})

    async def show(request: Request) -> JSONResponse:
        model = await service.read(request, named)
        found = await facts(model)
        if found is None:
            raise Refused(404, f"the file of {model.name} cannot be read", field="model")
        loop = asyncio.get_running_loop()
        able = await loop.run_in_executor(None, capabilities, model)
        return JSONResponse(_shown(model, found, able))

    async def chat(request: Request) -> ASGIApp:
        return await _answer(service, await service.read(request, _chat))

    async def generate(request: Request) -> ASGIApp:
        return await _answer(service, await service.read(request, _generate))

    async def embed(request: Request) -> Response | Vectors:
        return await service.read(request, of_ollama)

    async def embeddings(request: Request) -> Response | Vectors:
        return await service.read(request, of_ollama_before)

    async def pull(request: Request) -> ASGIApp:
        return await service.read(request, pull_of)

    def refused(name: str) -> Route:
        async def refuse(request: Request) -> JSONResponse:
            raise Refused(501, f"/api/{name} is not served here: {INSTEAD[name]}")

        return Route(f"/api/{name}", refuse, methods=["POST", "DELETE", "HEAD"])

    return [
        Route("/api/version", version, methods=["GET"]),
        Route("/api/me", me, methods=["POST"]),
        Route("/api/tags", tags, methods=["GET"]),
        Route("/api/ps", ps, methods=["GET"]),
        Route("/api/show", show, methods=["POST"]),
        Route("/api/chat", chat, methods=["POST"]),
        Route("/api/generate", generate, methods=["POST"]),
        Route("/api/embed", embed, methods=["POST"]),
        Route("/api/embeddings", embeddings, methods=["POST"]),
        *([] if service.load is None else [Route("/api/pull", pull, methods=["POST"])]),
        *map(refused, INSTEAD),
    ]


def failure(why: Refused) -> dict[str, Any]:
    """A refusal as this dialect writes it."""
    return {"error": why.message}


#: A duration as Go writes it, "1h30m", or a number of seconds.
_DURATION = re.compile(r"([-+]?)((?:[0-9.]+(?:ns|us|µs|ms|s|m|h))+|[0-9.]+)")
_PART = re.compile(r"([0-9.]+)([a-zµ]*)")

#: Seconds of its units.
_UNITS = {"": 1.0, "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}

#: Characters of a duration.
LONGEST_TIME = 64

#: Seconds beyond which a model stays: a hundred years.
_ALWAYS = 100 * 365 * 86_400.0

#: When a model that stays goes.
_FOREVER = "2318-01-01T00:00:00Z"


def _expires(model: Model) -> str:
    if model.keep is None:
        return _FOREVER
    left = model.keep - (0.0 if model.users else time.monotonic() - model.used)
    return _time(datetime.now(UTC) + timedelta(seconds=max(left, 0.0)))


def _time(of: datetime) -> str:
    return of.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _tagged(name: str) -> str:
    return name if ":" in name else name + LATEST


def _details(found: Facts) -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": "gguf",
        "family": found.architecture,
        "families": [found.architecture],
        "parameter_size": found.parameters,
        "quantization_level": found.type,
    }


def _listed(model: Model, found: Facts | None) -> dict[str, Any]:
    assert found is not None
    return {
        "name": _tagged(model.name),
        "model": _tagged(model.name),
        "modified_at": _time(found.modified),
        "size": found.bytes,
        "digest": found.digest,
        "details": _details(found),
    }


def capabilities(model: Model) -> list[str]:
    """What the chat template lets the model do; of one that is not loaded nothing is known."""
    llm = model.llm
    if llm is not None and llm.pooling is not None:
        return ["embedding"]
    found = ["completion"]
    if llm is not None and llm.tokenizer.infill_ids is not None:
        found.append("insert")
    template = None if llm is None else llm.chat_template
    if llm is None or template is None:
        return found
    try:
        llm._reading(template, True, None)
        found.append("tools")
    except ModelError:
        pass
    if llm._thinks():
        found.append("thinking")
    return found


def _shown(model: Model, found: Facts, capabilities: list[str]) -> dict[str, Any]:
    template = None if model.llm is None else model.llm.chat_template
    kind = found.architecture
    names = {
        "n_ctx_train": "context_length",
        "n_embd": "embedding_length",
        "n_layer": "block_count",
        "n_ff": "feed_forward_length",
        "n_head": "attention.head_count",
        "n_head_kv": "attention.head_count_kv",
    }
    sizes = {f"{kind}.{theirs}": found.shape.get(ours) for ours, theirs in names.items()}
    parameters = ""
    if model.llm is not None:
        # Programs send no more than this: what the server has room for, not what the file says.
        sizes[f"{kind}.context_length"] = model.llm.n_ctx
        parameters = f"num_ctx {model.llm.n_ctx}"
    return {
        "modelfile": f"FROM {model.path}\n",
        "parameters": parameters,
        "template": "" if template is None else template.source,
        "details": _details(found),
        "model_info": {
            "general.architecture": kind,
            "general.parameter_count": found.n_params,
            **{name: size for name, size in sizes.items() if size is not None},
        },
        "capabilities": capabilities,
        "modified_at": _time(found.modified),
    }


@dataclass(frozen=True)
class _Presence:
    """A request without a text: asks for its model to be there, or no longer to be."""

    model: Model
    head: _Head
    leaves: bool


async def _answer(service: Service, asked: Asked | _Presence) -> ASGIApp:
    if isinstance(asked, Asked):
        return service.answer(asked)
    head = asked.head
    if asked.leaves:
        # One that is in use stays, and so does one that is not of a folder: the client is told
        # the same, as by ollama.
        async with asyncio.timeout(service.limits.seconds):
            await service.models.unload(asked.model)
        return JSONResponse(head("", done=True, done_reason="unload"))
    there = head("", done=True, done_reason="load")
    return service.reply(asked.model, lambda llm: there, quick=True)


def _presence(model: Model, head: _Head, fields: Fields) -> _Presence:
    return _Presence(model, head, leaves=_keep(fields) == 0)


def _keep(fields: Fields) -> float | None:
    """Seconds that a model stays without being used: less than none for ever. None where nothing is
    said of it."""
    given = fields.get("keep_alive")
    expected = 'must be seconds, or a duration such as "5m"'
    if isinstance(given, bool) or not isinstance(given, int | float | str | None):
        raise wrong("keep_alive", given, expected)
    if not isinstance(given, str):
        return None if given is None else max(-1.0, min(float(given), _ALWAYS))
    found = _DURATION.fullmatch(given) if len(given) <= LONGEST_TIME else None
    try:
        parts = [] if found is None else _PART.findall(found[2])
        seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    except ValueError:  # such as 1.2.3
        found = None
    if found is None:
        raise wrong("keep_alive", given[:LONGEST_TIME], expected)
    return max(-1.0, min(-seconds if found[1] == "-" else seconds, _ALWAYS))


def _kept(model: Model, fields: Fields) -> Model:
    """The model, which stays as long as a request says."""
    keep = _keep(fields)
    model.keep = keep if keep is not None and 0 <= keep < _ALWAYS else None
    return model


def _chosen(service: Service, fields: Fields) -> tuple[dict[str, Any], dict[str, str]]:
    """The sampling keywords, and what they are called here."""
    given = _whole(fields.object("options"))
    # None or less is as many as there is room for; a seed of less, one of its own for each.
    tokens = given.integer("num_predict")
    seed = given.integer("seed", -(2**63), 2**64 - 1)
    further = {
        "max_tokens": None if tokens is None or tokens <= 0 else tokens,
        "seed": None if seed is None or seed == -1 else seed % 2**64,
        "cache_salt": salt_of(fields),
        "logprobs": openai.logprobs(fields),
    }
    form = forms.ollama(fields)
    chosen = options(given, PARAMETERS, service.limits, form, **further)
    names = {**PARAMETERS, "num_predict": "max_tokens", "seed": "seed"}
    return chosen, spelled(given, names, form)


def _whole(given: Fields | None) -> Fields:
    """Options with numbers as ollama reads them, by Go: 2.0 is 2."""
    values = {} if given is None else given.values
    return Fields(
        {
            name: int(value) if isinstance(value, float) and value.is_integer() else value
            for name, value in values.items()
        },
        "options",
    )


def _only_text(fields: Fields) -> None:
    for key in UNREAD:
        fields.absent(key, UNREADABLE)
    fields.absent("template", "the model's own is used")
    fields.flag("truncate")  # nothing is cut here, whatever it says


def _variables(fields: Fields) -> dict[str, Any] | None:
    """What `think` is to a template that has such a switch."""
    think = fields.get("think")
    if think is None or isinstance(think, bool):
        return conversation.thinking(think)
    if isinstance(think, str) and think in ("low", "medium", "high"):
        return conversation.thinking(effort=think)
    raise wrong("think", think, 'must be true, false, "low", "medium" or "high"')


def _messages(fields: Fields) -> list[dict[str, Any]]:
    """The conversation. Its calls may have no ids, which templates ask for: results are then those
    of the calls before them, in order or by the name of the function."""
    found: list[dict[str, Any]] = []
    unanswered = Unanswered([])
    for message in conversation.messages(fields) if "messages" in fields else []:
        message.needed("role")
        kept: dict[str, Any] = {"role": message.text("role"), "content": message.text("content")}
        if "tool_calls" in message:
            given = enumerate(message.objects("tool_calls"))
            calls = [_called(call, len(found), i) for i, call in given]
            kept["tool_calls"] = calls
            unanswered = Unanswered(calls)
        if kept["content"] is None:
            if not conversation.may_be_empty(message):
                message.needed("content")
            kept["content"] = ""
        if kept["role"] == "tool":
            kept |= _answered(message, unanswered)
        found.append(with_reasoning(kept, message.text("thinking")))
    return found


def _called(call: Fields, turn: int, index: int) -> dict[str, Any]:
    call.needed("function")
    function = call.object("function")
    assert function is not None
    function.needed("name")
    arguments = function.object("arguments")
    id = call.text("id") or f"c{turn:05d}{index:03d}"  # nine characters, as some templates demand
    return called(id, function.text("name"), {} if arguments is None else arguments.values)


def _answered(message: Fields, unanswered: Unanswered) -> dict[str, Any]:
    """Which call a result is of."""
    id, name = message.text("tool_call_id"), message.text("tool_name") or message.text("name")
    call = unanswered.take(id, name)
    if call is not None:
        return {"tool_call_id": call["id"], "name": call["function"]["name"]}
    return {key: of for key, of in (("tool_call_id", id), ("name", name)) if of is not None}


def _chat(service: Service, fields: Fields) -> Asked | _Presence:
    model = _kept(named(service, fields), fields)
    _only_text(fields)
    head = _Head(model, "message")
    messages = _messages(fields)
    tools = nested(fields, choice=False)
    chosen, names = _chosen(service, fields)
    if not messages:
        return _presence(model, head, fields)
    prepare = conversation.chat(messages, chosen, tools=tools, variables=_variables(fields))
    return _asked(model, head, fields, prepare, names)


def _generate(service: Service, fields: Fields) -> Asked | _Presence:
    model = _kept(named(service, fields), fields)
    _only_text(fields)
    head = _Head(model, "response")
    before = fields.integers("context", "must be the id of a token") or []
    prompt, system = fields.text("prompt"), fields.text("system")
    chosen, names = _chosen(service, fields)
    if not prompt:
        return _presence(model, head, fields)
    variables = _variables(fields)

    suffix = fields.text("suffix") or None
    # A gap is filled without a conversation.
    raw = fields.flag("raw") or suffix is not None
    head.with_context = not raw
    # The client spells the whole template here.
    plain = conversation.prompt(prompt, chosen, parse_special=True, suffix=suffix)
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": prompt})
    chat = conversation.chat(messages, chosen, variables=variables)

    def job(llm: LLM) -> Job:
        made = (plain if raw or llm.chat_template is None else chat).job(llm)
        return _behind(llm, before, made) if before else made

    prepare = conversation.Prepare(job, raw and plain.is_quick, plain.compiles)
    return _asked(model, head, fields, prepare, names)


def _asked(
    model: Model,
    head: _Head,
    fields: Fields,
    prepare: conversation.Prepare,
    names: dict[str, str],
) -> Asked:
    think, n_ctx = fields.get("think"), _whole(fields.object("options")).integer("num_ctx", 1)

    def job(llm: LLM) -> Job:
        if think and not llm._thinks():
            raise Refused(
                400, f'"{model.name}" does not support thinking; leave `think` out', field="think"
            )
        made = prepare.job(llm)
        made = made if n_ctx is None else _within(made, n_ctx)
        head.read = made.asks[0].ids
        return made

    def document(outputs: list[list[Event]]) -> dict[str, Any]:
        (events,) = outputs
        whole = said(events)
        return head(
            whole.text,
            thinking=whole.reasoning,
            calls=whole.calls,
            logprobs=whole.logprobs,
            **head.ending(whole.result),
        )

    writers = [Writer(head)] if fields.flag("stream", True) else []
    return Asked(model, replace(prepare, job=job), writers, document, names)


def _behind(llm: LLM, before: list[int], job: Job) -> Job:
    """Behind the tokens of an answer before, with the prompt that it was to."""
    size = llm.tokenizer.n_vocab
    for i, token in enumerate(before):
        if not 0 <= token < size:
            raise wrong(f"context[{i}]", token, f"must be from 0 to {size - 1}")
    (ask,) = job.asks
    # What begins a text begins no turn; where it is the same token, each turn has it.
    bos = llm.tokenizer.bos_id
    begins = bos is not None and ask.ids[:1] == [bos] and ask.ids.count(bos) == 1
    ids = [*before, *ask.ids[begins:]]
    llm._engine.check_room(len(ids))
    return replace(job, asks=[replace(ask, ids=ids)])


def _within(job: Job, n_ctx: int) -> Job:
    """Held to a context of so many tokens; the server's is never larger than its own."""
    asks = []
    for ask in job.asks:
        left = n_ctx - len(ask.ids)
        if left < 1:
            what = f"the prompt has {len(ask.ids)} tokens, and the output needs at least one more"
            raise wrong("options.num_ctx", n_ctx, what)
        most = ask.options["max_tokens"]
        options = {**ask.options, "max_tokens": left if most is None else min(most, left)}
        asks.append(replace(ask, options=options))
    return replace(job, asks=asks)


class _Head:
    """What every line of an answer repeats."""

    def __init__(self, model: Model, kind: str) -> None:
        self._model = _tagged(model.name)
        self._kind = kind
        #: The tokens of the prompt, and whether the end has them and the answer's.
        self.read: list[int] = []
        self.with_context = False

    def __call__(
        self,
        text: str,
        *,
        thinking: str = "",
        calls: list[ToolCall] | None = None,
        logprobs: list[TokenLogprob] | None = None,
        done: bool = False,
        **more: Any,
    ) -> dict[str, Any]:
        further: dict[str, Any] = {"thinking": thinking} if thinking else {}
        if calls:
            further["tool_calls"] = [_written(call) for call in calls]
        if self._kind == "message":
            said: dict[str, Any] = {"message": {"role": "assistant", "content": text, **further}}
        else:
            said = {"response": text, **further}
        if logprobs is not None:
            said["logprobs"] = [each.to_openai() for each in logprobs]
        return {
            "model": self._model,
            "created_at": _time(datetime.now(UTC)),
            **said,
            "done": done,
            **more,
        }

    def ending(self, result: Result) -> dict[str, Any]:
        """The fields of the end. What the next request goes on from has the end of the turn."""
        found = _ending(result)
        if self.with_context:
            end = [result.stop_reason] if isinstance(result.stop_reason, int) else []
            found["context"] = [*self.read, *result.token_ids, *end]
        return found


def _written(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "function": {"name": call.name, "arguments": call.arguments}}


def _ending(result: Result) -> dict[str, Any]:
    timings, usage = result.timings, result.usage

    def nanoseconds(seconds: float) -> int:
        return round(seconds * 1e9)

    working = timings.queue_seconds + timings.prefill_seconds + timings.decode_seconds
    return {
        "done": True,
        # Of an answer that calls, too: there is no other word here.
        "done_reason": "length" if result.finish_reason == "length" else "stop",
        "total_duration": nanoseconds(working),
        "load_duration": nanoseconds(timings.queue_seconds),
        "prompt_eval_count": usage.prompt_tokens,
        "prompt_eval_duration": nanoseconds(timings.prefill_seconds),
        "eval_count": usage.completion_tokens,
        "eval_duration": nanoseconds(timings.decode_seconds),
    }


class Writer:
    """The stream of an answer."""

    media_type = "application/x-ndjson"

    def __init__(self, head: _Head) -> None:
        self._head = head
        # One time stands for all of an answer's pieces, so that they are made around their text.
        self._before, self._behind = frames.around(frames.line(head(frames.MARK)))

    def begin(self, job: Job) -> bytes:
        return b""

    def event(self, event: Event) -> bytes:
        if isinstance(event, Text):
            if event.logprobs is not None:
                return frames.line(self._head(event.text, logprobs=event.logprobs))
            return self._before + frames.spelled(event.text) + self._behind
        if isinstance(event, ReasoningDelta):
            return frames.line(self._head("", thinking=event.text))
        if isinstance(event, ToolCallEnded):  # calls are whole here
            return frames.line(self._head("", calls=[event.call]))
        return (
            frames.line(self._head("", **self._head.ending(event.result)))
            if isinstance(event, Finish)
            else b""
        )

    def idle(self) -> bytes:
        return b""  # there is no line that says nothing

    def failed(self, why: Refused) -> bytes:
        return frames.line(failure(why))
