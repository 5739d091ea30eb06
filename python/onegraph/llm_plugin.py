"""Models in `llm` (https://llm.datasette.io), which loads this module by its entry point.

    llm -m onegraph/smollm2 "Why is the sky blue?" -o max_tokens 100

There is `onegraph/REFERENCE` for each of `onegraph.hub.references`: the names of the manifest, the
`hf:` references that were used before, and what ollama has pulled. A model stays loaded for the
prompts that follow in the same process.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any

import llm
from pydantic import Field

from onegraph import LLM, hub
from onegraph.errors import ArgumentError
from onegraph.results import Piece
from onegraph.sampling import DEFAULTS, MEANING

__all__ = ["AsyncOnegraph", "Onegraph", "register_models"]

#: Keywords of `LLM` and their meanings.
LOADING = {
    "device": 'where the model runs: "auto", "cpu", "cuda" or "cuda:N"',
    "n_ctx": "maximum tokens of a conversation, including the answer",
    "max_batch": "prompts that run at once, from several threads or tasks (default 1)",
    "threads": "CPU threads",
}


def _option(name: str) -> Any:
    meaning = MEANING.get(name) or LOADING[name]
    default = f" (default {DEFAULTS[name]!r})" if name in DEFAULTS else ""
    return Field(default=None, description=meaning + default)


class Options(llm.Model.Options):
    """What `llm -o` takes: keywords of `LLM.generate` that are one value, then those of `LLM`."""

    max_tokens: int | None = _option("max_tokens")
    temperature: float | None = _option("temperature")
    top_k: int | None = _option("top_k")
    top_p: float | None = _option("top_p")
    min_p: float | None = _option("min_p")
    repeat_penalty: float | None = _option("repeat_penalty")
    presence_penalty: float | None = _option("presence_penalty")
    frequency_penalty: float | None = _option("frequency_penalty")
    repeat_last_n: int | None = _option("repeat_last_n")
    seed: int | None = _option("seed")
    stop: str | None = _option("stop")
    ignore_eos: bool | None = _option("ignore_eos")
    prompt_lookup_num_tokens: int | None = _option("prompt_lookup_num_tokens")
    regex: str | None = _option("regex")
    grammar: str | None = _option("grammar")
    cache_salt: str | None = _option("cache_salt")
    thinking_token_budget: int | None = _option("thinking_token_budget")
    device: str | None = _option("device")
    n_ctx: int | None = _option("n_ctx")
    max_batch: int | None = _option("max_batch")
    threads: int | None = _option("threads")


class Loaded:
    """The model of a reference, loaded at the first use and kept until other options are asked for.

    Prompts that are under way keep the one that they began with.
    """

    def __init__(self, reference: str) -> None:
        self.reference = reference
        self._lock = threading.Lock()
        self._options: dict[str, Any] = {}
        self._model: LLM | None = None

    def get(self, options: dict[str, Any]) -> LLM:
        with self._lock:
            if self._model is None or self._options != options:
                self._model = None  # its memory is free before more is taken
                self._model = LLM(self.reference, **{"max_batch": 1} | options)
                self._options = options
            return self._model


class Request:
    """One prompt of `llm`: what the model is given, and what `llm` is told in the end."""

    def __init__(self, loaded: Loaded, prompt: llm.Prompt) -> None:
        given = {k: v for k, v in dict(prompt.options).items() if v is not None}
        self.sampling: dict[str, Any] = {k: v for k, v in given.items() if k not in LOADING}
        if not hasattr(prompt, "messages"):
            version = importlib.metadata.version("llm")
            raise ArgumentError(
                f"llm {version} is older than 0.32, which onegraph needs: run `pip install -U llm`"
            )
        if prompt.schema is not None:
            self.sampling["schema"] = prompt.schema
        messages = [_plain(message) for message in prompt.messages]
        self.model = loaded.get({k: v for k, v in given.items() if k in LOADING})
        self.ids = _ids(self.model, messages)
        self._made = 0
        self._reason: str | None = None

    def text(self, piece: Piece) -> str:
        self._made += len(piece.token_ids)
        self._reason = piece.finish_reason
        return piece.text

    def tell(self, response: Any) -> None:
        response.set_usage(input=len(self.ids), output=self._made)
        response.response_json = {"finish_reason": self._reason, "device": self.model.device}


def _plain(message: llm.Message) -> dict[str, str]:
    """A message as chat templates know it. Thoughts of an earlier answer are left out."""
    from llm.parts import ReasoningPart, TextPart  # an older llm lacks them, and lists models still

    texts = []
    for part in message.parts:
        if isinstance(part, TextPart):
            texts.append(part.text)
        elif not isinstance(part, ReasoningPart):
            raise ArgumentError(
                f"messages: a message of {message.role!r} has a {type(part).__name__}; onegraph's "
                "plugin only supports text, without tools or attachments"
            )
    return {"role": message.role, "content": "".join(texts)}


def _ids(model: LLM, messages: list[dict[str, str]]) -> list[int]:
    """Tokens of a conversation by the model's template; of one message, where it has none."""
    if model.chat_template is not None:
        return model.tokenizer.encode_rendering(model.chat_template.rendering(messages))
    if len(messages) != 1:
        raise ArgumentError(
            f"messages: {len(messages)} were given, but {model.path.name} has no chat template: "
            "give a single prompt, without a system prompt or a conversation"
        )
    return model.tokenize(messages[0]["content"])


class Onegraph(llm.Model):
    """A model of onegraph's, for `llm`."""

    can_stream = True
    supports_schema = True
    Options = Options

    def __init__(self, loaded: Loaded) -> None:
        self.model_id = f"onegraph/{loaded.reference}"
        self._loaded = loaded

    def execute(
        self,
        prompt: llm.Prompt,
        stream: bool,
        response: llm.Response,
        conversation: llm.Conversation | None,
    ) -> Iterator[str]:
        request = Request(self._loaded, prompt)
        with request.model.generate(request.ids, stream=True, **request.sampling) as pieces:
            yield from map(request.text, pieces)
        request.tell(response)


class AsyncOnegraph(llm.AsyncModel):
    """The same for `asyncio`."""

    can_stream = True
    supports_schema = True
    Options = Options

    def __init__(self, loaded: Loaded) -> None:
        self.model_id = f"onegraph/{loaded.reference}"
        self._loaded = loaded

    async def execute(
        self,
        prompt: llm.Prompt,
        stream: bool,
        response: llm.AsyncResponse,
        conversation: llm.AsyncConversation | None,
    ) -> AsyncGenerator[str, None]:
        request = await asyncio.to_thread(Request, self._loaded, prompt)
        async for piece in request.model.agenerate(request.ids, **request.sampling):
            yield request.text(piece)
        request.tell(response)


@llm.hookimpl
def register_models(register: Callable[..., None]) -> None:
    """Adds a model for each reference."""
    for reference in hub.references():
        loaded = Loaded(reference)
        register(Onegraph(loaded), AsyncOnegraph(loaded))
