"""What the endpoints of all dialects stand on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from onegraph.llm import LLM
from onegraph.server.answers import Answer, Asked, while_connected
from onegraph.server.fields import Fields
from onegraph.server.limits import Limits
from onegraph.server.log import note
from onegraph.server.metrics import Metrics
from onegraph.server.models import Model, Models
from onegraph.server.refusals import refusal
from onegraph.server.requests import Bodies, body

__all__ = ["Reply", "Service"]


class Reply:
    """The response to what a model is asked without its engine, as how many tokens a text has: an
    ASGI app. It has a place in line and an end in time, as an answer has."""

    def __init__(
        self, service: Service, model: Model, made: Callable[[LLM], dict[str, Any]], *, quick: bool
    ) -> None:
        """`made` makes the body; the event loop may wait for one that is `quick`."""
        self._service = service
        self._model = model
        self._made = made
        self._quick = quick

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        note(scope, model=self._model.name, stream=False)
        with self._model.line.place(time.monotonic()):
            await while_connected(receive, self._reply(scope, receive, send))

    async def _reply(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(self._service.limits.seconds):
                body = await self._body()
        except Exception as e:
            why = refusal(e)
            note(scope, error=why.code or why.status)
            raise why from e
        await JSONResponse(body)(scope, receive, send)

    async def _body(self) -> dict[str, Any]:
        async with self._service.models.using(self._model) as llm:
            if self._quick:
                return self._made(llm)
            return await asyncio.get_running_loop().run_in_executor(None, self._made, llm)


@dataclass
class Service:
    """One server."""

    models: Models
    limits: Limits
    metrics: Metrics = field(default_factory=Metrics)
    #: Whether it ends: what runs is finished, and whoever balances sends no more.
    draining: bool = False
    _bodies: Bodies = field(default_factory=Bodies)

    async def read(self, request: Request) -> Fields:
        """The body of a request."""
        return await body(request, self.limits, self._bodies)

    def model(self, fields: Fields) -> Model:
        """The model that a body names."""
        return self.models.find(fields.text("model"))

    def answer(self, asked: Asked) -> Answer:
        """The response to a request that was understood."""
        return Answer(asked, self.models, self.limits, self.metrics)

    def reply(
        self, model: Model, made: Callable[[LLM], dict[str, Any]], *, quick: bool = False
    ) -> Reply:
        """The response to what needs no engine."""
        return Reply(self, model, made, quick=quick)
