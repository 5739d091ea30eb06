"""Texts as vectors, and documents by their scores: `embed`, `rank` and their twins for asyncio."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from onegraph import _native, arguments
from onegraph import progress as progress_bar
from onegraph.errors import OutOfMemoryError
from onegraph.loaded import Loaded
from onegraph.progress import Told
from onegraph.prompts import Prompt, Prompts, batch, preparing
from onegraph.streams import naming

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from onegraph.doorbell import Visitor

__all__ = ["Embeds", "Texts"]


@dataclass(frozen=True)
class Texts:
    """What one call embeds."""

    #: Token ids of each text.
    ids: list[list[int]]
    #: What each is called in an error.
    names: list[str]
    #: Whether a list of texts was given.
    many: bool
    #: Keywords of the engine.
    options: dict[str, Any]

    @property
    def n_tokens(self) -> int:
        """Tokens of all texts."""
        return sum(map(len, self.ids))


class Embeds(Loaded):
    """The part of an `LLM` that makes vectors of texts."""

    @property
    def n_embd(self) -> int:
        """Width of a hidden state, and of an embedding."""
        return self._engine.n_embd

    @property
    def pooling(self) -> Literal["last", "mean", "none", "cls", "rank"] | None:
        """The pooling that the model's file names: "last", "mean", "cls", "none", or "rank", which
        `embed` does not support; None if it names none.
        """
        return self._engine.pooling

    def embed(
        self,
        text: Prompt | Prompts,
        *,
        pooling: Literal["last", "mean", "cls"] | None = None,
        dimensions: int | None = None,
        normalize: bool = True,
        truncate: bool = False,
        progress: bool | Told | None = None,
        priority: int = 0,
    ) -> NDArray[np.float32]:
        """Embeds a text as float32 [n_embd], or a list of texts as float32 [n_texts, n_embd]. A
        text may be token ids, which are taken as they are. Its vector has the same bits alone and
        in a list; see `onegraph help embeddings`.

        pooling: "last" takes the hidden state of the last token, "mean" the mean of all, "cls" that
            of the first token (encoders only); None takes the file's, or if it has none "last",
            with a warning, or an encoder's "mean"
        dimensions: keep only this many leading numbers, for models trained for that; None keeps all
        normalize: scale the vector to length 1, after `dimensions`
        truncate: drop the end of a text that is longer than the context
        progress, priority: as in `generate`

        Raises `ContextError` for a text that is longer than the context, `ArgumentError` for an
        unsupported pooling or an argument out of range.
        """
        texts = self._texts(text, pooling, dimensions, normalize, truncate)
        return self._collected(texts, progress, arguments.integer("priority", priority))

    def rank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        progress: bool | Told | None = None,
        priority: int = 0,
    ) -> NDArray[np.float32]:
        """Scores with a reranker how well each document answers a query: float32 [n_documents],
        from 0 to 1. A score has the same bits alone and among others; see
        `onegraph help embeddings`.

        query: what to search for
        documents: texts, each scored separately
        progress, priority: as in `generate`

        Raises `ArgumentError` for a model that is not a reranker, `ContextError` if a query and a
        document together are longer than the context.
        """
        texts = self._pairs(query, documents)
        urgency = arguments.integer("priority", priority)
        return self._collected(texts, progress, urgency)[:, 0]

    async def arank(
        self, query: str, documents: Sequence[str], *, priority: int = 0
    ) -> NDArray[np.float32]:
        """`rank` for asyncio: blocks neither the event loop nor a thread. Cancelling the task
        cancels the work.
        """
        urgency = arguments.integer("priority", priority)
        prepare = preparing(lambda: self._pairs(query, documents), documents)
        return (await self._embedded(await prepare(), urgency))[:, 0]

    def _collected(
        self, texts: Texts, progress: bool | Told | None, urgency: int
    ) -> NDArray[np.float32]:
        """The vectors of texts that are tokens already."""
        if progress is not None and not callable(progress):
            progress = arguments.flag("progress", progress)
        if progress is None and len(texts.ids) == 1:
            progress = False
        vectors = self._room(texts)
        waiting: list[_native.Embedding] = []
        done = 0
        with progress_bar.shown(progress, counts=True) as told:
            if told is not None:
                told("embed", 0, len(texts.ids))
            for name, ids in zip(texts.names, texts.ids, strict=True):
                with naming(name):
                    waiting.append(self._engine.embed(ids, priority=urgency, **texts.options))
                # A list longer than the queue: what was done while there was no room in it.
                done += self._take(texts, waiting, vectors, done, told)
            while done < len(waiting):
                with naming(texts.names[done]):
                    waiting[done].collect(vectors[done])
                done += 1
                if told is not None:
                    told("embed", done, len(waiting))
        return vectors if texts.many else vectors[0]

    def _take(
        self,
        texts: Texts,
        waiting: list[_native.Embedding],
        vectors: NDArray[np.float32],
        done: int,
        told: Told | None,
    ) -> int:
        """1 where the vector of the first text that waits is there, else 0."""
        with naming(texts.names[done]):
            if not waiting[done].poll(vectors[done]):
                return 0
        if told is not None:
            told("embed", done + 1, len(texts.ids))
        return 1

    async def aembed(
        self,
        text: Prompt | Prompts,
        *,
        pooling: Literal["last", "mean", "cls"] | None = None,
        dimensions: int | None = None,
        normalize: bool = True,
        truncate: bool = False,
        priority: int = 0,
    ) -> NDArray[np.float32]:
        """`embed` for asyncio: blocks neither the event loop nor a thread. Cancelling the task
        cancels the work.
        """
        urgency = arguments.integer("priority", priority)
        prepare = preparing(
            lambda: self._texts(text, pooling, dimensions, normalize, truncate), text
        )
        texts = await prepare()
        return await self._embedded(texts, urgency)

    async def _embedded(self, texts: Texts, priority: int) -> NDArray[np.float32]:
        """The vectors of texts that are tokens already."""
        from onegraph.doorbell import visiting

        vectors = self._room(texts)
        waiting: list[_native.Embedding] = []
        try:
            with visiting() as visitor:
                # No more of them at a time than keep the engine busy: others want a turn.
                ahead = 2 * self._engine.max_batch
                for i in range(len(texts.ids) + ahead):
                    if i < len(texts.ids):
                        with naming(texts.names[i]):
                            waiting.append(
                                await self._line_up(texts.ids[i], texts, visitor, priority)
                            )
                    first = i - ahead
                    while 0 <= first < len(texts.ids):
                        with naming(texts.names[first]):
                            if waiting[first].poll(vectors[first]):
                                break
                        await visitor.news.wait()
        finally:
            for embedding in waiting:
                embedding.cancel()
        return vectors if texts.many else vectors[0]

    async def _line_up(
        self, ids: list[int], texts: Texts, visitor: Visitor, priority: int
    ) -> _native.Embedding:
        """Queues a text, in line with the others of its loop and priority."""

        def offer(waited: float) -> _native.Embedding | None:
            return self._engine.offer_embedding(
                ids,
                visitor.bell,
                visitor.number,
                priority=priority,
                waited=waited,
                **texts.options,
            )

        return await visitor.queued(self._engine, priority, offer)

    def _texts(
        self, text: Any, pooling: Any, dimensions: Any, normalize: Any, truncate: Any
    ) -> Texts:
        """What `embed` is asked for."""
        options = {
            "pooling": None if pooling is None else arguments.word("pooling", pooling),
            "dimensions": (
                None if dimensions is None else arguments.integer("dimensions", dimensions)
            ),
            "normalize": arguments.flag("normalize", normalize),
        }
        if options["pooling"] == "rank":
            raise arguments.refused(
                "pooling", "rank", "must be last, mean or cls; use rank() for scores"
            )
        cut = arguments.flag("truncate", truncate)
        if pooling is None:
            self._say_unpooled()
        many = batch("text", text)
        found: list[list[int]] = []
        names = []
        for i, one in enumerate([text] if many is None else many):
            name = "text" if many is None else f"text[{i}]"
            if isinstance(one, str):
                with naming(name):
                    found.append(self._engine.encode_text(arguments.text(name, one), cut))
            else:
                ids = arguments.integers(name, one)
                found.append(ids[: self._engine.n_ctx] if cut else ids)
            names.append(name)
        return Texts(found, names, many is not None, options)

    def _pairs(self, query: Any, documents: Any) -> Texts:
        """What `rank` is asked for."""
        asked = arguments.text("query", query)
        if isinstance(documents, str) or not isinstance(documents, Sequence):
            raise arguments.refused("documents", documents, "must be a list of texts")
        found, names = [], []
        for i, document in enumerate(documents):
            name = f"documents[{i}]"
            text = arguments.text(name, document)
            with naming(name):
                found.append(self._engine.encode_pair(asked, text))
            names.append(name)
        options = {"pooling": "rank", "dimensions": None, "normalize": False}
        return Texts(found, names, True, options)

    def _room(self, texts: Texts) -> NDArray[np.float32]:
        """Where the vectors go."""
        import numpy as np  # `import onegraph` must be quick

        self._engine.check_open()
        width = 1 if texts.options["pooling"] == "rank" else texts.options["dimensions"]
        if width is None or not 1 <= width <= self.n_embd:
            width = self.n_embd  # one that is out of range is refused with the first text
        try:
            return np.empty((len(texts.ids), width), dtype=np.float32)
        except MemoryError as e:
            raise OutOfMemoryError(
                f"vectors of {len(texts.ids)} texts: {e}; embed fewer at a time"
            ) from e
