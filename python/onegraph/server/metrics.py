"""Figures for Prometheus. What the inference extension of the Kubernetes Gateway API balances by
has the names that it looks for, which vLLM gave them; all else has names of its own."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from onegraph.errors import Error
from onegraph.results import Result
from onegraph.server.models import Model
from onegraph.stats import Stats

__all__ = ["Metrics"]

#: Upper ends of the buckets, in seconds: from a step on a card to a long prompt on a CPU.
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

#: Tokens of a page of keys and values.
PAGE = 64


class Histogram:
    """How often a figure fell into each bucket."""

    def __init__(self) -> None:
        self._counts = [0] * (len(SECONDS) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(SECONDS, seconds)] += 1
        self._sum += seconds

    def lines(self, name: str, labels: str) -> Iterator[str]:
        total = 0
        for end, count in zip([*map(str, SECONDS), "+Inf"], self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{{labels},le="{end}"}} {total}'
        yield f"{name}_sum{{{labels}}} {self._sum:.6f}"
        yield f"{name}_count{{{labels}}} {total}"


#: Of each histogram, what it is of.
HISTOGRAMS = {
    "onegraph:time_to_first_token_seconds": "From the request to the first token.",
    "onegraph:time_per_output_token_seconds": "Between two tokens of one answer, on average.",
    "onegraph:request_queue_seconds": "From the request to the first work on it.",
    "onegraph:request_seconds": "From the request to the last token, in the engine.",
}

#: Of each figure of a model, its kind, what it is, and how to get it.
FIGURES = {
    "vllm:num_requests_waiting": ("gauge", "Requests that wait for their turn."),
    "vllm:num_requests_running": ("gauge", "Sequences that run."),
    "vllm:kv_cache_usage_perc": ("gauge", "Part of the cache that sequences hold, 0 to 1."),
    "onegraph:slots": ("gauge", "Sequences that run at most."),
    "onegraph:sequences_feeding": ("gauge", "Sequences whose prompts are still read."),
    "onegraph:pages_free": ("gauge", "Free pages of keys and values."),
    "onegraph:pages_of_prefixes": ("gauge", "Pages that are kept for prompts to come."),
    "onegraph:sequences_preempted": ("gauge", "Sequences that wait for pages to be swapped in."),
    "onegraph:pages_swapped_out": ("gauge", "Pages of those that are in the host's memory."),
    "onegraph:requests_total": ("counter", "Requests that the engine began."),
    "onegraph:prefix_hits_total": ("counter", "Of those, the ones that began with kept tokens."),
    "onegraph:prompt_tokens_total": ("counter", "Tokens of prompts that were read."),
    "onegraph:cached_tokens_total": ("counter", "Tokens of prompts that were kept."),
    "onegraph:generated_tokens_total": ("counter", "Tokens that were generated."),
    "onegraph:drafted_tokens_total": ("counter", "Tokens that were drafted for a step to verify."),
    "onegraph:accepted_tokens_total": ("counter", "Of those, the ones that were drawn."),
    "onegraph:draft_rounds_total": ("counter", "Steps of a sequence that verified drafts."),
    "onegraph:preemptions_total": ("counter", "How often a sequence was preempted."),
    "onegraph:generated_tokens_per_second": ("gauge", "Over the last ten seconds with work."),
    "onegraph:prompt_tokens_per_second": ("gauge", "Over the last ten seconds with work."),
}


def _figures(stats: Stats) -> Iterator[float]:
    """Those of `FIGURES`, in their order."""
    pages = stats.pages
    yield stats.queued
    yield stats.running
    yield pages.sequences / pages.total if pages.total else 0.0
    yield stats.slots
    yield stats.feeding
    yield pages.free
    yield pages.prefixes
    yield stats.preempted
    yield stats.pages_swapped_out
    yield stats.requests
    yield stats.prefix_hits
    yield stats.prompt_tokens
    yield stats.cached_tokens
    yield stats.generated_tokens
    yield stats.drafted_tokens
    yield stats.accepted_tokens
    yield stats.draft_rounds
    yield stats.preemptions
    yield stats.generated_tokens_per_second
    yield stats.prompt_tokens_per_second


class Metrics:
    """What was counted since the server began."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._responses: Counter[tuple[str, int]] = Counter()
        self._histograms: dict[str, defaultdict[str, Histogram]] = {
            name: defaultdict(Histogram) for name in HISTOGRAMS
        }

    def count(self, method: str, status: int) -> None:
        """A response; status 0 where the client was gone before there was one."""
        known = method if method in ("GET", "POST", "HEAD", "OPTIONS", "DELETE") else "other"
        with self._lock:
            self._responses[known, status] += 1

    def answered(self, model: str, result: Result, first: float) -> None:
        """An answer that was made: `first` seconds went by before its first token was there."""
        timings = result.timings
        seconds = timings.queue_seconds + timings.prefill_seconds + timings.decode_seconds
        further = result.usage.completion_tokens - 1
        figures = {
            "onegraph:time_to_first_token_seconds": first,
            "onegraph:request_queue_seconds": timings.queue_seconds,
            "onegraph:request_seconds": seconds,
        }
        if further > 0:
            figures["onegraph:time_per_output_token_seconds"] = timings.decode_seconds / further
        with self._lock:
            for name, figure in figures.items():
                self._histograms[name][model].observe(figure)

    def text(self, models: Iterable[Model]) -> str:
        """All of it, in the format that Prometheus reads."""
        return "\n".join(self._lines(models)) + "\n"

    def _lines(self, models: Iterable[Model]) -> Iterator[str]:
        found = {}
        for model in models:
            if model.llm is not None:
                try:
                    found[model.name] = model.llm.stats()
                except Error:  # unloaded since the look, or ended: /health says so
                    continue
        rows = {name: list(_figures(stats)) for name, stats in found.items()}
        for i, (name, (kind, said)) in enumerate(FIGURES.items()):
            yield from _head(name, kind, said)
            for model_name, figures in rows.items():
                yield f"{name}{{{_label(model_name)}}} {figures[i]}"
        yield from _head("vllm:cache_config_info", "gauge", "Pages of the cache and their tokens.")
        for name, stats in found.items():
            pages = f'block_size="{PAGE}",num_gpu_blocks="{stats.pages.total}"'
            yield f"vllm:cache_config_info{{{_label(name)},{pages}}} 1"
        with self._lock:
            for name, of_models in self._histograms.items():
                yield from _head(name, "histogram", HISTOGRAMS[name])
                for model_name, histogram in of_models.items():
                    yield from histogram.lines(name, _label(model_name))
            yield from _head("onegraph:responses_total", "counter", "Responses by their status.")
            for (method, status), count in sorted(self._responses.items()):
                said = f'method="{method}",status="{status or "gone"}"'
                yield f"onegraph:responses_total{{{said}}} {count}"


def _head(name: str, kind: str, said: str) -> Iterator[str]:
    yield f"# HELP {name} {said}"
    yield f"# TYPE {name} {kind}"


def _label(name: str) -> str:
    spelled = name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'model_name="{spelled}"'
