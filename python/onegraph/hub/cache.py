"""The folder of kept models: where it is, and how its files are opened and locked.

Another user, or an accident, may have put something else in the place of a file: a link, a FIFO, a
device. What is opened here is a plain file or an error, and opening waits for nobody. The folder
itself may be a link, to a larger disk say; a user who may write to it decides what is kept there.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from onegraph.errors import FileError

__all__ = [
    "FULL",
    "Progress",
    "cache_dir",
    "kind",
    "no_room",
    "one_process",
    "open_regular",
    "whole",
]

#: Called with what is being done, the bytes done so far and the bytes in all (None: not known).
Progress = Callable[[str, int, int | None], None]

#: The numbers of errors that say that there is no room for more: on the disk, in the user's quota,
#: in one file.
FULL = frozenset({errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)})

_KINDS = [
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
]


def cache_dir() -> Path:
    """The folder fetched models are kept in; it may not exist yet.

    Raises `FileError` where neither a variable nor a home directory says where that is.
    """
    if own := os.environ.get("ONEGRAPH_CACHE_DIR"):
        return Path(own).expanduser() / "models"
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg).expanduser() / "onegraph" / "models"
    try:
        return Path.home() / ".cache" / "onegraph" / "models"
    except RuntimeError as e:
        raise FileError(f"no folder to cache models in: {e}; set ONEGRAPH_CACHE_DIR") from e


def kind(mode: int) -> str | None:
    """What something is that is no plain file; None for a plain file."""
    if stat.S_ISREG(mode):
        return None
    return next((name for test, name in _KINDS if test(mode)), "no file")


def open_regular(path: Path) -> BinaryIO:
    """Opens a plain file to read, by a link too; a FIFO does not keep it waiting for a writer.

    Raises `FileError` for anything else, `OSError` as `open` does.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _common())
    if other := kind(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileError(f"{path} is {other} where a file should be; remove it")
    return os.fdopen(descriptor, "rb")


@contextlib.contextmanager
def whole(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Gives a new file to write, which takes its place once all is written, or never: an error
    leaves what was there.

    mode: the rights of the file, less what the user's umask takes away

    Raises `OSError` where it cannot be written.
    """
    unfinished = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    # O_EXCL takes no file that is there, nor a link.
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _common(), mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def _common() -> int:
    return getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


@contextlib.contextmanager
def one_process(lock: Path, waits: Callable[[], object]) -> Iterator[bool]:
    """Lets one process at a time fetch a file: the others wait instead of fetching it too, and
    call `waits` before they do.

    Gives False where the system has no locks: then all fetch, and each puts the same bytes there.
    The lock file is made empty and never written, so that nothing is lost by what it may be.

    Raises `FileError` where a link or anything else but a file is in its place.
    """
    try:
        import fcntl
    except ImportError:
        yield False
        return
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | _common()
    try:
        # Not for everyone: a user who may read it may lock it. A group may share a folder.
        descriptor = os.open(lock, flags, 0o660)
    except OSError as e:
        if e.errno == errno.ELOOP:
            raise FileError(
                f"the lock file {lock} is a link, which onegraph never creates; find out who "
                "put it there and remove it"
            ) from e
        raise
    try:
        if other := kind(os.fstat(descriptor).st_mode):
            raise FileError(
                f"the lock file {lock} is {other}; find out who put it there and remove it"
            )
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waits()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:  # a file system without locks
            yield False
            return
        yield True
    finally:
        os.close(descriptor)


def no_room(what: str, folder: Path, while_fetched: int, kept: int, e: OSError) -> FileError:
    """The error of a disk that is full, with how much there is and how much is needed, in bytes."""
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    free = "an unknown number of"
    with contextlib.suppress(OSError):
        free = f"{shutil.disk_usage(there).free / 1e6:.0f}"
    return FileError(
        f"no room for {what} in {folder}: {e.strerror}; {free} MB are free there, "
        f"{while_fetched / 1e6:.0f} MB are needed during the download and {kept / 1e6:.0f} MB "
        "afterwards: free some space, or set ONEGRAPH_CACHE_DIR to a folder on another disk"
    )
