"""Files as published with models, kept beside the repository: see the fixture `vectors`."""

from pathlib import Path

import pytest


def vocabulary(vectors: Path, name: str) -> Path:
    """One of llama.cpp's vocabularies; its test strings and their ids lie beside it."""
    return _there(vectors / "vocab" / f"ggml-vocab-{name}.gguf")


def template(vectors: Path, name: str) -> str:
    """The text of a chat template."""
    return _there(vectors / "templates" / f"{name}.jinja").read_text(encoding="utf-8")


def _there(path: Path) -> Path:
    if not path.is_file():
        pytest.skip(f"{path} is absent: it is in the archive that the fixture `vectors` names")
    return path
