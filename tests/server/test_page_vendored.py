"""The libraries that the chat page carries: where they are from, and under which terms."""

import json
import shutil
import subprocess
from importlib import resources
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / ".ci" / "vendored"
CARRIED = resources.files("onegraph.server").joinpath("chat", "vendored.js")


def test_each_library_is_named_with_its_version_and_terms() -> None:
    manifest = json.loads((HERE / "package.json").read_text())
    locked = json.loads((HERE / "package-lock.json").read_text())["packages"]
    head = CARRIED.read_text(encoding="utf-8").split("\n", 1)[0]
    terms = (ROOT / "THIRD_PARTY_LICENSES").read_text(encoding="utf-8")
    for name, version in manifest["dependencies"].items():
        entry = locked[f"node_modules/{name}"]
        assert entry["version"] == version and entry["integrity"].startswith("sha512-")
        for text in (head, terms):
            assert f"{name} {version} ({entry['license']})" in text
    assert "MarkedJS" in terms and "Ivan Sagalaev" in terms


@pytest.mark.thorough
def test_the_same_versions_give_the_same_bytes(tmp_path: Path) -> None:
    if shutil.which("npm") is None:
        pytest.skip("no npm: a machine with Node.js has it")
    done = subprocess.run(
        [HERE / "build", tmp_path / "made.js"], capture_output=True, text=True, timeout=300
    )
    if "npm error" in done.stderr and done.returncode:
        pytest.skip(f"npm did not have the libraries: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "made.js").read_bytes() == CARRIED.read_text(encoding="utf-8").encode()
