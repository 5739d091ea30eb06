"""Runs quantized GGUF language models with the whole decode step captured as one CUDA graph."""

from onegraph._native import __version__
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
    "__version__",
]
