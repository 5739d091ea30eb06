"""What somebody may have meant by a reference that nothing is found under."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from onegraph.hub import ollama

__all__ = ["file_hint", "name_hint"]

#: Files of a folder that are looked at for one with a similar name.
_MOST_FILES = 1000

_PREFIXES = ("hf", "ollama")
#: `user/repo`, maybe `user/repo:Q4_K_M`, as the web site spells a model, or its address.
_REPOSITORY = re.compile(
    r"(?:https?://)?(?:(?:www\.)?(?:huggingface\.co|hf\.co)/)?"
    r"(?P<repo>[\w-][\w.-]*/[\w-][\w.-]*?)(?::(?P<tag>[\w.-]+))?/?",
    re.ASCII,
)
_REPOSITORY_FILE = re.compile(
    r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/(?P<repo>[\w.-]+/[\w.-]+)/"
    r"(?:resolve|blob)/(?P<revision>[^/]+)/(?P<file>[^?#]+\.gguf)(?:[?#].*)?",
    re.ASCII,
)


def name_hint(ref: str, known: Iterable[str]) -> str:
    """What may have been meant by a name that is neither one of `known` nor a file: a question in
    brackets, or how to get a model of that name, to put behind the name; else nothing.
    """
    if meant := _of_another_case(ref):
        return _asked(meant)
    if (address := _of_hugging_face(ref)) and "://" in ref:
        return _asked(address)
    pulled: dict[str, str] = {}
    for reference in ollama.references():
        spelling = reference.removeprefix("ollama:")
        pulled |= {spelling: reference}
        pulled.setdefault(spelling.partition(":")[0], reference)
    of_manifest = {name: name for name in known}
    if ref.startswith("ollama:"):
        rest = ref.removeprefix("ollama:")
        near = _closest(rest, pulled)
        if not near and rest in of_manifest:
            return f" (without `ollama:`, {rest} is a model that onegraph fetches)"
        near = near or _closest(rest, of_manifest)
    else:
        near = _closest(ref, of_manifest | pulled)  # what is here goes first
    return _asked(near) if near else ""


def file_hint(path: Path, known: Iterable[str]) -> str:
    """The same for a path where there is no file."""
    if not path.is_absolute() and not path.parent.exists():
        ref = path.as_posix()
        if meant := _of_another_case(ref):
            return _asked(meant)
        if address := _of_hugging_face(ref):
            return _asked(address)
        if len(path.parts) > 2 and path.suffix == ".gguf":
            return _asked(f"hf:{ref}")
    try:
        beside = list(itertools.islice(path.parent.glob("*.gguf"), _MOST_FILES))
    except OSError:
        beside = []
    # Without the ending, by which any two names would be alike.
    spelled = {file.stem: str(file) for file in beside}
    spelled |= {name: name for name in known}
    near = _closest(path.name.removesuffix(".gguf"), spelled)
    return _asked(near) if near else ""


def _asked(meant: str) -> str:
    return f" (did you mean {meant!r}?)"


def _of_another_case(ref: str) -> str | None:
    """`HF:user/repo:Q8_0` with the prefix in the letters it has."""
    front, colon, rest = ref.partition(":")
    prefix = front.lower()
    return f"{prefix}:{rest}" if colon and prefix != front and prefix in _PREFIXES else None


def _closest(name: str, spelled: Mapping[str, str]) -> str | None:
    """What the spelling most like `name` stands for, in upper or lower case; None where none is
    like it. A beginning of three letters is like the whole."""
    folded = {spelling.casefold(): meant for spelling, meant in spelled.items()}
    wanted = name.casefold()
    if wanted in folded:
        return folded[wanted]
    near = difflib.get_close_matches(wanted, folded, n=1)
    if not near and len(wanted) >= 3:
        near = sorted(spelling for spelling in folded if spelling.startswith(wanted))
    return folded[near[0]] if near else None


def _of_hugging_face(text: str) -> str | None:
    """The `hf:` reference of a repository, or a file of one, as the web site writes it."""
    if found := _REPOSITORY_FILE.fullmatch(text):
        revision = "" if found["revision"] == "main" else f"@{found['revision']}"
        return f"hf:{found['repo']}{revision}/{found['file']}"
    if (found := _REPOSITORY.fullmatch(text)) and not text.endswith(".gguf"):
        return f"hf:{found['repo']}:{found['tag'] or 'Q4_K_M'}"
    return None
