"""A server for OpenAI, Anthropic and ollama clients.

`asgi` builds an app that any ASGI server can run and any other ASGI app can mount; `onegraph serve`
runs it standalone. It needs Starlette, and `onegraph serve` needs uvicorn: the extra `server`
installs both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onegraph import arguments
from onegraph.errors import ArgumentError

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from onegraph.llm import LLM

__all__ = ["MISSING", "asgi"]

#: What an error says where the extra is not installed.
MISSING = "the server needs more packages: run `pip install httptools starlette uvicorn`"


def asgi(
    llm: LLM | Mapping[str, LLM],
    *,
    api_keys: Sequence[str] = (),
    cors_origins: Sequence[str] = (),
    max_queue: int = 128,
    max_tokens_limit: int | None = None,
    timeout: float = 600.0,
    max_body: int = 16 << 20,
    share_prefixes: bool = False,
) -> Starlette:
    """An ASGI app that serves models to OpenAI, Anthropic and ollama clients. The caller owns the
    models and closes them.

    llm: a model, named after its file, or several by the names that requests use; requests without
        a name go to the first
    api_keys: API keys, one of which requests must send; if there are none, everyone has access
    cors_origins: origins whose web pages may use the server; by default none
    max_queue: requests per model that may wait; further ones are refused with 429
    max_tokens_limit: maximum tokens per answer, whatever a request asks for
    timeout: maximum seconds per request
    max_body: maximum bytes per request
    share_prefixes: share cached prefixes among API keys. Their owners can then find out what others
        sent: `cached_tokens` and the time to the first token reveal it

    Raises `ArgumentError` for an option out of range, `ImportError` if Starlette is missing.
    """
    try:
        from onegraph.server.app import build
    except ImportError as e:
        raise ImportError(f"{MISSING} ({e})") from e
    from onegraph.server.limits import Limits
    from onegraph.server.models import Models
    from onegraph.server.service import Service

    given = dict(llm) if isinstance(llm, Mapping) else {llm.path.stem: llm}
    if not given:
        raise ArgumentError("llm = {}: give at least one model")
    limits = Limits(
        max_queue=_at_least("max_queue", max_queue, 0),
        max_tokens=(
            None if max_tokens_limit is None else _at_least("max_tokens_limit", max_tokens_limit, 1)
        ),
        seconds=_positive("timeout", timeout),
        body_bytes=_at_least("max_body", max_body, 1),
    )
    service = Service(Models(given, max_queue=limits.max_queue), limits)
    return build(
        service,
        keys=arguments.texts("api_keys", api_keys),
        origins=arguments.texts("cors_origins", cors_origins),
        shares_prefixes=arguments.flag("share_prefixes", share_prefixes),
    )


def _at_least(name: str, value: Any, least: int) -> int:
    found = arguments.integer(name, value)
    if found < least:
        raise arguments.refused(name, found, f"must be at least {least}")
    return found


def _positive(name: str, value: Any) -> float:
    found = arguments.number(name, value)
    if not found > 0:
        raise arguments.refused(name, found, "must be more than 0")
    return found
