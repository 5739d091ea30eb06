"""The ASGI app: routes, and what stands in front of them."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from onegraph.server import (
    anthropic,
    dialects,
    llama_server,
    ollama,
    openai,
    operations,
    page,
    responses,
)
from onegraph.server.access import Access, Door
from onegraph.server.log import Log
from onegraph.server.requests import Unread
from onegraph.server.service import Service

__all__ = ["build"]


class Shortcut:
    """Takes a POST to its endpoint without a search among the routes, and without what Starlette
    has around an endpoint, which nothing here needs: it takes longer than to read the request."""

    def __init__(self, app: ASGIApp, routes: Sequence[Route]) -> None:
        self._app = app
        self._endpoints = {
            route.path: route.endpoint
            for route in routes
            if route.methods == {"POST"} and not route.param_convertors
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = None
        # Of an app that is mounted, the path begins with where.
        if scope["type"] == "http" and scope["method"] == "POST" and not scope.get("root_path"):
            endpoint = self._endpoints.get(scope["path"])
        if endpoint is None:
            await self._app(scope, receive, send)
            return
        response = await endpoint(Request(scope, receive, send))
        await response(scope, receive, send)


def build(
    service: Service,
    *,
    keys: Sequence[str] = (),
    origins: Sequence[str] = (),
    hosts: Sequence[str] | None = None,
    shares_prefixes: bool = False,
) -> Starlette:
    """The app of a service; see `Access` for who may use it."""
    access = Access(keys, origins, hosts, shares_prefixes)
    front = [Middleware(Log, count=service.metrics.count)]
    if origins:
        front.append(
            Middleware(
                CORSMiddleware,
                allow_origins=[*access.origins],
                allow_methods=["*"],
                allow_headers=["*"],
            )
        )
    routes = [
        *openai.routes(service),
        *llama_server.routes(service),
        *responses.routes(service),
        *anthropic.routes(service),
        *ollama.routes(service),
        *operations.routes(service),
        *page.routes(),
    ]
    front += [
        Middleware(Unread),
        Middleware(dialects.Failures),
        Middleware(Door, access=access),
        Middleware(Shortcut, routes=routes),
    ]
    app = Starlette(
        routes=routes,
        middleware=front,
        exception_handlers={HTTPException: dialects.no_route},
    )
    app.state.service = service
    return app
