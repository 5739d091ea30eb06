"""Servers: of the real model where text matters, of a tiny one where it does not."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from onegraph import LLM
from onegraph.server import asgi
from support import browsing, calls, scripted
from support.serving import Served, serving


@pytest.fixture(scope="module")
def served(llm: LLM) -> Iterator[Served]:
    """The tiny model."""
    with serving(asgi({"tiny": llm})) as served:
        yield served


@pytest.fixture(scope="module")
def smol(smollm2: Path) -> Iterator[LLM]:
    with LLM(smollm2, device="cpu", n_ctx=1024, max_batch=4) as llm:
        yield llm


@pytest.fixture(scope="module")
def smol_served(smol: LLM) -> Iterator[Served]:
    """The real model."""
    with serving(asgi({"smollm2": smol})) as served:
        yield served


@pytest.fixture(scope="module")
def adder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[calls.Scripted]:
    """A model that thinks, calls a function, and then says what it gave."""
    path = tmp_path_factory.mktemp("scripted") / "adder.gguf"
    scripted.write(path, calls.ANSWERS, template=calls.TEMPLATE)
    with calls.Recorded(path, device="cpu", max_batch=4) as llm:
        llm.prompts = []
        with serving(asgi({"adder": llm})) as served:
            yield calls.Scripted(llm, served)


@pytest.fixture(scope="session")
def downloads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("downloads")


@pytest.fixture(scope="session")
def browser(downloads: Path) -> Iterator[Any]:
    yield from browsing.started(str(downloads))
