"""Runs quantized GGUF language models with the whole decode step captured as one CUDA graph."""

from onegraph._native import ChatTemplate, Rendering, StreamDecoder, Tokenizer, __version__
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
from onegraph.llm import LLM, Stream
from onegraph.results import Piece, Result, Timings, TokenLogprob, Usage

__all__ = [
    "LLM",
    "ArgumentError",
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
    "ModelError",
    "OutOfMemoryError",
    "Piece",
    "Rendering",
    "Result",
    "StepCheck",
    "Stream",
    "StreamDecoder",
    "Timings",
    "TokenLogprob",
    "Tokenizer",
    "Usage",
    "__version__",
]
