"""Bugs of other engines, re-created: each must turn its property red.

A mutant is a row of a TOML file beside this one: what the `bug` is; the tests that must be
`red`, each of pytest or a cargo command; and the `edits` that make it, text that stands once in
its file and the text in its place. Mutants of the interpreter (`cpu.toml`) are judged by the
CPU, those of kernels (`kernels.toml`, `experts.toml`, `mamba2.toml`, `streams.toml`,
`warpgroups.toml`) and of the card's host code (`card.toml`) by the simulator, those of what knows
no backend (`AS_THEY_ARE`) by their tests as they are. Every run checks that the text is still
there, and that the simulator finds some of the kernels' bugs: it compiles the changed sources,
nothing is built. The rest builds the native module for each mutant, about half a minute, and so is
asked for:

    ONEGRAPH_MUTANTS=1 pytest tests/mutants
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
KERNELS = Path("rust/engine/kernels")
#: Kept between mutants: only the engine is built anew.
TARGET = ROOT / "target" / "mutants"
EXTENSION = "pyo3/extension-module"

#: Found in seconds. ONEGRAPH_MUTANTS=1 runs the others.
QUICK = {
    "kernel_bound_off_by_one",
    "kernel_padding_takes_live_slot_0",
    "kernel_refusal_is_silent",
    "kernel_store_overflows",
}

#: Tables whose tests have no backends to choose among.
AS_THEY_ARE = ("server", "structured", "tools")

ASKED = bool(os.environ.get("ONEGRAPH_MUTANTS"))
asked_for = pytest.mark.skipif(
    not ASKED, reason="builds the module for each mutant, minutes; ONEGRAPH_MUTANTS=1 runs it"
)


@dataclass(frozen=True)
class Edit:
    """`old` becomes `new` in `file`, a path from the root."""

    file: Path
    old: str
    new: str

    def apply(self, root: Path) -> None:
        path = root / self.file
        path.write_text(path.read_text().replace(self.old, self.new, 1))


@dataclass(frozen=True)
class Mutant:
    """One bug."""

    name: str
    bug: str
    red: tuple[str, ...]
    edits: tuple[Edit, ...]
    #: The backend whose tests must find it; empty where none is meant.
    judge: str

    @property
    def of_kernels(self) -> bool:
        """Whether it changes kernels alone, which need no build."""
        return all(edit.file.is_relative_to(KERNELS) for edit in self.edits)


def read(table: Path) -> Iterator[Mutant]:
    judge = {"cpu": "cpu", **dict.fromkeys(AS_THEY_ARE, "")}.get(table.stem, "simulated")
    for name, row in tomllib.loads(table.read_text()).items():
        edits = tuple(Edit(Path(e["file"]), e["old"], e["new"]) for e in row["edits"])
        yield Mutant(name, row["bug"], tuple(row["red"]), edits, judge)


MUTANTS = [mutant for table in sorted(HERE.glob("*.toml")) for mutant in read(table)]
OF_KERNELS = [mutant for mutant in MUTANTS if mutant.of_kernels]
BUILT = [mutant for mutant in MUTANTS if not mutant.of_kernels]


def over(mutants: list[Mutant]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("mutant", mutants, ids=lambda m: m.name)


@over(MUTANTS)
def test_the_text_that_a_mutant_changes_stands_once(mutant: Mutant) -> None:
    assert mutant.bug and mutant.red and mutant.edits
    for edit in mutant.edits:
        assert edit.old != edit.new
        n = (ROOT / edit.file).read_text().count(edit.old)
        assert n == 1, f"{mutant.name}: {n} times in {edit.file}; write its bug anew:\n{edit.old}"


@pytest.fixture(scope="session")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What cargo and Python need, without what was built: one for all mutants."""
    folder = tmp_path_factory.mktemp("mutants")
    for name in ("Cargo.toml", "Cargo.lock", ".rustfmt.toml"):
        shutil.copy2(ROOT / name, folder)
    without = shutil.ignore_patterns("target", "*.so", "__pycache__", "examples")
    for name in ("rust", "python"):
        shutil.copytree(ROOT / name, folder / name, ignore=without)
    return folder


@contextlib.contextmanager
def mutated(copy: Path, mutant: Mutant) -> Iterator[None]:
    """The copy with the bug, while inside."""
    try:
        for edit in mutant.edits:
            edit.apply(copy)
        yield
    finally:
        for edit in mutant.edits:
            shutil.copyfile(ROOT / edit.file, copy / edit.file)


def environment(copy: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(copy / "python"),
        "CARGO_TARGET_DIR": str(TARGET),
        "PYO3_PYTHON": sys.executable,
    }


def build(copy: Path) -> None:
    subprocess.run(
        ["cargo", "build", "--locked", "-p", "onegraph-python", "--features", EXTENSION],
        cwd=copy,
        env=environment(copy),
        check=True,
        timeout=1500,
    )
    module = TARGET / "debug" / "lib_native.so"
    shutil.copy2(module, copy / "python" / "onegraph" / "_native.abi3.so")


def run(test: str, judge: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """One of a mutant's tests."""
    if test.startswith("cargo "):
        command, folder = [*test.split(), "--locked"], Path(env["PYTHONPATH"]).parent
    else:
        command, folder = [sys.executable, "-m", "pytest", "-xq", "-p", "no:cacheprovider"], ROOT
        command += [test, "-m", "not gpu", "--rootdir", str(ROOT), "--hypothesis-profile=find"]
        if judge and "/cuda/" not in test:
            command += ["-k", judge]
    env = {name: value for name, value in env.items() if name != "PYTEST_ADDOPTS"}
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=1500
    )


def must_be_red(mutant: Mutant, env: dict[str, str]) -> None:
    for test in mutant.red:
        done = run(test, mutant.judge, env)
        # 1: tests failed; 101: so says cargo, also where the mutant does not compile.
        failed = "FAILED" in done.stdout or "ERROR" in done.stdout
        assert done.returncode in (1, 101) and failed, f"{test} is green:\n{done.stdout[-4000:]}"
        assert "error: this is a bug in onegraph" not in done.stdout, "the kernel did not compile"


@pytest.fixture
def simulator(tmp_path: Path, ksim_env: dict[str, str], ksim_library_dir: Path) -> dict[str, str]:
    """The environment of a test whose kernels are those of a copy."""
    shutil.copytree(ROOT / KERNELS, tmp_path / KERNELS)
    names = {
        "KSIM_KERNELS": str(tmp_path / KERNELS),
        "KSIM_LIBRARY_DIR": str(ksim_library_dir),
        "KSIM_CACHE": ksim_env["KSIM_CACHE"],
    }
    return os.environ | names | ({"ONEGRAPH_EXHAUSTIVE": "1"} if ASKED else {})


@pytest.mark.thorough
@pytest.mark.timeout(1500)
@over([mutant for mutant in OF_KERNELS if ASKED or mutant.name in QUICK])
def test_the_simulator_finds_the_bug(
    mutant: Mutant, tmp_path: Path, simulator: dict[str, str]
) -> None:
    for edit in mutant.edits:
        edit.apply(tmp_path)
    must_be_red(mutant, simulator)


@pytest.mark.thorough
def test_the_simulator_finds_none_in_the_kernels_as_they_are(simulator: dict[str, str]) -> None:
    """What is red is so by its mutant, not by the way in which it is run."""
    mutant = next(m for m in OF_KERNELS if m.name in QUICK)
    for test in mutant.red:
        done = run(test, mutant.judge, simulator)
        assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-4000:]


@asked_for
@pytest.mark.timeout(3600)
def test_without_a_bug_all_are_green(copy: Path) -> None:
    build(copy)
    for test, judge in sorted({(test, m.judge) for m in MUTANTS for test in m.red}):
        done = run(test, judge, environment(copy))
        assert done.returncode == 0, f"{test}:\n{done.stdout[-4000:]}{done.stderr[-4000:]}"


@asked_for
@pytest.mark.timeout(3600)
@over(BUILT if ASKED else BUILT[:1])
def test_the_bug_is_found(mutant: Mutant, copy: Path) -> None:
    with mutated(copy, mutant):
        if any(not test.startswith("cargo ") for test in mutant.red):
            build(copy)
        must_be_red(mutant, environment(copy))
