"""What an `LLM` says of its CUDA graphs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

__all__ = ["CapturedStep", "GraphStats"]


@dataclass(frozen=True)
class CapturedStep:
    """A decode step that was captured."""

    kind: Literal["full", "piecewise"]
    #: Rows of the step.
    batch_size: int
    #: Graphs that it consists of, and the kernels in them.
    graphs: int
    nodes: int
    #: What capture took, warm-up and compilation included.
    seconds: float
    #: Device memory that the driver took for it.
    bytes: int


@dataclass(frozen=True)
class GraphStats:
    """What was captured, and how decode steps ran so far."""

    #: The `cuda_graph` of the model.
    mode: str
    #: Sizes that a batch is rounded up to.
    batch_sizes: list[int]
    #: In the order of capture.
    captured: list[CapturedStep]
    #: Decode steps that were one replay, replays in pieces, or launched kernel by kernel.
    full: int
    piecewise: int
    eager: int
    #: Of the eager steps, how many missed each condition of a replay.
    missed: dict[str, int]

    @classmethod
    def from_json(cls, text: str) -> GraphStats:
        """The figures as the engine writes them."""
        figures = json.loads(text)
        captured = [CapturedStep(**step) for step in figures.pop("captured")]
        return cls(captured=captured, missed=dict(figures.pop("missed")), **figures)
