"""Runs quantized GGUF language models with the whole decode step captured as one CUDA graph."""

from typing import TYPE_CHECKING

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
from onegraph.graphs import GraphOptions
from onegraph.llm import LLM
from onegraph.results import Piece, Result
from onegraph.sampling import Sampling, SamplingOptions
from onegraph.server import asgi
from onegraph.stats import Stats
from onegraph.streams import AsyncStream, Stream

__all__ = [
    "LLM",
    "ArgumentError",
    "AsyncStream",
    "CancelledError",
    "ChatTemplate",
    "ClosedError",
    "ContextError",
    "DeviceError",
    "Error",
    "FileError",
    "GraphOptions",
    "InternalError",
    "InvalidToolCall",
    "ModelError",
    "OutOfMemoryError",
    "Piece",
    "ReasoningDelta",
    "Rendering",
    "Result",
    "Sampling",
    "SamplingOptions",
    "Stats",
    "Stream",
    "StreamDecoder",
    "TextDelta",
    "Tokenizer",
    "ToolCall",
    "ToolCallBegun",
    "ToolCallDelta",
    "ToolCallEnded",
    "ToolCallFailed",
    "__version__",
    "asgi",
]

if not TYPE_CHECKING:  # a type checker knows what there is

    def __getattr__(name):
        for module in ("graphs", "results", "stats"):
            if name in globals()[module].__all__:
                said = f"it is onegraph.{module}.{name}"
                break
        else:
            answer = globals()["foreign"].answer
            said = None if name.startswith("_") else answer(name, is_keyword=False)
        text = f"module 'onegraph' has no attribute {name!r}" + (f": {said}" if said else "")
        raise AttributeError(text, name=name)
