"""Fixtures all tests share."""

import os
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
