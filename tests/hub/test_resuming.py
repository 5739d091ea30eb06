"""Downloads of `hf:` references that go on where they stopped."""

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import fake_hub
from support.fake_hub import REPO, FakeHub
from support.serving import until

pytestmark = pytest.mark.thorough

FILE = "Tiny-Q4_K_M.gguf"
REF = f"hf:{REPO}/{FILE}"
#: huggingface_hub takes a download in pieces of 10 MiB.
PIECE = 10 << 20
CONTENT = os.urandom(PIECE + 5000)
HASH = hashlib.sha256(CONTENT).hexdigest()
#: What runs in the background of a shell ignores Ctrl-C, and so do its children.
CODE = """import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from onegraph import hub
print(hub.resolve(sys.argv[1]))
"""


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with fake_hub.running() as hub:
        hub.commit({FILE: CONTENT}, "main")
        yield hub


def started(hub: FakeHub, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CODE, REF]
    pipe = subprocess.PIPE
    env = hub.environment(folder)
    return subprocess.Popen(command, env=env, stdout=pipe, stderr=pipe, text=True)


def fetched(hub: FakeHub, folder: Path) -> Path:
    process = started(hub, folder)
    said, wrong = process.communicate(timeout=300)
    assert (process.returncode, wrong) == (0, "")
    return Path(said.strip())


def unfinished(folder: Path) -> Path:
    return folder / "hf" / "models--user--Tiny-GGUF" / "blobs" / f"{HASH}.onegraph.incomplete"


@pytest.mark.parametrize("ends", [signal.SIGKILL, signal.SIGINT])
def test_a_download_that_was_stopped_goes_on(ends: int, hub: FakeHub, tmp_path: Path) -> None:
    hub.stops = PIECE + 100
    process = started(hub, tmp_path)
    there = unfinished(tmp_path)
    until(lambda: there.exists() and there.stat().st_size == PIECE)
    process.send_signal(ends)
    process.communicate(timeout=300)
    assert process.returncode != 0 and hub.ranges == []
    hub.stops = None
    path = fetched(hub, tmp_path)
    assert path.read_bytes() == CONTENT and hub.ranges == [f"bytes={PIECE}-"]
    # It lies where huggingface_hub puts it, and nothing is left beside it.
    assert path.resolve().parent == there.parent and os.listdir(there.parent) == [HASH]
    assert fetched(hub, tmp_path) == path and len(hub.ranges) == 1


def test_what_is_longer_than_the_file_is_begun_anew(hub: FakeHub, tmp_path: Path) -> None:
    there = unfinished(tmp_path)
    there.parent.mkdir(parents=True)
    there.write_bytes(CONTENT + b"more")
    assert fetched(hub, tmp_path).read_bytes() == CONTENT and hub.ranges == []


def test_what_goes_on_is_held_to_the_hash(hub: FakeHub, tmp_path: Path) -> None:
    there = unfinished(tmp_path)
    there.parent.mkdir(parents=True)
    there.write_bytes(b"something else")
    process = started(hub, tmp_path)
    _, wrong = process.communicate(timeout=300)
    assert process.returncode == 1 and hub.ranges == ["bytes=14-"]
    assert f"ModelError: {FILE} of {REPO} is damaged: its sha256 is " in wrong
    assert "run `onegraph pull` again" in wrong
