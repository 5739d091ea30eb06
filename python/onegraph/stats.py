"""What an `LLM` says of itself while it runs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from onegraph import foreign
from onegraph.graphs import GraphStats

__all__ = ["Places", "Stats", "so_far"]


@dataclass(frozen=True)
class Places:
    """How many of something there are, and where."""

    total: int
    free: int
    #: Of sequences that run.
    sequences: int
    #: Kept for prompts to come (`prefix_cache`); they go where a sequence needs the room.
    prefixes: int


@dataclass(frozen=True)
class Stats:
    """What goes on in an `LLM`, from `LLM.stats`, and what was done since it was loaded."""

    #: Requests that wait for their turn.
    queued: int
    #: Sequences that run, at most `slots`, and those of them whose prompts are still read.
    running: int
    feeding: int
    slots: int
    #: Sequences that are preempted, which keep their slots and wait for pages (`kv_tokens`), and
    #: their pages in the host's memory.
    preempted: int
    pages_swapped_out: int
    #: Pages of keys and values on the device, of 64 tokens each.
    pages: Places
    #: Those of layers that see a window, where others see all; all zero where the model has none.
    window_pages: Places
    #: States that layers keep beside them, one a sequence; all zero where the model has none.
    states: Places
    #: Requests that were begun, and those of them whose prompts began with tokens that were kept.
    requests: int
    prefix_hits: int
    #: Tokens of prompts that were read, and those that were not, since they were kept.
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    #: Tokens that `prompt_lookup_num_tokens` drafted, and those of them that were right.
    drafted_tokens: int
    accepted_tokens: int
    #: How often a sequence was preempted since the pages had run out.
    preemptions: int
    #: Both together over the last ten seconds in which something ran.
    prompt_tokens_per_second: float
    generated_tokens_per_second: float
    #: How decode steps ran, as `LLM.graph_stats` says; None where there are no graphs.
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
