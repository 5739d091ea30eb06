"""`benches/chart.py`: the README's picture is what the script draws of the record."""

import json
import re
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "benches" / "records" / "batch_h200.json"


def words(picture: Path) -> list[str]:
    return re.findall(r">([^<>]+)</text>", picture.read_text())


def test_the_readmes_picture_is_its_record(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="a chart needs `pip install '.[bench]'`")
    drawn = tmp_path / "drawn.svg"
    script = [sys.executable, ROOT / "benches" / "chart.py", RECORD, "-o", drawn]
    subprocess.run(script, check=True, timeout=120)
    kept = RECORD.with_suffix(".svg")
    assert words(kept) == words(drawn)
    assert f"]({kept.relative_to(ROOT)})" in (ROOT / "README.md").read_text()
    models = json.loads(RECORD.read_text())["models"]
    for model in models.values():
        for engine in ("onegraph", "llama.cpp", "vLLM"):
            most = median(model[engine]["64 sequences"])
            assert f"{most:,.0f}" in words(kept) and engine in words(kept)
