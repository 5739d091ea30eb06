"""The ASGI app: routes, and what stands in front of them."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from onegraph.server import anthropic, dialects, ollama, openai, operations, page, responses
from onegraph.server.access import Access, Door
from onegraph.server.log import Log
from onegraph.server.service import Service

__all__ = ["build"]


def build(
    service: Service,
    *,
    keys: Sequence[str] = (),
    origins: Sequence[str] = (),
    hosts: Sequence[str] | None = None,
) -> Starlette:
    """The app of a service; see `Access` for who may use it."""
    access = Access(keys, origins, hosts)
    front = [Middleware(Log, count=service.metrics.count)]
    if origins:
        front.append(
            Middleware(
                CORSMiddleware,
                allow_origins=[*origins],
                allow_methods=["*"],
                allow_headers=["*"],
            )
        )
    front += [Middleware(dialects.Failures), Middleware(Door, access=access)]
    app = Starlette(
        routes=[
            *openai.routes(service),
            *responses.routes(service),
            *anthropic.routes(service),
            *ollama.routes(service),
            *operations.routes(service),
            *page.routes(),
        ],
        middleware=front,
        exception_handlers={HTTPException: dialects.no_route},
    )
    app.state.service = service
    return app
