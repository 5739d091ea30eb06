"""Importing it raises `ImportError` in any interpreter of a process but the main one."""

from __future__ import annotations

import importlib
from typing import Any

__all__: list[str] = []


def _is_main() -> bool:
    # Python's own module of interpreters, by its names from 3.13 on and before.
    for name in ("_interpreters", "_xxsubinterpreters"):
        try:
            interpreters: Any = importlib.import_module(name)
            return bool(interpreters.get_current() == interpreters.get_main())
        except (ImportError, AttributeError):
            continue
    return True


if not _is_main():
    raise ImportError(
        "onegraph runs only in the main interpreter of a process, because its threads, its memory "
        "and the card belong to the process: import it there, or in another process "
        "(multiprocessing, or "
        "`onegraph serve` and a client); under mod_wsgi, set WSGIApplicationGroup %{GLOBAL}",
        name="onegraph",
    )
