"""The script that judges JSON schemas, by the official suite and by random schemas."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

SCRIPT = Path(__file__).resolve().parents[2] / "benches" / "json_schema.py"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_no_answer_to_a_random_schema_is_invalid(tiny: Path) -> None:
    done = run(tiny, "--answers", 600, "--seed", 11)
    assert done.returncode == 0, done.stderr
    valid, cut, invalid = (int(part.split()[0]) for part in done.stdout.split(", "))
    assert (valid + cut, invalid) == (600, 0) and cut < 30


def test_every_schema_of_the_suite_is_held_to_or_refused(tiny: Path, tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    done = run(tiny, "--record", record)
    if "cannot be fetched" in done.stderr:
        pytest.skip("the package index, where the suite is, cannot be reached")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    rows = json.loads(record.read_text())["rows"]
    for row in rows:
        assert row["refused"] == sum(row["reasons"].values()) <= row["schemas"]
        assert (row["invalid_given"], row["wrong"]) == (0, [])
        assert row["valid_given"] <= row["valid"]
    schemas, refused, valid, given, invalid = (
        sum(row[key] for row in rows)
        for key in ("schemas", "refused", "valid", "valid_given", "invalid")
    )
    assert (schemas, refused) == (368, 184)
    assert given > 0.9 * valid > 400 and invalid > 240
