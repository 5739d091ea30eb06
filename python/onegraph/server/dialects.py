"""Which dialect a path belongs to, and how it writes a refusal."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onegraph.server import anthropic, ollama, openai
from onegraph.server.access import path_within
from onegraph.server.refusals import Refused, refusal

__all__ = ["Failures", "no_route"]

#: Characters of a path that a message repeats: a client may send a long one.
SHOWN = 120

logger = logging.getLogger("onegraph.server")


def response(scope: Scope, why: Refused) -> JSONResponse:
    """A refusal in the dialect of a request's path."""
    return JSONResponse(_written(path_within(scope), why), why.status, why.headers())


def _written(path: str, why: Refused) -> dict[str, Any]:
    if path.startswith("/v1/messages"):
        return anthropic.failure(why)
    return ollama.failure(why) if path.startswith("/api/") else openai.failure(why)


async def no_route(request: Request, error: Exception) -> JSONResponse:
    """Answers a request for a path that there is not, or not by this method."""
    assert isinstance(error, HTTPException)
    path = request.scope["path"][:SHOWN]
    said = f"{request.method} {path}: {error.detail}; `onegraph help serving` has the paths"
    return response(request.scope, Refused(error.status_code, said))


class Failures:
    """Answers requests in which something was raised."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def noticed(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, noticed)
        except ClientDisconnect:
            pass  # Nobody is there to be answered: it left while it sent its body.
        except (Exception, asyncio.CancelledError) as e:
            why = refusal(e)
            if why.status == 500:
                logger.error("%s failed", scope["path"][:SHOWN], exc_info=e)
            # What it was raised in holds all of the request, and is held by it.
            why.__traceback__ = None
            if not started:
                await response(scope, why)(scope, receive, send)
            if isinstance(e, asyncio.CancelledError):
                # The one that ends the server waits for it.
                raise
