"""Bodies of requests: no more bytes and no more time than allowed, and an object of JSON."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any, NoReturn

from starlette.requests import ClientDisconnect, Request

from onegraph.server.fields import Fields
from onegraph.server.limits import Limits
from onegraph.server.refusals import Refused

__all__ = ["body"]

#: Bytes of JSON up to which the event loop may wait for its parser: about a millisecond.
SMALL = 1 << 17

#: Of a body that is too large, what is read and thrown away so that its client reads the refusal:
#: one whose connection is reset under its writing sees nothing else.
SPILLED, SPILLED_SECONDS = 64 << 20, 5.0


async def body(request: Request, limits: Limits) -> Fields:
    """The object in a request's body; raises `Refused` where there is none, or too much of it."""
    raw = await _read(request, limits)
    if len(raw) <= SMALL:
        return _object(raw)
    return await asyncio.get_running_loop().run_in_executor(None, _object, raw)


async def _read(request: Request, limits: Limits) -> bytes:
    most = limits.body_bytes
    said = request.headers.get("content-length", "")
    too_large = said.isdecimal() and int(said[:20]) > most
    found = bytearray()
    parts = request.stream()
    try:
        async with asyncio.timeout(limits.body_seconds):
            if not too_large:
                async for part in parts:
                    found += part
                    if len(found) > most:
                        break
                else:
                    return bytes(found)
    except TimeoutError:
        raise Refused(
            408, f"of the body {len(found)} bytes came in {limits.body_seconds:g} s; send it whole"
        ) from None
    # Who asks before it sends is not asked to.
    spilled = SPILLED if "expect" in request.headers else 0
    with contextlib.suppress(TimeoutError, ClientDisconnect):
        async with asyncio.timeout(SPILLED_SECONDS):
            while spilled < SPILLED and (part := await anext(parts, b"")):
                spilled += len(part)
    raise Refused(
        413, f"the body has more than {most} bytes, the most that this server takes (--max-body)"
    )


def _object(raw: bytes) -> Fields:
    if not raw.strip():
        raise Refused(400, "the body is empty; send a JSON object")
    try:
        value: Any = _decoder.decode(raw.decode(json.detect_encoding(raw), "surrogatepass"))
    except RecursionError:
        raise Refused(400, "the body is not JSON that is taken: it is nested too deeply") from None
    except ValueError as e:  # UnicodeDecodeError is one
        raise Refused(400, f"the body is not JSON: {e}") from None
    if not isinstance(value, dict):
        raise Refused(400, "the body is JSON, but no object: send {...}")
    return Fields(value)


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON")


_decoder = json.JSONDecoder(parse_constant=_no_number)
