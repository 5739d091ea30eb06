"""Runs quantized GGUF language models with the whole decode step captured as one CUDA graph."""

from onegraph._native import __version__

__all__ = ["__version__"]
