"""What who runs a server asks it: is it alive, is it ready, what does it do; and text to tokens and
back."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from onegraph.errors import Error
from onegraph.llm import LLM
from onegraph.server import conversation
from onegraph.server.fields import Fields
from onegraph.server.refusals import Refused
from onegraph.server.requests import MOST_VALUES
from onegraph.server.service import Reply, Service
from onegraph.streams import token_text

__all__ = ["routes"]

logger = logging.getLogger("onegraph.server")

#: Characters of a control token's spelling.
LONGEST_CONTROL = 64


def routes(service: Service) -> list[Route]:
    """The endpoints."""

    async def health(request: Request) -> JSONResponse:
        return _failed(service) or JSONResponse({"status": "ok"})

    async def ready(request: Request) -> JSONResponse:
        if service.draining:
            return JSONResponse({"status": "draining"}, 503)
        return _failed(service) or JSONResponse({"status": "ready"})

    async def metrics(request: Request) -> Response:
        text = service.metrics.text(service.models.all())
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def tokenize(request: Request) -> Reply:
        return await service.read(request, _tokenized)

    async def detokenize(request: Request) -> Reply:
        return await service.read(request, _detokenized)

    async def tokenizer_info(request: Request) -> JSONResponse:
        model = service.models.find(request.query_params.get("model"))
        async with asyncio.timeout(service.limits.seconds), service.models.using(model) as llm:
            return JSONResponse(_told(llm))

    return [
        Route("/health", health, methods=["GET"]),
        Route("/ready", ready, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
        Route("/tokenizer_info", tokenizer_info, methods=["GET"]),
        Route("/tokenize", tokenize, methods=["POST"]),
        Route("/detokenize", detokenize, methods=["POST"]),
    ]


def _tokenized(service: Service, fields: Fields) -> Reply:
    model = service.model(fields)
    special = fields.flag("add_special", fields.flag("add_special_tokens", True))
    chat = "messages" in fields
    texts = [text for name in ("prompt", "content") if (text := fields.text(name)) is not None]
    if len(texts) + chat != 1:
        raise Refused(400, "prompt: send either `prompt` (or `content`) or `messages`")
    pieces = fields.flag("with_pieces")
    messages = [dict(each.values) for each in conversation.messages(fields)] if chat else []

    def made(llm: LLM) -> dict[str, Any]:
        if chat:
            ids = conversation.tokens(llm, messages)
        else:
            ids = _control(llm, texts[0]) or llm._tokens(texts[0], special, MOST_VALUES)
        tokens = [_piece(llm, id) for id in ids] if pieces else ids
        return {"tokens": tokens, "count": len(ids), "max_model_len": llm.n_ctx}

    return service.reply(model, made, quick=not chat and len(texts[0]) <= conversation.QUICK)


def _control(llm: LLM, text: str) -> list[int] | None:
    """The control token whose spelling a text is, and no more: so evaluators ask for its id."""
    if len(text) > LONGEST_CONTROL:
        return None
    ids = llm.tokenize(text, add_special=False, parse_special=True)
    return ids if len(ids) == 1 and llm.tokenizer.is_special(ids[0]) else None


def _told(llm: LLM) -> dict[str, Any]:
    """What vLLM's server tells of a tokenizer, as far as evaluators look at it."""

    def spelled(id: int | None) -> str | None:
        return None if id is None else token_text(llm.tokenizer, id)

    template = llm.chat_template
    return {
        "tokenizer_class": "onegraph",
        "bos_token": spelled(llm.tokenizer.bos_id),
        "eos_token": spelled(llm.tokenizer.eos_id),
        "pad_token": None,
        "model_max_length": llm.n_ctx,
        "chat_template": None if template is None else template.source,
    }


def _piece(llm: LLM, id: int) -> dict[str, Any]:
    """A token with its text, as llama.cpp's server writes it: what is no UTF-8 by itself as
    bytes."""
    said = llm.tokenizer.token_bytes(id) or llm.tokenizer.token_text(id).encode()
    try:
        return {"id": id, "piece": said.decode()}
    except UnicodeDecodeError:
        return {"id": id, "piece": [*said]}


def _detokenized(service: Service, fields: Fields) -> Reply:
    fields.needed("tokens")
    ids = fields.integers("tokens", "must be the id of a token") or []

    def made(llm: LLM) -> dict[str, Any]:
        text = llm.detokenize(ids)
        return {"prompt": text, "content": text}

    return service.reply(service.model(fields), made, quick=len(ids) <= conversation.QUICK)


def _failed(service: Service) -> JSONResponse | None:
    """503 where the engine of a model has ended, as after an error of its device: only another
    process answers again."""
    for model in service.models.all():
        if model.llm is not None:
            try:
                model.llm.stats()
            except Error as e:
                logger.error("%s has stopped answering: %s", model.name, e)
                return JSONResponse({"status": "failed", "model": model.name}, 503)
    return None
