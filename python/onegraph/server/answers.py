"""An answer on its way to a client: begun in line, sent as it is made, ended where the client has
gone, and always within the time allowed.

Text is made by the engine's own thread, and templates and tokens that take long by others beside
the event loop; what is left to the loop is to wrap it. One wake of the loop serves all answers that
have something new. A client that reads slowly is sent what came meanwhile in one frame: nothing
piles up but the text.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

from starlette.types import Receive, Scope, Send

from onegraph import _native
from onegraph.llm import LLM
from onegraph.results import Result
from onegraph.server import frames, work
from onegraph.server.conversation import Prepare
from onegraph.server.events import Event, Reading
from onegraph.server.limits import Limits
from onegraph.server.log import direct, note, noted
from onegraph.server.metrics import Metrics
from onegraph.server.models import Model, Models
from onegraph.server.refusals import Refused, refusal
from onegraph.streams import Ask, AsyncStream, Job, Taken, naming, read, taking

__all__ = ["Answer", "Asked", "Writer", "while_connected"]

logger = logging.getLogger("onegraph.server")

#: Tokens of an answer up to which the event loop writes it as one object itself.
WRITTEN = 1 << 11


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
    prepare: Prepare
    #: What writes each output of it as a stream; none where it is asked for whole.
    writers: Sequence[Writer]
    #: The answer as one object, of the events of each output.
    document: Callable[[list[list[Event]]], dict[str, Any]]
    #: The dialect's names of the engine's keywords, for errors.
    named: dict[str, str]
    #: Of each place of the prompt, how many of the most probable tokens are asked for beside that
    #: which stands there; None where it is not said how probable it is.
    scores: int | None = None
    #: Whether nothing is made: what was read is all that is asked for.
    reads_only: bool = False


class Answer:
    """The response to a request that was understood: an ASGI app."""

    def __init__(self, asked: Asked, models: Models, limits: Limits, metrics: Metrics) -> None:
        self._model = asked.model
        self._writers = asked.writers
        self._document = asked.document
        self._named = asked.named
        self._scores = asked.scores
        self._reads_only = asked.reads_only
        #: None once it is prepared: it holds all that the request said.
        self._prepare: Prepare | None = asked.prepare
        self._models = models
        self._limits = limits
        self._metrics = metrics
        self._began = time.monotonic()
        self._started = self._ended = False
        self._job: Job | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        note(scope, model=self._model.name, stream=bool(self._writers))
        with self._model.line.place(self._began):
            try:
                await while_connected(receive, self._within_time(scope, send))
            except asyncio.CancelledError as e:
                # The server ends.
                note(scope, error=503)
                if self._started and not self._ended:
                    with contextlib.suppress(TimeoutError):
                        await self._break_off(refusal(e), send)
                raise

    async def _within_time(self, scope: Scope, send: Send) -> None:
        try:
            async with asyncio.timeout_at(work.of(scope).until):
                async with self._models.using(self._model) as llm:
                    if self._writers:
                        await self._stream(scope, llm, send)
                    else:
                        await self._whole(scope, llm, send)
        except Exception as e:
            why = noted(scope, refusal(e, self._named))
            if self._started:
                await self._break_off(why, send)
                if why.status == 500:
                    logger.error("an answer broke off", exc_info=e)
                return
            if why.status == 500:
                raise why from e
        else:
            return
        # Without the error: what it was raised in holds all of the request.
        raise why

    async def _break_off(self, why: Refused, send: Send) -> None:
        """Ends a stream that has begun."""
        # Of a client that reads nothing any more not even this is waited for.
        async with asyncio.timeout(1):
            await _send(send, self._writers[0].failed(why), more=False)

    async def _prepared(self, scope: Scope, llm: LLM) -> Job:
        prepare, self._prepare = self._prepare, None
        assert prepare is not None
        if prepare.is_quick and self._scores is None:
            return prepare.job(llm)
        made = functools.partial(prepare.job, llm)
        job = await work.of(scope).run(made, compiles=prepare.compiles)
        del prepare, made
        work.of(scope).end()
        return job if self._scores is None else await _scored(llm, job, self._scores)

    async def _whole(self, scope: Scope, llm: LLM, send: Send) -> None:
        if self._reads_only:
            results = [read(llm, ask) for ask in (await self._prepared(scope, llm)).asks]
        else:
            prepared = functools.partial(self._prepared, scope, llm)
            stream: AsyncStream[Any] = AsyncStream(llm, prepared, priority=0)
            results = [*_flat(await stream)]
        timings = [result.timings for result in results]
        self._measure(
            scope, results, [each.queue_seconds + each.prefill_seconds for each in timings]
        )

        def written() -> bytes:
            outputs = [list(Reading().whole(result)) for result in results]
            return frames.encoded(self._document(outputs))

        n = sum(len(each.token_ids) + len(each.prompt_logprobs or []) for each in results)
        body = written() if n <= WRITTEN else await work.of(scope).run(written)
        await _start(send, "application/json", len(body))
        await _send(send, body, more=False)

    async def _stream(self, scope: Scope, llm: LLM, send: Send) -> None:
        # The head was not sent before the first piece, so that what is wrong with a request is its
        # status; who waits long for it is told so.
        async with _Patience(self._limits.patience, lambda: self._idle(send)) as patience:
            job = self._job = await self._prepared(scope, llm)
            asks = job.asks if len(job.asks) == len(self._writers) else [job.only()]
            async with taking(llm, asks, priority=0) as (taken, news):
                outputs = [*map(_Output, taken, self._writers)]
                running, frame, told = outputs, b"", False
                while running:
                    if not any([each.poll() for each in running]):
                        await news.wait()
                        continue
                    if not told:
                        told = True
                        await patience.end()
                        frame = b"" if self._started else await self._begin(job, send)
                        send = direct(scope, send)
                    frame += b"".join([each.frame() for each in running])
                    running = [each for each in running if each.result is None]
                    if frame and running:
                        await _send(send, frame, more=True)
                        frame = b""
                await _send(send, frame, more=False)
                self._ended = True
                results = [each.result for each in outputs if each.result is not None]
                self._measure(scope, results, [each.first_at - self._began for each in outputs])

    async def _begin(self, job: Job, send: Send) -> bytes:
        await _start(send, self._writers[0].media_type, None)
        self._started = True
        return b"".join([writer.begin(job) for writer in self._writers])

    async def _idle(self, send: Send) -> None:
        if self._job is None:
            return
        said = b"" if self._started else await self._begin(self._job, send)
        if said := said + self._writers[0].idle():
            await _send(send, said, more=True)

    def _measure(self, scope: Scope, results: list[Result], firsts: list[float]) -> None:
        """Several are of several prompts: the request's line has all of them together."""
        usages = [result.usage for result in results]
        note(
            scope,
            prompt_tokens=sum(usage.prompt_tokens for usage in usages),
            cached_tokens=sum(usage.cached_tokens for usage in usages),
            completion_tokens=sum(usage.completion_tokens for usage in usages),
            finish=",".join(dict.fromkeys(result.finish_reason for result in results)),
            first_token_seconds=round(min(firsts), 6),
        )
        for result, first in zip(results, firsts, strict=True):
            self._metrics.answered(self._model.name, result, first)


async def _scored(llm: LLM, job: Job, top: int) -> Job:
    """A job whose prompts are read for how probable they are, each once."""
    loop, n = asyncio.get_running_loop(), job.n or 1
    asks: list[Ask] = []
    for i in range(0, len(job.asks), n):
        same = job.asks[i : i + n]
        with naming(same[0].name):
            scored = await loop.run_in_executor(None, llm._scored, same[0].ids, top)
        asks += [replace(ask, scored=scored) for ask in same]
    return replace(job, asks=asks)


def _flat(made: Any) -> Iterator[Result]:
    """The results of a job in order, of however many prompts and outputs of each."""
    if isinstance(made, Result):
        yield made
    else:
        for each in made:
            yield from _flat(each)


class _Output:
    """One output of a stream."""

    def __init__(self, taken: Taken, writer: Writer) -> None:
        self._taken = taken
        self._writer = writer
        self._reading = Reading()
        #: What came of it that is not written yet.
        self._new: list[_native.Generated] = []
        #: When it began: seconds of `time.monotonic`.
        self.first_at = 0.0
        #: The whole, at its end.
        self.result: Result | None = None

    def poll(self) -> bool:
        """Looks whether there is more of it."""
        self._new = self._taken.poll()
        return bool(self._new)

    def frame(self) -> bytes:
        """What the last look found, written."""
        taken, reading, new = self._taken, self._reading, self._new
        if not new:
            return b""
        self.first_at = self.first_at or time.monotonic()
        is_last = new[-1].finish_reason is not None
        if taken.is_plain and not is_last:
            events = reading.more(taken.said(new))
        else:
            events = reading.push(taken.piece(new))
        frame = b"".join(map(self._writer.event, events))
        if is_last:
            self.result = result = taken.result
            assert result is not None
            if result.finish_reason == "cancelled":
                raise Refused(503, "the answer was cancelled: the server is shutting down")
            frame += b"".join(map(self._writer.event, reading.finish(result)))
        return frame


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


class _Patience:
    """Tells a client that it is not forgotten: each time that so many seconds are over, until it
    has something to read."""

    def __init__(self, seconds: float, tell: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._seconds = seconds
        self._tell = tell
        self._telling: asyncio.Task[None] | None = None
        self._wait()

    def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._seconds, self._over)

    def _over(self) -> None:
        async def telling() -> None:
            await self._tell()
            self._wait()

        self._telling = asyncio.ensure_future(telling())

    async def end(self) -> None:
        """No more is told, and what is being told has been."""
        if self._telling is not None:
            await self._telling
        self._timer.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        self._timer.cancel()
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.gather(self._telling, return_exceptions=True)


async def while_connected(receive: Receive, wanted: Coroutine[Any, Any, None]) -> None:
    """Does what is wanted, but drops it once the client has gone."""
    # In a task of its own: one that waits for a token is woken through all that it waits in.
    working = asyncio.ensure_future(wanted)
    left = False

    async def watch(working: asyncio.Future[None]) -> None:
        nonlocal left
        while (await receive())["type"] != "http.disconnect":
            pass
        left = working.cancel()

    watching = asyncio.ensure_future(watch(working))
    try:
        await working
    except asyncio.CancelledError:
        # The server's own end is passed on; that of the client is the end of this alone.
        if not left or _is_cancelled():
            raise
    finally:
        watching.cancel()
        # Its error was raised here: each would hold the other, and all that the request said.
        del working


def _is_cancelled() -> bool:
    """Whether the running task is to end."""
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling() > 0
