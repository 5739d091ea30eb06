"""`hf:` references: files of Hugging Face repositories, in huggingface_hub's own cache.

    hf:user/repo/file.gguf              hf:user/repo:Q4_K_M
    hf:user/repo@REVISION/file.gguf     hf:user/repo@REVISION:Q4_K_M

A revision is a branch, a tag or a commit, written as huggingface_hub's own `hf://` paths write it
(a slash in a branch's name as %2F). Without one it is the repository's main branch.

What a reference stands for is pinned when it is first used: its commit and the hash of each file
(`pins`). Later loads take that commit, with no question to the network, and hold the files to the
hash. Files are often uploaded again under the same name, to mend a template or by whoever took
over an account: a load that followed would compute something else today than yesterday, and start
with a download of gigabytes. To fail until somebody agrees would stop programs for a change that
need not concern them. So nothing changes by itself, `onegraph pull` says what is new upstream, and
`onegraph pull --update` takes it.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from onegraph.errors import ArgumentError, FileError, ModelError
from onegraph.hub import fingerprint, pins, resuming
from onegraph.hub.cache import FULL, Progress, open_regular
from onegraph.hub.pins import Pin, PinnedFile

__all__ = ["resolve", "upstream_change"]

logger = logging.getLogger("onegraph")

_REFERENCE = re.compile(
    r"hf:(?P<repo>[\w.-]+/[\w.-]+)"
    r"(?:@(?P<revision>refs/(?:pr|convert)/[\w.-]+|(?:[\w.-]|%2[Ff])+))?"
    r"(?::(?P<tag>[\w.-]+)|/(?P<file>(?:[\w.-]+/)*[\w.-]+\.gguf))",
    re.ASCII,
)
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
#: A split model of more shards than this is none.
_MOST_SHARDS = 1000


@dataclass(frozen=True)
class Reference:
    """The parts of a reference; of `file` and `tag` there is one."""

    text: str
    repo: str
    revision: str | None
    file: str | None
    tag: str | None


def parse(ref: str) -> Reference:
    """The parts of an `hf:` reference; `ArgumentError` for what is none."""
    found = _REFERENCE.fullmatch(ref)
    if found:
        revision = found["revision"]
        revision = revision and re.sub("%2F", "/", revision, flags=re.IGNORECASE)
        parts = "/".join(filter(None, [found["repo"], revision, found["file"]])).split("/")
        # Neither `..` nor an empty part: they become paths.
        if all(part.strip(".") for part in parts):
            return Reference(ref, found["repo"], revision, found["file"], found["tag"])
    raise ArgumentError(
        f"{ref!r} is not a reference to a Hugging Face file: write hf:user/repo/file.gguf, or "
        "hf:user/repo:Q4_K_M for the file of that quantization; @REVISION may follow the "
        "repository, as in hf:user/repo@v1.0:Q4_K_M"
    )


def resolve(
    ref: str,
    *,
    progress: Progress | None = None,
    mend: bool = False,
    verify: bool = False,
    update: bool = False,
) -> Path:
    """The (first) file of an `hf:` reference. Arguments and errors: `onegraph.hub.resolve`."""
    wanted = parse(ref)
    _import()
    pin = None if update else pins.read(ref)
    if pin is None:
        return _first_use(wanted, mend or update, progress)
    return _as_pinned(wanted.repo, pin, mend, verify, progress)


def _import() -> None:
    with warnings.catch_warnings():
        # In a notebook tqdm asks for ipywidgets when it is imported; none of its bars is drawn.
        warnings.filterwarnings("ignore", message="IProgress not found")
        importlib.import_module("huggingface_hub.file_download")


# --- what a reference stands for ------------------------------------------------------------------


def _first_use(wanted: Reference, mend: bool, progress: Progress | None) -> Path:
    """Fetches what is upstream now, checks it, and pins the reference to it."""
    repo, name = wanted.repo, wanted.file
    if name is None:
        name = _pick(wanted, _listed(repo, wanted.revision))
    first = _download(repo, name, wanted.revision, progress)
    # The local cache keeps a file as snapshots/COMMIT/NAME.
    commit = first.parents[len(PurePosixPath(name).parts) - 1].name
    files = []
    for shard in _shards(wanted.text, name):
        path = first if shard == name else _download(repo, shard, commit, progress)
        files.append(_checked(repo, shard, commit, path, mend, progress))
    try:
        pins.write(Pin(wanted.text, commit, tuple(files)))
    except OSError as e:
        logger.warning(
            "cannot pin %s: %s; a later load may get different content. Set "
            "ONEGRAPH_CACHE_DIR to a writable folder",
            wanted.text,
            e.strerror or e,
        )
    return _download(repo, files[0].name, commit, progress)


def _shards(ref: str, name: str) -> list[str]:
    found = _SHARD.search(name)
    if not found:
        return [name]
    count = int(found[2])
    if not 1 <= count <= _MOST_SHARDS:
        raise ArgumentError(f"{ref!r} names a model of {count} shards: the limit is {_MOST_SHARDS}")
    return [f"{name[: found.start()]}-{i:05}-of-{count:05}.gguf" for i in range(1, count + 1)]


def _checked(
    repo: str, name: str, commit: str, path: Path, mend: bool, progress: Progress | None
) -> PinnedFile:
    """Reads a fetched file once and holds it to the hash that the hub names it by."""
    described = _described(name, path, progress)
    if _differs(described) and mend:
        path = _download(repo, name, commit, progress, again=True)
        described = _described(name, path, progress)
    if _differs(described):
        raise ModelError(
            f"{name} of {repo} is damaged: its sha256 is {described.sha256}, and Hugging Face "
            f"says {described.etag}; delete {path} and run `onegraph pull` again"
        )
    return described


def _differs(file: PinnedFile) -> bool:
    """Whether the hub's name is a SHA-256, as of all large files, and another than the file's."""
    return bool(re.fullmatch(r"[0-9a-f]{64}", file.etag or "")) and file.etag != file.sha256


def _described(name: str, path: Path, progress: Progress | None) -> PinnedFile:
    with _readable(path), open_regular(path) as file:
        return PinnedFile(
            name=name,
            size=os.fstat(file.fileno()).st_size,
            sha256=fingerprint.read_whole(file, name, progress),
            sample=fingerprint.sample(file),
            etag=_etag(path),
        )


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except FileError:
        raise
    except OSError as e:
        raise FileError(f"cannot read {path}: {e.strerror or e}; check its permissions") from e


def _etag(path: Path) -> str | None:
    """What the hub calls the content of a cached file: the name of the blob that it links to."""
    try:
        blob = PurePosixPath(os.readlink(path))
    except OSError:  # on a file system without links
        return None
    return blob.name if blob.parent.name == "blobs" else None


def _as_pinned(repo: str, pin: Pin, mend: bool, verify: bool, progress: Progress | None) -> Path:
    """The files of a pinned commit, held to their hashes."""
    paths = []
    for file in pin.files:
        path = _download(repo, file.name, pin.commit, progress, pin=pin)
        wrong = _damage(path, file, verify, progress)
        if wrong and mend:
            path = _download(repo, file.name, pin.commit, progress, again=True, pin=pin)
            wrong = _damage(path, file, True, progress)
        if wrong:
            remedy = (
                f"Hugging Face now has this for commit {pin.commit}; run `onegraph pull "
                f"--update {pin.reference}` to accept it"
                if mend
                else f"run `onegraph pull {pin.reference}` to download it again"
            )
            raise ModelError(
                f"{path} is not the file {pin.reference} is pinned to: {wrong}; {remedy}"
            )
        paths.append(path)
    return paths[0]


def _damage(path: Path, file: PinnedFile, verify: bool, progress: Progress | None) -> str | None:
    with _readable(path):
        whole = file.sha256 if verify else None
        return fingerprint.damage(path, file.size, file.sample, whole, progress)


def upstream_change(ref: str) -> str | None:
    """What is new upstream under an `hf:` reference that was used before, in a sentence for people.

    None where nothing is, where nothing can be (a commit), or where the network does not answer.
    """
    wanted = parse(ref)
    pin = pins.read(ref)
    if pin is None or wanted.revision == pin.commit:
        return None
    import huggingface_hub as hub

    for file in pin.files:
        try:
            url = hub.hf_hub_url(wanted.repo, file.name, revision=wanted.revision)
            now = hub.get_hf_file_metadata(url)
        except Exception as e:  # its own classes, those of its HTTP client, the system's
            logger.info("cannot check %s for updates: %s", ref, e)
            return None
        if file.etag is not None and now.etag not in (None, file.etag):
            return (
                f"{file.name} of {ref} has changed upstream: pinned is {file.etag} of commit "
                f"{pin.commit}, there now {now.etag} of commit {now.commit_hash}; the pinned one "
                f"stays until `onegraph pull --update {ref}`"
            )
    return None


# --- Hugging Face ---------------------------------------------------------------------------------


def _download(
    repo: str,
    name: str,
    revision: str | None,
    progress: Progress | None,
    *,
    again: bool = False,
    pin: Pin | None = None,
) -> Path:
    """Where the local cache has a file, fetched where it has not, or `again`."""
    import huggingface_hub as hub

    from onegraph.hub.telling import telling

    raised: list[BaseException] = []
    bar = telling(f"downloading {name}", progress, raised)
    try:
        if not again:
            resuming.fetch(repo, name, revision, bar)
        path = hub.hf_hub_download(
            repo, name, revision=revision, force_download=again, tqdm_class=bar
        )
    except Exception as e:  # its own classes, those of its HTTP client, the system's
        if raised:  # what the caller's function raises passes through as it is
            raise raised[0] from None
        raise _error(f"{name} of {repo}", e, pin) from e
    if raised:
        raise raised[0]
    return Path(path)


def _listed(repo: str, revision: str | None) -> list[str]:
    """Names of the repository's files; offline, of those in the local hub cache."""
    import huggingface_hub as hub

    try:
        # `list_repo_files` would try a hub that is not there for half a minute.
        info = hub.model_info(repo, revision=revision)
        return [file.rfilename for file in info.siblings or []]
    except Exception as online:
        try:
            found = hub.snapshot_download(repo, revision=revision, local_files_only=True)
        except Exception:
            raise _error(f"the list of files of {repo}", online) from online
        snapshot = Path(found)
        return [p.relative_to(snapshot).as_posix() for p in snapshot.rglob("*") if p.is_file()]


def _error(what: str, e: Exception, pin: Pin | None = None) -> FileError:
    reason = " ".join(str(e).split()) or type(e).__name__
    if isinstance(e, OSError) and e.errno in FULL:
        return FileError(
            f"no room for {what}: {reason}; free space on the disk of Hugging Face's cache, or set "
            "HF_HUB_CACHE to a folder on another one"
        )
    held = (
        ""
        if pin is None
        else (
            f"; {pin.reference} is pinned to commit {pin.commit}: if that is gone, `onegraph pull "
            f"--update {pin.reference}` gets the latest"
        )
    )
    endpoint, remedy = _remedy(e)
    return FileError(
        f"cannot download {what} from {endpoint}: {reason}; {remedy}, or download the file "
        f"elsewhere and name its path{held}"
    )


def _remedy(e: Exception) -> tuple[str, str]:
    """Where the hub is, and what to do about an error of it."""
    from huggingface_hub import constants

    if getattr(e, "response", None) is not None:
        remedy = "check the name, log in with `hf auth login` or HF_TOKEN for a gated repository"
    elif constants.HF_HUB_OFFLINE:
        remedy = "HF_HUB_OFFLINE is set, so nothing is downloaded: unset it"
    else:
        remedy = "check the network: HTTPS_PROXY names a proxy, HF_ENDPOINT a mirror"
    return constants.ENDPOINT, remedy


def _plain(name: str) -> bool:
    """Whether a name from the network can neither leave the cache nor steer the terminal, where
    huggingface_hub's bar shows it."""
    return name.isprintable() and all(part.strip(".") for part in name.split("/"))


def _pick(wanted: Reference, files: list[str]) -> str:
    """The GGUF of one quantization: its tag stands between separators in the name."""
    assert wanted.tag is not None
    ggufs = sorted(f for f in files if f.endswith(".gguf") and "mmproj" not in f.lower())
    tag = re.compile(rf"(?:^|[-._/]){re.escape(wanted.tag)}(?=[-./])", re.IGNORECASE)
    found = [f for f in ggufs if tag.search(f) and _plain(f)]
    first = [f for f in found if not (s := _SHARD.search(f)) or int(s[1]) == 1]
    # Beside the plain one, some repositories have a mix of their own, named by a prefix of the tag.
    plain = [f for f in first if not re.search(rf"-UD-{re.escape(wanted.tag)}", f, re.IGNORECASE)]
    first = plain if len(plain) == 1 else first
    if len(first) == 1:
        return first[0]
    listed = ", ".join(first or ggufs) or "none"
    if first:
        raise ArgumentError(
            f"{wanted.text!r} matches {len(first)} files: {listed}; name one of them"
        )
    raise ArgumentError(f"{wanted.text!r} matches no file; GGUF files there: {listed}")
