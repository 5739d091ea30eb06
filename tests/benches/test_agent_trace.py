"""The script that plays an agent's trace, on models of a test's size."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.thorough

SCRIPT = Path(__file__).resolve().parents[2] / "benches" / "agent_trace.py"
SMALL = ["--system", "96", "--turns", "7", "--message", "16", "--answer", "5", "--device", "cpu"]


def run(*args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def played(record: Path) -> list[dict[str, Any]]:
    turns: list[dict[str, Any]] = json.loads(record.read_text())["turns"]["onegraph"]
    return turns


@pytest.mark.parametrize("shape", ["tiny-llama", "tiny-gemma3", "tiny-qwen35"])
def test_turns_read_little_more_than_what_is_new(tmp_path: Path, shape: str) -> None:
    model, record = tmp_path / "model.gguf", tmp_path / "record.json"
    done = run(model, "--shape", shape, *SMALL, "--record", record)
    assert done.returncode == 0, done.stderr
    turns = played(record)
    assert len(turns) == 7 and all(turn["first_token_seconds"] > 0 for turn in turns)
    # Another agent with the same system prompt, and another turn of one that has been seen.
    assert turns[0]["read"] == turns[0]["new"] == turns[0]["prompt"]
    assert turns[1]["prompt"] - turns[1]["new"] == 96
    # The token drawn last was not read, and a state is kept behind whole pages and whole texts.
    slack = 64 if shape == "tiny-qwen35" else 1
    assert all(turn["new"] <= turn["read"] <= turn["new"] + slack for turn in turns)
    read, new = (sum(turn[what] for turn in turns) for what in ("read", "new"))
    header, _, line = done.stdout.splitlines()
    assert header.startswith("| | read | new ") and f"| {read:,} | {new:,} |" in line


def test_another_engine_plays_the_same_trace(tmp_path: Path, smollm2: Path) -> None:
    pytest.importorskip("xllamacpp", reason="llama.cpp's server is compared with")
    record = tmp_path / "record.json"
    done = run(smollm2, *SMALL, "--against", "xllamacpp", "--record", record)
    assert done.returncode == 0, done.stderr
    found = json.loads(record.read_text())["turns"]
    ours, theirs = found["onegraph"], found["xllamacpp"]
    assert [turn["prompt"] for turn in ours] == [turn["prompt"] for turn in theirs]
    assert all(0 < turn["first_token_seconds"] < 60 for turn in ours + theirs)
    assert all(turn["read"] >= turn["new"] for turn in theirs)
    assert len(done.stdout.splitlines()) == 4


def test_a_restart_costs_less_than_a_page_a_turn(tmp_path: Path) -> None:
    model, trace, record = (tmp_path / name for name in ("model.gguf", "trace", "record.json"))
    common = [model, "--shape", "tiny-llama", *SMALL]
    assert run(*common, "--write", trace).returncode == 0
    assert len(json.loads(trace.read_text())["turns"]) == 7 and not model.exists()
    done = run(*common, "--trace", trace, "--restart-at", "3", "--record", record)
    assert done.returncode == 0, done.stderr
    assert all(turn["read"] <= turn["new"] + 64 for turn in played(record))
