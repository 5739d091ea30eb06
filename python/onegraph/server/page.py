"""A page to chat with a model: one file, which needs nothing but this server."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from onegraph.server.ollama import RUNNING

__all__ = ["routes"]


def routes() -> list[Route]:
    """The page, for browsers; what ollama says, for programs that look for it."""
    page = resources.files("onegraph.server").joinpath("page.html").read_text(encoding="utf-8")
    headers = {
        # The browser runs and draws what stands in the file, and asks nobody but this server.
        "content-security-policy": (
            f"default-src 'none'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
            f"frame-ancestors 'none'; script-src {_hash(page, 'script')}; "
            f"style-src {_hash(page, 'style')}"
        ),
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
        "cache-control": "no-cache",
        "vary": "accept",
    }

    async def root(request: Request) -> Response:
        if "text/html" in request.headers.get("accept", ""):
            return Response(page, headers=headers, media_type="text/html")
        return Response(RUNNING, headers={"vary": "accept"}, media_type="text/plain")

    return [Route("/", root, methods=["GET"])]


def _hash(page: str, name: str) -> str:
    """What of a page may be there, by the hash of it."""
    found = re.search(rf"<{name}>(.*)</{name}>", page, flags=re.S)
    assert found is not None
    return f"'sha256-{base64.b64encode(hashlib.sha256(found[1].encode()).digest()).decode()}'"
