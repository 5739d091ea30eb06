"""Documents by how well they answer a query: `/v1/rerank`, as Jina and Cohere have it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from onegraph.embedding import Texts
from onegraph.errors import ContextError
from onegraph.llm import LLM
from onegraph.server import frames
from onegraph.server.embeddings import MOST_TEXTS, Made, Vectors
from onegraph.server.fields import Fields, wrong
from onegraph.server.refusals import Refused, refusal

if TYPE_CHECKING:
    from onegraph.server.service import Service

__all__ = ["of_rerank"]


class Scores(Vectors):
    """The response to documents: an ASGI app."""

    def _refusal(self, raised: Exception) -> Refused:
        if isinstance(raised, ContextError):
            said = refusal(raised).message
            return Refused(400, said, field=self._field, code="context_length_exceeded")
        return raised if isinstance(raised, Refused) else refusal(raised)


def of_rerank(service: Service, fields: Fields) -> Scores:
    """The best first, and of each its place in the list that was given."""
    fields.needed("query")
    fields.needed("documents")
    query = fields.text("query")
    documents = _documents(fields)
    top = fields.integer("top_n", 1)
    shown = fields.flag("return_documents")
    model = service.model(fields)

    def prepare(llm: LLM) -> Texts:
        return llm._pairs(query, documents)

    def written(made: Made) -> bytes:
        scores = made.vectors[:, 0]
        results = []
        # Of equals the first.
        for i in np.argsort(-scores, kind="stable")[:top].tolist():
            result: dict[str, Any] = {"index": i, "relevance_score": float(scores[i])}
            if shown:
                result["document"] = {"text": documents[i]}
            results.append(result)
        usage = {"prompt_tokens": made.n_tokens, "total_tokens": made.n_tokens}
        answer = {"object": "list", "model": model.name, "usage": usage, "results": results}
        return frames.encoded(answer)

    return Scores(service, model, prepare, written, "documents")


def _documents(fields: Fields) -> list[str]:
    """Texts, or objects with a `text`."""
    given = fields.get("documents")
    if not isinstance(given, list) or not given:
        raise wrong("documents", given, "must be a list of strings or of objects with a text")
    if len(given) > MOST_TEXTS:
        found = f"{len(given)} texts"
        said = f"documents: {found}; the limit is {MOST_TEXTS}"
        raise Refused(400, said, field="documents")
    found_texts = []
    for i, each in enumerate(given):
        text = each.get("text") if isinstance(each, dict) else each
        if not isinstance(text, str):
            raise wrong(f"documents[{i}]", each, "must be a string or an object with a text")
        found_texts.append(text)
    return found_texts
