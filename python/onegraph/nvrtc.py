"""Where pip put NVRTC, the CUDA compiler that kernels are compiled with at load."""

from __future__ import annotations

import importlib.util
from pathlib import Path

# Folders inside the namespace package `nvidia`: the wheels for CUDA 12, then those for CUDA 13.
_FOLDERS = ("cuda_nvrtc/lib", "cu13/lib")


def folders() -> list[Path]:
    """Folders of installed NVRTC wheels, the preferred one first; empty where there is none."""
    try:
        spec = importlib.util.find_spec("nvidia")
    except (ImportError, ValueError):
        return []
    roots = [Path(p) for p in (spec.submodule_search_locations or [])] if spec else []
    found = (root / folder for folder in _FOLDERS for root in roots)
    return [path for path in found if path.is_dir()]
