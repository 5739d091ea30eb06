"""The script behind the published table, on a model and a machine of a test's size."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benches" / "speed_table.py"
SMALL = ["--device", "cpu", "--threads", "1", "-p", "16", "-n", "8", "-r", "2", "--n-ctx", "128"]


def run(*args: object, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, args)],
        capture_output=True,
        text=True,
        timeout=300,
        env={k: v for k, v in os.environ.items() if k != "OLLAMA_HOST"} | env,
    )


@pytest.mark.thorough
def test_the_record_outlives_what_fails(tmp_path: Path) -> None:
    record, absent = tmp_path / "speed.json", tmp_path / "llama-bench"
    options = [*SMALL, "--record", record, "--llama-bench", absent, "--folder", tmp_path]
    # Nobody listens there: ollama is reported, and the rest is measured.
    done = run("--models", "tiny-llama:Q4_K_M,tiny-qwen2:Q8_0", *options, OLLAMA_HOST="127.0.0.1:1")
    assert done.returncode == 0, done.stderr
    kept = json.loads(record.read_text())
    assert set(kept["models"]) == {"tiny-llama:Q4_K_M", "tiny-qwen2:Q8_0"}
    for model in kept["models"].values():
        ours = model["onegraph"]
        assert len(ours["decode"]["samples_ts"]) == len(ours["prompt"]["samples_ts"]) == 2
        assert ours["check"]["ok"] is True
        assert 0 < ours["part_of_read_peak"] < 2  # a tiny model lives in the cache
        assert str(absent) in model["llama-bench"]["failure"]
        assert "ollama does not answer at http://127.0.0.1:1" in model["ollama"]["failure"]
        assert set(model["seconds"]) == {"llama-bench", "onegraph", "ollama"}
    assert kept["machine"]["version"] and kept["machine"]["cpu"] and kept["when"]
    shown = run("--show", record)
    assert shown.stdout == done.stdout
    lines = done.stdout.splitlines()
    assert lines[0].startswith("| tokens/s ") and "| tiny-llama:Q4_K_M |" in lines[0]
    assert any(line.startswith("| decode, onegraph ") for line in lines)
    # What failed is said below the table, too.
    assert sum("ollama does not answer" in line for line in lines) == 2
    assert lines[-1].startswith(f"- onegraph {kept['machine']['version']} (")
    assert list(tmp_path.glob("**/*.gguf")) == []


def test_no_model_is_started_behind_the_time_limit(tmp_path: Path) -> None:
    record = tmp_path / "speed.json"
    done = run("--models", "tiny-llama:Q8_0", "--seconds", "-1", "--record", record, *SMALL)
    assert done.returncode == 0, done.stderr
    assert json.loads(record.read_text())["models"]["tiny-llama:Q8_0"]["not_run"]


def test_a_ratio_whose_rounds_disagree_is_no_headline(tmp_path: Path) -> None:
    record = json.loads((SCRIPT.parent / "records" / "speed_h200.json").read_text())
    model = {"8B": record["models"]["8B"]}
    path = tmp_path / "speed.json"

    def shown(**decode: object) -> tuple[dict[str, str], str]:
        model["8B"]["llama-bench"]["decode"].update(decode)
        path.write_text(json.dumps(record | {"models": model}))
        done = run("--show", path)
        assert done.returncode == 0, done.stderr
        table, notes = done.stdout.split("\n\n")
        cells = [[cell.strip() for cell in line.split("|")] for line in table.splitlines()]
        # The first of a name is decode's.
        return {row[1]: row[2] for row in reversed(cells)}, notes

    agreeing, notes = shown(samples_ts=[270.0, 272.0])
    mean = sum(model["8B"]["onegraph"]["decode"]["samples_ts"]) / 3
    assert agreeing["ratio to llama.cpp"].startswith(f"{mean / 271:.2f} (1.9")
    assert " to 1.9" in agreeing["ratio to llama.cpp"] and "no ratio" not in notes
    assert agreeing["decode, llama.cpp"] == "271.0 ± 1.4"
    apart, notes = shown(samples_ts=[200.0, 272.0])
    assert apart["ratio to llama.cpp"] == "no ratio"
    assert "8B, ratio to llama.cpp, decode: no ratio: the 2 rounds disagree, from 1.9" in notes
    once, notes = shown(samples_ts=[271.0])
    assert once["ratio to llama.cpp"] == "no ratio" and "one round has no spread" in notes
    assert once["decode, llama.cpp"] == "271.0"
