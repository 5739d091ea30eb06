"""The folder of what a person leaves behind in chats: conversations and typed lines.

It is `$ONEGRAPH_STATE_DIR`, else `$XDG_STATE_HOME/onegraph`, else `~/.local/state/onegraph`: not
the cache, which may be emptied at any time. What is in it is for its owner alone.
"""

from __future__ import annotations

import os
from pathlib import Path

from onegraph.errors import FileError
from onegraph.hub.cache import whole

__all__ = ["state_dir", "write_private"]


def state_dir() -> Path:
    """The folder; it may not exist yet. Raises `FileError` where nothing says where it is."""
    if own := os.environ.get("ONEGRAPH_STATE_DIR"):
        return Path(own).expanduser()
    if xdg := os.environ.get("XDG_STATE_HOME"):
        return Path(xdg).expanduser() / "onegraph"
    try:
        return Path.home() / ".local" / "state" / "onegraph"
    except RuntimeError as e:
        raise FileError(f"no folder to save chats in: {e}; set ONEGRAPH_STATE_DIR") from e


def write_private(path: Path, text: str) -> None:
    """Writes a file that only its owner may read, whole or not at all; a folder that is missing is
    made so too. Raises `OSError`."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with whole(path, 0o600) as file:
        file.write(text.encode())
