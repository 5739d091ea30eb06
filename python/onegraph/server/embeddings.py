"""Texts as vectors: OpenAI's `/v1/embeddings`, ollama's `/api/embed` and `/api/embeddings`."""

from __future__ import annotations

import asyncio
import base64
import functools
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from onegraph.embedding import Texts
from onegraph.errors import ContextError
from onegraph.llm import LLM
from onegraph.server import frames, work
from onegraph.server.answers import while_connected
from onegraph.server.fields import Fields, wrong
from onegraph.server.log import note, noted
from onegraph.server.models import Model
from onegraph.server.refusals import Refused, refusal
from onegraph.server.service import Service

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Vectors", "named", "of_ollama", "of_ollama_before", "of_openai"]

#: Texts of one request: as many as OpenAI takes.
MOST_TEXTS = 2048

#: How the engine's errors begin that are about a text.
_TEXT = re.compile(r"text(?=[\[ :])")


@dataclass(frozen=True)
class Made:
    """Vectors of the texts of a request, and what they took."""

    vectors: NDArray[np.float32]
    n_tokens: int
    #: Seconds: of all of it, and of that until the model was there.
    seconds: float
    load_seconds: float


class Vectors:
    """The response to texts: an ASGI app."""

    def __init__(
        self,
        service: Service,
        model: Model,
        prepare: Callable[[LLM], Texts],
        written: Callable[[Made], bytes],
        field: str,
    ) -> None:
        """`prepare` makes tokens and `written` the body, both beside the event loop; `field` is
        what the dialect calls the texts."""
        self._service = service
        self._model = model
        #: None once they are tokens.
        self._prepare: Callable[[LLM], Texts] | None = prepare
        self._written = written
        self._field = field
        self._began = time.monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        note(scope, model=self._model.name, stream=False)
        with self._model.line.place(self._began):
            await while_connected(receive, self._answer(scope, receive, send))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout_at(work.of(scope).until):
                body = await self._body(scope)
        except Exception as e:
            raise noted(scope, self._refusal(e)) from None
        await Response(body, media_type="application/json")(scope, receive, send)

    async def _body(self, scope: Scope) -> bytes:
        prepare, self._prepare = self._prepare, None
        assert prepare is not None
        async with self._service.models.using(self._model) as llm:
            load = time.monotonic() - self._began
            texts = await work.of(scope).run(functools.partial(prepare, llm))
            del prepare
            work.of(scope).end()
            note(scope, prompt_tokens=texts.n_tokens)
            vectors = await llm._embedded(texts, 0)
        vectors = vectors.reshape(len(texts.ids), -1)  # of one text a row too
        made = Made(vectors, texts.n_tokens, time.monotonic() - self._began, load)
        return await work.of(scope).run(lambda: self._written(made))

    def _refusal(self, raised: Exception) -> Refused:
        """What an error is to a client, to whom texts have another name."""
        if isinstance(raised, Refused):
            return raised
        found = refusal(raised)
        named = _TEXT.sub(self._field, found.message, count=1)
        if isinstance(raised, ContextError):
            return Refused(400, named, field=self._field, code="context_length_exceeded")
        if found.field is not None and _TEXT.match(f"{found.field} "):
            return Refused(400, named, field=_TEXT.sub(self._field, f"{found.field} ").strip())
        return found


def of_openai(service: Service, fields: Fields) -> Vectors:
    """OpenAI's: texts or token ids; numbers, or their bytes as base64."""
    fields.needed("input")
    given = _texts(fields, "input")
    dimensions = fields.integer("dimensions")
    truncate = fields.flag("truncate")
    form = fields.text("encoding_format") or "float"
    if form not in ("float", "base64"):
        raise wrong("encoding_format", form, 'must be "float" or "base64"')
    model = service.model(fields)

    def prepare(llm: LLM) -> Texts:
        return llm._texts(given, None, dimensions, True, truncate)

    def written(made: Made) -> bytes:
        spell = _numbers if form == "float" else _base64
        data = [
            f'{{"object":"embedding","index":{i},"embedding":{spell(vector)}}}'
            for i, vector in enumerate(made.vectors)
        ]
        usage = {"prompt_tokens": made.n_tokens, "total_tokens": made.n_tokens}
        head = {"object": "list", "model": model.name, "usage": usage}
        return _with(head, "data", f"[{','.join(data)}]")

    return Vectors(service, model, prepare, written, "input")


def named(service: Service, fields: Fields) -> Model:
    """The model that a body of ollama's names; `name` is what the field was called before."""
    return service.models.find(fields.text("model") or fields.text("name"))


def of_ollama(service: Service, fields: Fields) -> Vectors | Response:
    """ollama's: texts, cut to the context unless they are not to be; durations in nanoseconds."""
    model = named(service, fields)
    name = fields.text("model") or model.name
    if fields.get("input") in (None, "", []):
        return JSONResponse({"model": name, "embeddings": []})
    given = _texts(fields, "input")
    if not isinstance(given, str) and not isinstance(given[0], str):
        raise wrong("input", given, "must be a string or a list of strings")
    dimensions = fields.integer("dimensions") or None  # 0 is one that was not given
    truncate = fields.flag("truncate", True)

    def prepare(llm: LLM) -> Texts:
        return llm._texts(given, None, dimensions, True, truncate)

    def written(made: Made) -> bytes:
        head = {
            "model": name,
            "total_duration": round(made.seconds * 1e9),
            "load_duration": round(made.load_seconds * 1e9),
            "prompt_eval_count": made.n_tokens,
        }
        vectors = ",".join(map(_numbers, made.vectors))
        return _with(head, "embeddings", f"[{vectors}]")

    return Vectors(service, model, prepare, written, "input")


def of_ollama_before(service: Service, fields: Fields) -> Vectors | Response:
    """What ollama had before: one text, and a vector of any length."""
    model = named(service, fields)
    text = fields.text("prompt")
    if not text:
        return JSONResponse({"embedding": []})

    def prepare(llm: LLM) -> Texts:
        return llm._texts(text, None, None, False, False)

    def written(made: Made) -> bytes:
        return _with({}, "embedding", _numbers(made.vectors[0]))

    return Vectors(service, model, prepare, written, "prompt")


def _texts(fields: Fields, name: str) -> Any:
    """A text or token ids, or a list of either."""
    given = fields.get(name)
    if isinstance(given, str):
        return fields.text(name)
    if not isinstance(given, list) or not given:
        expected = "must be a string, token ids, or a list of strings or of token ids"
        raise wrong(name, given, expected)
    if _are_ids(given):
        return given
    if len(given) > MOST_TEXTS:
        found = f"{len(given)} texts"
        raise Refused(400, f"{name}: {found}; the limit is {MOST_TEXTS}", field=name)
    for i, each in enumerate(given):
        if not isinstance(each, str) and not (isinstance(each, list) and _are_ids(each)):
            raise wrong(f"{name}[{i}]", each, "must be a string or token ids")
    return given


def _are_ids(given: list[Any]) -> bool:
    # A truth value is a number to Python.
    return set(map(type, given)) <= {int}


def _numbers(vector: NDArray[np.float32]) -> str:
    """JSON of a vector: each number in digits that give its float32 back."""
    numbers = vector.tolist()
    return f"[{('%.9g,' * len(numbers))[:-1] % tuple(numbers)}]"


def _base64(vector: NDArray[np.float32]) -> str:
    """JSON of a vector's bytes, the least of each number first."""
    return f'"{base64.b64encode(vector.astype("<f4").tobytes()).decode()}"'


def _with(head: dict[str, Any], name: str, value: str) -> bytes:
    """An object's JSON with one more field, whose JSON is there already."""
    fields = frames.encoded(head)[:-1]
    more = b"," if head else b""
    return fields + more + f'"{name}":{value}}}'.encode()
