"""A page to chat with a model: one document, which needs nothing but this server."""

from __future__ import annotations

import base64
import hashlib
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from onegraph.server.ollama import RUNNING

__all__ = ["SCRIPTS", "routes"]

#: The page's own scripts, each after those that it uses as it starts. They share their names.
SCRIPTS = [
    "elements.js",
    "markdown.js",
    "conversation.js",
    "store.js",
    "settings.js",
    "messages.js",
    "chats.js",
    "answers.js",
    "start.js",
]


def routes() -> list[Route]:
    """The page, for browsers; what ollama says, for programs that look for it."""
    style = _text("style.css")
    scripts = [_text("vendored.js"), "".join(map(_text, SCRIPTS))]
    page = _filled(_text("index.html"), "style", [style])
    page = _filled(page, "script", scripts)
    headers = {
        # The browser runs and draws what stands in the page, and asks nobody but this server. No
        # text becomes markup: the browser refuses what would make it so.
        "content-security-policy": (
            f"default-src 'none'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
            f"frame-ancestors 'none'; script-src {' '.join(map(_hash, scripts))}; "
            f"style-src {_hash(style)}; require-trusted-types-for 'script'; trusted-types 'none'"
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


def _text(name: str) -> str:
    return resources.files("onegraph.server").joinpath("chat", name).read_text(encoding="utf-8")


def _filled(page: str, name: str, texts: list[str]) -> str:
    """A page with texts in its empty elements of a name."""
    first, *rest = page.split(f"<{name}></{name}>")
    assert not any(f"</{name}" in text.lower() for text in texts)
    parts = [f"<{name}>{text}</{name}>{after}" for text, after in zip(texts, rest, strict=True)]
    return first + "".join(parts)


def _hash(text: str) -> str:
    """What of a page may be there, by the hash of it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
