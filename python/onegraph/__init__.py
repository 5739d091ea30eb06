"""Runs quantized GGUF language models with the whole decode step captured as one CUDA graph."""

from onegraph import _interpreter as _interpreter  # before anything of the process's is touched
from onegraph._native import ChatTemplate, Rendering, StreamDecoder, Tokenizer, __version__
from onegraph.answers import (
    InvalidToolCall,
    ReasoningDelta,
    TextDelta,
    ToolCall,
    ToolCallBegun,
    ToolCallDelta,
    ToolCallEnded,
    ToolCallFailed,
)
from onegraph.errors import (
    ArgumentError,
    CancelledError,
    ClosedError,
    ContextError,
    DeviceError,
    Error,
    FileError,
    InternalError,
    ModelError,
    OutOfMemoryError,
)
from onegraph.graphs import (
    CapturedStep,
    GraphKernel,
    GraphProfile,
    GraphStats,
    GraphVerification,
    StepCheck,
)
from onegraph.llm import LLM
from onegraph.results import Piece, Result, Timings, TokenLogprob, TopLogprob, Usage
from onegraph.sampling import Sampling, SamplingOptions
from onegraph.server import asgi
from onegraph.stats import Places, Stats
from onegraph.streams import AsyncStream, Stream

__all__ = [
    "LLM",
    "ArgumentError",
    "AsyncStream",
    "CancelledError",
    "CapturedStep",
    "ChatTemplate",
    "ClosedError",
    "ContextError",
    "DeviceError",
    "Error",
    "FileError",
    "GraphKernel",
    "GraphProfile",
    "GraphStats",
    "GraphVerification",
    "InternalError",
    "InvalidToolCall",
    "ModelError",
    "OutOfMemoryError",
    "Piece",
    "Places",
    "ReasoningDelta",
    "Rendering",
    "Result",
    "Sampling",
    "SamplingOptions",
    "Stats",
    "StepCheck",
    "Stream",
    "StreamDecoder",
    "TextDelta",
    "Timings",
    "TokenLogprob",
    "Tokenizer",
    "ToolCall",
    "ToolCallBegun",
    "ToolCallDelta",
    "ToolCallEnded",
    "ToolCallFailed",
    "TopLogprob",
    "Usage",
    "__version__",
    "asgi",
]
