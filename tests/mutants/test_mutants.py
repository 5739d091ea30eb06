"""Bugs of other engines, re-created as patches: each must turn its property red.

A patch begins with a line `Bug:` and lines `Red:`, each a test of pytest, or a cargo command, that
must fail. Patches of the interpreter are judged by the CPU, those of kernels and of the card's host
code by the simulator. Every run checks that all patches still apply, and that the simulator finds
some of the kernels' bugs: it compiles the patched sources, nothing is built. The rest builds the
native module for each patch, about half a minute, and so is asked for:

    ONEGRAPH_MUTANTS=1 pytest tests/mutants
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATCHES = sorted(Path(__file__).parent.glob("*.patch"))
#: Kept between mutants: only the engine is built anew.
TARGET = ROOT / "target" / "mutants"
EXTENSION = "pyo3/extension-module"

#: Found in seconds, and so in every run.
QUICK = {
    "kernel_bound_off_by_one",
    "kernel_padding_takes_live_slot_0",
    "kernel_refusal_is_silent",
    "kernel_scatter_adds",
}

ASKED = bool(os.environ.get("ONEGRAPH_MUTANTS"))
asked_for = pytest.mark.skipif(
    not ASKED, reason="builds the module for each patch, minutes; ONEGRAPH_MUTANTS=1 runs it"
)
over_patches = pytest.mark.parametrize("patch", PATCHES, ids=lambda p: p.stem)


def lines(patch: Path, word: str) -> list[str]:
    head = patch.read_text().split("diff --git", 1)[0].splitlines()
    return [line.split(": ", 1)[1] for line in head if line.startswith(f"{word}: ")]


def copy_of_the_source(folder: Path) -> Path:
    """What cargo and Python need, without what was built."""
    for name in ("Cargo.toml", "Cargo.lock", ".rustfmt.toml"):
        shutil.copy2(ROOT / name, folder)
    without = shutil.ignore_patterns("target", "*.so", "__pycache__", "examples")
    for name in ("rust", "python"):
        shutil.copytree(ROOT / name, folder / name, ignore=without)
    return folder


def apply(patch: Path, folder: Path) -> None:
    git = shutil.which("git")
    if git is None:
        pytest.skip("git is not here to apply patches with")
    command = [git, "apply", "--whitespace=nowarn", str(patch)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, (
        f"{patch.name} no longer applies; write its bug anew:\n{done.stderr}"
    )


@over_patches
def test_the_patch_applies(patch: Path, tmp_path: Path) -> None:
    assert lines(patch, "Bug") and lines(patch, "Red")
    source = copy_of_the_source(tmp_path)
    before = {path: path.read_bytes() for path in source.rglob("*.*") if path.is_file()}
    apply(patch, source)
    assert any(path.read_bytes() != text for path, text in before.items())


def is_of_kernels(patch: Path) -> bool:
    """Whether it changes kernels alone, which need no build."""
    return all(path.startswith("rust/engine/kernels/") for path in changed(patch))


def changed(patch: Path) -> list[str]:
    return [x.removeprefix("+++ b/") for x in patch.read_text().splitlines() if x[:4] == "+++ "]


def judge(patch: Path) -> str:
    """The backend whose tests must find it."""
    device = ("rust/engine/kernels/", "rust/engine/src/backend/cuda/")
    return "simulated" if any(path.startswith(device) for path in changed(patch)) else "cpu"


def environment(source: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(source / "python"),
        "CARGO_TARGET_DIR": str(TARGET),
        "PYO3_PYTHON": sys.executable,
    }


def build(source: Path) -> None:
    subprocess.run(
        ["cargo", "build", "--locked", "-p", "onegraph-python", "--features", EXTENSION],
        cwd=source,
        env=environment(source),
        check=True,
        timeout=1500,
    )
    module = TARGET / "debug" / "lib_native.so"
    shutil.copy2(module, source / "python" / "onegraph" / "_native.abi3.so")


def run(test: str, patch: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """A line `Red:` of a patch."""
    if test.startswith("cargo "):
        command, folder = [*test.split(), "--locked"], Path(env["PYTHONPATH"]).parent
    else:
        command, folder = [sys.executable, "-m", "pytest", "-xq", "-p", "no:cacheprovider"], ROOT
        command += [test, "-m", "not gpu", "--rootdir", str(ROOT), "--hypothesis-profile=find"]
        if "/cuda/" not in test:
            command += ["-k", judge(patch)]
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=1500
    )


def must_be_red(patch: Path, env: dict[str, str]) -> None:
    for test in lines(patch, "Red"):
        done = run(test, patch, env)
        # 1: tests failed; 101: so says cargo, also where the patch does not compile.
        failed = "FAILED" in done.stdout or "ERROR" in done.stdout
        assert done.returncode in (1, 101) and failed, f"{test} is green:\n{done.stdout[-4000:]}"
        assert "error: this is a bug in onegraph" not in done.stdout, "the kernel did not compile"


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("patch", [p for p in PATCHES if is_of_kernels(p)], ids=lambda p: p.stem)
def test_the_simulator_finds_the_bug(
    patch: Path, tmp_path: Path, ksim_env: dict[str, str], ksim_library_dir: Path
) -> None:
    if patch.stem not in QUICK and not ASKED:
        pytest.skip("compiles more kernels than there is time for; ONEGRAPH_MUTANTS=1 runs it")
    source = copy_of_the_source(tmp_path)
    apply(patch, source)
    simulator = {
        "KSIM_KERNELS": str(source / "rust" / "engine" / "kernels"),
        "KSIM_LIBRARY_DIR": str(ksim_library_dir),
        "KSIM_CACHE": ksim_env["KSIM_CACHE"],
    }
    must_be_red(patch, os.environ | simulator | ({"ONEGRAPH_THOROUGH": "1"} if ASKED else {}))


@asked_for
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_without_a_bug_all_are_green(tmp_path: Path) -> None:
    source = copy_of_the_source(tmp_path)
    build(source)
    reds = {(test, judge(patch)): patch for patch in PATCHES for test in lines(patch, "Red")}
    for (test, _), of in reds.items():
        done = run(test, of, environment(source))
        assert done.returncode == 0, f"{test}:\n{done.stdout[-4000:]}{done.stderr[-4000:]}"


@asked_for
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "patch", [p for p in PATCHES if not is_of_kernels(p)], ids=lambda p: p.stem
)
def test_the_bug_is_found(patch: Path, tmp_path: Path) -> None:
    source = copy_of_the_source(tmp_path)
    apply(patch, source)
    if any(not test.startswith("cargo ") for test in lines(patch, "Red")):
        build(source)
    must_be_red(patch, environment(source))
