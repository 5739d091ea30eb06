"""Why a request is not answered: one class, which every dialect writes in its own form."""

from __future__ import annotations

import asyncio
import re

from onegraph import errors
from onegraph.printable import printable

__all__ = ["Refused", "refusal"]

#: How the engine's errors name what is wrong: `messages[0] content[1] type = "image": ...`.
_NAMED = re.compile(r"(?P<field>[a-z_]+[\w\[\] ]*?)(?: = |: )")


#: Characters of a reason.
MOST_SAID = 2000


class Refused(Exception):
    """A request that gets no answer, or none to its end: its HTTP status and the reason."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        field: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        self.status = status
        # It may repeat what a client sent.
        if len(message) > MOST_SAID:
            message = f"{message[:MOST_SAID]}... ({len(message)} characters)"
        self.message = printable(message)
        super().__init__(self.message)
        #: The field of the body that is wrong, such as `messages[0].content`.
        self.field = field
        #: A word for machines, such as `model_not_found`.
        self.code = code
        #: Seconds after which another try makes sense.
        self.retry_after = retry_after

    def headers(self) -> dict[str, str]:
        """What goes into the head of the response."""
        found = {}
        if self.retry_after is not None:
            found["retry-after"] = str(self.retry_after)
        if self.status == 401:
            found["www-authenticate"] = "Bearer"
        return found


def refusal(raised: BaseException, named: dict[str, str] | None = None) -> Refused:
    """What an error of the engine is to a client. `named` gives the dialect's names of keywords
    that it calls otherwise."""
    if isinstance(raised, Refused):
        return raised
    said = str(raised.args[0]) if raised.args else str(raised)
    if isinstance(raised, errors.ContextError):
        return Refused(400, said, field="messages", code="context_length_exceeded")
    if isinstance(raised, errors.ArgumentError):
        found = _NAMED.match(said[:MOST_SAID])
        if found is None:
            return Refused(400, said)
        field = found["field"]
        ours = (named or {}).get(field, field).replace(" ", ".")
        return Refused(400, ours + said[len(field) :], field=ours)
    if isinstance(raised, errors.ModelError):  # what a template makes of the messages
        return Refused(400, said)
    if isinstance(raised, errors.OutOfMemoryError | errors.ClosedError | errors.CancelledError):
        return Refused(503, said, retry_after=1)
    if isinstance(raised, asyncio.CancelledError):
        return Refused(503, "the server is shutting down; send the request again", retry_after=1)
    if isinstance(raised, TimeoutError):
        return Refused(504, "the answer took longer than the server's --timeout allows")
    if isinstance(raised, errors.Error):
        return Refused(500, said)
    return Refused(500, f"{type(raised).__name__}: this is a bug of the server; its log has more")
