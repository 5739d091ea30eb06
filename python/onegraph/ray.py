"""Ray integration: a model as a step of a Ray Data pipeline, and behind Ray Serve.

`Generate` is a class for `Dataset.map_batches`; each actor loads the model once. `app` builds a Ray
Serve application, in Python or with `serve run onegraph.ray:app`. The extra `ray` installs what
both need; see `onegraph help deploying`.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

import numpy as np

from onegraph import arguments
from onegraph.errors import ArgumentError, ContextError, Error, ModelError
from onegraph.llm import LLM
from onegraph.results import Result
from onegraph.sampling import Sampling, SamplingOptions, takes_sampling
from onegraph.server import asgi

if TYPE_CHECKING:
    from ray.serve import Application

__all__ = ["Generate", "app"]

logger = logging.getLogger("onegraph")

#: What a single row can be wrong by; all else is about the model, the device or the program.
OF_A_ROW = (ArgumentError, ContextError, ModelError)

#: Arguments of an application that are Ray's, keywords of `LLM`, and keywords of `asgi`.
OF_RAY = ["model", "name", "num_gpus", "num_replicas", "max_ongoing_requests"]
LOADING = [name for name in inspect.signature(LLM).parameters if name not in ("model", "progress")]
SERVING = [name for name in inspect.signature(asgi).parameters if name != "llm"]


class Generate:
    """Answers the rows of a batch together, with a model that is loaded once: a class for
    `Dataset.map_batches` of Ray Data.

        rows.map_batches(
            Generate,
            fn_constructor_kwargs={"model": "smollm2", "prompt": "question", "max_tokens": 64},
            batch_size=64, num_gpus=1, concurrency=4,
        )

    A batch keeps its columns and gets `generated_text`, `finish_reason`, `num_input_tokens`,
    `num_generated_tokens` and `error`. A row that cannot be answered, such as one that exceeds the
    context, has the reason in `error`, "error" as `finish_reason`, and no text; for other rows
    `error` is "". An error of the model or its device ends the batch.

    prompt, messages: the name of the column of prompts (strings or token ids), or of the column of
        conversations; exactly one of the two
    load: keywords of `LLM`; set `max_batch`, the rows that run at once, to the `batch_size`
    prefix: prefix of the new columns' names
    errors: "raise" ends the batch, and with it the job, at the first row that cannot be answered

    Raises `ArgumentError` for a wrong option, or a column that is missing or already exists; and
    what `LLM` raises.
    """

    @takes_sampling
    def __init__(
        self,
        model: str,
        *,
        prompt: str | None = None,
        messages: str | None = None,
        load: Mapping[str, Any] | None = None,
        prefix: str = "",
        errors: Literal["column", "raise"] = "column",
        **options: Unpack[SamplingOptions],
    ) -> None:
        """Loads the model."""
        if (prompt is None) == (messages is None):
            raise ArgumentError(
                f"prompt = {prompt!r}, messages = {messages!r}: set exactly one of them to a column"
            )
        if errors not in ("column", "raise"):
            raise arguments.refused("errors", errors, 'must be "column" or "raise"')
        self._is_chat = messages is not None
        self._column = arguments.text("messages" if self._is_chat else "prompt", messages or prompt)
        self._prefix = arguments.text("prefix", prefix)
        self._raises = errors == "raise"
        self._sampling = Sampling(**options)
        self.llm = LLM(model, **{"progress": False, **(load or {})})
        if self._is_chat and self.llm.chat_template is None:
            raise ModelError(
                f"{self.llm.path.name} has no chat template: give one by "
                'load={"chat_template": ...}, or a column of prompts'
            )

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The batch with its new columns: arrays [rows]."""
        if not isinstance(batch, Mapping):
            raise arguments.refused(
                "batch", batch, 'must be a dict of arrays: batch_format="numpy"'
            )
        if self._column not in batch:
            raise ArgumentError(
                f"column {self._column!r}: not in the batch, which has {', '.join(batch)}"
            )
        # Ray calls it in a thread without a loop.
        answers = asyncio.run(self._answers([plain(each) for each in batch[self._column]]))
        new = {self._prefix + name: column for name, column in columns(answers).items()}
        if taken := [name for name in new if name in batch]:
            raise ArgumentError(
                f"column {taken[0]!r}: is already in the batch; set prefix= for the new columns"
            )
        if wrong := [each for each in answers if isinstance(each, Error)]:
            logger.warning(
                "%d of %d rows have no answer; the first: %s", len(wrong), len(answers), wrong[0]
            )
        return {**batch, **new}

    async def _answers(self, rows: Sequence[Any]) -> list[Result | Error]:
        """Of each row its answer, or why there is none. The rows are in line together, and the
        engine takes them as it takes the rows of a list."""
        tasks = [asyncio.ensure_future(self._answer(row)) for row in rows]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _answer(self, row: Any) -> Result | Error:
        try:
            ask = self.llm.achat if self._is_chat else self.llm.agenerate
            made: Result = await ask(row, sampling=self._sampling)
            return made
        except OF_A_ROW as e:
            if self._raises:
                raise
            return e


def columns(answers: Sequence[Result | Error]) -> dict[str, Any]:
    """What a batch gets: arrays [rows] whose types do not depend on what went wrong."""

    def texts(of: list[str]) -> Any:
        return np.array(of, dtype=object)

    def numbers(of: list[int]) -> Any:
        return np.array(of, dtype=np.int64)

    made = [each if isinstance(each, Result) else None for each in answers]
    return {
        "generated_text": texts([r.text if r else "" for r in made]),
        "finish_reason": texts([r.finish_reason if r else "error" for r in made]),
        "num_input_tokens": numbers([r.usage.prompt_tokens if r else 0 for r in made]),
        "num_generated_tokens": numbers([r.usage.completion_tokens if r else 0 for r in made]),
        "error": texts([str(each) if isinstance(each, Error) else "" for each in answers]),
    }


def plain(value: Any) -> Any:
    """A value of a column as Python's own. Columns give each message the keys of all of them: those
    without a value are left out."""
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items() if each is not None}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


def app(args: Mapping[str, Any]) -> Application:
    """A Ray Serve application: each replica loads the model and serves `onegraph.asgi`.

    args: `model`, and optionally: `name`, the model's name in requests (by default as in `model`;
        for a file, without folder and ending); `num_gpus` per replica (the cards that `device`
        names); `num_replicas` (1); `max_ongoing_requests` per replica (twice its `max_batch`); and
        keywords of `LLM` and of `onegraph.asgi`. Strings, as from `serve run`, are parsed as JSON
        if they are JSON

    Raises `ArgumentError` for a missing model or an unknown name.
    """
    from ray import serve

    given = {name: value if name == "model" else _read(value) for name, value in args.items()}
    if not given.get("model"):
        raise ArgumentError("model: missing; pass model=REFERENCE")
    model = arguments.text("model", given.pop("model"))
    n_cards = len(arguments.cards(str(given.get("device", "auto"))))
    max_batch = arguments.integer("max_batch", given.get("max_batch", 8))
    name = arguments.text("name", given.pop("name", _name(model)))
    options = {
        "max_ongoing_requests": given.pop("max_ongoing_requests", 2 * max_batch),
        "ray_actor_options": {"num_gpus": given.pop("num_gpus", n_cards)},
    }
    if "num_replicas" in given:
        options["num_replicas"] = given.pop("num_replicas")
    for each in given:
        if each not in (*LOADING, *SERVING):
            known = ", ".join([*OF_RAY, *LOADING, *SERVING])
            raise ArgumentError(f"{each}: is not an argument of this application; it takes {known}")
    load = {each: value for each, value in given.items() if each in LOADING}
    serving = {each: value for each, value in given.items() if each in SERVING}

    def build() -> Any:
        """Called by each replica."""
        return asgi({name: LLM(model, progress=False, **load)}, **serving)

    deployment = serve.deployment(name="onegraph", **options)
    made: Application = deployment(serve.ingress(build)()).bind()
    return made


def _read(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _name(model: str) -> str:
    return Path(model).stem if model.endswith(".gguf") else model.removeprefix("ollama:")
