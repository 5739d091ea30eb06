"""`hf:` references through a hub on the loopback, whose repository changes between two uses."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import onegraph
import pytest
from onegraph.hub import hugging_face, pins
from support import fake_hub
from support.fake_hub import REPO, FakeHub

pytestmark = pytest.mark.thorough

FILE = "Tiny-Q4_K_M.gguf"
REF = f"hf:{REPO}/{FILE}"


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with fake_hub.running() as hub:
        yield hub


@pytest.fixture
def environment(hub: FakeHub, tmp_path: Path) -> dict[str, str]:
    return hub.environment(tmp_path)


#: A load as a fresh process sees it: the content of the file, or class and message of the error.
Load = Callable[..., str]


@pytest.fixture
def load(environment: dict[str, str]) -> Load:
    code = """
import json, sys
from onegraph import hub
try:
    print(hub.resolve(sys.argv[1], **json.loads(sys.argv[2])).read_text())
except Exception as e:
    print(type(e).__name__, e)
"""

    def run(ref: str, **options: bool) -> str:
        done = subprocess.run(
            [sys.executable, "-c", code, ref, json.dumps(options)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


@pytest.fixture
def pull(environment: dict[str, str], cli: Callable[..., subprocess.CompletedProcess[str]]):
    return lambda *args: cli("pull", *args, env=environment)


def test_a_revision_is_a_branch_a_tag_or_a_commit(hub: FakeHub, load: Load) -> None:
    first = hub.commit({FILE: b"GGUF first"}, "v1")
    hub.commit({FILE: b"GGUF second"}, "main")
    hub.commit({FILE: b"GGUF third"}, "feature/x", "refs/pr/7")
    for revision, content in {
        "v1": "GGUF first",
        first: "GGUF first",
        "main": "GGUF second",
        "feature%2Fx": "GGUF third",
        "refs/pr/7": "GGUF third",
    }.items():
        assert load(f"hf:{REPO}@{revision}/{FILE}") == content
        assert load(f"hf:{REPO}@{revision}:Q4_K_M") == content
    assert load(REF) == "GGUF second"
    said = load(f"hf:{REPO}@v2/{FILE}")
    assert said.startswith(f"FileError cannot download {FILE} of {REPO} from {hub.endpoint}: ")


@pytest.mark.parametrize(
    "ref",
    [
        "hf:user/repo@/file.gguf",
        "hf:user/repo@:Q4_K_M",
        "hf:user/repo@v1",
        "hf:user/repo@../file.gguf",
        "hf:user/repo@a%2F..%2Fb/file.gguf",
        "hf:user/repo@%2Fetc:Q8_0",
        "hf:user/repo@v1@v2:Q8_0",
        "hf:user/repo@v%20:Q8_0",
        "hf:@v1/repo:Q8_0",
    ],
)
def test_a_malformed_revision_is_refused(ref: str) -> None:
    with pytest.raises(onegraph.ArgumentError, match=r"as in hf:user/repo@v1\.0:Q4_K_M"):
        hugging_face.parse(ref)


@pytest.mark.parametrize("ref", [REF, f"hf:{REPO}:Q4_K_M", f"hf:{REPO}@main:Q4_K_M"])
def test_a_reference_stays_with_what_it_first_stood_for_until_it_is_updated(
    ref: str, hub: FakeHub, load: Load, pull
) -> None:
    old = hub.commit({FILE: b"GGUF old"}, "main")
    assert load(ref) == "GGUF old"
    new = hub.commit({FILE: b"GGUF new"}, "main")
    hub.asked.clear()
    assert load(ref) == "GGUF old"
    assert hub.asked == []  # no question to the network either
    told = pull(ref)
    assert (told.returncode, Path(told.stdout.strip()).read_text()) == (0, "GGUF old")
    for words in [
        f"{FILE} of {ref} has changed upstream: pinned is "
        f"{hashlib.sha256(b'GGUF old').hexdigest()} of commit {old}, there now "
        f"{hashlib.sha256(b'GGUF new').hexdigest()} of commit {new}",
        f"the pinned one stays until `onegraph pull --update {ref}`",
    ]:
        assert words in told.stderr
    updated = pull("--update", ref)
    assert (updated.returncode, Path(updated.stdout.strip()).read_text()) == (0, "GGUF new")
    assert load(ref) == "GGUF new"
    assert "has changed" not in pull(ref).stderr


def test_a_commit_that_leaves_the_file_alone_is_no_change(hub: FakeHub, load: Load, pull) -> None:
    hub.commit({FILE: b"GGUF same", "README.md": b"old"}, "main")
    assert load(REF) == "GGUF same"
    hub.commit({FILE: b"GGUF same", "README.md": b"new"}, "main")
    assert pull(REF).stderr == ""


def test_the_shards_of_a_model_are_of_one_commit(hub: FakeHub, load: Load, tmp_path: Path) -> None:
    names = [f"Big-Q6_K-{i:05}-of-00003.gguf" for i in (1, 2, 3)]
    commit = hub.commit({name: f"GGUF {name}".encode() for name in names}, "main")
    assert load(f"hf:{REPO}:Q6_K") == f"GGUF {names[0]}"
    fetched = [path for method, path in hub.asked if method == "GET" and "/resolve/" in path]
    assert [path.rsplit("/", 1)[1] for path in fetched] == names
    assert all(f"/resolve/{commit}/" in path for path in fetched[1:])
    (shard,) = (tmp_path / "hf").glob(f"*/snapshots/{commit}/{names[2]}")
    shard.resolve().write_bytes(b"GGUF ruined")
    assert f"{names[2]} is not the file hf:{REPO}:Q6_K is pinned to" in load(f"hf:{REPO}:Q6_K")


def test_a_name_that_could_steer_or_leave_is_nothing_to_pick(hub: FakeHub, load: Load) -> None:
    hub.commit(
        {"a\x1b]0;x\x07-Q8_0.gguf": b"1", "../b-Q8_0.gguf": b"2", "c-Q8_0.gguf": b"3"}, "main"
    )
    assert load(f"hf:{REPO}:Q8_0") == "3"
    assert load(f"hf:{REPO}:Q6_K").startswith(f"ArgumentError 'hf:{REPO}:Q6_K' matches no file")


@pytest.mark.parametrize("damage", [b"GGUF wholE", b"GGUF whol"])
def test_a_damaged_file_is_an_error_at_load_and_mended_by_pull(
    damage: bytes, hub: FakeHub, load: Load, pull, tmp_path: Path
) -> None:
    hub.commit({FILE: b"GGUF whole"}, "main")
    assert load(REF) == "GGUF whole"
    (path,) = (tmp_path / "hf").glob(f"*/snapshots/*/{FILE}")
    path.resolve().write_bytes(damage)
    said = load(REF)
    assert said.startswith(f"ModelError {path} is not the file {REF} is pinned to: ")
    assert f"run `onegraph pull {REF}` to download it again" in said
    assert pull(REF).returncode == 0
    assert load(REF, verify=True) == "GGUF whole"


def test_what_arrives_is_held_to_the_hash_that_the_hub_gives(hub: FakeHub, load: Load) -> None:
    hub.commit({FILE: b"GGUF whole"}, "main")
    hub.instead[b"GGUF whole"] = b"GGUF other"
    for mend in [False, True]:
        said = load(REF, mend=mend)
        assert said.startswith(f"ModelError {FILE} of {REPO} is damaged: its sha256 is ")
        assert hashlib.sha256(b"GGUF other").hexdigest() in said
        assert hashlib.sha256(b"GGUF whole").hexdigest() in said
    hub.instead.clear()
    assert load(REF, mend=True) == "GGUF whole"


def test_another_content_under_a_pinned_commit_is_refused(
    hub: FakeHub, load: Load, tmp_path: Path
) -> None:
    commit = hub.commit({FILE: b"GGUF old"}, "main")
    assert load(REF) == "GGUF old"
    (path,) = (tmp_path / "hf").glob(f"*/snapshots/*/{FILE}")
    path.unlink()  # somebody made room
    hub.commits[commit] = {FILE: b"GGUF new"}
    said = load(REF)
    assert said.startswith(f"ModelError {path} is not the file {REF} is pinned to")
    assert f"`onegraph pull --update {REF}`" in load(REF, mend=True)
    assert load(REF, update=True) == "GGUF new"


def test_a_pinned_commit_that_is_gone_says_how_to_go_on(
    hub: FakeHub, load: Load, tmp_path: Path
) -> None:
    commit = hub.commit({FILE: b"GGUF old"}, "main")
    assert load(REF) == "GGUF old"
    (path,) = (tmp_path / "hf").glob(f"*/snapshots/*/{FILE}")
    path.unlink()
    del hub.commits[commit]
    hub.commit({FILE: b"GGUF new"}, "main")
    said = load(REF)
    assert said.startswith("FileError cannot download")
    assert f"{REF} is pinned to commit {commit}: if that is gone, `onegraph pull --update" in said
    assert load(REF, update=True) == "GGUF new"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"files": []}',
        '{"files": [{"name": 1}]}',
        '{"reference": "x", "commit": "../..", "files": [{"name": "x", "size": 1, '
        '"sha256": "", "sample": "", "etag": null}]}',
        "[" * 100_000,
        " " * (2 << 20),
    ],
)
def test_a_damaged_pin_says_how_to_write_it_again(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONEGRAPH_CACHE_DIR", str(tmp_path))
    file = pins.PinnedFile(FILE, 4, "0" * 64, "1" * 64, None)
    pin = pins.Pin(REF, "0" * 40, (file,))
    assert pins.read(REF) is None
    pins.write(pin)
    assert pins.read(REF) == pin
    (path,) = (tmp_path / "models" / "pins").iterdir()
    (tmp_path / "other").touch()
    assert path.stat().st_mode == (tmp_path / "other").stat().st_mode
    path.write_text(text)
    with pytest.raises(onegraph.ModelError) as e:
        pins.read(REF)
    assert f"{path}, the pin of {REF}, is damaged: " in str(e.value)
    assert f"run `onegraph pull --update {REF}`" in str(e.value)
    pins.write(pin)
    assert pins.read(REF) == pin


def test_a_cache_that_cannot_be_written_is_a_warning(
    hub: FakeHub, environment: dict[str, str], load: Load, tmp_path: Path
) -> None:
    hub.commit({FILE: b"GGUF"}, "main")
    (tmp_path / "onegraph").write_text("in the way")
    assert load(REF) == "GGUF"
    code = "import sys; from onegraph import hub; hub.resolve(sys.argv[1])"
    command = [sys.executable, "-c", code, REF]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.stderr.startswith(f"cannot pin {REF}: Not a directory; a later")


def test_a_download_tells_its_size_and_takes_what_the_teller_raises(
    hub: FakeHub, environment: dict[str, str]
) -> None:
    content = os.urandom(25 << 20)  # some pieces of huggingface_hub's
    hub.commit({FILE: content}, "main")
    code = """
import json, sys
from onegraph import hub
told = []
def tell(*step):
    told.append(step)
    # The first word of it: bars speak ten times a second, and by the second all may be here.
    if step[0].startswith("downloading") and sys.argv[2] == "stop":
        raise ZeroDivisionError("enough")
try:
    hub.resolve(sys.argv[1], progress=tell)
except ZeroDivisionError as e:
    told.append(str(e))
print(json.dumps(told))
"""

    def told(what: str) -> list[object]:
        done = subprocess.run(
            [sys.executable, "-c", code, REF, what],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)

    *steps, last = told("stop")
    assert last == "enough"
    assert not any(str(what).startswith("checking") for what, _, _ in steps)
    steps = told("go")
    downloading = [step for step in steps if step[0] == f"downloading {FILE}"]
    assert {total for _, _, total in downloading} == {len(content)}
    assert len(downloading) > 1 and downloading[-1][1] == len(content)
    assert steps[-1] == [f"checking {FILE}", len(content), len(content)]
