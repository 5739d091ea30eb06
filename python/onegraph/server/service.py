"""What the endpoints of all dialects stand on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from onegraph.llm import LLM
from onegraph.server import frames, work
from onegraph.server.answers import Answer, Asked, while_connected
from onegraph.server.fields import Fields
from onegraph.server.limits import Limits
from onegraph.server.log import note, noted
from onegraph.server.metrics import Metrics
from onegraph.server.models import Model, Models
from onegraph.server.refusals import refusal
from onegraph.server.requests import body, fields_of
from onegraph.server.work import MOST_BODIES, Bodies, Lanes, Work

__all__ = ["Reply", "Service"]

T = TypeVar("T")


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
            async with asyncio.timeout_at(work.of(scope).until):
                body = await self._body(work.of(scope))
        except Exception as e:
            raise noted(scope, refusal(e)) from None
        await Response(body, media_type="application/json")(scope, receive, send)

    async def _body(self, work: Work) -> bytes:
        async with self._service.models.using(self._model) as llm:
            if self._quick:
                return frames.encoded(self._made(llm))
            return await work.run(lambda: frames.encoded(self._made(llm)))


@dataclass
class Service:
    """One server."""

    models: Models
    limits: Limits
    metrics: Metrics = field(default_factory=Metrics)
    #: How to load a file that is fetched on request; None: nothing is.
    load: Callable[[Path], LLM] | None = None
    #: The thread that fetches: one at a time.
    pulls: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, "onegraph-pull")
    )
    #: Whether it ends: what runs is finished, and a load balancer sends no more.
    draining: bool = False
    _bodies: Bodies = field(default_factory=Bodies)
    _lanes: Lanes = field(default_factory=Lanes)

    async def read(self, request: Request, made: Callable[[Service, Fields], T]) -> T:
        """What is `made` of the body of a request; that of a larger one beside the event loop, as
        long as its client is there."""
        limits, scope = self.limits, request.scope
        most = MOST_BODIES * limits.body_bytes
        work = scope["onegraph.work"] = Work(self._lanes, self._bodies, most, limits.seconds)
        raw = await body(request, limits, work)
        work.begin()
        owner = scope.get("onegraph.owner", "")
        if work.is_small:
            return made(self, fields_of(raw, owner))
        found: list[T] = []

        async def reading() -> None:
            async with asyncio.timeout_at(work.until):
                found.append(await work.run(lambda: made(self, fields_of(raw, owner))))

        await while_connected(request.receive, reading())
        if not found:
            raise ClientDisconnect
        return found[0]

    def end(self) -> None:
        """The server has ended: its threads end with what they have in hand, and its models are
        closed."""
        self._lanes.end()
        self.pulls.shutdown(wait=False, cancel_futures=True)
        self.models.close()

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
