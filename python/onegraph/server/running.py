"""Runs the app by itself: a socket, signals, and an end at which what runs is finished."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import uvicorn

from onegraph.errors import ArgumentError
from onegraph.server.connections import Idle, connection_class

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from onegraph.server.service import Service

__all__ = ["PORTS", "Server", "bind", "run"]

logger = logging.getLogger("onegraph.server")

#: The port of ollama, whose clients then find this server, and the one where that is taken.
PORTS = (11434, 8080)

SIGNALS = (signal.SIGTERM, signal.SIGINT)

#: Connections where the system allows more files, and files that the rest of the process needs.
MOST_CONNECTIONS, OTHER_FILES = 16_384, 128

#: Once all has been served: seconds in which models are closed, and in which threads end what they
#: have in hand, for which nobody waits any more.
CLOSE_SECONDS, THREAD_SECONDS = 10.0, 0.5


def bind(host: str, port: int | None) -> socket.socket:
    """A socket that is bound, and does not listen yet: who connects before then is refused.

    Raises `ArgumentError` where it cannot be had.
    """
    tried = []
    for each in PORTS if port is None else (port,):
        try:
            (family, kind, protocol, _, address), *_ = socket.getaddrinfo(
                host, each, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            found = socket.socket(family, kind, protocol)
            try:
                found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                found.bind(address)
            except OSError:
                found.close()
                raise
            return found
        except (OSError, OverflowError) as e:
            tried.append(f"{host}:{each}: {getattr(e, 'strerror', None) or e}")
    raise ArgumentError(f"port = {port}: cannot listen on {'; '.join(tried)}; choose another")


class Server(uvicorn.Server):
    """uvicorn's, which leaves signals to `run` and looks after its connections.

    drain: seconds that what runs has to end, once `should_exit` is set
    """

    def __init__(self, app: Starlette, *, drain: float = 30.0) -> None:
        self.idle = Idle(_most_connections())
        config = uvicorn.Config(
            app,
            http=connection_class(self.idle),
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=max(1, round(drain)),
        )
        super().__init__(config)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:  # once a second
            self.idle.sweep(self.server_state.connections)
        return await super().on_tick(counter)


class _Threads(ThreadPoolExecutor):
    """Threads that do what would hold up the loop. The end of the loop does not wait for them."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait=False, cancel_futures=True)


def run(
    app: Starlette, listener: socket.socket, *, drain: float, started: Callable[[], None]
) -> None:
    """Serves until SIGTERM or SIGINT, then finishes what runs, for at most `drain` seconds; a
    second signal ends it at once. `started` is called when it listens.

    All models are closed then. Where a thread works on, as one that loads a model does, the
    process ends here: none can be stopped, and Python would wait for it.
    """
    server = Server(app, drain=drain)
    # What is loaded stays: a collection that went through it would hold up all streams, for 14 ms
    # and more. The process is this server's alone.
    gc.collect()
    gc.freeze()
    # A thread that has a long conversation in hand gives the interpreter back after half a
    # millisecond, not after five: all streams wait for it.
    sys.setswitchinterval(0.0005)

    def end() -> None:
        app.state.service.draining = True
        server.force_exit = server.should_exit
        server.should_exit = True

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(_Threads(thread_name_prefix="onegraph"))
        for number in SIGNALS:
            loop.add_signal_handler(number, end)
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.001)
        if server.started:
            started()
        await serving

    asyncio.run(serve())
    # Nothing is left that a further signal could leave unfinished.
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    _leave(app.state.service)


def _leave(service: Service) -> None:
    """Ends the service; ends the process where something would hold up its end."""
    # A daemon, which Python itself does not wait for: a device may never answer.
    closing = threading.Thread(target=service.end, daemon=True)
    closing.start()
    closing.join(CLOSE_SECONDS)
    late = time.monotonic() + THREAD_SECONDS
    main = threading.main_thread()
    left = [each for each in threading.enumerate() if not each.daemon and each is not main]
    for each in left:
        each.join(max(0.0, late - time.monotonic()))
    working = [each.name for each in (closing, *left) if each.is_alive()]
    if working:
        logger.warning("ended while %s was still working", ", ".join(working))
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(0)


def _most_connections() -> int:
    """As many as the process may have files, which are raised to what it may ask for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_CONNECTIONS + OTHER_FILES
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    allowed = wanted if soft == resource.RLIM_INFINITY else min(wanted, soft)
    return max(16, allowed - OTHER_FILES)
