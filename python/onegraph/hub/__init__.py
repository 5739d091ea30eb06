"""Model references: what a user types to name a model, turned into the path of a GGUF file.

    path.gguf                     a file; of a split model, the first shard
    smollm2                       a name of the manifest, fetched once and kept
    llama3.2                      a name of `names.txt`: ollama's copy, else an hf: reference
    hf:user/repo/file.gguf        a file of a Hugging Face repository
    hf:user/repo:Q4_K_M           the one GGUF of that quantization there
    hf:user/repo@v1.0:Q4_K_M      the same of one revision: a branch, a tag or a commit
    ollama:qwen2.5:1.5b           a model ollama has pulled, used where it lies

Files that onegraph fetches itself are kept in `$ONEGRAPH_CACHE_DIR/models`, else in
`$XDG_CACHE_HOME/onegraph/models`, else in `~/.cache/onegraph/models`.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import stat
from pathlib import Path

from onegraph import _native
from onegraph.errors import ArgumentError, Error, FileError
from onegraph.hub import hugging_face, ollama, pins
from onegraph.hub.cache import Progress, cache_dir, kind
from onegraph.hub.hugging_face import upstream_change
from onegraph.hub.named import Known, fetch, known_models
from onegraph.hub.names import Named, names
from onegraph.hub.nearest import file_hint, name_hint

__all__ = [
    "FORMS",
    "Known",
    "Named",
    "Progress",
    "cache_dir",
    "fetch",
    "known_models",
    "meant",
    "names",
    "references",
    "resolve",
    "upstream_change",
]

#: The forms of a reference, for messages.
FORMS = (
    "path/to/model.gguf, NAME, hf:user/repo/file.gguf, hf:user/repo:Q4_K_M, "
    "hf:user/repo@REVISION:Q4_K_M, ollama:model:tag"
)

logger = logging.getLogger("onegraph")


def references() -> list[str]:
    """What `resolve` takes and is here, or is fetched by its name alone: the names of the manifest,
    and those of the table, the `hf:` references that were used before, and what ollama has pulled.
    """
    return [*sorted([*known_models(), *names()]), *pins.references(), *ollama.references()]


def meant(ref: str) -> str:
    """What a name without a prefix stands for: the copy that ollama has under exactly that name,
    else what the table says. Any other reference stands for itself."""
    if ref in known_models() or ref.startswith("ollama:"):
        return ref
    named = names().get(ref)
    if ollama.has(ref):
        copy = f"ollama:{ref}"
        if named is None or (why := _cannot_run(copy)) is None:
            return copy
        logger.warning(
            "ollama's copy of %s cannot run here, so %s is used: %s", ref, named.reference, why
        )
    return ref if named is None else named.reference


def _cannot_run(ref: str) -> str | None:
    """Why ollama's copy is of no use: some of its files are written for ollama's own engine."""
    try:
        why: str | None = json.loads(_native.model_info(resolve(ref)))["error"]
    except Error as e:
        return str(e)
    return why or None


def resolve(
    ref: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    mend: bool = False,
    verify: bool = False,
    update: bool = False,
) -> Path:
    """The path of the GGUF file that `ref` names; fetches what is not there yet.

    A file that was fetched before is compared with what was fetched, by its size and a sample of
    it (`onegraph.hub.fingerprint`); `verify` reads all of it. What is damaged is an error; `mend`
    fetches it again, where it was onegraph that fetched it. An `hf:` reference stands for the
    content that it first stood for; `update` takes what is upstream now.

    Raises `ArgumentError` for a name that is not known or not well formed, or an option that means
    nothing for it, `FileError` where a file, a store or a download cannot be had, `ModelError`
    where what is there is damaged.
    """
    if isinstance(ref, str):
        ref = meant(ref)
    text = ref if isinstance(ref, str) else ""
    if text.startswith("hf:"):
        return hugging_face.resolve(
            text, progress=progress, mend=mend, verify=verify, update=update
        )
    if update:
        raise ArgumentError(
            f"update: {os.fspath(ref)!r} always has the same content; only hf: "
            "references can be updated"
        )
    known = known_models()
    if text.startswith("ollama:"):
        hint_of = functools.partial(name_hint, text, [*known, *names()])
        return ollama.resolve(text, hint_of, progress=progress, verify=verify)
    if not isinstance(ref, str):
        return _file(Path(ref), verify)
    if entry := known.get(ref):
        return fetch(entry, progress=progress, mend=mend, verify=verify)
    meant_as_path = ref.endswith((".gguf", *_OTHER_FORMATS)) or "/" in ref or os.sep in ref
    path = Path(ref).expanduser()
    if ref and (path.exists() or (meant_as_path and "://" not in ref)):
        return _file(path, verify)
    hint = name_hint(ref, [*known, *names()])
    pull = f"; if ollama has it, run `ollama pull {ref}`"
    raise ArgumentError(
        f"unknown model {ref!r}{hint}: `onegraph list --names` lists known names; "
        f"name a model as {FORMS}{pull if not hint and ollama.is_name(ref) else ''}"
    )


#: What the names of other programs' weights end in.
_OTHER_FORMATS = (".safetensors", ".bin", ".pth", ".pt", ".onnx")

_NO_GGUF = (
    "onegraph reads GGUF files: look for a repository whose name ends in -GGUF, or convert the "
    "model with llama.cpp's convert_hf_to_gguf.py"
)


def _begins_as_gguf(path: Path) -> bool:
    """Or cannot be read, which the load reports with the remedy."""
    try:
        with path.open("rb") as file:
            return file.read(4) == b"GGUF"
    except OSError:
        return True


def _file(path: Path, verify: bool) -> Path:
    is_other = path.name.endswith(_OTHER_FORMATS)
    try:
        mode = path.stat().st_mode
    except FileNotFoundError as e:
        remedy = _NO_GGUF if is_other else f"check the path, or name a model as {FORMS}"
        hint = file_hint(path, known_models())
        raise FileError(f"there is no file {path}{hint}; {remedy}") from e
    except (OSError, ValueError) as e:  # ValueError: a null character
        reason = getattr(e, "strerror", None) or e
        raise FileError(f"cannot read {path}: {reason}; check the path and its permissions") from e
    if other := kind(mode):
        folder = stat.S_ISDIR(mode)
        remedy = "save the model to a file first"
        if folder:
            holds = next(path.glob("*.gguf"), None)
            remedy = f"name the .gguf file inside it, such as {holds}" if holds else _NO_GGUF
        raise FileError(f"{path} is {other}; {remedy}")
    if is_other and not _begins_as_gguf(path):
        raise FileError(f"{path} is in another format; {_NO_GGUF}")
    if verify:
        raise ArgumentError(
            f"verify: {path} has no known hash; compare `sha256sum {path}` with "
            "the one its publisher states"
        )
    return path
