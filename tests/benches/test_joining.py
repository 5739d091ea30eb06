"""The benches of sequences that wait for others and of texts that are held to a form, on the CPU:
their tables and records are what a card gives, their rates are not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.thorough

BENCHES = Path(__file__).resolve().parents[2] / "benches"


def run(tmp_path: Path, script: str, *options: str) -> tuple[list[str], dict[str, Any]]:
    """Lines and record of a script on a tiny model, which it makes."""
    record = tmp_path / "record.json"
    model = [str(tmp_path / "tiny.gguf"), "--shape", "tiny-llama", "--device", "cpu"]
    done = subprocess.run(
        [sys.executable, str(BENCHES / script), *model, *options, "--record", str(record)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), json.loads(record.read_text())


def test_a_long_prompt_that_arrives(tmp_path: Path) -> None:
    options = ["--prompt", "200", "--before", "12", "-r", "2", "--sequences", "3"]
    lines, record = run(tmp_path, "joining.py", *options)
    assert len(record["rounds"]) == 2 and record["machine"]["cpu"]
    for each in record["rounds"]:
        assert each["alone"] > 0 and each["joined"] > 0
        assert all(0 <= each[name][0] <= each[name][1] for name in ("before", "while"))
    longest = max(each["while"][1] for each in record["rounds"])
    (row,) = (line for line in lines if line.startswith("| while 200 are read | "))
    assert row.endswith(f"| {longest * 1e3:.1f} |")
    assert lines[-1].startswith("first token: ")


def test_what_a_form_costs(tmp_path: Path) -> None:
    lines, record = run(tmp_path, "constrained.py", "--sequences", "2,1", "-n", "24", "-r", "2")
    assert [row["sequences"] for row in record["rows"]] == [1, 2]
    for line, row in zip(lines[-2:], record["rows"], strict=True):
        assert len(row["ratios"]) == 2 and row["free"] > 0 and row["held"] > 0
        assert line.startswith(f"| {row['sequences']} | ") and f" {row['ratio']:.3f} (" in line
