"""Who may come in: keys, and pages of the web that a browser brings along."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from onegraph.server.refusals import Refused

__all__ = ["Access", "Door", "path_within"]

#: What is answered without a key: whether the server is there, and the page that asks for one.
OPEN = {"/health", "/ready", "/"}


def path_within(scope: Scope) -> str:
    """The path of a request without where the app is mounted: what the routes go by. A URL has it
    from the header `host` in part, which the client chooses."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    rest = path.removeprefix(root)
    return rest if rest[:1] in ("", "/") else path


class Access:
    """The rules.

    keys: one of them must be sent; none: nobody is asked
    origins: pages of these origins may use the server from a browser ("*": of all)
    hosts: names by which the server may be called; None: by any. A page whose own name was pointed
        at this machine calls by that name
    """

    def __init__(
        self, keys: Sequence[str], origins: Sequence[str], hosts: Sequence[str] | None
    ) -> None:
        # Of the same length whatever the keys, so that a comparison tells nothing about that.
        self._keys = [_digest(key) for key in keys]
        self.origins = frozenset(origins)
        self._hosts = None if hosts is None else frozenset(hosts)

    def check(self, scope: Scope) -> None:
        """Raises where the request may not come in."""
        # Of a header that came twice the first counts.
        headers = {name: value.decode("latin-1") for name, value in reversed(scope["headers"])}
        host = headers.get(b"host", "")
        if self._hosts is not None and _name(host) not in self._hosts:
            raise Refused(
                403,
                f"host = {host[:60]!r}: without a key this server is called by "
                f"{', '.join(sorted(self._hosts))} only; start it with --api-key",
            )
        origin = headers.get(b"origin")
        if origin is not None and not self._takes(origin, host):
            raise Refused(
                403,
                f"origin = {origin[:60]!r}: pages from there may not use this server; "
                "--cors-origin lets them",
            )
        if not self._keys or path_within(scope) in OPEN:
            return
        given = headers.get(b"x-api-key") or ""
        kind, _, rest = headers.get(b"authorization", "").partition(" ")
        if kind.lower() == "bearer":
            given = rest.strip()
        if not given:
            raise Refused(401, "no key was sent: send `Authorization: Bearer KEY`", code="no_key")
        digest = _digest(given)
        # All are compared, so that the time says nothing about which came near.
        if not any([hmac.compare_digest(digest, key) for key in self._keys]):
            raise Refused(401, "the key that was sent is not one of this server's", code="bad_key")

    def _takes(self, origin: str, host: str) -> bool:
        same = host and origin.partition("://")[2] == host
        return bool(same) or origin in self.origins or "*" in self.origins


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _name(host: str) -> str:
    """A host without its port."""
    return host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host


class Door:
    """Lets requests through that may come in; the others reach no route."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self._access.check(scope)
        await self._app(scope, receive, send)
