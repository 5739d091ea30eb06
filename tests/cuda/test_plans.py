"""A small model's plan on the card: the same bits eagerly and as a replay, alone and 200 times, in
whatever order blocks and warps run and whichever of them is late."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.backends import EXHAUSTIVE, Backend, on_simulator
from support.card import Card, real_nvrtc
from support.plans import bits
from support.plans_kv import Cache

pytestmark = pytest.mark.thorough

TESTS = Path(__file__).resolve().parents[1]

# Eight rows, then one at a time: the widest kernels of a step and the captured one-row step.
DIGEST = """
import hashlib, json, sys
from support.backends import on_card
from support.plans_model import logits, runner, tokens

name, times, options = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
run = runner(on_card(name), "Q4_K", **options)
ids = tokens(80)
found = set()
for _ in range(times):
    parts = [logits(run, ids[:8])] + [logits(run, [ids[i]], i) for i in range(8, 12)]
    if name == "card":
        parts.append(logits(run, ids, whole=True))
    found.add(hashlib.sha256(b"".join(p.tobytes() for p in parts)).hexdigest())
print(*sorted(found))
"""


def digest(env: dict[str, str], name: str, times: int = 1, options: str = "{}") -> str:
    """Of the logits; of each that was seen where `times` runs differ."""
    done = subprocess.run(
        [sys.executable, "-c", DIGEST, name, str(times), options],
        env=env | {"PYTHONPATH": os.pathsep.join([str(TESTS), env.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "violation" not in done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def in_order(simulator: dict[str, str]) -> str:
    """Captured, with blocks, warps and lanes one after the other."""
    found = digest(simulator, "simulated")
    assert len(found) == 64
    return found


def test_eager_equals_the_replay(in_order: str, simulator: dict[str, str]) -> None:
    assert digest(simulator, "simulated", options='{"capture": false}') == in_order


@pytest.mark.parametrize("seed", range(1, 20 if EXHAUSTIVE else 3))
def test_any_order_of_blocks_and_warps_gives_the_same_bits(
    seed: int, in_order: str, simulator: dict[str, str]
) -> None:
    env = simulator | {"KSIM_SEED": str(seed)}
    assert digest(env, "simulated") == in_order


def test_early_successors_change_nothing(in_order: str, simulator: dict[str, str]) -> None:
    env = simulator | {"KSIM_PDL": "early", "KSIM_SEED": "5"}
    assert digest(env, "simulated") == in_order


def test_late_work_changes_nothing(in_order: str, simulator: dict[str, str]) -> None:
    """Nothing runs before something waits for it: the host reads no sooner than it may."""
    env = simulator | {"KSIM_LAZY": "1"}
    assert digest(env, "simulated") == in_order


def test_options_reach_the_compiler(
    ksim_env: dict[str, str], ksim_library_dir: Path, tmp_path: Path
) -> None:
    """The library that delays blocks on a card: here with a definition that no kernel survives."""
    broken = {
        "ONEGRAPH_NVRTC": str(ksim_library_dir / "libnvrtc_options.so"),
        "ONEGRAPH_CACHE_DIR": str(tmp_path),
        "NVRTC_LIBRARY": str(ksim_library_dir / "libnvrtc.so"),
        "NVRTC_OPTIONS": "-Dfloat=no_such_type",
    }
    with pytest.raises(AssertionError, match="no_such_type"):
        digest(ksim_env | broken, "simulated")


@pytest.mark.gpu
def test_two_hundred_runs_and_every_way_to_run_are_one(tmp_path: Path) -> None:
    env = dict(os.environ)
    found = digest(env, "card", times=200)
    assert len(found) == 64, "200 replays differ"
    for options in ('{"capture": false}', '{"pdl": false}', '{"capture": false, "pdl": false}'):
        assert digest(env, "card", options=options) == found, options


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(3))
def test_late_blocks_change_no_bit(
    seed: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """One block in eight sleeps before its stores."""
    nvrtc = real_nvrtc()
    if nvrtc is None:
        pytest.skip("pip install 'nvidia-cuda-nvrtc-cu12>=12.9', or set ONEGRAPH_TEST_NVRTC")
    library_dir: Path = request.getfixturevalue("ksim_library_dir")
    delayed = dict(os.environ) | {
        "ONEGRAPH_NVRTC": str(library_dir / "libnvrtc_options.so"),
        "ONEGRAPH_CACHE_DIR": str(tmp_path),
        "NVRTC_LIBRARY": str(nvrtc),
        "NVRTC_OPTIONS": f"-DONEGRAPH_DELAY_SEED={seed}",
    }
    assert digest(delayed, "card", times=20) == digest(dict(os.environ), "card")


@on_simulator
def test_tokens_take_no_memory(backend: Backend, request: pytest.FixtureRequest) -> None:
    """Graphs and memory are as many after thousands of tokens as after the first."""
    n = 10_000 if EXHAUSTIVE else 1_000
    cache = Cache(n_layer=1, n_slots=1, n_ctx=n, n_pages=-(-n // 64) + 1)
    run = cache.run(backend, mapped=True)
    card = Card(request.getfixturevalue("ksim_library_dir"))
    cache.feed(run, [0])
    before = {**card.live(), "bytes": card.stats()["allocation_bytes"]}
    row = cache.row(1)
    for position in range(1, n):
        run(row, positions=[position])
    assert {**card.live(), "bytes": card.stats()["allocation_bytes"]} == before
    assert before["execs"] == 1
    assert np.isfinite(cache.outs(run)).all() and bits(cache.outs(run)).any()
