"""`hf:` references, offline, against a folder laid out as huggingface_hub's own cache."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import onegraph
import pytest
from onegraph import hub

pytestmark = pytest.mark.thorough

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = [
    "README.md",
    "Tiny-Q4_K_M.gguf",
    "Tiny-Q8_0.gguf",
    "Tiny-Q8_0_L.gguf",
    "mmproj-Tiny-Q4_K_M.gguf",
    "Big-Q6_K-00001-of-00002.gguf",
    "Big-Q6_K-00002-of-00002.gguf",
    "half/Tiny-F16.gguf",
    "half/Other-F16.gguf",
]


@pytest.fixture(scope="module")
def hub_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Blobs named by their hash, a ref, and a snapshot of links to the blobs."""
    cache = tmp_path_factory.mktemp("hub")
    repo = cache / "models--user--Tiny-GGUF"
    for folder in ["blobs", "refs"]:
        (repo / folder).mkdir(parents=True)
    (repo / "refs" / "main").write_text(COMMIT)
    for name in FILES:
        content = f"GGUF {name}".encode()
        blob = repo / "blobs" / hashlib.sha256(content).hexdigest()
        blob.write_bytes(content)
        link = repo / "snapshots" / COMMIT / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    return cache


def resolve(ref: str, hub_cache: Path) -> str:
    """The resolved path, or class and message of the error, as a fresh process sees them."""
    code = """
import sys
from onegraph import hub
try:
    print(hub.resolve(sys.argv[1]))
except Exception as e:
    print(type(e).__name__, e)
"""
    env = os.environ | {
        "HF_HUB_CACHE": str(hub_cache),
        "HF_HUB_OFFLINE": "1",
        "ONEGRAPH_CACHE_DIR": str(hub_cache / "onegraph"),
    }
    done = subprocess.run(
        [sys.executable, "-c", code, ref], env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("ref", "file"),
    [
        ("hf:user/Tiny-GGUF/Tiny-Q4_K_M.gguf", "Tiny-Q4_K_M.gguf"),
        ("hf:user/Tiny-GGUF/half/Tiny-F16.gguf", "half/Tiny-F16.gguf"),
        ("hf:user/Tiny-GGUF:Q4_K_M", "Tiny-Q4_K_M.gguf"),
        ("hf:user/Tiny-GGUF:q4_k_m", "Tiny-Q4_K_M.gguf"),
        ("hf:user/Tiny-GGUF:Q8_0", "Tiny-Q8_0.gguf"),
        ("hf:user/Tiny-GGUF:Q6_K", "Big-Q6_K-00001-of-00002.gguf"),
        ("hf:user/Tiny-GGUF/Big-Q6_K-00001-of-00002.gguf", "Big-Q6_K-00001-of-00002.gguf"),
    ],
)
def test_a_cached_file_is_found_offline(ref: str, file: str, hub_cache: Path) -> None:
    path = Path(resolve(ref, hub_cache))
    assert path.read_text() == f"GGUF {file}"
    assert path.as_posix().endswith(f"snapshots/{COMMIT}/{file}")


def test_a_quantization_that_is_not_there_lists_the_files(hub_cache: Path) -> None:
    said = resolve("hf:user/Tiny-GGUF:Q5_K_M", hub_cache)
    assert said.startswith("ArgumentError 'hf:user/Tiny-GGUF:Q5_K_M' matches no file")
    assert "Tiny-Q4_K_M.gguf" in said and "mmproj" not in said


def test_a_quantization_of_two_files_asks_which(hub_cache: Path) -> None:
    said = resolve("hf:user/Tiny-GGUF:F16", hub_cache)
    assert said.startswith("ArgumentError 'hf:user/Tiny-GGUF:F16' matches 2 files")
    assert "half/Other-F16.gguf, half/Tiny-F16.gguf; name one of them" in said


@pytest.mark.parametrize(
    "ref", ["hf:user/Tiny-GGUF/absent.gguf", "hf:nobody/none/x.gguf", "hf:nobody/none:Q4_K_M"]
)
def test_what_is_not_cached_cannot_be_had_offline(ref: str, hub_cache: Path) -> None:
    said = resolve(ref, hub_cache)
    assert said.startswith("FileError cannot download ")
    assert "HF_HUB_OFFLINE is set" in said and "download the file elsewhere" in said


@pytest.mark.parametrize(
    "ref",
    [
        "hf:",
        "hf:user",
        "hf:user/repo",
        "hf:user/repo:",
        "hf:user/repo/file.bin",
        "hf:user/repo/file.gguf:Q4_K_M",
        "hf:user/repo/../../secret.gguf",
        "hf:../repo:Q4_K_M",
        "hf:/etc/passwd.gguf",
        "hf:user//file.gguf",
        "hf:user/repo:../x",
    ],
)
def test_a_malformed_reference_is_refused(ref: str) -> None:
    with pytest.raises(onegraph.ArgumentError, match=r"write hf:user/repo/file\.gguf, or"):
        hub.resolve(ref)
