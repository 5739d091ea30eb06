"""`/api/pull` of ollama: a model is fetched as `onegraph pull` does, and served then."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from onegraph import hub
from onegraph.arguments import several
from onegraph.errors import ArgumentError, Error
from onegraph.llm import LLM
from onegraph.server import frames
from onegraph.server.answers import while_connected
from onegraph.server.fields import Fields, wrong
from onegraph.server.models import LATEST
from onegraph.server.refusals import Refused, refusal
from onegraph.server.service import Service

__all__ = ["Pull", "pull_of"]

#: How ollama's clients name a file of Hugging Face.
_OTHERS = re.compile(r"(?:https://)?(?:hf\.co|huggingface\.co)/")

#: What the engine says it does, in ollama's words.
_WORDS = {"downloading": "pulling", "checking": "verifying sha256 digest", "waiting": "waiting"}


def pull_of(service: Service, fields: Fields) -> Pull:
    """What a body asks to be fetched. Names of files, and what other programs keep, are none."""
    assert service.load is not None  # else there is no such endpoint
    field = "model" if "model" in fields else "name"
    fields.needed(field)
    given = (fields.text(field) or "").removesuffix(LATEST)
    name = _OTHERS.sub("hf:", given, count=1)
    if name in (names := hub.names()):
        name = names[name].reference
    if name not in (known := hub.known_models()) and not name.startswith("hf:"):
        raise wrong(
            field,
            given,
            f"unknown model; use {several(known)}, a name from "
            "`onegraph list --names`, or a file from Hugging Face as hf.co/USER/REPO:Q4_K_M",
        )
    digest = known[name].sha256 if name in known else None
    return Pull(service, service.load, given, name, digest, fields.flag("stream", True))


class _Left(Exception):
    """Nobody waits for it any more."""


class Pull:
    """The response: lines of what is being done, or its end alone; an ASGI app. What is fetched is
    dropped where the client leaves."""

    def __init__(
        self,
        service: Service,
        load: Callable[[Path], LLM],
        given: str,
        name: str,
        digest: str | None,
        streams: bool,
    ) -> None:
        """`given` is the name that it is served by, `name` that which the engine has for it."""
        self._service = service
        self._load = load
        self._given = given
        self._name = name
        self._digest = digest
        self._streams = streams
        self._left = False
        #: What is being done, not sent yet: the last of each status.
        self._news: dict[str, dict[str, Any]] = {}
        self._told = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(receive, self._answer(scope, receive, send))
        finally:
            self._left = True

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        loop = asyncio.get_running_loop()
        fetching = loop.run_in_executor(self._service.pulls, self._fetch, loop)
        fetching.add_done_callback(lambda _: self._told.set())
        if not self._streams:
            try:
                self._serve(await fetching)
            except Error as e:
                raise _refused(e) from e
            await JSONResponse({"status": "success"})(scope, receive, send)
            return
        headers = [(b"content-type", b"application/x-ndjson"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._line(send, {"status": "pulling manifest"})
        while not fetching.done():
            await self._told.wait()
            self._told.clear()
            news, self._news = self._news, {}
            for line in news.values():
                await self._line(send, line)
        try:
            self._serve(await fetching)
        except Error as e:
            await self._line(send, {"error": _refused(e).message}, more=False)
            return
        await self._line(send, {"status": "writing manifest"})
        await self._line(send, {"status": "success"}, more=False)

    def _fetch(self, loop: asyncio.AbstractEventLoop) -> Path:
        def tell(what: str, done: int, total: int | None) -> None:
            if self._left:
                raise _Left
            loop.call_soon_threadsafe(self._tell, what, done, total)

        return hub.resolve(self._name, progress=tell, mend=True)

    def _tell(self, what: str, done: int, total: int | None) -> None:
        verb, _, of = what.partition(" ")
        line: dict[str, Any] = {"status": _WORDS.get(verb, what)}
        if verb == "downloading":
            line["status"] += f" {self._digest[:12] if self._digest else of}"
            line |= {"digest": f"sha256:{self._digest}"} if self._digest else {}
            line |= {"completed": done} | ({} if total is None else {"total": total})
        self._news[line["status"]] = line
        self._told.set()

    def _serve(self, path: Path) -> None:
        self._service.models.add(self._given, path, functools.partial(self._load, path))

    async def _line(self, send: Send, line: dict[str, Any], *, more: bool = True) -> None:
        body = frames.line(line)
        await send({"type": "http.response.body", "body": body, "more_body": more})


def _refused(e: Error) -> Refused:
    why = refusal(e)
    return why if isinstance(e, ArgumentError) else Refused(502, why.message)
