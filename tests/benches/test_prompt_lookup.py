"""The script that measures prompt lookup, on a few tokens."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

SCRIPT = Path(__file__).resolve().parents[2] / "benches" / "prompt_lookup.py"


def test_tasks_are_compared_and_recorded(tmp_path: Path, smollm2: Path) -> None:
    record = tmp_path / "record.json"
    few = ["--tokens", "80", "--length", "40", "--device", "cpu", "--record", str(record)]
    command = [sys.executable, str(SCRIPT), str(smollm2), *few]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    written = json.loads(record.read_text())
    tasks = written["tasks"]
    assert [task["tokens"] for task in tasks] == [task["equal"] for task in tasks] == [40, 40]
    assert all(task["drafted"] >= task["accepted"] > 0 for task in tasks)
    assert {task["temperature"] for task in tasks} == {0.0, 0.5}
    line = done.stdout.splitlines()[-1]
    assert line.startswith("| all | 80 | 80 |") and len(done.stdout.splitlines()) == 5
