"""An answer on its way to a client: begun in line, sent as it is made, ended where the client has
gone, and always within the time allowed.

Templates and tokens are made by threads beside the event loop, text by the engine's own; what is
left to the loop is to wrap it. One wake of the loop serves all answers that have something new. A
client that reads slowly is sent what came meanwhile in one frame: nothing piles up but the text.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.types import Receive, Scope, Send

from onegraph.llm import LLM
from onegraph.results import Piece, Result
from onegraph.server import frames
from onegraph.server.events import Event, Reading
from onegraph.server.limits import Limits
from onegraph.server.log import note
from onegraph.server.metrics import Metrics
from onegraph.server.models import Model, Models
from onegraph.server.refusals import Refused, refusal
from onegraph.streams import AsyncStream, Job

__all__ = ["Answer", "Asked", "Writer", "while_connected"]

logger = logging.getLogger("onegraph.server")


class Writer(Protocol):
    """Writes one answer's stream in a dialect."""

    media_type: str

    def begin(self, job: Job) -> bytes:
        """What comes before the first event."""

    def event(self, event: Event) -> bytes:
        """An event; of the last one, the end of the stream too."""

    def idle(self) -> bytes:
        """What says that the answer is still coming."""

    def failed(self, why: Refused) -> bytes:
        """The end of a stream that breaks off."""


@dataclass(frozen=True)
class Asked:
    """A request that was understood."""

    model: Model
    #: Renders and tokenizes; run beside the event loop.
    prepare: Callable[[LLM], Job]
    #: What writes it as a stream; None where it is asked for whole.
    writer: Writer | None
    #: The answer as one object, of the events of each output.
    document: Callable[[list[list[Event]]], dict[str, Any]]
    #: The dialect's names of the engine's keywords, for errors.
    named: dict[str, str]


class Answer:
    """The response to a request that was understood: an ASGI app."""

    def __init__(self, asked: Asked, models: Models, limits: Limits, metrics: Metrics) -> None:
        self._asked = asked
        self._models = models
        self._limits = limits
        self._metrics = metrics
        self._began = time.monotonic()
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        model = self._asked.model
        note(scope, model=model.name, stream=self._asked.writer is not None)
        model.line.enter()
        try:
            await while_connected(receive, self._within_time(scope, send))
        finally:
            model.line.leave(time.monotonic() - self._began)

    async def _within_time(self, scope: Scope, send: Send) -> None:
        try:
            async with asyncio.timeout(self._limits.seconds):
                async with self._models.using(self._asked.model) as llm:
                    stream = AsyncStream[Any](llm, self._prepare(llm), priority=0, joins=True)
                    if self._asked.writer is None:
                        await self._whole(scope, stream, send)
                    else:
                        async with stream:
                            await self._stream(scope, stream, self._asked.writer, send)
        except Exception as e:
            why = refusal(e, self._asked.named)
            note(scope, error=why.code or why.status)
            if not self._started:
                raise why from e
            # Of a client that reads nothing any more not even this is waited for.
            async with asyncio.timeout(1):
                assert self._asked.writer is not None
                await _send(send, self._asked.writer.failed(why), more=False)
            if why.status == 500:
                logger.error("an answer broke off", exc_info=e)

    def _prepare(self, llm: LLM) -> Callable[[], Awaitable[Job]]:
        async def prepared() -> Job:
            loop = asyncio.get_running_loop()
            prepare = functools.partial(self._asked.prepare, llm)
            self._job = await loop.run_in_executor(None, prepare)
            return self._job

        return prepared

    async def _whole(self, scope: Scope, stream: AsyncStream[Any], send: Send) -> None:
        made = await stream
        results: list[Result] = made if isinstance(made, list) else [made]
        outputs = []
        for result in results:
            outputs.append(list(Reading().whole(result)))
            timings = result.timings
            self._measure(scope, result, timings.queue_seconds + timings.prefill_seconds)
        body = frames.encoded(self._asked.document(outputs))
        await _start(send, "application/json", len(body))
        await _send(send, body, more=False)

    async def _stream(
        self, scope: Scope, stream: AsyncStream[Any], writer: Writer, send: Send
    ) -> None:
        reading = Reading()
        piece = await self._first(stream, writer, send)
        first_at = time.monotonic()
        # The head was not sent before now, so that what is wrong with a request is its status.
        begun = b"" if self._started else await self._begin(writer, send)
        while True:
            frame = begun + b"".join(map(writer.event, reading.push(piece)))
            begun = b""
            if piece.finish_reason is not None:
                result = stream.result
                assert isinstance(result, Result)
                if result.finish_reason == "cancelled":
                    raise Refused(503, "the answer was cancelled: the server ends")
                frame += b"".join(map(writer.event, reading.finish(result)))
                await _send(send, frame, more=False)
                self._measure(scope, result, first_at - self._began)
                return
            if frame:
                await _send(send, frame, more=True)
            piece = await anext(stream)

    async def _first(self, stream: AsyncStream[Any], writer: Writer, send: Send) -> Piece:
        """The first piece; who waits long for it is told so."""
        task = asyncio.ensure_future(anext(stream))
        try:
            while not (await asyncio.wait({task}, timeout=self._limits.patience))[0]:
                said = b"" if self._started else await self._begin(writer, send)
                if said := said + writer.idle():
                    await _send(send, said, more=True)
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})

    async def _begin(self, writer: Writer, send: Send) -> bytes:
        self._started = True
        await _start(send, writer.media_type, None)
        return writer.begin(self._job)

    def _measure(self, scope: Scope, result: Result, first: float) -> None:
        usage = result.usage
        note(
            scope,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
            finish=result.finish_reason,
            first_token_seconds=round(first, 6),
        )
        self._metrics.answered(self._asked.model.name, result, first)


async def _start(send: Send, media_type: str, length: int | None) -> None:
    headers = [(b"content-type", media_type.encode())]
    if length is None:
        # A proxy between would otherwise keep what comes in pieces until it has all.
        headers += [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
    else:
        headers.append((b"content-length", str(length).encode()))
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def _send(send: Send, body: bytes, *, more: bool) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})


async def while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Does some work, but drops it once the client has gone."""
    task = asyncio.current_task()
    assert task is not None
    working = True
    left = False

    async def watch() -> None:
        nonlocal left
        while (await receive())["type"] != "http.disconnect":
            pass
        if working:
            left = True
            task.cancel()

    watching = asyncio.ensure_future(watch())
    try:
        await work
    except asyncio.CancelledError:
        # The server's own end is passed on; that of the client is the end of this alone.
        if not left or task.uncancel() > 0:
            raise
    finally:
        working = False
        watching.cancel()
