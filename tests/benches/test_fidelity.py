"""The bench of fidelity on a few tokens: every way is in its table and near the exact pass."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

BENCH = Path(__file__).resolve().parents[2] / "benches" / "fidelity.py"


def test_every_way_is_measured_against_the_exact_pass(smollm2: Path) -> None:
    command = [sys.executable, str(BENCH), str(smollm2), "--tokens", "12"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = re.findall(r"\| onegraph, cpu, (f32|f16) cache, (\w+) \| (\S+) \| (\S+) \|", done.stdout)
    assert [row[:2] for row in rows] == [
        (kv, way) for kv in ("f32", "f16") for way in ("prefill", "decode")
    ], done.stdout
    assert all(float(kl) < 1e-5 and float(most) < 0.1 for _, _, kl, most in rows), done.stdout
    rounded = dict(re.findall(r"\| exact, but (.*?) \| (\S+) \|", done.stdout))
    assert 1e-6 < float(rounded["activations bfloat16"]) < 1e-3, done.stdout
    assert 0 < float(rounded["keys and values float16"]) < 1e-5, done.stdout
    theirs = re.search(r"llama.cpp, cpu, its default \| \| \| ([\d.]+)%", done.stdout)
    assert theirs is not None and float(theirs[1]) >= 80, done.stdout
