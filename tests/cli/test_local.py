"""`onegraph list`, `rm` and `show`: what is here, and what may go."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from onegraph import hub
from support.terminal import Terminal

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("local") / "tiny.gguf"
    command = [sys.executable, "models/synth.py", "tiny-llama", "--mix", "Q4_K_M", "-o", path]
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
    return path


@pytest.fixture
def stores(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A cache with a model of the manifest and an older one, and a store of ollama; the environment
    that names them."""
    env = {
        "ONEGRAPH_CACHE_DIR": str(tmp_path / "cache"),
        "OLLAMA_MODELS": str(tmp_path / "ollama"),
        "HF_HUB_CACHE": str(tmp_path / "hf"),
    }
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    cache = hub.cache_dir()
    cache.mkdir(parents=True)
    shutil.copy(tiny, hub.known_models()["smollm2"].path)
    (cache / "smollm2-00000000.gguf").write_bytes(b"GGUF")
    digest = hashlib.sha256(tiny.read_bytes()).hexdigest()
    blobs = tmp_path / "ollama" / "blobs"
    blobs.mkdir(parents=True)
    shutil.copy(tiny, blobs / f"sha256-{digest}")
    library = tmp_path / "ollama" / "manifests" / "registry.ollama.ai" / "library"
    for name, blob in [("smol/latest", digest), ("gone/8b", "0" * 64)]:
        layer = {
            "mediaType": "application/vnd.ollama.image.model",
            "digest": f"sha256:{blob}",
            "size": tiny.stat().st_size,
        }
        (library / name).parent.mkdir(parents=True)
        (library / name).write_text(json.dumps({"layers": [layer]}))
    return env


def test_list_says_what_is_here(
    cli: Any, tiny: Path, stores: dict[str, str], tmp_path: Path
) -> None:
    done = cli("list", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = {model["name"]: model for model in json.loads(done.stdout)["models"]}
    old = str(hub.cache_dir() / "smollm2-00000000.gguf")
    assert set(found) == {"smollm2", old, "ollama:smol", "ollama:gone:8b"}
    size = tiny.stat().st_size
    for name, store in [("smollm2", "onegraph"), ("ollama:smol", "ollama")]:
        model = found[name]
        assert (model["store"], model["size"], model["error"]) == (store, size, None)
        assert (model["architecture"], model["type"]) == ("llama", "Q4_K")
        assert Path(model["path"]).read_bytes() == tiny.read_bytes()
    assert "is missing; run `ollama pull`" in found["ollama:gone:8b"]["error"]
    assert found[old]["error"] and found[old]["size"] == 4

    table = cli("list").stdout
    row = next(line.split() for line in table.splitlines() if line.startswith("ollama:smol"))
    assert row[0] == "ollama:smol" and row[-3:] == ["llama", "Q4_K", "ollama"]
    assert f"onegraph's own: {hub.cache_dir()}" in table
    assert "cannot run" in next(line for line in table.splitlines() if "gone:8b" in line)


def test_list_names_says_what_a_name_fetches_and_the_memory_it_takes(cli: Any) -> None:
    told = {
        row["name"]: row for row in json.loads(cli("list", "--names", "--json").stdout)["names"]
    }
    assert set(told) == {*hub.known_models(), *hub.names()}
    assert all(row["memory"] > 0 and row["model"] and row["reference"] for row in told.values())
    table = cli("list", "--names").stdout
    for name in ("smollm2", "llama3.2"):
        (row,) = (line for line in table.splitlines() if line.split()[0] == name)
        assert f"{told[name]['memory']} GiB" in row and told[name]["reference"] in row


def test_where_nothing_is_the_way_to_a_model_is_said(cli: Any, tmp_path: Path) -> None:
    env = {"ONEGRAPH_CACHE_DIR": str(tmp_path), "OLLAMA_MODELS": str(tmp_path)}
    done = cli("list", env=env)
    assert (done.returncode, done.stdout) == (0, "")
    assert "`onegraph pull smollm2`" in done.stderr
    assert json.loads(cli("list", "--json", env=env).stdout) == {"models": []}


def test_rm_removes_what_onegraph_fetched_and_nothing_else(
    cli: Any, tiny: Path, stores: dict[str, str], tmp_path: Path
) -> None:
    kept = hub.known_models()["smollm2"].path
    asks = cli("rm", "smollm2")
    assert (asks.returncode, kept.exists()) == (2, True)
    assert "add --yes" in asks.stderr
    for name, said in [
        ("ollama:smol", "it is ollama's: run `ollama rm smol`"),
        ("hf:user/repo:Q4_K_M", "`hf cache rm`"),
        (str(tiny), "onegraph did not download this file"),
        ("smolm2", "models in"),
    ]:
        # All of them or none.
        done = cli("rm", "--yes", "smollm2", name)
        assert (done.returncode, done.stdout, kept.exists()) == (1, "", True)
        assert said in done.stderr
    assert tiny.exists()
    old = hub.cache_dir() / "smollm2-00000000.gguf"
    done = cli("rm", "--yes", "smollm2", old)
    assert (done.returncode, done.stdout) == (0, "")
    assert not kept.exists() and not old.exists()
    assert "removed smollm2 (" in done.stderr
    assert "ollama:smol" in cli("list").stdout


def test_rm_asks_at_a_terminal(terminal: Callable[..., Terminal], stores: dict[str, str]) -> None:
    kept = hub.known_models()["smollm2"].path
    for answer, code in [("n", 1), ("", 1), ("y", 0)]:
        asked = terminal("rm", "smollm2", env=stores)
        asked.read_until("[y/N]: ")
        assert kept.exists()
        asked.type(f"{answer}\r")
        assert asked.wait() == code
        assert kept.exists() == bool(code)


def test_rm_follows_no_link_out_of_the_cache(
    cli: Any, stores: dict[str, str], tmp_path: Path
) -> None:
    kept = hub.known_models()["smollm2"].path
    elsewhere = tmp_path / "elsewhere.gguf"
    os.rename(kept, elsewhere)
    os.symlink(elsewhere, kept)
    assert cli("rm", "--yes", "smollm2").returncode == 0
    assert elsewhere.exists() and not os.path.lexists(kept)


def test_show_is_info(cli: Any, tiny: Path) -> None:
    shown = cli("show", tiny, "--json")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout == cli("info", tiny, "--json").stdout


@pytest.mark.parametrize("name", ["info", "list"])
def test_a_table_fits_a_terminal_of_80_columns(
    name: str, terminal: Callable[..., Terminal], tiny: Path, stores: dict[str, str]
) -> None:
    args = [name] if name == "list" else [name, tiny]
    shown = terminal(*args, env=stores)
    assert shown.wait() == 0
    lines = re.split(r"[\r\n]+", shown.seen)
    # A path by itself is not cut: it is there to be copied.
    lines = [line for line in lines if not line.startswith("onegraph's own: ")]
    assert len(lines) > 4 and max(map(len, lines)) <= 80
    if name == "list":
        # Names may go over several lines; figures never do.
        assert any(line.rstrip().endswith("llama Q4_K  ollama") for line in lines)
