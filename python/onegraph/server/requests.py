"""Bodies of requests: no more bytes and no more time than allowed, and an object of JSON."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from typing import Any, NoReturn

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onegraph.server.fields import Fields
from onegraph.server.limits import Limits
from onegraph.server.refusals import Refused
from onegraph.server.work import MOST_BODIES, Work

__all__ = ["MOST_VALUES", "Unread", "body", "fields_of"]

#: Of a body that nobody reads, what is thrown away so that its client reads the answer: one whose
#: connection is reset under its writing sees nothing else.
SPILLED, SPILLED_SECONDS = 64 << 20, 5.0

#: Answers that nothing is waited for any more: its client was too slow, or the server ends.
AT_ONCE = (408, 503)

#: Values that a body may have. Python reads them without a break for others, these within a tenth
#: of a second, or a few where each is a list. Eight lists of 128 thousand tokens are half of it.
MOST_VALUES = 1 << 21


async def body(request: Request, limits: Limits, work: Work) -> bytes | bytearray:
    """The body of a request; raises `Refused` where it is too large or too slow, or there are too
    many."""
    most = limits.body_bytes
    said = request.headers.get("content-length", "")
    if said.isdecimal() and int(said[:20]) > most:
        raise _too_large(most)
    found = bytearray()
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for part in request.stream():
                found += part
                if len(found) > most:
                    raise _too_large(most)
                if not work.take(len(found)):
                    found.clear()  # the error's traceback holds it
                    raise _too_many(most)
    except TimeoutError:
        raise Refused(
            408, f"of the body {len(found)} bytes came in {limits.body_seconds:g} s; send it whole"
        ) from None
    return found


def _too_many(most: int) -> Refused:
    return Refused(
        429,
        f"the bodies of all requests that are being read have {MOST_BODIES * most} bytes, the "
        "most that this server takes at a time; send it again later",
        code="bodies_full",
        retry_after=1,
    )


def _too_large(most: int) -> Refused:
    return Refused(
        413, f"the body has more than {most} bytes, the most that this server takes (--max-body)"
    )


class Unread:
    """Looks after bodies that an app answers without reading them: what is left is thrown away
    first, and where it is too much or was not asked for, the connection ends with the answer. What
    comes on it could be the body or the next request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._answered(scope, receive, send)
        finally:
            if (work := scope.get("onegraph.work")) is not None:
                work.end()

    async def _answered(self, scope: Scope, receive: Receive, send: Send) -> None:
        names = {name for name, _ in scope["headers"]} if scope["type"] == "http" else set()
        if names.isdisjoint((b"content-length", b"transfer-encoding")):
            await self._app(scope, receive, send)
            return
        # Who asks before it sends waits until the body is read.
        is_sent, is_read = b"expect" not in names, False

        async def reading() -> Message:
            nonlocal is_sent, is_read
            is_sent = True
            message = await receive()
            is_read = is_read or not message.get("more_body", False)
            return message

        async def spill() -> None:
            spilled = 0
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SPILLED_SECONDS):
                    while not is_read and spilled < SPILLED:
                        spilled += len((await reading()).get("body", b""))

        async def answering(message: Message) -> None:
            if message["type"] == "http.response.start" and not is_read:
                if is_sent and message["status"] not in AT_ONCE:
                    await spill()
                if not is_read and scope.get("http_version") != "2":
                    message["headers"] = [*message.get("headers", []), (b"connection", b"close")]
            await send(message)

        await self._app(scope, reading, answering)


def fields_of(raw: bytes | bytearray, owner: str = "") -> Fields:
    """The object of JSON in a body, which is `owner`'s; raises `Refused` where there is none, or
    too much of it."""
    if not raw.strip():
        raise Refused(400, "the body is empty; send a JSON object")
    if (values := _values(raw)) > MOST_VALUES:
        raise Refused(
            400,
            f"the body has {values} values, and this server takes at most {MOST_VALUES}; send them "
            "in several requests",
        )
    try:
        value: Any = _decoder.decode(raw.decode(json.detect_encoding(raw), "surrogatepass"))
    except RecursionError:
        raise Refused(400, "the body is nested too deeply") from None
    except ValueError as e:  # UnicodeDecodeError is one
        raise Refused(400, f"the body is not JSON: {e}") from None
    if not isinstance(value, dict):
        raise Refused(400, "the body is JSON, but not an object: send {...}")
    return Fields(value, owner=owner)


def _values(raw: bytes | bytearray) -> int:
    """About how many values a body has, without a look at each: a list counts twice."""
    found = _signs(raw)
    if found <= MOST_VALUES:
        return found
    # Those in texts mean nothing. What is escaped goes first, so that a quote is one.
    bare = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    texts = bare.count(b'"') // 2
    return texts if texts > MOST_VALUES else _signs(_TEXTS.sub(b"", bare))


def _signs(raw: bytes | bytearray) -> int:
    return len(raw) - len(raw.translate(None, b",:[{"))


_TEXTS = re.compile(rb'"[^"]*"')


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a JSON number")


_decoder = json.JSONDecoder(parse_constant=_no_number)
