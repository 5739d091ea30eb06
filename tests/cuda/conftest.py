"""A model for a card, and ways to run lines on one: simulated, or real with `pytest -m gpu`."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.backends import ON_CARD
from support.card_process import OnCard, run_on

COMPILED = """
with onegraph.LLM(path, device="cuda", n_ctx=256, max_batch=4, kv_type=given["kv_type"]) as llm:
    for n in (1, 2, 4, 8, 24):
        llm.generate([3] * n, max_tokens=2, ignore_eos=True, temperature=0)
    llm.generate([[3] * n for n in (2, 4, 8)], max_tokens=2, ignore_eos=True, logprobs=1)
    llm.logits(list(range(3, 76)))
"""

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


@pytest.fixture(scope="session")
def simulator(
    ksim_env: dict[str, str], kernel_cache: dict[str, str], tiny_llama: Path
) -> dict[str, str]:
    """The environment of the simulated card, for which most kernels of `tiny_llama` are compiled:
    once for all workers of a run, and before the first test that would wait for it."""
    env = ksim_env | kernel_cache
    with (Path(env["KSIM_CACHE"]) / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for kv_type in ("i16", "q8_0"):
            run_on(tiny_llama, env, COMPILED, kv_type=kv_type)
    return env


@pytest.fixture
def simulated(simulator: dict[str, str], tiny_llama: Path) -> OnCard:
    """Runs lines on the simulated card; `env` adds to its environment."""

    def run(
        body: str, *, path: Path = tiny_llama, env: dict[str, str] | None = None, **given: Any
    ) -> dict[str, Any]:
        return run_on(path, simulator | (env or {}), body, **given)

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
