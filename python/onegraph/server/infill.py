"""`/infill` of llama.cpp's server: what stands between two texts, as editors ask for it."""

from __future__ import annotations

from typing import Any

from onegraph.llm import LLM
from onegraph.results import Result
from onegraph.server import frames, openai
from onegraph.server.answers import Asked
from onegraph.server.conversation import Prepare
from onegraph.server.events import Event, Finish, Text, said
from onegraph.server.fields import Fields
from onegraph.server.forms import Form
from onegraph.server.refusals import Refused
from onegraph.server.sampling import options, salt_of, spelled
from onegraph.server.service import Service
from onegraph.streams import Job

__all__ = ["asked"]

NAMES = {
    **openai.NAMES,
    "n_predict": "max_tokens",
    "repeat_last_n": "repeat_last_n",
}

#: Further files that one request shows.
MOST_FILES = 1024

#: Milliseconds of a second.
MS = 1000


def asked(service: Service, fields: Fields) -> Asked:
    """A request, understood."""
    model = service.model(fields)
    for name in ("input_prefix", "input_suffix"):
        fields.needed(name)
    before, behind = fields.text("input_prefix") or "", fields.text("input_suffix") or ""
    begun = fields.text("prompt") or ""
    files = _files(fields)
    fields = openai.endless(fields, "n_predict")
    form = Form({})
    chosen = options(fields, NAMES, service.limits, form, cache_salt=salt_of(fields))
    wanted = fields.texts("response_fields")

    def prepare(llm: LLM) -> Job:
        ids = llm._around(before, behind, files, begun)
        return llm._prompts(ids, chosen, None, False)

    def document(outputs: list[list[Event]]) -> dict[str, Any]:
        whole = said(outputs[0])
        return _picked(_whole(model.name, whole.text, whole.result), wanted)

    writers = [Writer(model.name, wanted)] if fields.flag("stream") else []
    named = spelled(fields, NAMES, form) | {"suffix": "input_suffix"}
    return Asked(model, Prepare(prepare, is_quick=False), writers, document, named)


def _files(fields: Fields) -> list[tuple[str, str]]:
    """Names and texts of what stands beside the file with the gap."""
    if (given := fields.items("input_extra")) is None:
        return []
    if len(given) > MOST_FILES:
        why = f"{len(given)} files; the limit is {MOST_FILES}"
        raise Refused(400, f"input_extra: {why}", field="input_extra")
    found = []
    for each in fields.objects("input_extra"):
        each.needed("text")
        found.append((each.text("filename") or "", each.text("text") or ""))
    return found


def _whole(model: str, text: str, result: Result) -> dict[str, Any]:
    """The last object of an answer, or the only one."""
    usage, timings = result.usage, result.timings
    stop = "limit" if result.finish_reason == "length" else "eos"
    word = result.stop_reason if isinstance(result.stop_reason, str) else ""
    return {
        "index": 0,
        "content": text,
        "stop": True,
        "model": model,
        "tokens_predicted": usage.completion_tokens,
        "tokens_evaluated": usage.prompt_tokens,
        "tokens_cached": usage.cached_tokens,
        "truncated": False,
        "stop_type": "word" if word else stop,
        "stopping_word": word,
        "timings": {
            "cache_n": usage.cached_tokens,
            "prompt_n": usage.prompt_tokens - usage.cached_tokens,
            "prompt_ms": MS * timings.prefill_seconds,
            "prompt_per_second": timings.prefill_tokens_per_second,
            "predicted_n": usage.completion_tokens,
            "predicted_ms": MS * timings.decode_seconds,
            "predicted_per_second": timings.decode_tokens_per_second,
        },
    }


def _picked(whole: dict[str, Any], wanted: list[str] | None) -> dict[str, Any]:
    """Of an answer the fields that are wanted, those within others by their paths; what there is
    none of is left out."""
    if not wanted:
        return whole
    found = {}
    for path in wanted:
        value: Any = whole
        for name in path.split("/"):
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None:
            found[path] = value
    return found


class Writer:
    """An answer as a stream."""

    media_type = "text/event-stream"

    def __init__(self, model: str, wanted: list[str] | None) -> None:
        self._model = model
        self._wanted = wanted

    def begin(self, job: Job) -> bytes:
        return b""

    def event(self, event: Event) -> bytes:
        if isinstance(event, Text):
            return frames.data({"index": 0, "content": event.text, "stop": False})
        assert isinstance(event, Finish)
        return frames.data(_picked(_whole(self._model, "", event.result), self._wanted))

    def idle(self) -> bytes:
        return b": still waiting\n\n"

    def failed(self, why: Refused) -> bytes:
        return frames.data(openai.failure(why))
