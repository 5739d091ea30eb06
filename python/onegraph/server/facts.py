"""What a model's file says of it, looked up once a file, beside the event loop."""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from onegraph import _native
from onegraph.errors import Error
from onegraph.server.models import Model

__all__ = ["Facts", "facts"]


@dataclass(frozen=True)
class Facts:
    """Of one file, or of a split model's first."""

    bytes: int
    modified: datetime
    architecture: str
    #: Parameters, written as people do: "134.5M".
    parameters: str
    #: The type that has most of them.
    type: str
    n_params: int
    #: Sizes of the network: `n_ctx_train`, `n_embd` and so on.
    shape: dict[str, Any]
    #: Hexadecimal; another file has another one. It names path, size and time, not the content.
    digest: str


async def facts(model: Model) -> Facts | None:
    """The facts of a model; None where its file cannot be read."""
    if model.path is None:
        return None
    loop = asyncio.get_running_loop()
    try:
        stat = await loop.run_in_executor(None, model.path.stat)
        return await loop.run_in_executor(None, _read, model.path, stat.st_size, stat.st_mtime_ns)
    except (Error, OSError):
        return None


#: By path, size and time of the file.
_known: dict[tuple[Path, int, int], Facts] = {}


def _read(path: Path, size: int, changed: int) -> Facts:
    key = path, size, changed
    if key not in _known:
        _known[key] = _described(*key)
    return _known[key]


def _described(path: Path, size: int, changed: int) -> Facts:
    found = json.loads(_native.model_info(path))
    most = max(found["quant_mix"], key=lambda row: row["params"], default=None)
    named = f"{path}\0{size}\0{changed}".encode()
    return Facts(
        bytes=found["file_bytes"],
        modified=datetime.fromtimestamp(changed / 1e9, UTC),
        architecture=found["architecture"] or "",
        parameters=_counted(found["n_params"]),
        type=most["type"] if most else "",
        n_params=found["n_params"],
        shape=found["shape"] or {},
        digest=hashlib.sha256(named).hexdigest(),
    )


def _counted(n: int) -> str:
    for unit, size in (("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if n >= size:
            return f"{n / size:.1f}{unit}"
    return str(n)
