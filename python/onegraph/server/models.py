"""The models that a server has, by name; those of a folder are loaded when they are asked for."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import functools
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from onegraph.arguments import several
from onegraph.errors import Error, OutOfMemoryError
from onegraph.llm import LLM
from onegraph.server.limits import Line
from onegraph.server.refusals import Refused

__all__ = ["Model", "Models"]

T = TypeVar("T")

logger = logging.getLogger("onegraph.server")

#: What ollama's clients write behind a name that has no tag.
LATEST = ":latest"


class Model:
    """A model with a name, loaded or to be loaded."""

    def __init__(
        self,
        name: str,
        llm: LLM | None,
        max_queue: int,
        load: Callable[[], LLM] | None = None,
        path: Path | None = None,
    ) -> None:
        self.name = name
        self.llm = llm
        self.path = path if llm is None else llm.path
        #: How to load it (again); None for one that is the caller's and stays.
        self._load = load
        self._max_queue = max_queue
        self._loading: asyncio.Task[LLM] | None = None
        self.line = Line(llm.max_batch if llm else 1, max_queue)
        self.users = 0
        #: Seconds after its last use at which it is unloaded; None: it stays.
        self.keep: float | None = None
        self._leaving: asyncio.TimerHandle | None = None
        #: When it was last used: seconds of `time.monotonic`.
        self.used = time.monotonic()
        self.created = int(time.time())

    def stay(self) -> None:
        """It is used: it does not go meanwhile."""
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None

    def leave_later(self, unload: Callable[[Model], Coroutine[Any, Any, None]]) -> None:
        """Nobody uses it any more: has it unloaded `keep` seconds from now."""
        self.stay()
        if self.keep is not None and self.may_go:
            loop = asyncio.get_running_loop()
            self._leaving = loop.call_later(self.keep, lambda: loop.create_task(unload(self)))

    @property
    def may_go(self) -> bool:
        """Whether it may be unloaded now."""
        return self._load is not None and self.llm is not None and self.users == 0

    async def loaded(self, turn: Turn, make_room: Callable[[], Awaitable[bool]]) -> LLM:
        """The model itself; loads it where it is not there, beside the event loop. A load goes on
        when those who wait for it leave: no thread can be stopped, and the next to ask would begin
        another one beside it."""
        if self._loading is None or self._loading.done():
            self._loading = asyncio.ensure_future(self._loads(turn, make_room))
            self._loading.add_done_callback(self._ended)
        return await asyncio.shield(self._loading)

    async def _loads(self, turn: Turn, make_room: Callable[[], Awaitable[bool]]) -> LLM:
        async with turn.lock:
            while self.llm is None:
                assert self._load is not None
                try:
                    self.llm = await turn.run(self._load)
                except OutOfMemoryError as e:
                    if not await make_room():
                        raise Refused(503, f"{self.name} cannot be loaded now: {e}") from e
                except Error as e:
                    raise Refused(503, f"{self.name} cannot be loaded: {e}") from e
                else:
                    self.line.slots = self.llm.max_batch
            return self.llm

    def _ended(self, loading: asyncio.Task[LLM]) -> None:
        if self._loading is loading:
            self._loading = None
        if not loading.cancelled():
            loading.exception()  # all who would have been told of it may have left

    async def unload(self, turn: Turn) -> None:
        """Frees its memory; it is loaded again when it is asked for. `turn` is the caller's."""
        llm, self.llm = self.llm, None
        if llm is not None:
            logger.info("unloading %s", self.name)
            await turn.run(llm.close)


class Turn:
    """What loads take one after the other: two at once would take each other's room."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        # A thread of their own: long texts that are made tokens do not hold them up.
        self._thread = ThreadPoolExecutor(1, "onegraph-load")

    async def run(self, work: Callable[[], T]) -> T:
        """Has the thread do it."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def end(self) -> None:
        """No more is begun; what is being done goes on."""
        self._thread.shutdown(wait=False, cancel_futures=True)


class Models:
    """All of a server's models. The first is meant where a request names none.

    given: those that are loaded, by name; they stay
    folder: of each `.gguf` file in it, its name and how to load it; those used least recently give
        way where the memory does not suffice for one that is asked for
    aliases: further names of the first
    """

    def __init__(
        self,
        given: Mapping[str, LLM],
        *,
        max_queue: int,
        folder: Mapping[str, tuple[Path, Callable[[], LLM]]] | None = None,
        aliases: tuple[str, ...] = (),
    ) -> None:
        self._models = {name: Model(name, llm, max_queue) for name, llm in given.items()}
        self._max_queue = max_queue
        for name, (path, load) in (folder or {}).items():
            self.add(name, path, load)
        self._aliases = aliases
        self._turn = Turn()

    def add(self, name: str, path: Path, load: Callable[[], LLM]) -> None:
        """One more, loaded when it is asked for; of a name that is there already that one stays."""
        more = Model(name, None, self._max_queue, load, path)
        # Another dict: threads that read requests go through the one that was there.
        if name not in self._models:
            self._models = {**self._models, name: more}

    def all(self) -> list[Model]:
        """All of them, the first one first."""
        return [*self._models.values()]

    def find(self, name: str | None) -> Model:
        """The model of that name; raises 404 where there is none."""
        if name is None or name in self._aliases:
            return next(iter(self._models.values()))
        for spelled in (name, name.removesuffix(LATEST)):
            if spelled in self._models:
                return self._models[spelled]
        # A name that is longer than any is near to none: to look at it takes as long as it is.
        longest = 2 * max(map(len, self._models))
        near = difflib.get_close_matches(name, self._models, n=1) if len(name) <= longest else []
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise Refused(
            404,
            f"model = {name[:60]!r}: not on this server, which has {several(self._models)}{hint}",
            field="model",
            code="model_not_found",
        )

    @contextlib.asynccontextmanager
    async def using(self, model: Model) -> AsyncIterator[LLM]:
        """The model, which is not unloaded meanwhile."""
        model.users += 1
        model.stay()
        try:
            yield model.llm or await self._loaded(model)
        finally:
            model.users -= 1
            model.used = time.monotonic()
            model.leave_later(self.unload)

    async def unload(self, model: Model) -> None:
        """Frees a model's memory, unless somebody uses it or it is the caller's."""
        if model.may_go:  # else it need not wait for the load of another
            async with self._turn.lock:
                if model.may_go:
                    await model.unload(self._turn)

    def close(self) -> None:
        """Closes all that are there, those of the caller too; the server has ended."""
        self._turn.end()
        for model in self._models.values():
            model.stay()
            if model.llm is not None:
                model.llm.close()

    async def _loaded(self, model: Model) -> LLM:
        return await model.loaded(self._turn, functools.partial(self._make_room, model))

    async def _make_room(self, wanted: Model) -> bool:
        """Unloads the one that was used least recently; False where none may go."""
        idle = [m for m in self._models.values() if m.may_go and m is not wanted]
        if not idle:
            return False
        await min(idle, key=lambda m: m.used).unload(self._turn)
        return True
