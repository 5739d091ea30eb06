"""Generations on their way: whole, in pieces, and for event loops."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterator,
    Sequence,
)
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar

from onegraph import _native
from onegraph.answers import Answer, AnswerEvent, Reader, ReasoningDelta, TextDelta
from onegraph.errors import ArgumentError, Error
from onegraph.loaded import Loaded
from onegraph.results import Piece, Result, Scored, Timings, TokenLogprob, TopLogprob, Usage

if TYPE_CHECKING:
    from onegraph.doorbell import News, Visitor

__all__ = ["Ask", "AsyncStream", "Job", "Stream", "Taken", "naming", "read", "taking"]

T = TypeVar("T")


@dataclass(frozen=True)
class Ask:
    """One sequence to generate."""

    ids: list[int]
    options: dict[str, Any]
    #: What the prompt is called in an error.
    name: str
    #: Text that the output begins with.
    echo: str
    is_chat: bool
    #: How the output is taken apart.
    reader: Reader | None = None
    #: How probable the prompt's tokens are, where that was asked for.
    scored: list[Scored] | None = None

    @property
    def logprobs(self) -> bool:
        return self.options["logprobs"] is not None

    @property
    def shown(self) -> list[int]:
        """Control tokens whose spelling is part of the text."""
        return self.reader.shown if self.reader else []

    def answer(self, seed: int) -> Answer | None:
        return self.reader.begin(seed) if self.reader else None


@dataclass(frozen=True)
class Job:
    """What one call asks for."""

    asks: Sequence[Ask]
    #: Whether a list of prompts was given, and how many outputs of each.
    many: bool
    n: int | None

    def shape(self, results: list[Result]) -> Any:
        """The results as the call gives them: of each prompt one, or a list of `n`."""
        n = self.n
        of_each: list[Any] = (
            results if n is None else [results[i : i + n] for i in range(0, len(results), n)]
        )
        return of_each if self.many else of_each[0]

    def only(self) -> Ask:
        """The one sequence of a stream."""
        if self.many:
            name = self.asks[0].name.partition("[")[0]
            kind = "conversations" if self.asks[0].is_chat else "prompts"
            given = len(self.asks) // (self.n or 1)
            raise ArgumentError(
                f"{name}: {given} {kind} were given, but a stream has one; request each separately"
            )
        if self.n is not None:
            raise ArgumentError(
                f"n = {self.n}: a stream has one output; request each separately, without n"
            )
        return self.asks[0]


class naming:
    """Lets an error say which prompt of a list it is about."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(value, Error) and self.name.endswith("]"):
            said = str(value.args[0])
            plain = self.name.partition("[")[0]
            if said.startswith(f"{plain} = "):
                raise type(value)(self.name + said.removeprefix(plain)) from value
            # Another argument is wrong whatever the prompt.
            if not isinstance(value, ArgumentError):
                raise type(value)(f"{self.name}: {said}") from value


def token_text(tokenizer: _native.Tokenizer, token_id: int) -> str:
    if tokenizer.is_special(token_id):
        return tokenizer.token_text(token_id)
    return tokenizer.token_bytes(token_id).decode(errors="replace")


def _logprobs(llm: Loaded, piece: _native.Generated) -> list[TokenLogprob]:
    def text(token: int) -> str:
        return token_text(llm.tokenizer, token)

    return [
        TokenLogprob(
            token, logprob, tuple(TopLogprob(t, lp, text(t)) for t, lp in top), text(token)
        )
        for token, (logprob, top) in zip(piece.token_ids, piece.logprobs, strict=True)
    ]


def whole(
    llm: Loaded,
    ask: Ask,
    seed: int,
    pieces: Sequence[_native.Generated],
    answer: Answer | None = None,
) -> Result:
    """The pieces of a generation in one; `answer` is given where it was taken apart already."""
    last = pieces[-1]
    assert last.finish_reason is not None
    llm._say_saturated()
    text = "".join(p.text for p in pieces)
    if answer is None and (answer := ask.answer(seed)):
        answer.push(text, last=True)
    ids = [t for p in pieces for t in p.token_ids]
    reasoned = _reasoned(llm, ask, answer.reasoning, text, ids) if answer else 0
    return Result(
        text=ask.echo + (answer.text if answer else text),
        token_ids=ids,
        finish_reason=_finish_reason(last, answer) or "stop",
        cut=last.cut,
        stop_reason=last.stop_reason,
        usage=Usage(*last.usage, reasoning_tokens=reasoned),
        timings=Timings(*last.timings),
        logprobs=[lp for p in pieces for lp in _logprobs(llm, p)] if ask.logprobs else None,
        seed=seed,
        model=str(llm.path),
        is_chat=ask.is_chat,
        created=time.time(),
        reasoning=answer.reasoning if answer else None,
        tool_calls=answer.calls if answer else [],
        invalid_tool_calls=answer.invalid if answer else [],
        prompt_logprobs=ask.scored,
        schema=ask.options["schema"],
    )


def read(llm: Loaded, ask: Ask) -> Result:
    """What a prompt is of which nothing is made."""
    return Result(
        text=ask.echo,
        token_ids=[],
        finish_reason="length",
        cut="max_tokens",
        stop_reason=None,
        usage=Usage(len(ask.ids), 0, 0, 0, 0, 0),
        timings=Timings(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
        logprobs=[] if ask.logprobs else None,
        seed=0,
        model=str(llm.path),
        is_chat=ask.is_chat,
        created=time.time(),
        prompt_logprobs=ask.scored,
    )


def _reasoned(llm: Loaded, ask: Ask, reasoning: str | None, text: str, ids: list[int]) -> int:
    """How many tokens of an output there are up to the end of its reasoning."""
    if not reasoning:
        return 0
    at = text.find(reasoning)
    if at < 0:  # in several parts
        return min(len(llm.tokenizer.encode(reasoning, False)), len(ids))
    left = at + len(reasoning)
    shown = set(ask.shown)
    decoder = llm.tokenizer.stream(continuation=True)
    for i, token in enumerate(ids, 1):
        said = decoder.push(token)
        left -= len(llm.tokenizer.token_text(token) if token in shown else said)
        if left <= 0:
            return i
    return len(ids)


def _finish_reason(
    last: _native.Generated, answer: Answer | None
) -> Literal["stop", "length", "cancelled", "tool_calls"] | None:
    # Whatever was cut behind a whole call: the call is to be run.
    if last.finish_reason in ("stop", "length") and answer and answer.calls:
        return "tool_calls"
    return last.finish_reason


def _piece(
    llm: Loaded,
    ask: Ask,
    new: Sequence[_native.Generated],
    first: bool,
    answer: Answer | None,
) -> Piece:
    """What came of a generation, in one."""
    last = new[-1]
    said = last.text if len(new) == 1 else "".join(each.text for each in new)
    text = ask.echo + said if first else said
    events: list[AnswerEvent] = [TextDelta(text)] if ask.is_chat and text else []
    reasoning = ""
    if answer:
        events = answer.push(said, last=last.finish_reason is not None)
        text = "".join(e.text for e in events if isinstance(e, TextDelta))
        reasoning = "".join(e.text for e in events if isinstance(e, ReasoningDelta))
    return Piece(
        text=text,
        token_ids=[token for each in new for token in each.token_ids],
        finish_reason=_finish_reason(last, answer),
        logprobs=[lp for each in new for lp in _logprobs(llm, each)] if ask.logprobs else None,
        reasoning=reasoning,
        events=events,
    )


class Stream(Iterator[Piece]):
    """The pieces of one generation as they are generated; leaving it early cancels the generation.

    Iterate over it, or use it as a context manager. `result` is the complete result after the last
    piece. Threads may share a stream: each piece goes to one of them.
    """

    def __init__(self, llm: Loaded, ask: Ask, generation: _native.Generation) -> None:
        self._llm = llm  # a model does not go away under a running stream
        self._ask = ask
        self._generation = generation
        # A piece is taken and kept in one step, or the result would have them in another order. The
        # handler of a signal may read on in the middle of that.
        self._reading = threading.RLock()
        self._pieces: list[_native.Generated] = []
        self._ended = False
        self._result: Result | None = None
        self.seed = generation.seed
        self._answer = ask.answer(self.seed)

    def __next__(self) -> Piece:
        with self._reading:
            if self._ended:
                raise StopIteration
            try:
                piece = self._generation.next()
            except BaseException:
                self.close()
                raise
            # Another thread may have closed it meanwhile.
            if piece is None or self._ended:
                self.close()
                raise StopIteration
            first = not self._pieces
            self._pieces.append(piece)
            made = _piece(self._llm, self._ask, [piece], first, self._answer)
            if piece.finish_reason is not None:
                self._ended = True
                pieces, self._pieces = self._pieces, []
                self._result = whole(self._llm, self._ask, self.seed, pieces, self._answer)
        return made

    @property
    def result(self) -> Result | None:
        """The complete result after the last piece; None before."""
        return self._result

    def cancel(self) -> None:
        """Cancels the generation; its last piece then says "cancelled"."""
        self._generation.cancel()

    def close(self) -> None:
        """Cancels the generation and ends the iteration. May be called again."""
        self._ended = True
        self.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class AsyncStream(Coroutine[Any, Any, T], AsyncIterator[Piece], Generic[T]):
    """A generation for asyncio, from `LLM.agenerate` and `LLM.achat`: `await` it for the result, or
    use `async for` to iterate over its pieces as they are generated. It blocks neither the event
    loop nor a thread. It starts when it is first awaited, and can be used in one of the two ways,
    once.

    Leaving the loop early, `aclose`, cancelling the task, or leaving it as a context manager
    (`async with`) cancels the generation. `result` is the complete result once it is finished. It
    is a coroutine: `asyncio.run`, `create_task`, `gather` and `wait_for` accept it.
    """

    def __init__(
        self,
        llm: Loaded,
        prepare: Callable[[], Awaitable[Job]],
        priority: int,
    ) -> None:
        self._llm = llm
        self._prepare = prepare
        self._priority = priority
        self._result: T | None = None
        self._whole: Coroutine[Any, Any, T] | None = None
        self._pieces: AsyncGenerator[Piece, None] | None = None

    @property
    def result(self) -> T | None:
        """The complete result after the last piece or after `await`; None before."""
        return self._result

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Piece:
        if self._pieces is None:
            if self._whole is not None:
                raise ArgumentError("agenerate: already awaited; call it again to iterate")
            self._pieces = self._stream()
        return await anext(self._pieces)

    async def aclose(self) -> None:
        """Cancels the generation and ends the iteration. May be called again."""
        if self._whole is not None:
            self._whole.close()
        if self._pieces is None:
            self._pieces = self._stream()
        await self._pieces.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __await__(self) -> Generator[Any, Any, T]:
        return self._coroutine().__await__()

    def send(self, value: Any) -> Any:
        """Of the protocol of coroutines."""
        return self._coroutine().send(value)

    def throw(self, *raised: Any) -> Any:
        """Of the protocol of coroutines."""
        return self._coroutine().throw(*raised)

    def close(self) -> None:
        """Of the protocol of coroutines: cancels what is awaited."""
        if self._whole is not None:
            self._whole.close()

    def _coroutine(self) -> Coroutine[Any, Any, T]:
        if self._whole is None:
            if self._pieces is not None:
                raise ArgumentError("agenerate: already iterated; call it again to await")
            self._whole = self._collect()
        return self._whole

    async def _collect(self) -> T:
        from onegraph.doorbell import visiting

        job = await self._prepare()
        generations: list[_native.Generation] = []
        results = []
        try:
            with visiting() as visitor:
                for ask in job.asks:
                    with naming(ask.name):
                        generations.append(
                            await _offered(self._llm, ask, visitor, self._priority, at_end=True)
                        )
                for ask, generation in zip(job.asks, generations, strict=True):
                    while True:
                        with naming(ask.name):
                            made = generation.ended()
                        if made is not None:
                            break
                        await visitor.news.wait()
                    results.append(whole(self._llm, ask, generation.seed, [made]))
        finally:
            for generation in generations:
                generation.cancel()
        shaped: T = job.shape(results)
        self._result = shaped
        return shaped

    async def _stream(self) -> AsyncGenerator[Piece, None]:
        ask = (await self._prepare()).only()
        async with taking(self._llm, [ask], self._priority) as ((taken,), news):
            while taken.result is None:
                while not (new := taken.poll(1)):
                    await news.wait()
                piece = taken.piece(new)
                self._result = taken.result
                yield piece


class Taken:
    """What a task has taken of a generation."""

    def __init__(self, llm: Loaded, ask: Ask, generation: _native.Generation) -> None:
        self._llm = llm
        self._ask = ask
        self._generation = generation
        self._pieces: list[_native.Generated] = []
        self._answer = ask.answer(generation.seed)
        #: Whether a piece but the last is what `said` gives, and no more.
        self.is_plain = not ask.logprobs and not ask.echo
        #: The whole, once the last piece was asked for.
        self.result: Result | None = None

    def poll(self, most: int | None = None) -> list[_native.Generated]:
        """What is there that was not taken before, `most` pieces of it."""
        found: list[_native.Generated] = []
        while len(found) != most:
            piece = self._generation.poll()
            if piece is None:
                break
            found.append(piece)
            if piece.finish_reason is not None:
                break
        self._pieces += found
        return found

    def said(self, new: list[_native.Generated]) -> list[AnswerEvent]:
        """What is new of the text, taken apart."""
        text = new[0].text if len(new) == 1 else "".join([each.text for each in new])
        if self._answer is not None:
            return self._answer.push(text, last=False)
        return [TextDelta(text)] if text else []

    def piece(self, new: list[_native.Generated]) -> Piece:
        """What is new, in one."""
        last = new[-1]
        first = len(new) == len(self._pieces)
        made = _piece(self._llm, self._ask, new, first, self._answer)
        if last.finish_reason is not None:
            self.result = whole(
                self._llm, self._ask, self._generation.seed, self._pieces, self._answer
            )
        return made


class taking:
    """Generations to take pieces of; leaving them cancels them."""

    # No generator: an event loop that ends would close it beside the one that it is used in.

    def __init__(self, llm: Loaded, asks: Sequence[Ask], priority: int) -> None:
        self._llm = llm
        self._asks = asks
        self._priority = priority

    async def __aenter__(self) -> tuple[list[Taken], News]:
        """What is taken of each, and the news that there may be more of one."""
        from onegraph.doorbell import visiting

        llm, taken = self._llm, []
        with contextlib.ExitStack() as stack:
            visitor = stack.enter_context(visiting())
            for ask in self._asks:
                with naming(ask.name):
                    made = await _offered(llm, ask, visitor, self._priority, at_end=False)
                stack.callback(made.cancel)
                taken.append(Taken(llm, ask, made))
            self._stack = stack.pop_all()
        return taken, visitor.news

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()


async def _offered(
    llm: Loaded, ask: Ask, visitor: Visitor, priority: int, *, at_end: bool
) -> _native.Generation:
    """Queues a request, in line with the others of its loop and priority."""

    def offer(waited: float) -> _native.Generation | None:
        return llm._engine.offer(
            ask.ids,
            ask.options,
            visitor.bell,
            visitor.number,
            at_end,
            priority=priority,
            waited=waited,
            shown=ask.shown,
        )

    return await visitor.queued(llm._engine, priority, offer)
