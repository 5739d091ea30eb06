"""The models that are on this machine, whichever program fetched them."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from onegraph import _native, hub
from onegraph.errors import Error, FileError
from onegraph.hub import hugging_face, pins

__all__ = ["Local", "known", "ours", "removable"]


@dataclass(frozen=True)
class Local:
    """A model and where it lies."""

    #: What is typed for it.
    name: str
    #: Its (first) file; None where that cannot be had.
    path: Path | None
    #: Who keeps it: "onegraph", "ollama" or "Hugging Face".
    store: str
    #: Bytes of all its files, the architecture and the tensor type that has most of them.
    size: int | None = None
    architecture: str | None = None
    type: str | None = None
    #: Why it cannot be used, where it cannot.
    error: str | None = None


def known() -> Iterator[Local]:
    """All models that have a name here, with what their files say."""
    yield from map(_described, ours())
    # Of two names for one reference the one with the size, which comes behind the other.
    named = {each.reference: name for name, each in hub.names().items()}
    for reference in hub.references():
        with contextlib.suppress(Error):
            if reference.startswith("hf:"):
                path = _pinned(reference)
                if path is not None:
                    name = named.get(reference, reference)
                    yield _described(Local(name, path, "Hugging Face"))
        if reference.startswith("ollama:"):
            try:
                yield _described(Local(reference, hub.resolve(reference), "ollama"))
            except Error as e:
                yield Local(reference, None, "ollama", error=str(e))


def ours() -> list[Local]:
    """The files of onegraph's own cache: by their names in the manifest; by their paths where that
    names another file by now."""
    names = {entry.path: entry.name for entry in hub.known_models().values()}
    with contextlib.suppress(OSError):
        found = sorted(p for p in hub.cache_dir().glob("*.gguf") if p.is_file())
        return [Local(names.get(path, str(path)), path, "onegraph") for path in found]
    return []


def _pinned(reference: str) -> Path | None:
    """The file of an `hf:` reference, where it is here; nothing is fetched for it."""
    from huggingface_hub import try_to_load_from_cache

    pin = pins.read(reference)
    if pin is None:
        return None
    repo = hugging_face.parse(reference).repo
    found = try_to_load_from_cache(repo, pin.files[0].name, revision=pin.commit)
    return Path(found) if isinstance(found, str) else None


def _described(model: Local) -> Local:
    assert model.path is not None
    try:
        info = json.loads(_native.model_info(model.path))
    except Error as e:
        return Local(model.name, model.path, model.store, _size(model.path), error=str(e))
    mix = max(info["quant_mix"], key=lambda part: part["bytes"], default=None)
    return Local(
        model.name,
        model.path,
        model.store,
        info["file_bytes"],
        info["architecture"],
        mix and mix["type"],
        info["error"] or None,
    )


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def removable(name: str) -> Local:
    """The file of onegraph's own cache that a name or a path stands for.

    Raises `FileError` where there is none: what others keep is theirs to remove.
    """
    for model in ours():
        if name == model.name or (model.path and Path(name).absolute() == model.path.absolute()):
            return model
    if name.startswith("ollama:"):
        remedy = f"it is ollama's: run `ollama rm {name.removeprefix('ollama:')}`"
    elif name.startswith("hf:"):
        remedy = "it is in Hugging Face's cache, which other programs share: see `hf cache rm`"
    elif os.path.lexists(name):
        remedy = "onegraph did not download this file: delete it yourself"
    else:
        here = ", ".join(model.name for model in ours()) or "none"
        remedy = f"models in {hub.cache_dir()}: {here}"
    raise FileError(f"{name} is not in onegraph's cache; {remedy}")
