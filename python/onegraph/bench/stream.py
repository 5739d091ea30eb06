"""Answers that servers stream over HTTP, with the time at which each part came."""

from __future__ import annotations

import http.client
import io
import json
import os
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from onegraph.bench.measurement import EngineError

__all__ = ["Line", "Refused", "json_object", "lines", "request_json"]

#: Longest wait for a part of an answer: a large model may load first.
PATIENCE = 600.0
#: An answer's line past this is none of an engine.
MOST_BYTES = 64 << 20
#: What is sent of a file at a time.
BLOCK_BYTES = 4 << 20


class Refused(EngineError):
    """Nobody listens at the address."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of an answer, and when it came, in seconds from the request."""

    at: float
    text: str


def json_object(text: str, who: str) -> dict[str, Any]:
    """A line as a JSON object. Raises `EngineError` where it is none."""
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise EngineError(
            f"{who} answered {text[:80]!r}, which is not JSON: {e}; is it another program?"
        ) from e
    if not isinstance(parsed, dict):
        raise EngineError(
            f"{who} answered {text[:80]!r}, which is not a JSON object; is it another program?"
        )
    return parsed


@contextmanager
def _opened(
    address: str, method: str, path: str, body: object, who: str
) -> Iterator[tuple[http.client.HTTPResponse, float]]:
    url = urllib.parse.urlsplit(address)
    secure = url.scheme == "https"
    connect = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    host = url.hostname or "127.0.0.1"
    connection = connect(host, url.port, timeout=PATIENCE, blocksize=BLOCK_BYTES)
    try:
        connection.connect()
    except OSError as e:
        raise Refused(f"{who} does not answer at {address}: {e.strerror or e}") from e
    try:
        headers = {"Content-Type": "application/json"}
        if isinstance(body, io.BufferedIOBase):
            length = os.fstat(body.fileno()).st_size
            headers = {"Content-Type": "application/octet-stream", "Content-Length": str(length)}
            sent: Any = body
        else:
            sent = None if body is None else json.dumps(body)
        begin = time.perf_counter()
        connection.request(method, url.path.rstrip("/") + path, sent, headers)
        yield connection.getresponse(), begin
    except TimeoutError as e:
        raise EngineError(
            f"{who} at {address} said nothing for {PATIENCE:.0f} s; see its log"
        ) from e
    except (OSError, http.client.HTTPException) as e:
        raise EngineError(
            f"{who} at {address} closed the connection: {e or type(e).__name__}; it may have died, "
            "see its log"
        ) from e
    finally:
        connection.close()


def request_json(
    address: str, method: str, path: str, body: object, who: str
) -> tuple[int, dict[str, Any]]:
    """Status and answer of a request, whose body is JSON or an open file; an empty answer is an
    empty object."""
    with _opened(address, method, path, body, who) as (response, _):
        text = response.read(MOST_BYTES).decode(errors="replace").strip()
        return response.status, json_object(text, who) if text else {}


def lines(address: str, path: str, body: object, who: str) -> Iterator[Line]:
    """The lines of a streamed answer, as they come; empty ones are left out.

    Raises `EngineError` for a status that is not 200, with what the server said, and where the
    connection breaks.
    """
    with _opened(address, "POST", path, body, who) as (response, begin):
        if response.status != 200:
            said = response.read(2000).decode(errors="replace").strip()
            raise EngineError(f"{who} refused {path} with status {response.status}: {said}")
        while raw := response.readline(MOST_BYTES):
            at = time.perf_counter() - begin
            if text := raw.decode(errors="replace").strip():
                yield Line(at, text)
