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


#: What the name of a key's prefixes is made of beside the key: it is no other hash of the key.
OWNER = b"onegraph prefixes of a key\0"


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
    shares_prefixes: whether what was read for one key is found by the others
    """

    def __init__(
        self,
        keys: Sequence[str],
        origins: Sequence[str],
        hosts: Sequence[str] | None,
        shares_prefixes: bool = False,
    ) -> None:
        # Of the same length whatever the keys, so that a comparison tells nothing about that.
        self._keys = [_digest(_spelled(key)) for key in keys]
        # Of a page's name, as of this server's, no letter is small or large.
        self.origins = frozenset(map(str.lower, origins))
        self._hosts = None if hosts is None else frozenset(map(str.lower, hosts))
        self._is_apart = len(set(keys)) > 1 and not shares_prefixes

    def check(self, scope: Scope) -> None:
        """Raises where the request may not come in."""
        # Of a header that came twice the first counts.
        headers = dict(reversed(scope["headers"]))
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if self._hosts is not None and _name(host) not in self._hosts:
            raise Refused(
                403,
                f"host = {host[:60]!r}: without a key this server answers only "
                f"to {', '.join(sorted(self._hosts))}; start it with --api-key",
            )
        page = headers.get(b"origin")
        origin = None if page is None else page.decode("latin-1").lower()
        if origin is not None and not self._takes(origin, host):
            raise Refused(
                403,
                f"origin = {origin[:60]!r}: web pages from there may not use this server; "
                "--cors-origin allows them",
            )
        if not self._keys or path_within(scope) in OPEN:
            return
        given = headers.get(b"x-api-key") or b""
        kind, _, rest = headers.get(b"authorization", b"").partition(b" ")
        if kind.lower() == b"bearer":
            given = rest.strip()
        if not given:
            raise Refused(401, "no API key: send `Authorization: Bearer KEY`", code="no_key")
        digest = _digest(_in_utf8(given))
        # All are compared, so that the time says nothing about which came near.
        if not any([hmac.compare_digest(digest, key) for key in self._keys]):
            raise Refused(401, "unknown API key", code="bad_key")
        if self._is_apart:
            scope["onegraph.owner"] = hashlib.sha256(OWNER + digest).hexdigest()

    def _takes(self, origin: str, host: str) -> bool:
        same = host and origin.partition("://")[2] == host
        return bool(same) or origin in self.origins or "*" in self.origins


def _spelled(key: str) -> bytes:
    return key.encode("utf-8", "surrogateescape")


def _in_utf8(given: bytes) -> bytes:
    """A key as it came, in UTF-8 too where its client spells headers in Latin-1."""
    try:
        given.decode()
    except UnicodeDecodeError:
        return given.decode("latin-1").encode()
    return given


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


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
