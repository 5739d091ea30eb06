"""The kernel cache, filled on a machine without a GPU: by the real compiler where it is installed,
and by the simulated one, whose cache then serves a whole load."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import shapes
import synth
from onegraph import nvrtc

pytestmark = pytest.mark.thorough

PULL = [sys.executable, "-m", "onegraph", "pull"]
#: As few kernels as serve one sequence.
OPTIONS = ["--max-batch", "1", "--n-ctx", "256"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    synth.write(path, shapes.find("tiny-llama"), "Q8_0", seed=1)
    return path


def environment(cache: Path, base: dict[str, str] | None = None) -> dict[str, str]:
    found = dict(os.environ if base is None else base) | {"ONEGRAPH_CACHE_DIR": str(cache)}
    if base is None:
        found.pop("ONEGRAPH_NVRTC", None)
    return found


def fill(args: Sequence[object], env: dict[str, str]) -> subprocess.Popen[str]:
    command = [*PULL, *map(str, args)]
    return subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def said(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, error = process.communicate(timeout=300)
    return process.returncode, out, error


@pytest.fixture(scope="module")
def filled(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that the real compiler filled, some seventy kernels."""
    if not nvrtc.folders():
        pytest.skip("needs the CUDA compiler: pip install nvidia-cuda-nvrtc-cu12")
    cache = tmp_path_factory.mktemp("filled")
    args = [tiny, "--compile", "sm_90", *OPTIONS]
    status, out, error = said(fill(args, environment(cache)))
    assert (status, out) == (0, f"{tiny}\n"), error
    n = len(list((cache / "kernels").iterdir()))
    assert f"{n} kernels for sm_90, {n} of them new" in error
    return cache


def test_the_real_compiler_fills_a_cache_and_mends_it(
    tiny: Path, filled: Path, tmp_path: Path
) -> None:
    env = environment(tmp_path)
    args = [tiny, "--compile", "sm_90", *OPTIONS]
    folder = shutil.copytree(filled / "kernels", tmp_path / "kernels")
    entries = sorted(folder.iterdir())
    n = len(entries)
    # Magic and checksum, then an ELF image for a GPU (machine 190).
    image = entries[0].read_bytes()[8 + 32 :]
    assert image[:4] == b"\x7fELF" and int.from_bytes(image[18:20], "little") == 190
    # A damaged entry, a cut one and one that is gone are compiled again; by two processes at once,
    # of which either may be the one that an entry comes from, whole.
    wanted = [e.read_bytes() for e in entries]
    damaged = bytearray(wanted[0])
    damaged[-1] ^= 1
    entries[0].write_bytes(damaged)
    entries[1].write_bytes(wanted[1][:20])
    entries[2].unlink()
    for status, _, error in map(said, [fill(args, env) for _ in range(2)]):
        assert status == 0 and f"{n} kernels for sm_90" in error
    assert [e.read_bytes() for e in entries] == wanted
    assert sorted(folder.iterdir()) == entries, "something temporary was left"
    _, _, error = said(fill(args, env))
    assert f"{n} kernels for sm_90, 0 of them new" in error


def test_a_filled_cache_serves_a_load_without_a_compiler(
    tiny: Path, tmp_path: Path, ksim_env: dict[str, str]
) -> None:
    env = environment(tmp_path, ksim_env)
    status, _, error = said(fill([tiny, "--compile", "sm_90", *OPTIONS], env))
    assert status == 0, error
    code = """
import sys
from onegraph import LLM

with LLM(sys.argv[1], device="cuda", max_batch=1, n_ctx=256) as llm:
    ids = llm.tokenize("tea and toast, ") * 12
    for n in (1, 9, 17, 33, 70, 130):
        assert len(llm.generate(ids[:n], max_tokens=3, ignore_eos=True).token_ids) == 3
    llm.logits(ids[:9])
    llm.logits(ids[:2], path="decode")
"""
    # Whatever is not in the cache would be compiled by a program that fails.
    broken = env | {"KSIM_CXX": "false", "KSIM_CACHE": str(tmp_path / "none")}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tiny)],
        env=broken,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_an_architecture_that_is_not_known_is_refused(tiny: Path, tmp_path: Path) -> None:
    status, out, error = said(fill([tiny, "--compile", "sm_42"], environment(tmp_path)))
    assert (status, out) == (1, "")
    assert 'GPU architecture "sm_42" is not supported; supported: sm_75, sm_80' in error


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A folder that nobody may write to, root neither, as in the image of a container."""
    folder = tmp_path / "read-only"
    folder.mkdir()
    if os.geteuid() != 0:
        folder.chmod(0o555)
        yield folder
        return
    command = ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("a read-only disk needs the right to mount one; CI runs this")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_cache_that_is_read_only_is_an_error_before_anything_is_compiled(
    tiny: Path, read_only: Path
) -> None:
    env = environment(read_only) | {"ONEGRAPH_NVRTC": "/nowhere"}
    status, out, error = said(fill([tiny, "--compile", "sm_90", *OPTIONS], env))
    assert (status, out) == (1, "")
    folder = read_only / "kernels"
    assert error.startswith(f"error: --compile: cannot write the kernel cache {folder}: ")
    assert "set ONEGRAPH_CACHE_DIR to a folder that is" in error


def test_kernels_that_cannot_be_kept_are_counted_in_an_error(
    tiny: Path, filled: Path, tmp_path: Path
) -> None:
    # The smallest is compiled again and kept; the largest are larger than a file may be.
    folder = shutil.copytree(filled / "kernels", tmp_path / "kernels")
    sizes = {entry: entry.stat().st_size for entry in folder.iterdir()}
    most = max(sizes.values()) - 1
    large = [entry for entry, size in sizes.items() if size > most]
    for entry in (min(sizes, key=sizes.__getitem__), *large):
        entry.unlink()
    code = f"""
import resource, sys
from onegraph.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, ({most}, {most}))
sys.exit(main(sys.argv[1:]))
"""
    args = [sys.executable, "-c", code, "pull", str(tiny), "--compile", "sm_90", *OPTIONS]
    done = subprocess.run(
        args, env=environment(tmp_path), capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert len(list(folder.iterdir())) == len(sizes) - len(large)
    lacks = f"error: --compile: {len(large)} of {len(sizes)} kernels for sm_90 could"
    assert lacks in done.stderr
    assert re.search(rf"to {tmp_path}/kernels, where \d+ MB are free; free some space", done.stderr)


RUN = [sys.executable, "-m", "onegraph", "run", "--raw", "--device", "cuda", "--n-ctx", "64"]


def test_a_load_says_that_its_kernels_are_not_kept(
    tiny: Path, tmp_path: Path, ksim_env: dict[str, str]
) -> None:
    file = tmp_path / "file"
    file.write_text("no folder")
    command = [*RUN, "--max-tokens", "1", str(tiny), "ab"]
    done = subprocess.run(
        command, env=environment(file, ksim_env), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    assert "compiled kernels could not be cached, so the next load compiles them again: " in line
    assert re.search(rf"{file}/kernels/\w+\.cubin: Not a directory", line)


def test_the_cache_may_be_named_from_the_home_folder(
    tiny: Path, tmp_path: Path, ksim_env: dict[str, str]
) -> None:
    env = environment(Path("~/mine"), ksim_env) | {"HOME": str(tmp_path)}
    command = [*RUN, "--max-tokens", "1", str(tiny), "ab"]
    done = subprocess.run(
        command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / "~").exists()
    assert len(list((tmp_path / "mine" / "kernels").glob("*.cubin"))) > 5
