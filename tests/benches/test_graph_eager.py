"""The benchmark of graphs against eager runs, on the simulated card: its rates mean nothing there,
its table and record are what a real card gives."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

SCRIPT = Path(__file__).resolve().parents[2] / "benches" / "graph_eager.py"


def test_the_table_and_the_record(ksim_env: dict[str, str], tmp_path: Path) -> None:
    record, chart = tmp_path / "record.json", tmp_path / "chart.svg"
    options = ["tiny-llama", "--tokens", "6", "--rounds", "2", "--record", record]
    options += ["--sequences", "3,1", "--chart", chart]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, options)],
        env=ksim_env | {"ONEGRAPH_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(record.read_text())
    assert found["card"].startswith("Simulated") and found["driver"] and found["tokens"] == 6
    assert [row["sequences"] for row in found["rows"]] == [1, 3]
    for row in found["rows"]:
        assert row["model"] == "tiny-llama" and row["mix"] == "Q4_K_M"
        assert {mode: len(rates) for mode, rates in row["rates"].items()} == {
            "full": 2,
            "piecewise": 2,
            "none": 2,
        }
        assert all(rate > 0 for rate in row["median"].values())
    line = done.stdout.splitlines()[-1]
    assert line.startswith("| tiny-llama Q4_K_M | 3 | ")
    assert float(line.split("|")[-2]) > 0
    assert "<svg" in chart.read_text()
