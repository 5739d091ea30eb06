"""The tuner of the table of shapes, on the simulated card: its choices mean nothing there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benches" / "tune.py"


def test_candidates_are_timed_and_the_row_is_written(
    ksim_env: dict[str, str], tmp_path: Path
) -> None:
    model = tmp_path / "tiny.gguf"
    command = [sys.executable, "models/synth.py", "tiny-llama", "-o", str(model)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    row, record = tmp_path / "row.json", tmp_path / "record.json"
    options = ["--batch-sizes", "1", "--prompts", "9", "--position", "8"]
    options += ["--repeats", "1", "--rounds", "1", "--least", "100"]
    # One that no card has room for is no candidate.
    options += ["--knobs", "matvec.light_warps=4", "--knobs", "matmul.ring=2,0"]
    env = ksim_env | {"ONEGRAPH_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(model), *options, "--output", row, "--record", record],
        env=env,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(row.read_text())
    assert found["card"].startswith("Simulated") and found["record"].startswith("shapes_simulated")
    (table,) = json.loads((ROOT / "rust/engine/src/backend/cuda/lower/shapes.json").read_text())
    own = {"card", "compute", "sm_count", "record"}
    assert {k: v for k, v in found.items() if k not in own} == {
        k: v for k, v in table.items() if k not in own
    }, "a change is worth 100% here, which none is"
    told = json.loads(record.read_text())
    assert told["card"] == found["card"] and told["driver"]
    compared = {one["of"]: one for one in told["comparisons"]}
    assert set(compared["matvec.light_warps"]["values"]) == {"4", "8"}
    assert set(compared["matmul.ring"]["values"]) == {"2", "4"}
    assert compared["matmul.ring"]["chose"] == "4"
    assert all(us > 0 for one in compared.values() for us in one["values"]["4"])
    # The row is one that the engine takes.
    command = [sys.executable, "-m", "onegraph", "info", "--devices"]
    said = subprocess.run(
        command, env=env | {"ONEGRAPH_SHAPES": str(row)}, capture_output=True, text=True
    )
    assert f"those of {found['card']}" in " ".join(said.stdout.split())
