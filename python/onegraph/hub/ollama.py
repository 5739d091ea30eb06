"""`ollama:` references: models that ollama has pulled, used where they lie."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onegraph.errors import ArgumentError, FileError, ModelError
from onegraph.hub import fingerprint
from onegraph.hub.cache import Progress, open_regular

__all__ = ["has", "is_name", "layers", "references", "resolve"]

_MODEL = "application/vnd.ollama.image.model"
#: Each part of a name. The first character keeps `..` and hidden files out.
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,349}")
#: What ollama takes for the parts that a name leaves out.
_HOST_TAKEN, _NAMESPACE_TAKEN, _TAG_TAKEN = "registry.ollama.ai", "library", "latest"
#: A manifest is about a kilobyte, and what a Modelfile says some; a file past this is none.
_MANIFEST_LIMIT = 1 << 20
#: Layers of what a Modelfile says.
_SAID = re.compile(r"application/vnd\.ollama\.image\.(system|params|template)")


def references() -> list[str]:
    """The models that ollama has pulled, as `ollama:` references; without the tag "latest", the
    namespace and the host where they are what ollama takes by itself."""
    found = set()
    for root in _roots():
        # Host, namespace, model, tag.
        for path in (root / "manifests").glob("*/*/*/*"):
            host, namespace, model, tag = path.parts[-4:]
            front = [] if (host, namespace) == (_HOST_TAKEN, _NAMESPACE_TAKEN) else [namespace]
            front = front if host == _HOST_TAKEN else [host, namespace]
            named = "/".join([*front, model]) + ("" if tag == _TAG_TAKEN else f":{tag}")
            if is_name(named):
                found.add(f"ollama:{named}")
    return sorted(found)


def is_name(text: str) -> bool:
    """Whether a model of ollama could be called so."""
    try:
        _split(f"ollama:{text}")
    except ArgumentError:
        return False
    return True


def has(name: str) -> bool:
    """Whether ollama has pulled a model of exactly this name. In a folder
    that cannot be read there is none."""
    if "/" in name or not is_name(name):
        return False
    manifest = Path("manifests", *_split(f"ollama:{name}"))
    found = False
    for root in _roots():
        with contextlib.suppress(OSError):
            found = found or (root / manifest).is_file()
    return found


def resolve(
    ref: str,
    hint: Callable[[], str],
    *,
    progress: Progress | None = None,
    verify: bool = False,
) -> Path:
    """The blob of the model that `ref` names; `verify` reads it whole. `hint` is asked what else
    may have been meant where there is none. Errors: `onegraph.hub.resolve`."""
    host, namespace, model, tag = _split(ref)
    roots = _roots()
    name = f"{namespace}/{model}" if namespace != _NAMESPACE_TAKEN else model
    tried = []
    for root in roots:
        folder = root / "manifests" / host / namespace / model
        manifest = _manifest(folder / tag, ref)
        if manifest is not None:
            return _blob(root, manifest, folder / tag, ref, progress, verify)
        tried.append((root, folder))
    for root, folder in tried:
        tags = _names(folder)
        if tags:
            raise FileError(
                f"ollama has no {name}:{tag} in {root}{hint()}; tags of {name} there: "
                f"{', '.join(tags)}; run `ollama pull {name}:{tag}` or name one of them"
            )
    where = " or ".join(str(root) for root in roots)
    models = sorted({n for root in roots for n in _names(root / "manifests" / host / namespace)})
    there = f"; models there: {', '.join(models)}" if models else ""
    raise FileError(
        f"ollama has no model {name} in {where}{hint()}{there}; run `ollama pull "
        f"{name}:{tag}`, or set OLLAMA_MODELS to ollama's folder"
    )


def layers(ref: str) -> dict[str, str]:
    """What the Modelfile of a model says: the texts of "system", "params" (JSON) and "template"
    that there are. Errors: `onegraph.hub.resolve`."""
    host, namespace, model, tag = _split(ref)
    found: dict[str, str] = {}
    for root in _roots():
        path = root / "manifests" / host / namespace / model / tag
        if (manifest := _manifest(path, ref)) is None:
            continue
        for layer in _layers(manifest, path, ref):
            if kind := _SAID.fullmatch(str(layer.get("mediaType"))):
                found[kind[1]] = _text(_blob_path(root, path, layer), ref)
        break
    return found


def _text(blob: Path, ref: str) -> str:
    try:
        with open_regular(blob) as file:
            return file.read(_MANIFEST_LIMIT).decode()
    except FileNotFoundError as e:
        raise FileError(
            f"{ref}: ollama's blob {blob} is missing; run `ollama pull` again to complete it"
        ) from e
    except UnicodeDecodeError as e:
        raise ModelError(f"{ref}: ollama's blob {blob} is not text: {e}; pull it again") from e
    except OSError as e:
        raise _unreadable(blob, ref, e) from e


def _split(ref: str) -> tuple[str, str, str, str]:
    """`(host, namespace, model, tag)` of `ollama:[host/][namespace/]model[:tag]`."""
    *front, last = ref.removeprefix("ollama:").split("/")
    model, colon, tag = last.partition(":")
    if not colon:
        tag = _TAG_TAKEN
    namespace = front.pop() if front else _NAMESPACE_TAKEN
    host = front.pop() if front else _HOST_TAKEN
    parts = [namespace, model, tag]
    if front or not _HOST.fullmatch(host) or not all(map(_PART.fullmatch, parts)):
        raise ArgumentError(
            f"{ref!r} is not the name of an ollama model: write ollama:model, ollama:model:tag or "
            "ollama:host/namespace/model:tag, of letters, digits, '-', '_' and '.'"
        )
    return host, namespace, model, tag


def _roots() -> list[Path]:
    if own := os.environ.get("OLLAMA_MODELS"):
        return [Path(own).expanduser()]
    roots = [Path("/usr/share/ollama/.ollama/models")]
    with contextlib.suppress(RuntimeError):  # no home directory
        roots.insert(0, Path.home() / ".ollama" / "models")
    return roots


def _names(folder: Path) -> list[str]:
    try:
        return sorted(p.name for p in folder.iterdir() if not p.name.startswith("."))
    except OSError:
        return []


def _manifest(path: Path, ref: str) -> object | None:
    """The parsed manifest, or None where there is none."""
    try:
        with open_regular(path) as file:
            raw = file.read(_MANIFEST_LIMIT + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except FileError:
        raise
    except OSError as e:
        raise _unreadable(path, ref, e) from e
    remedy = "remove the model with `ollama rm` and pull it again"
    if len(raw) > _MANIFEST_LIMIT:
        raise ModelError(f"{path} is not a manifest: it is over {_MANIFEST_LIMIT} bytes; {remedy}")
    try:
        parsed: object = json.loads(raw)
    except (ValueError, RecursionError) as e:
        raise ModelError(f"{path} is not a manifest of ollama: {e}; {remedy}") from e
    return parsed


def _unreadable(path: Path, ref: str, e: OSError) -> FileError:
    return FileError(
        f"{ref}: cannot read {path}: {e.strerror}; ollama's service stores models as its own "
        "user: let your user read the folder (`sudo usermod -aG ollama $USER` and log in again), "
        "or pull the model as yourself"
    )


def _blob(
    root: Path,
    manifest: object,
    path: Path,
    ref: str,
    progress: Progress | None,
    verify: bool,
) -> Path:
    models = [m for m in _layers(manifest, path, ref) if m.get("mediaType") == _MODEL]
    if len(models) != 1:
        raise ModelError(
            f"{path} lists {len(models)} layers of type {_MODEL}, not one GGUF: "
            "pull a GGUF variant of the model"
        )
    blob, size = _blob_path(root, path, models[0]), models[0].get("size")
    try:
        with open_regular(blob) as file:
            found = os.fstat(file.fileno()).st_size
            if found != size:
                raise ModelError(
                    f"{ref}: ollama's blob {blob} has {found} bytes, its manifest says {size}: "
                    "the download is incomplete; run `ollama pull` again"
                )
            if verify and fingerprint.read_whole(file, ref, progress) != blob.name[7:]:
                raise ModelError(
                    f"{ref}: ollama's blob {blob} is damaged: its sha256 does not match its "
                    "name; remove the model with `ollama rm` and pull it again"
                )
    except FileNotFoundError as e:
        raise FileError(
            f"{ref}: ollama's blob {blob} is missing; run `ollama pull` again to complete it"
        ) from e
    except (FileError, ModelError):
        raise
    except OSError as e:
        raise _unreadable(blob, ref, e) from e
    return blob


def _layers(manifest: object, path: Path, ref: str) -> list[dict[str, Any]]:
    layers = manifest.get("layers") if isinstance(manifest, dict) else None
    if not isinstance(layers, list):
        raise ModelError(f"{path} lists no layers; run `ollama pull` again for {ref}")
    return [layer for layer in layers if isinstance(layer, dict)]


def _blob_path(root: Path, path: Path, layer: dict[str, Any]) -> Path:
    digest = layer.get("digest")
    if not isinstance(digest, str) or not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        raise ModelError(
            f"{path} gives the digest {digest!r}, not sha256: and 64 hexadecimal digits; remove "
            "the model with `ollama rm` and pull it again"
        )
    return root / "blobs" / digest.replace(":", "-")
