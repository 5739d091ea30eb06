"""The CPU benchmark runs, and holds the speed that the README promises."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benches" / "cpu_decode.py"


def test_decode_is_at_least_half_as_fast_as_llama_cpp(smollm2: Path) -> None:
    """One thread each: where something else runs too, llama.cpp's threads wait for each other."""
    pytest.importorskip("xllamacpp")
    options = ["--threads", "1", "--rounds", "3", "-p", "32", "-n", "32", "--json"]
    out = subprocess.check_output(
        [sys.executable, str(SCRIPT), str(smollm2), *options], text=True, timeout=500
    )
    record = json.loads(out)
    assert record["top_1_agreement"] >= 0.9
    assert len(record["onegraph"]["decode"]) == len(record["llama.cpp"]["decode"]) == 3
    assert record["decode_ratio"] >= 0.5, record
