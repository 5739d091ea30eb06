"""One card for all workers of pytest-xdist: tests use it together, but one that measures the card's
free memory has it alone."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def held(folder: Path, *, alone: bool) -> Iterator[None]:
    """Waits for the card, alone or beside others who do not want it alone. `folder` is that of all
    workers of a run."""
    with (folder / "card.gate").open("w") as gate, (folder / "card.lock").open("w") as lock:
        # A process that waits for the card alone keeps the gate: later ones wait behind it,
        # or there might always be one of them who has the card.
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield
