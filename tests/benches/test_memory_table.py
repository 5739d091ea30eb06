"""The table of what models need, on files without weights."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def table() -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benches" / "memory_table.py")],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_page_has_what_is_computed(table: str) -> None:
    assert len(table.splitlines()) > 25
    assert table in (ROOT / "python/onegraph/pages/models.md").read_text()


def test_the_readme_says_the_same(table: str) -> None:
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    needs = {f"{name}, {mix}": total for name, mix, _, _, total in cells[2:]}
    shown = re.findall(
        r"^\|[^|]*\|[^|]*\| ([^|]+) \| ([\d.]+ GiB) \|$", (ROOT / "README.md").read_text(), re.M
    )
    assert len(shown) >= 4
    assert [(name, total) for name, total in shown if needs[name] != total] == []
