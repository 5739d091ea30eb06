"""`benches/speculation.py`: its rows are what was asked for, and drafts change no text; its rates
are not judged."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benches" / "speculation.py"
RECORD = ROOT / "benches" / "records" / "speculation_h200.json"
PAGE = ROOT / "python" / "onegraph" / "pages" / "speculation.md"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("mode", "given"),
    [
        ("mtp:2", ["tiny-qwen35"]),
        ("draft:2", ["tiny-llama-gqa", "--draft", "tiny-llama-gqa"]),
    ],
)
def test_a_run_has_a_row_a_case_and_equal_texts(
    tmp_path: Path, mode: str, given: list[str]
) -> None:
    record = tmp_path / "out.json"
    command = [sys.executable, SCRIPT, *given, "--mix", "Q8_0", "--device", "cpu"]
    command += ["--modes", mode, "--depths", "0", "--sequences", "1", "2", "--length", "40"]
    command += ["--repeats", "1", "--folder", tmp_path, "--record", record]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    rows = json.loads(record.read_text())["rows"]
    cases = [(row["drafts"], row["sequences"]) for row in rows]
    assert cases == [("off", 1), ("off", 2), (mode, 1), (mode, 2)]
    assert all(row["equal"] for row in rows)
    assert [row["tokens_a_round"] > 1.5 for row in rows] == [False, False, True, True]
    assert len(done.stdout.splitlines()) == 2 + len(rows)


def test_the_pages_table_is_the_record() -> None:
    table = re.findall(r"^\|.*\|$", PAGE.read_text(), re.MULTILINE)
    found: dict[tuple[str, float, int, int], list[str]] = {}
    model = ""
    for line in table:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 9 and cells[1].endswith("%"):
            model = cells[0] or model
            right, n, before = float(cells[1][:-1]) / 100, int(cells[2]), cells[3]
            found[model, right, n, int(before.replace(",", "")) - 16] = cells[4:]
    modes = ["off", "mtp:1", "mtp:2", "mtp:3", "auto"]
    names = {"qwen3.5-27b": "Qwen3.5-27B", "qwen3.5-35b-a3b": "Qwen3.5-35B-A3B"}
    wanted: dict[tuple[str, float, int, int], list[str]] = {}
    for run in json.loads(RECORD.read_text())["runs"]:
        for row in run["rows"]:
            assert row["equal"]
            case = (names[run["options"]["shape"]], row["agree"], row["sequences"], row["depth"])
            cells = wanted.setdefault(case, [""] * len(modes))
            if row["drafts"] in modes:
                cells[modes.index(row["drafts"])] = f"{row['rate']:,.0f}"
    assert found == wanted
