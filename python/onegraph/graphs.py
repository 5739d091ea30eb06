"""CUDA graphs of an `LLM`: options and reports."""

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
    """Which decode steps are captured, and how they run: the `graph` option of `LLM`. It has no
    effect on the CPU.

    Raises `ArgumentError` for a value of the wrong form or an unknown mode; sizes are checked at
    load.
    """

    #: "full" captures a decode step as one graph; "piecewise" as graphs between its attention
    #: kernels, which are launched separately; "full_and_piecewise" as one graph up to the largest
    #: size and piecewise above it; "none" launches every kernel separately.
    mode: GraphMode = "full"
    #: Batch sizes to capture; None takes powers of two, then steps.
    batch_sizes: Sequence[int] | None = None
    #: The largest size to capture; None takes the `max_batch` of the model.
    max_batch: int | None = None
    #: Round a batch up to a captured size with padding rows; if False, a batch of another size is
    #: launched kernel by kernel.
    padding: bool = True
    #: Programmatic dependent launch; None uses it if the card supports it.
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
    """A captured decode step."""

    kind: Literal["full", "piecewise"]
    #: Rows of the step.
    batch_size: int
    #: Its graphs, and the kernels in them.
    graphs: int
    nodes: int
    #: Time of the capture, including warm-up and compilation.
    seconds: float
    #: Device memory that the driver allocated for it.
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
    #: Decode steps that were a single replay, replays in pieces, or launched kernel by kernel.
    full: int
    piecewise: int
    eager: int
    #: For eager steps, how many missed each condition of a replay.
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
    #: Rows of the step, and how many of them had a sequence; the others were padding.
    batch_size: int
    sequences: int
    #: Steps compared, one per token.
    steps: int
    #: Logits compared, and those too far from the eager ones.
    logits: int
    logits_wrong: int
    #: Largest difference of a logit; infinite if one of the two is NaN.
    max_difference: float
    #: Bytes of keys and values compared, and those that differ.
    kv_bytes: int
    kv_bytes_wrong: int
    #: Steps after which the drawn token, the position or the finished flag of a sequence differ.
    states_wrong: int
    #: Whether everything is within its limits.
    ok: bool


@dataclass(frozen=True)
class GraphVerification:
    """What `LLM.verify_graph` found."""

    steps: list[StepCheck]

    @property
    def ok(self) -> bool:
        """Whether every captured step gave the same as the eager one."""
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
    """A point in a kernel's blocks during a replay: microseconds from the step's first stamp."""

    #: "begun"; "asked": the first weights, keys or values were requested; "waited": the preceding
    #: kernel has ended; "ready": activations are loaded; "summed": the block's own sums are done;
    #: "ended".
    name: str
    #: When the first block reached it, the median block, and the last.
    first: float
    median: float
    last: float


@dataclass(frozen=True)
class KernelStamps:
    """When the blocks of a kernel reached each point of a replay."""

    #: SMs that had one of its blocks, and those that had several.
    sms: int
    crowded: int
    #: In order; only those that the kernel has.
    moments: list[Moment]

    def at(self, name: str) -> Moment | None:
        """The moment of that name, if the kernel has it."""
        return next((moment for moment in self.moments if moment.name == name), None)

    @classmethod
    def from_figures(cls, figures: dict[str, Any] | None) -> KernelStamps | None:
        """The figures as the engine writes them, if any."""
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
    #: Time from the end of its predecessor, when launched separately; microseconds.
    us: float
    #: Bytes of weights that it reads.
    bytes: int
    #: All bytes that it must read and write: weights, keys and values, rows of activations.
    moved: int
    #: Operations of products, attention and recurrences; a multiply-add counts as two.
    operations: int
    grid: tuple[int, int, int]
    #: Threads per block, and bytes of dynamic shared memory.
    block: int
    shared: int
    #: If requested.
    stamps: KernelStamps | None = None


@dataclass(frozen=True)
class GraphProfile:
    """The parts of a captured decode step, or of the passes of a prompt, and their times by the
    GPU's clock."""

    device: str
    kind: Literal["full", "piecewise", "eager"]
    #: Rows of the step, or 1 for a prompt; and the prompt's tokens, or 0 for a step.
    batch_size: int
    prompt: int
    #: Earlier tokens of each sequence.
    position: int
    graphs: int
    #: In all graphs.
    nodes: int
    edges: int
    #: Edges across which the successor may start early.
    programmatic_edges: int
    #: Kernels, whether in a graph or not.
    launches: int
    #: All of it replayed, and launched kernel by kernel; microseconds.
    replay_us: float
    eager_us: float
    #: An empty kernel, launched separately: the share of a kernel's time that is its start and end.
    #: In a replay, the end of a kernel overlaps with the start of the next.
    boundary_us: float
    #: Gigabytes (1e9 bytes) per second of a kernel that only reads.
    read_peak_gb_s: float
    #: 1e12 operations per second of a kernel that only multiplies float16.
    multiply_peak_tflop_s: float
    #: In order.
    kernels: list[GraphKernel]

    @property
    def bytes(self) -> int:
        """Bytes of weights read."""
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
