"""Statistics of a running `LLM`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from onegraph import foreign
from onegraph.graphs import GraphStats

__all__ = ["Places", "Stats", "so_far"]


@dataclass(frozen=True)
class Places:
    """Counts of a resource, by use."""

    total: int
    free: int
    #: Used by running sequences.
    sequences: int
    #: Used by cached prefixes (`prefix_cache`), which are evicted when a sequence needs the room.
    prefixes: int


@dataclass(frozen=True)
class Stats:
    """The current state of an `LLM`, from `LLM.stats`, and totals since it was loaded."""

    #: Waiting requests.
    queued: int
    #: Running sequences, at most `slots`, and those of them whose prompts are still being
    #: processed.
    running: int
    feeding: int
    slots: int
    #: Preempted sequences, which keep their slots and wait for pages (`kv_tokens`), and their pages
    #: in host memory.
    preempted: int
    pages_swapped_out: int
    #: Pages of keys and values on the device, of 64 tokens each.
    pages: Places
    #: Pages of sliding-window layers, if other layers attend to everything; all zero if the model
    #: has none.
    window_pages: Places
    #: Recurrent states, one per sequence; all zero if the model has none.
    states: Places
    #: Requests started, and those of them whose prompts had a cached prefix.
    requests: int
    prefix_hits: int
    #: Prompt tokens processed, and those found in the cache.
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    #: Tokens that `speculate` or `prompt_lookup_num_tokens` drafted, and how many of them were
    #: right.
    drafted_tokens: int
    accepted_tokens: int
    #: Steps of a sequence that verified drafts.
    draft_rounds: int
    #: How often a sequence was preempted because pages had run out.
    preemptions: int
    #: Both rates over the last ten seconds in which anything ran.
    prompt_tokens_per_second: float
    generated_tokens_per_second: float
    #: How decode steps ran, as in `LLM.graph_stats`; None if there are no graphs.
    graphs: GraphStats | None

    if not TYPE_CHECKING:  # a type checker knows what there is

        def __getattr__(self, name):
            raise foreign.unknown(self, type(self), name)

    @classmethod
    def from_json(cls, text: str) -> Stats:
        """The figures as the engine writes them."""
        figures = json.loads(text)
        done = figures.pop("done")
        graphs = figures.pop("graphs")
        for place in ("pages", "window_pages", "states"):
            figures[place] = Places(**figures[place])
        return cls(
            prompt_tokens_per_second=done.pop("prompt_rate"),
            generated_tokens_per_second=done.pop("generated_rate"),
            graphs=None if graphs is None else GraphStats.of(graphs),
            **done,
            **figures,
        )


def so_far(now: Stats, began: Stats | None = None) -> str:
    """What was read and made, since `began` or since loading, for somebody who waits."""
    read, made = now.prompt_tokens + now.cached_tokens, now.generated_tokens
    if began is not None:
        read -= began.prompt_tokens + began.cached_tokens
        made -= began.generated_tokens
    rate = now.generated_tokens_per_second
    return f"{read:,} tokens read, {made:,} generated, {rate:,.0f} a second"
