"""What an `hf:` reference stood for when it was first used: a commit, and the hash of each file.

One small JSON file for each reference, in the folder `pins` beside the kept models. It is what a
later load holds the files to; a reference stays with its commit until it is updated.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from onegraph.errors import FileError, ModelError
from onegraph.hub.cache import cache_dir, open_regular, whole

__all__ = ["Pin", "PinnedFile", "read", "references", "write"]

#: A pin is a few hundred bytes for each shard; a file past this is none.
_LIMIT = 1 << 20


@dataclass(frozen=True)
class PinnedFile:
    """A file of a repository as it was fetched."""

    name: str
    size: int
    #: Hexadecimal SHA-256 of all of it.
    sha256: str
    #: `fingerprint.sample` of it.
    sample: str
    #: What the hub calls the content; None where the local cache does not say.
    etag: str | None


@dataclass(frozen=True)
class Pin:
    """What a reference stands for."""

    reference: str
    commit: str
    #: In the order of its shards.
    files: tuple[PinnedFile, ...]


def _path(reference: str) -> Path:
    """Named by a hash, as a reference may be longer than a file name."""
    name = hashlib.sha256(reference.encode()).hexdigest()[:32]
    return cache_dir() / "pins" / f"{name}.json"


def read(reference: str) -> Pin | None:
    """The pin of a reference; None where it was not used yet.

    Raises `ModelError` for a damaged one, `FileError` for one that cannot be read.
    """
    path = _path(reference)
    try:
        with open_regular(path) as file:
            raw = file.read(_LIMIT + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except FileError:
        raise
    except OSError as e:
        raise FileError(
            f"cannot read {path}, the pin of {reference}: {e.strerror}; check its permissions"
        ) from e
    try:
        if len(raw) > _LIMIT:
            raise ValueError(f"it is over {_LIMIT} bytes")
        pin = _parse(json.loads(raw))
        if pin.reference != reference:
            raise ValueError(f"it is of {pin.reference!r}")
    except (ValueError, TypeError, KeyError, RecursionError) as e:
        raise ModelError(
            f"{path}, the pin of {reference}, is damaged: {e}; run `onegraph pull "
            f"--update {reference}` to pin the latest commit"
        ) from e
    return pin


def references() -> list[str]:
    """The references that are pinned; without those of a damaged pin, which `read` tells of."""
    found = []
    for path in (cache_dir() / "pins").glob("*.json"):
        try:
            with open_regular(path) as file:
                found.append(_parse(json.loads(file.read(_LIMIT))).reference)
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            continue
    return sorted(found)


def _parse(data: object) -> Pin:
    if not isinstance(data, dict) or not isinstance(data["files"], list) or not data["files"]:
        raise ValueError("it lists no files")
    files = tuple(PinnedFile(**file) for file in data["files"])
    for file in files:
        texts = [file.name, file.sha256, file.sample, file.etag or ""]
        if not all(isinstance(text, str) for text in texts) or not isinstance(file.size, int):
            raise ValueError("a field is of another type")
    commit = data["commit"]
    if not isinstance(commit, str) or not re.fullmatch(r"[0-9a-f]{40}", commit):
        raise ValueError("it names no commit")
    return Pin(data["reference"], commit, files)


def write(pin: Pin) -> None:
    """Keeps a pin in the place of an older one. Raises `OSError` where it cannot be written."""
    path = _path(pin.reference)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Readable to whom the user's umask says, as the models are.
    with whole(path) as file:
        file.write(json.dumps(dataclasses.asdict(pin), indent=1).encode())
        file.flush()
        os.fsync(file.fileno())
