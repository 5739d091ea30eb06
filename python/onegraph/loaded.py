"""What every part of an `LLM` stands on."""

from __future__ import annotations

import functools
import logging
import threading
from pathlib import Path
from typing import Literal

from onegraph import _native

__all__ = ["KvType", "Loaded"]

#: Encodings of keys and values: of every device, and of the CPU alone.
KvType = Literal["i16", "q8_0", "f32"]

#: A model that was trained for embeddings, to name one.
EMBEDDER = "qwen3-embedding:0.6b"

logger = logging.getLogger("onegraph")


class Loaded:
    """A model in memory."""

    _engine: _native.Engine
    _tokenizer: _native.Tokenizer
    _kv_type: KvType
    _unsaid_saturated: threading.Lock
    _unsaid_unpooled: threading.Lock

    @property
    def tokenizer(self) -> _native.Tokenizer:
        """The tokenizer of the model."""
        return self._tokenizer

    @functools.cached_property
    def path(self) -> Path:
        """The file in use; of a split model, the first shard."""
        return self._engine.path

    def _say_saturated(self) -> None:
        """Once a model: that keys or values were too large for its cache."""
        if self._engine.saturated_sequences and self._unsaid_saturated.acquire(blocking=False):
            logger.warning(
                "keys or values of a sequence are too large for a %s cache and were clamped. "
                'kv_type="i16" holds up to 1.1e15, and on the CPU "f32" holds all; '
                "LLM.saturated_sequences counts such sequences",
                self._kv_type,
            )

    def _say_unpooled(self) -> None:
        """Once a model: that its vectors say little, for it was not trained to make any."""
        if self._engine.looks_ahead:  # made for nothing else
            return
        if self._engine.pooling in (None, "none") and self._unsaid_unpooled.acquire(blocking=False):
            logger.warning(
                "%s was not trained for embeddings (its file names no pooling), so similar "
                "texts may have distant vectors; use a model that was, such as %s, or "
                'pass pooling="last", the default here, to silence this',
                self.path.name,
                EMBEDDER,
            )
