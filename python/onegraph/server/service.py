"""What the endpoints of all dialects stand on."""

from __future__ import annotations

from dataclasses import dataclass, field

from starlette.requests import Request

from onegraph.server.answers import Answer, Asked
from onegraph.server.fields import Fields
from onegraph.server.limits import Limits
from onegraph.server.metrics import Metrics
from onegraph.server.models import Model, Models
from onegraph.server.requests import body

__all__ = ["Service"]


@dataclass
class Service:
    """One server."""

    models: Models
    limits: Limits
    metrics: Metrics = field(default_factory=Metrics)
    #: Whether it ends: what runs is finished, and whoever balances sends no more.
    draining: bool = False

    async def read(self, request: Request) -> Fields:
        """The body of a request."""
        return await body(request, self.limits)

    def model(self, fields: Fields) -> Model:
        """The model that a body names."""
        return self.models.find(fields.text("model"))

    def answer(self, asked: Asked) -> Answer:
        """The response to a request that was understood."""
        return Answer(asked, self.models, self.limits, self.metrics)
