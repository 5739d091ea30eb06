"""CUDA graphs of an `LLM`: what is captured, and what it says of them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal

from onegraph import _native, arguments, foreign

__all__ = [
    "CapturedStep",
    "GraphKernel",
    "GraphMode",
    "GraphOptions",
    "GraphProfile",
    "GraphStats",
    "GraphVerification",
    "StepCheck",
    "check_text",
]

#: What of a decode step is captured: see `GraphOptions`.
GraphMode = Literal["full", "piecewise", "full_and_piecewise", "none"]


def check_text() -> str:
    """The fixed text that models are checked on: prose and code, some 1,200 tokens."""
    return resources.files("onegraph").joinpath("check.txt").read_text(encoding="utf-8")


@foreign.options
@dataclass(frozen=True, kw_only=True)
class GraphOptions:
    """Which decode steps are captured, and how they run: the `graph` of `LLM`. Without effect on
    the CPU.

    Raises `ArgumentError` for a value of the wrong form and an unknown mode; sizes are checked at
    loading.
    """

    #: "full" captures a decode step as one graph; "piecewise" as graphs between its attentions,
    #: which are launched by themselves; "full_and_piecewise" as one graph up to the largest size
    #: and in pieces above it; "none" launches every kernel by itself.
    mode: GraphMode = "full"
    #: Batch sizes to capture; None takes powers of two, then steps.
    batch_sizes: Sequence[int] | None = None
    #: The largest size to capture; None takes the `max_batch` of the model.
    max_batch: int | None = None
    #: Round a batch up to a captured size by rows that change nothing; without, a batch of another
    #: size is launched kernel by kernel.
    padding: bool = True
    #: Programmatic dependent launch; None uses it where the card has it.
    pdl: bool | None = None

    def __post_init__(self) -> None:
        _native.check_graph_mode(arguments.word("graph.mode", self.mode))
        arguments.flag("graph.padding", self.padding)
        if self.batch_sizes is not None:  # a copy: what the caller changes later is not checked
            sizes = tuple(arguments.integers("graph.batch_sizes", self.batch_sizes))
            object.__setattr__(self, "batch_sizes", sizes)
        if self.max_batch is not None:
            arguments.integer("graph.max_batch", self.max_batch)
        if self.pdl is not None:
            arguments.flag("graph.pdl", self.pdl)


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

    #: The `GraphOptions.mode` of the model.
    mode: GraphMode
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
        return cls.of(json.loads(text))

    @classmethod
    def of(cls, figures: dict[str, Any]) -> GraphStats:
        """The figures as the engine writes them, read from JSON."""
        figures = dict(figures)
        captured = [CapturedStep(**step) for step in figures.pop("captured")]
        return cls(captured=captured, missed=dict(figures.pop("missed")), **figures)


@dataclass(frozen=True)
class StepCheck:
    """How a captured decode step compares with the same step launched kernel by kernel."""

    kind: Literal["full", "piecewise"]
    #: Rows of the step, and those of them that had a sequence; the others were padding.
    batch_size: int
    sequences: int
    #: Steps compared, one a token.
    steps: int
    #: Logits compared, and those too far from the eager ones.
    logits: int
    logits_wrong: int
    #: Largest distance of a logit; infinite where one of a pair is not a number.
    max_difference: float
    #: Bytes of keys and values compared, and those that differ.
    kv_bytes: int
    kv_bytes_wrong: int
    #: Steps after which the drawn token, the position or the finished flag of a sequence differ.
    states_wrong: int
    #: Whether all is as it was asked to be.
    ok: bool


@dataclass(frozen=True)
class GraphVerification:
    """What `LLM.verify_graph` found."""

    steps: list[StepCheck]

    @property
    def ok(self) -> bool:
        """Whether every captured step gave what the eager one gave."""
        return all(step.ok for step in self.steps)

    @classmethod
    def from_json(cls, text: str) -> GraphVerification:
        """The findings as the engine writes them."""
        # JSON has no infinity: a distance from what is not a number comes as null.
        found = json.loads(text)
        for step in found:
            if step["max_difference"] is None:
                step["max_difference"] = math.inf
        return cls([StepCheck(**step) for step in found])


@dataclass(frozen=True)
class Moment:
    """A moment of a kernel's blocks in a replay: microseconds from the first stamp of the step."""

    #: "begun"; "asked": the first weights, keys or values were; "waited": the preceding kernel has
    #: ended; "ready": activations are there; "summed": the block's own sums are; "ended".
    name: str
    #: Of the first block that came to it, the middle one, and the last.
    first: float
    median: float
    last: float


@dataclass(frozen=True)
class KernelStamps:
    """When the blocks of a kernel came to which moment of a replay."""

    #: SMs that had a block of it, and those that had several.
    sms: int
    crowded: int
    #: In their order; those that the kernel has.
    moments: list[Moment]

    def at(self, name: str) -> Moment | None:
        """The moment of that name, where the kernel has it."""
        return next((moment for moment in self.moments if moment.name == name), None)

    @classmethod
    def from_figures(cls, figures: dict[str, Any] | None) -> KernelStamps | None:
        """The figures as the engine writes them; None where there are none."""
        if figures is None:
            return None
        moments = [Moment(**moment) for moment in figures["moments"]]
        return cls(figures["sms"], figures["crowded"], moments)


@dataclass(frozen=True)
class GraphKernel:
    """One kernel of a captured step, or of a prompt's passes."""

    #: Its kind: the name in the source.
    kernel: str
    #: Kind and what it works on.
    label: str
    #: Time from the end of its predecessor, launched by itself; microseconds.
    us: float
    #: Bytes of weights that it reads.
    bytes: int
    #: All bytes that it has to read and write: weights, keys and values, rows of activations.
    moved: int
    #: Operations of products, attention and recurrences: two of a multiplication and its addition.
    operations: int
    grid: tuple[int, int, int]
    #: Threads a block, and bytes of dynamic shared memory.
    block: int
    shared: int
    #: Where they were asked for.
    stamps: KernelStamps | None = None


@dataclass(frozen=True)
class GraphProfile:
    """What a captured decode step, or the passes of a prompt, consist of, and how long their parts
    take by the card's clock."""

    device: str
    kind: Literal["full", "piecewise", "eager"]
    #: Rows of the step; of a prompt 1, and its tokens, 0 of a step.
    batch_size: int
    prompt: int
    #: Tokens of each sequence before.
    position: int
    graphs: int
    #: Of all graphs.
    nodes: int
    edges: int
    #: Edges across which the successor may start early.
    programmatic_edges: int
    #: Kernels, whether in a graph or not.
    launches: int
    #: All of it replayed, and launched kernel by kernel; microseconds.
    replay_us: float
    eager_us: float
    #: A kernel that does nothing, launched by itself: what of a kernel's time is its start and end.
    #: In a replay the ends of kernels and the starts of those behind them overlap.
    boundary_us: float
    #: Gigabytes (1e9 bytes) a second that a kernel reads that does nothing else.
    read_peak_gb_s: float
    #: 1e12 operations a second of a kernel that only multiplies float16.
    multiply_peak_tflop_s: float
    #: In their order.
    kernels: list[GraphKernel]

    @property
    def bytes(self) -> int:
        """Bytes of weights that are read."""
        return sum(k.bytes for k in self.kernels)

    @property
    def operations(self) -> int:
        """Operations of products, attention and recurrences."""
        return sum(k.operations for k in self.kernels)

    @classmethod
    def from_json(cls, text: str) -> GraphProfile:
        """The figures as the engine writes them."""
        figures = json.loads(text)
        kernels = [
            GraphKernel(
                **{
                    **kernel,
                    "grid": tuple(kernel["grid"]),
                    "stamps": KernelStamps.from_figures(kernel["stamps"]),
                }
            )
            for kernel in figures.pop("kernels")
        ]
        return cls(kernels=kernels, **figures)
