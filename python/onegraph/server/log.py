"""A line of JSON for every request: what it took, never what it said."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onegraph.server.frames import identifier
from onegraph.server.refusals import Refused

__all__ = ["Log", "direct", "note", "noted"]

logger = logging.getLogger("onegraph.server")

#: Characters of a path that a line repeats: a client may send a long one.
SHOWN = 120


def note(scope: Scope, **facts: Any) -> None:
    """Adds facts to the line of a request."""
    scope.get("onegraph.noted", {}).update(facts)


def noted(scope: Scope, why: Refused) -> Refused:
    """The same refusal, of which the line of its request tells."""
    note(scope, error=why.code or why.status)
    return why


def direct(scope: Scope, send: Send) -> Send:
    """How the body of a response whose head was sent goes past all that looks at heads alone: a
    stream sends once a token."""
    found: Send = scope.get("onegraph.send", send)
    return found


class Log:
    """Logs requests of an app, gives each a name, and counts them."""

    def __init__(self, app: ASGIApp, count: Callable[[str, int], None]) -> None:
        self._app = app
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.monotonic()
        name = identifier("req_")
        status = 0
        noted: dict[str, Any] = {}
        scope["onegraph.noted"] = noted
        scope["onegraph.send"] = send

        async def named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                ids = [(b"x-request-id", name.encode()), (b"request-id", name.encode())]
                message["headers"] = [*message.get("headers", []), *ids]
            await send(message)

        try:
            await self._app(scope, receive, named)
        finally:
            self._count(scope["method"], status)
            if logger.isEnabledFor(logging.INFO):
                line = {
                    "request": name,
                    "method": scope["method"],
                    "path": scope["path"][:SHOWN],
                    "status": status or None,  # None: the client was gone before there was one
                    "seconds": round(time.monotonic() - began, 6),
                    **noted,
                }
                logger.info("%s", json.dumps(line))
