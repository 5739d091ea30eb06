"""A server in this process, on a port of its own, and an app without one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import onegraph
from onegraph.server.running import Server, bind
from starlette.applications import Starlette


@dataclass
class Served:
    """A server that runs."""

    app: Starlette
    server: Server
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str, **headers: str) -> tuple[int, Any]:
        """Status and body of a GET."""
        return self.send("GET", path, None, **headers)

    def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        """Status and body of a POST; bytes go out as they are."""
        return self.send("POST", path, body, **headers)

    def send(self, method: str, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        """Status and body of a request: JSON is read where it is JSON."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(self.url + path, data, named, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                status, kind, raw = (
                    response.status,
                    response.headers["content-type"],
                    response.read(),
                )
        except urllib.error.HTTPError as e:
            status, kind, raw = e.code, e.headers["content-type"], e.read()
        return status, json.loads(raw) if kind == "application/json" else raw.decode()

    def connect(self, receive_bytes: int | None = None) -> socket.socket:
        """A bare connection, whose window is small where `receive_bytes` says so."""
        found = socket.socket()
        if receive_bytes is not None:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        found.settimeout(30)
        found.connect(("127.0.0.1", self.port))
        return found


def http(path: str, body: Any, **headers: str) -> bytes:
    """A POST as it goes over the wire."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "host: localhost", f"content-length: {len(data)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + data


def rest(connection: socket.socket) -> bytes:
    """All that comes until the other side ends it."""
    found = b""
    while part := connection.recv(65536):
        found += part
    return found


def prompt(served: Served) -> None:
    """A client is answered within a second. The machine may be busy: one of three tries counts."""
    took = []
    for _ in range(3):
        began = time.monotonic()
        status, _ = served.post("/v1/completions", {"prompt": "tea", "max_tokens": 2})
        assert status == 200
        took.append(time.monotonic() - began)
        if took[-1] < 1.0:
            return
    raise AssertionError(f"answered after {took} s")


@contextlib.contextmanager
def serving(app: Starlette, send_bytes: int | None = None) -> Iterator[Served]:
    """Serves an app as `onegraph serve` does, in a thread. The system keeps `send_bytes` of what a
    client does not read, where that is given."""
    listener = bind("127.0.0.1", 0)
    if send_bytes is not None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_bytes)
    server = Server(app, drain=5)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    try:
        until(lambda: server.started)
        yield Served(app, server, listener.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()


def in_process(app: Starlette, path: str, body: dict[str, Any], send: Any) -> None:
    """A POST to an app without a server between: `send` takes its messages as fast as it will."""
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"host", b"x")],
        "scheme": "http",
        "server": ("x", 80),
        "client": ("x", 1),
        "root_path": "",
        "http_version": "1.1",
    }

    async def run() -> None:
        requests = iter([{"type": "http.request", "body": json.dumps(body).encode()}])

        async def receive() -> Any:
            for each in requests:
                return each
            await asyncio.Event().wait()

        await asyncio.wait_for(app(scope, receive, send), 60)

    asyncio.run(run())


def until(true: Callable[[], bool], seconds: float = 20.0) -> None:
    """Waits until something is so."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.005)


def runs(llm: onegraph.LLM) -> int:
    """Requests of a model that run or wait."""
    stats = llm.stats()
    return stats.running + stats.queued


def events(raw: str) -> list[dict[str, Any]]:
    """The data of a stream of events, without its last word."""
    found = [line.removeprefix("data: ") for line in raw.splitlines() if line.startswith("data: ")]
    return [json.loads(each) for each in found if each != "[DONE]"]
