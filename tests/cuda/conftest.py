"""A model for a card, and ways to run lines on one: simulated, or real with `pytest -m gpu`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.backends import ON_CARD
from support.card_process import OnCard, run_on

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shapes") / "tiny-llama.gguf"
    command = [sys.executable, "models/synth.py", "tiny-llama", "--mix", "Q4_K_M", "-o", path]
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
    return path


@pytest.fixture(scope="session")
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Compiled kernels of the simulator, or of a test, are not the user's."""
    return {"ONEGRAPH_CACHE_DIR": str(tmp_path_factory.mktemp("kernels"))}


@pytest.fixture
def simulated(ksim_env: dict[str, str], kernel_cache: dict[str, str], tiny_llama: Path) -> OnCard:
    """Runs lines on the simulated card; `env` adds to its environment."""

    def run(
        body: str, *, path: Path = tiny_llama, env: dict[str, str] | None = None, **given: Any
    ) -> dict[str, Any]:
        return run_on(path, ksim_env | kernel_cache | (env or {}), body, **given)

    return run


@pytest.fixture
def real_card(tiny_llama: Path) -> OnCard:
    """Runs lines on a real card."""

    def run(body: str, *, path: Path = tiny_llama, **given: Any) -> dict[str, Any]:
        return run_on(path, dict(os.environ), body, real=True, **given)

    return run


@pytest.fixture(params=["simulated", *ON_CARD])
def on_card(request: pytest.FixtureRequest) -> OnCard:
    """Runs lines on the simulated card, and on a real one; `given["real"]` says which."""
    if request.param == "simulated":
        simulated: OnCard = request.getfixturevalue("simulated")
        return lambda body, **given: simulated(body, real=False, **given)
    real: OnCard = request.getfixturevalue("real_card")
    return real
