"""The manifest of named models: complete, and the same file in the package as in models/."""

import hashlib
import re
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from onegraph.hub import fingerprint

MANIFEST = Path(__file__).resolve().parents[2] / "models" / "manifest.toml"
ENTRIES: dict[str, Any] = tomllib.loads(MANIFEST.read_text())


def test_the_package_ships_the_manifest() -> None:
    shipped = resources.files("onegraph").joinpath("manifest.toml")
    assert shipped.read_text() == MANIFEST.read_text()


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_is_complete(name: str) -> None:
    entry = ENTRIES[name]
    assert set(entry) == {
        *("description", "license", "source", "requirement", "wheel_sha256", "wheel_size"),
        *("member", "sha256", "size", "sample", "memory"),
    }
    assert re.fullmatch(r"[a-z0-9][a-z0-9.-]*", name)
    assert entry["source"] == "wheel"
    assert re.fullmatch(r"[a-z0-9-]+==[0-9.]+", entry["requirement"])
    assert entry["member"].endswith(".gguf")
    for name in ("wheel_sha256", "sha256", "sample"):
        assert re.fullmatch(r"[0-9a-f]{64}", entry[name])
    assert entry["size"] > 0


def test_smollm2_is_the_file_it_says(smollm2: Path) -> None:
    assert smollm2.stat().st_size == ENTRIES["smollm2"]["size"]
    with smollm2.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == ENTRIES["smollm2"]["sha256"]
        assert fingerprint.sample(file) == ENTRIES["smollm2"]["sample"]
