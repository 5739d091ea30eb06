"""Whether a file still is what was verified: all of it, or a sample of it at little cost.

A file can be damaged without a change of its size or its time: a disk that lost blocks, a copy or
a crash that left zeros. Reading all of a model at each load would cost seconds, so a load reads a
sample: `BLOCKS` blocks of `BLOCK` bytes, the first at the start of the file, the last at its end,
the others evenly between them. That is 1 MiB of a file of any size.

What the sample finds with certainty: another size, and any run of damage that covers a whole block,
which every run of 1/255 of the file and 4 KiB does (a lost tail, zeros, another file's data). A
smaller run is found where it meets a block, and a damaged byte elsewhere is not: that takes all of
the file (`verify`). A sample is no protection from somebody who may write to the file on purpose.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import BinaryIO

from onegraph.hub.cache import Progress, open_regular

__all__ = ["BLOCK", "BLOCKS", "damage", "read_whole", "sample"]

BLOCKS = 256
BLOCK = 4096


def sample(file: BinaryIO) -> str:
    """Hexadecimal SHA-256 of the size and the sampled blocks; of all where they would overlap."""
    size = os.fstat(file.fileno()).st_size
    digest = hashlib.sha256(f"{size}\n".encode())
    if size <= BLOCKS * BLOCK:
        file.seek(0)
        digest.update(file.read(size))
        return digest.hexdigest()
    for i in range(BLOCKS):
        file.seek((size - BLOCK) * i // (BLOCKS - 1))
        digest.update(file.read(BLOCK))
    return digest.hexdigest()


def read_whole(file: BinaryIO, what: str, progress: Progress | None) -> str:
    """Hexadecimal SHA-256 of all of the file; `what` is said to be checked on the way."""
    size = os.fstat(file.fileno()).st_size
    digest = hashlib.sha256()
    done = 0
    file.seek(0)
    while piece := file.read(1 << 20):
        digest.update(piece)
        done += len(piece)
        if progress:
            progress(f"checking {what}", done, size)
    return digest.hexdigest()


def damage(
    path: Path,
    size: int,
    sampled: str | None,
    sha256: str | None = None,
    progress: Progress | None = None,
) -> str | None:
    """What is wrong with a file, of its size, its sample and, where `sha256` is given, all of it.

    None where nothing is. Raises `OSError` as `open` does, `FileError` for what is no plain file.
    """
    with open_regular(path) as file:
        found = os.fstat(file.fileno()).st_size
        if found != size:
            return f"it has {found} bytes, not {size}"
        if sampled is not None and sample(file) != sampled:
            return f"a sample of its {size} bytes differs from what was fetched"
        if sha256 is not None and (now := read_whole(file, path.name, progress)) != sha256:
            return f"its sha256 is {now}, not {sha256}"
    return None
