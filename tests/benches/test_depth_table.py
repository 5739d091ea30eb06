"""The script behind the tables at depth and of many sequences, on a model of a test's size."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

SCRIPT = Path(__file__).resolve().parents[2] / "benches" / "depth_table.py"
SMALL = ["--device", "cpu", "--models", "tiny-llama:Q4_K_M", "-p", "16", "-n", "8", "-r", "2"]
SMALL += ["--depths", "0,16", "--prompt-depths", "16", "--sequences", "2", "--held", "8"]

#: What llama-batched-bench prints of two sequences.
BATCHED = """#!/bin/sh
echo "$@" > "$0.asked"
echo "main: n_kv_max = 48"
echo "| PP | TG | B | N_KV | T_PP s | S_PP t/s | T_TG s | S_TG t/s | T s | S t/s |"
echo "|----|----|---|------|--------|----------|--------|----------|-----|-------|"
echo "| 16 |  8 | 2 |   48 |  0.004 |  8000.00 |  0.010 |  1600.00 | 0.014 | 3428.57 |"
"""


def run(*args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_a_table_is_what_its_record_says(tmp_path: Path) -> None:
    record, batched, absent = (tmp_path / name for name in ("depth.json", "batched", "llama-bench"))
    batched.write_text(BATCHED)
    batched.chmod(0o755)
    programs = ["--llama-bench", absent, "--llama-batched-bench", batched]
    done = run(*SMALL, *programs, "--record", record, "--folder", tmp_path)
    # What failed is in the record and below the table; the rest is measured.
    assert done.returncode == 1, done.stderr
    found = json.loads(record.read_text())["models"]["tiny-llama:Q4_K_M"]
    assert len(found["failures"]) == 1 and str(absent) in found["failures"][0]
    ours = found["onegraph"]
    tests = ["step behind 0", "step behind 16", "prompt behind 16", "2 sequences"]
    assert set(tests) <= set(ours)
    # Twice, before and after the others.
    assert all(len(ours[test]) == 4 and min(ours[test]) > 0 for test in tests)
    assert found["llama.cpp"] == {"2 sequences": [1600.0]}
    assert "-npp 16 -ntg 8 -npl 2 -c 48" in batched.with_suffix(".asked").read_text()
    shown = run("--show", record)
    assert shown.stdout == done.stdout
    lines = done.stdout.splitlines()
    assert [cell.strip() for cell in lines[0].strip("|").split("|")] == ["tokens/s", *tests]
    assert any(line.startswith("| tiny-llama:Q4_K_M, llama.cpp ") for line in lines)
    ratio = next(line for line in lines if line.startswith("| ratio"))
    assert ratio.rstrip("| ").split("|")[-1].strip().replace(".", "").isdigit()
    assert list(tmp_path.glob("**/*.gguf")) == []


def test_no_model_is_started_behind_the_time_limit(tmp_path: Path) -> None:
    record = tmp_path / "depth.json"
    done = run(*SMALL, "--seconds", "-1", "--record", record)
    assert done.returncode == 1
    failures = json.loads(record.read_text())["models"]["tiny-llama:Q4_K_M"]["failures"]
    assert failures == ["not run: -1 s were over"]
