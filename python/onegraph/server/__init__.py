"""A server: what speaks to OpenAI, Anthropic or ollama speaks to onegraph.

`asgi` makes an app that any ASGI server runs and any other ASGI app mounts; `onegraph serve` runs
it by itself. Needs Starlette, and `onegraph serve` needs uvicorn: the extra `server` has both.
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
    """An ASGI app that serves models in the dialects of OpenAI, Anthropic and ollama. The models
    stay the caller's, who closes them.

    llm: a model, named by its file, or several by the names that requests give; the first is meant
        where a request names none
    api_keys: keys of which a request must send one; none: everybody may come in
    cors_origins: pages of these origins may use it from a browser; others, and none by default, may
        not
    max_queue: requests of one model that may wait; further ones are refused with 429
    max_tokens_limit: most tokens of an answer, whatever is asked for
    timeout: seconds that a request may take
    max_body: bytes that a request may have
    share_prefixes: let what was read for one of several keys serve the others. Whoever has a key
        may then find out what others said: `cached_tokens` and the time to the first token tell

    Raises `ArgumentError` for an option out of range, `ImportError` where Starlette is missing.
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
