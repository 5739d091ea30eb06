"""What llama.cpp's server has beside OpenAI's dialect, and its clients look for."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from onegraph._native import __version__
from onegraph.llm import LLM
from onegraph.sampling import DEFAULTS
from onegraph.server import conversation, infill, openai
from onegraph.server.answers import Answer
from onegraph.server.facts import facts
from onegraph.server.fields import Fields, wrong
from onegraph.server.models import Model
from onegraph.server.ollama import capabilities
from onegraph.server.refusals import Refused
from onegraph.server.service import Reply, Service
from onegraph.server.tools import Tools, nested
from onegraph.streams import token_text

__all__ = ["routes"]

#: The sampling parameters whose defaults `/props` names.
_NUMBERS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
    "repeat_last_n",
)


def routes(service: Service) -> list[Route]:
    """The endpoints."""

    def meant(request: Request) -> Model:
        return service.models.find(request.query_params.get("model"))

    async def props(request: Request) -> JSONResponse:
        model = meant(request)
        found = await facts(model)
        loop = asyncio.get_running_loop()
        able = await loop.run_in_executor(None, capabilities, model)
        trained = None if found is None else found.shape.get("n_ctx_train")
        return JSONResponse(_props(model, able, trained))

    async def slots(request: Request) -> JSONResponse:
        model = meant(request)
        running = 0 if model.llm is None else model.llm.stats().running
        listed = [_slot(model.llm, i, i < running) for i in range(model.line.slots)]
        if request.query_params.get("fail_on_no_slot") and running >= len(listed):
            raise Refused(503, f"all {len(listed)} slots of {model.name} are in use", retry_after=1)
        return JSONResponse(listed)

    async def apply_template(request: Request) -> Reply:
        return await service.read(request, _rendered)

    async def input_tokens(request: Request) -> Reply:
        return await service.read(request, _counted)

    async def fill(request: Request) -> Answer:
        return service.answer(await service.read(request, infill.asked))

    async def adapters(request: Request) -> JSONResponse:
        return JSONResponse([])

    async def adapt(request: Request) -> JSONResponse:
        raise Refused(501, "POST /lora-adapters: adapters are not supported; merge them first")

    async def load(request: Request) -> JSONResponse:
        model = await service.read(request, _model)
        async with asyncio.timeout(service.limits.seconds), service.models.using(model):
            return JSONResponse({"success": True})

    async def unload(request: Request) -> JSONResponse:
        model = await service.read(request, _model)
        async with asyncio.timeout(service.limits.seconds):
            await service.models.unload(model)
        if model.llm is not None:
            why = "requests use it" if model.users else "it was loaded at startup"
            raise wrong("model", model.name, f"cannot be unloaded now: {why}")
        return JSONResponse({"success": True})

    return [
        Route("/props", props, methods=["GET"]),
        Route("/slots", slots, methods=["GET"]),
        Route("/apply-template", apply_template, methods=["POST"]),
        Route("/v1/chat/completions/input_tokens", input_tokens, methods=["POST"]),
        Route("/chat/completions/input_tokens", input_tokens, methods=["POST"]),
        Route("/infill", fill, methods=["POST"]),
        Route("/lora-adapters", adapters, methods=["GET"]),
        Route("/lora-adapters", adapt, methods=["POST"]),
        Route("/models/load", load, methods=["POST"]),
        Route("/models/unload", unload, methods=["POST"]),
    ]


def _model(service: Service, fields: Fields) -> Model:
    fields.needed("model")
    return service.model(fields)


def _props(model: Model, able: list[str], trained: int | None) -> dict[str, Any]:
    """`trained`: the context that the file names, for a model that is not loaded."""
    llm = model.llm
    template = None if llm is None else llm.chat_template
    return {
        "default_generation_settings": {
            "n_ctx": trained if llm is None else llm.n_ctx,
            "params": {name: DEFAULTS[name] for name in _NUMBERS},
        },
        "total_slots": model.line.slots,
        "model_alias": model.name,
        "model_path": "" if model.path is None else model.path.name,
        "modalities": {"vision": False, "audio": False},
        "chat_template": "" if template is None else template.source,
        "chat_template_caps": {"supports_tools": "tools" in able},
        "bos_token": _token(llm, None if llm is None else llm.tokenizer.bos_id),
        "eos_token": _token(llm, None if llm is None else llm.tokenizer.eos_id),
        "build_info": f"onegraph-{__version__}",
        "is_sleeping": llm is None,
    }


def _token(llm: LLM | None, id: int | None) -> str:
    return "" if llm is None or id is None else token_text(llm.tokenizer, id)


def _slot(llm: LLM | None, id: int, is_processing: bool) -> dict[str, Any]:
    n_ctx = 0 if llm is None else llm.n_ctx
    return {"id": id, "n_ctx": n_ctx, "speculative": False, "is_processing": is_processing}


def _rendered(service: Service, fields: Fields) -> Reply:
    said, tools, continues, variables = _conversation(fields)

    def made(llm: LLM) -> dict[str, Any]:
        return {"prompt": llm._rendered(said, tools.offered or None, continues, variables)}

    return service.reply(service.model(fields), made)


def _counted(service: Service, fields: Fields) -> Reply:
    said, tools, continues, variables = _conversation(fields)

    def made(llm: LLM) -> dict[str, Any]:
        ids = conversation.tokens(llm, said, tools=tools, continues=continues, variables=variables)
        return {"object": "response.input_tokens", "input_tokens": len(ids)}

    return service.reply(service.model(fields), made)


def _conversation(
    fields: Fields,
) -> tuple[list[dict[str, Any]], Tools, bool, dict[str, Any] | None]:
    """The messages, the tools, whether the last message goes on, and the template's variables."""
    continues = fields.flag("continue_final_message")
    return openai.messages(fields), nested(fields), continues, openai.variables(fields)
