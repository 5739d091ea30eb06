"""Loaded models: a tiny synthetic one where speed matters, the real one where meaning does."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from onegraph import LLM


@pytest.fixture(scope="module")
def smol(smollm2: Path) -> Iterator[LLM]:
    with LLM(smollm2, device="cpu", n_ctx=2048, max_batch=4) as llm:
        yield llm
