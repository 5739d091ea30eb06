"""A model for a card, and a process that runs on one: simulated, or real with `pytest -m gpu`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]

#: Runs lines of Python with `onegraph`, `path` and `given`; what they put into `out` comes back.
OnCard = Callable[..., dict[str, Any]]

PRELUDE = """
import json, sys
import numpy as np
import onegraph
path, given, out = sys.argv[1], json.loads(sys.argv[2]), {}
"""


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shapes") / "tiny-llama.gguf"
    command = [sys.executable, "models/synth.py", "tiny-llama", "--mix", "Q4_K_M", "-o", path]
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
    return path


def require_card() -> None:
    """Skips where there is no card."""
    if not Path("/dev/nvidia0").exists():
        pytest.skip("no NVIDIA card; `pytest -m gpu tests/cuda` on a machine with one runs this")


def run_on(path: Path, environment: dict[str, str], body: str, **given: Any) -> dict[str, Any]:
    """Runs `body` in a process of its own: the driver that it finds first is the one it keeps."""
    code = PRELUDE + textwrap.dedent(body) + "\nprint(json.dumps(out))\n"
    done = subprocess.run(
        [sys.executable, "-c", code, str(path), json.dumps(given)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


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
    require_card()

    def run(body: str, *, path: Path = tiny_llama, **given: Any) -> dict[str, Any]:
        return run_on(path, dict(os.environ), body, real=True, **given)

    return run


@pytest.fixture(params=["simulated", pytest.param("card", marks=pytest.mark.gpu)])
def on_card(request: pytest.FixtureRequest) -> OnCard:
    """Runs lines on the simulated card, and on a real one; `given["real"]` says which."""
    if request.param == "simulated":
        simulated: OnCard = request.getfixturevalue("simulated")
        return lambda body, **given: simulated(body, real=False, **given)
    real: OnCard = request.getfixturevalue("real_card")
    return real
