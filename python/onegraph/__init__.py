"""Runs quantized GGUF language models with the whole decode step captured as one CUDA graph."""

from onegraph._native import StreamDecoder, Tokenizer, __version__
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

__all__ = [
    "ArgumentError",
    "CancelledError",
    "ClosedError",
    "ContextError",
    "DeviceError",
    "Error",
    "FileError",
    "InternalError",
    "ModelError",
    "OutOfMemoryError",
    "StreamDecoder",
    "Tokenizer",
    "__version__",
]
