"""Fixtures all tests share."""

import os
import shutil
import subprocess
from pathlib import Path

import onegraph
import pytest
from onegraph import hub


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct Q4_1, a real GGUF of 98 MB."""
    override = os.environ.get("ONEGRAPH_TEST_MODEL")
    if override:
        path = Path(override)
        if not path.is_file():
            pytest.skip(f"ONEGRAPH_TEST_MODEL={override} is no file")
        return path
    try:
        return hub.resolve("smollm2", verify=True)
    except onegraph.FileError as e:
        pytest.skip(f"{e}; set ONEGRAPH_TEST_MODEL to a copy of the file")


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


@pytest.fixture(scope="session")
def ksim_library_dir() -> Path:
    """The folder with the simulated driver's libcuda.so and libnvrtc.so, built once."""
    override = os.environ.get("KSIM_LIBRARY_DIR")
    if override:
        return Path(override)
    if not shutil.which("cargo") or not shutil.which("g++"):
        pytest.skip("the simulated driver needs cargo and g++, or KSIM_LIBRARY_DIR")
    done = subprocess.run(
        ["cargo", "run", "--quiet", "--package", "ksim", "--", "--library-dir"],
        cwd=Path(__file__).resolve().parents[1],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


@pytest.fixture(scope="session")
def ksim_env(ksim_library_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that is to find the simulated driver; kernels are compiled
    once a session."""
    paths = [str(ksim_library_dir), os.environ.get("LD_LIBRARY_PATH", "")]
    return os.environ | {
        "LD_LIBRARY_PATH": ":".join(filter(None, paths)),
        "ONEGRAPH_NVRTC": str(ksim_library_dir / "libnvrtc.so"),
        "KSIM_CACHE": os.environ.get("KSIM_CACHE") or str(tmp_path_factory.mktemp("ksim")),
    }
