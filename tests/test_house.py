"""The rules of the house that a reader of the source can check."""

import ast
import importlib.metadata
import inspect
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import onegraph
import pytest
from support import generated_pages

ROOT = Path(__file__).resolve().parents[1]
ENGINE = ROOT / "rust" / "engine" / "src"
SOURCE_FOLDERS = [".ci", "benches", "models", "python", "rust", "tests"]

#: Who may import whom in the engine. A room may also import what those below it may. `error` is
#: open to all. `engine` and `info` put the parts together, so they see the road from file to plan.
MAY_IMPORT = {
    "error": [],
    "quant": ["error"],
    "gguf": ["quant"],
    "config": ["gguf"],
    "checksum": [],
    "weights": ["config", "checksum"],
    "plan": ["quant"],
    "arch": ["config", "plan"],
    "sampler": ["error"],
    "tokenizer": ["gguf"],
    "template": ["gguf"],
    "tools": ["template"],
    "grammar": ["sampler", "tokenizer", "tools"],
    "backend": ["plan", "weights", "sampler"],
    "pages": ["backend"],
    "engine": ["pages", "sampler", "tokenizer", "tools", "grammar", "arch"],
    "info": ["engine"],
}

#: The files that may say `unsafe`, under rust/engine/src. The simulated driver (rust/ksim) is a C
#: library by nature and is not part of what ships.
MAY_BE_UNSAFE = {
    "weights.rs",
    "backend/cpu/simd.rs",
    "backend/cpu/simd/aarch64.rs",
    "backend/cpu/simd/x86.rs",
    "backend/cuda/driver/buffer.rs",
    "backend/cuda/driver/check.rs",
    "backend/cuda/driver/clusters.rs",
    "backend/cuda/driver/context.rs",
    "backend/cuda/driver/device.rs",
    "backend/cuda/driver/event.rs",
    "backend/cuda/driver/graph.rs",
    "backend/cuda/driver/host.rs",
    "backend/cuda/driver/launch.rs",
    "backend/cuda/driver/module.rs",
    "backend/cuda/driver/nvrtc.rs",
    "backend/cuda/driver/ranges.rs",
    "backend/cuda/driver/staging.rs",
    "backend/cuda/driver/stream.rs",
    "backend/cuda/driver/uploads.rs",
}

#: The floors of the CUDA backend, the lowest first: a file imports its own and those below.
CUDA = ENGINE / "backend" / "cuda"
FLOORS = ["driver", "lower", "run", "study"]

#: What the pure floor may know of the driver's: data.
DRIVER_DATA = {
    "driver/constants.rs",
    "driver/info.rs",
    "driver/source.rs",
    "driver/spec.rs",
}

#: Rooms that read bytes of strangers, and the lints they deny.
HOSTILE_INPUT = ["gguf", "config", "weights", "tokenizer", "template", "tools", "grammar"]
DENIED = {"unwrap_used", "expect_used", "indexing_slicing", "arithmetic_side_effects", "panic"}


def files(*suffixes: str, under: Path = ROOT) -> Iterator[Path]:
    """Source files, without what builds and tools leave behind."""
    starts = [ROOT / name for name in SOURCE_FOLDERS] if under == ROOT else [under]
    for start in starts:
        for path in sorted(start.rglob("*")):
            inside = path.relative_to(ROOT).parts
            built = {"__pycache__", "target"} & set(inside) or path.suffix == ".so"
            if path.is_file() and not built and (not suffixes or path.suffix in suffixes):
                yield path


def product_code(path: Path) -> str:
    """A Rust file without its comments and without its tests at the end."""
    text = re.split(r"^#\[cfg\(test\)\]\nmod ", path.read_text(), maxsplit=1, flags=re.M)[0]
    return re.sub(r"//.*", "", text)


def room(path: Path) -> str:
    return path.relative_to(ENGINE).parts[0].removesuffix(".rs")


def allowed(name: str) -> set[str]:
    below = {name, "error"}
    for other in MAY_IMPORT[name]:
        below |= allowed(other)
    return below


def test_rooms_import_only_what_lies_below_them() -> None:
    seen, wrong = set(), []
    for path in files(".rs", under=ENGINE):
        name = room(path)
        if name == "lib":
            continue
        assert name in MAY_IMPORT, f"{path}: give the room {name!r} a row in MAY_IMPORT"
        seen.add(name)
        code = product_code(path)
        imported = set(re.findall(r"\bcrate::(\w+)", code))
        for group in re.findall(r"\buse crate::\{([^;]*)\}\s*;", code):
            imported |= set(re.findall(r"(?:^|,)\s*(\w+)", re.sub(r"\{[^}]*\}", "", group)))
        # The crate root re-exports `Error` and `Result` from `error`.
        imported -= {"Error", "Result"}
        wrong += [f"{path}: {name} imports {o}" for o in sorted(imported - allowed(name))]
    assert {"gguf", "quant", "plan", "backend"} <= seen
    assert wrong == []


def import_paths(code: str) -> Iterator[list[str]]:
    """Every path that the code of a Rust file imports or names from `crate` or `super` on."""

    def expand(tree: str) -> Iterator[list[str]]:
        head, brace, inside = tree.partition("{")
        names = [name for name in head.strip().split("::") if name]
        if not brace:
            yield [name.split(" as ")[0].strip() for name in names]
            return
        depth, start = 0, 0
        inside = inside.rstrip().removesuffix("}") + ","
        for i, c in enumerate(inside):
            depth += (c == "{") - (c == "}")
            if c == "," and depth == 0:
                if part := inside[start:i].strip():
                    yield from ([*names, *rest] for rest in expand(part))
                start = i + 1

    code = re.sub(r"\bpub\((?:in )?[\w:]+\)", "pub", code)
    statement = r"\buse ((?:crate|super)::[^;]*);"
    for tree in re.findall(statement, code):
        yield from expand(" ".join(tree.split()))
    for path in re.findall(r"\b(?:crate|super)(?:::\w+)+", re.sub(statement, "", code)):
        yield path.split("::")


def cuda_imports() -> dict[str, set[str]]:
    """The files of the CUDA backend and, of each, those others that it imports."""
    found: dict[str, set[str]] = {}
    for path in files(".rs", under=CUDA):
        name = path.relative_to(CUDA).as_posix()
        if name == "mod.rs" or path.name == "tests.rs":
            continue
        module = ["crate", "backend", "cuda", *name.removesuffix(".rs").split("/")]
        imported = set()
        for names in import_paths(product_code(path)):
            at = module[:-1] if path.name == "mod.rs" else module
            while names and names[0] == "super":
                at, names = at[:-1], names[1:]
            whole = names if names[:1] == ["crate"] else [*at, *names]
            if whole[:3] != ["crate", "backend", "cuda"]:
                continue
            folder, file = [*whole[3:], "", ""][:2]
            target = f"{folder}/{file}.rs"
            known = (CUDA / target).is_file()
            assert known, f"{name} imports {'::'.join(whole)}: which file?"
            imported.add(target)
        found[name] = imported - {name}
    return found


def test_the_floors_of_the_cuda_backend_import_only_what_lies_below() -> None:
    imports = cuda_imports()
    assert {Path(name).parts[0] for name in imports} == set(FLOORS)
    height = {name: FLOORS.index(Path(name).parts[0]) for name in imports}
    up = [f"{a} -> {b}" for a, of in imports.items() for b in of if height[b] > height[a]]
    assert up == []
    below_lower = {b for a, of in imports.items() for b in of if height[a] == 1 and height[b] == 0}
    assert below_lower == DRIVER_DATA
    for path in files(".rs", under=CUDA / "driver"):
        assert not re.search(r"\bcrate::(plan|arch|weights)\b", product_code(path)), path
    pure = [*files(".rs", under=CUDA / "lower"), *(CUDA / name for name in DRIVER_DATA)]
    assert [path for path in pure if "cudarc" in path.read_text()] == []


def in_circles(imports: dict[str, set[str]]) -> set[str]:
    """The files that come back to themselves, by way of those that they import."""
    found = set()
    for name in imports:
        seen, ahead = set(), {name}
        while ahead:
            seen |= (ahead := {b for a in ahead for b in imports.get(a, set())} - seen)
        found |= {name} & seen
    return found


def test_no_files_of_the_cuda_backend_import_each_other_in_a_circle() -> None:
    assert in_circles(cuda_imports()) == set()


def module_imports(folder: Path) -> dict[str, set[str]]:
    """The modules beside a folder's `mod.rs`, each with what lies below it, and of each the others
    that it imports."""
    home = ["crate", *folder.relative_to(ENGINE).parts]
    paths = {path.stem: path for path in folder.glob("*.rs")}
    found: dict[str, set[str]] = {}
    for name in paths.keys() - {"mod", "lib", "tests"}:
        found[name] = set()
        for path in [paths[name], *files(".rs", under=folder / name)]:
            at = ["crate", *path.relative_to(ENGINE).with_suffix("").parts]
            at = at[:-1] if path.name == "mod.rs" else at
            for names in import_paths(product_code(path)):
                place = at
                while names and names[0] == "super":
                    place, names = place[:-1], names[1:]
                whole = names if names[:1] == ["crate"] else [*place, *names]
                if whole[: len(home)] == home and len(whole) > len(home):
                    found[name] |= {whole[len(home)]} & paths.keys() - {name, "mod"}
    return found


def test_no_files_of_the_engine_import_each_other_in_a_circle() -> None:
    folders = [ENGINE, *sorted(path for path in ENGINE.rglob("*") if path.is_dir())]
    found = {f.relative_to(ENGINE).as_posix(): in_circles(module_imports(f)) for f in folders}
    assert {name: files for name, files in found.items() if files} == {}
    assert "queue" in module_imports(ENGINE / "engine")["ticket"]


def python_imports(package: Path) -> dict[str, set[str]]:
    """The modules of a package and, of each, those others that it imports: at its top, for a type
    checker, or in a function."""
    paths = {}
    for path in files(".py", under=package):
        parts = path.relative_to(package.parent).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    found: dict[str, set[str]] = {}
    for name, path in paths.items():
        found[name] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found[name] |= {each.name for each in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                inside = {f"{node.module}.{each.name}" for each in node.names}
                native = f"{package.name}._native"
                # Names of a package, where they are no modules, are made by its own file.
                named = {each if each in paths else node.module for each in inside - {native}}
                found[name] |= named
        found[name] = (found[name] & paths.keys()) - {name}
    return found


def test_no_files_of_the_python_package_import_each_other_in_a_circle() -> None:
    imports = python_imports(ROOT / "python" / "onegraph")
    assert "onegraph.streams" in imports["onegraph.generating"]
    assert in_circles(imports) == set()


def test_a_circle_of_two_files_is_found() -> None:
    imports = python_imports(ROOT / "python" / "onegraph")
    imports["onegraph.hub.wheel"] |= {"onegraph.hub.named"}
    assert in_circles(imports) == {"onegraph.hub.named", "onegraph.hub.wheel"}


def test_every_primitive_of_the_kernels_is_used_by_one() -> None:
    kernels = ROOT / "rust" / "engine" / "kernels"
    headers = ("common.cuh", "warpgroup.cuh")
    common = "".join((kernels / name).read_text() for name in headers)
    # Each with its own text: what a primitive that is used calls is used too.
    primitives: dict[str, str] = {}
    for part in re.split(r"^(?=DEVICE |template )", common, flags=re.M):
        if name := re.search(r"\bDEVICE [\w<>* ]+?\b(\w+)\(", part):
            primitives[name[1]] = primitives.get(name[1], "") + part
    assert {"fma_rn", "pdl_wait", "cp_async_16", "cp_async_wait"} <= primitives.keys()
    sources = [p for p in files(".cu", ".cuh", under=ROOT / "rust" / "engine")]
    text = "".join(p.read_text() for p in sources if p.name not in headers)
    used = set(re.findall(r"\b\w+\b", text)) & primitives.keys()
    while (
        more := {
            name
            for of in used
            for name in set(re.findall(r"\b\w+\b", primitives[of])) & primitives.keys()
        }
        - used
    ):
        used |= more
    assert primitives.keys() - used == set()


def test_no_file_of_the_cuda_backend_is_longer_than_500_lines() -> None:
    long = {str(p): n for p in files(under=CUDA) if (n := len(p.read_text().splitlines())) > 500}
    assert long == {}


def test_no_file_is_longer_than_800_lines() -> None:
    suffixes = (".rs", ".cu", ".cuh", ".py", ".pyi", ".toml", ".md")
    texts = {str(path): path.read_text() for path in files(*suffixes)}
    # A page that the code writes is as long as what it lists.
    written = {path for path, text in texts.items() if generated_pages.MARK in text}
    long = {path: n for path, text in texts.items() if (n := len(text.splitlines())) > 800}
    assert long.keys() <= written


def test_no_file_is_named_after_nothing() -> None:
    vague = re.compile(r"^(utils?|helpers?|manager|misc|common\.(rs|py))\b")
    assert [str(p) for p in files() if vague.match(p.name)] == []


def test_helpers_of_tests_live_in_their_support() -> None:
    tests = ROOT / "tests"
    files_there = {p.name for p in tests.iterdir() if p.is_file()}
    assert {n for n in files_there if not re.fullmatch(r"conftest\.py|test_\w+\.py", n)} == set()
    # What a conftest defines reaches tests as fixtures; what several import stands in support/.
    importing = re.compile(
        r"^\s*(?:from|import)\s+(?:\w+\.)*conftest\b|^(?:from|import)\s+(?:\w+\.)*test_\w", re.M
    )
    python = [*files(".py", under=tests)]
    assert tests / "support" / "backends.py" in python
    assert [str(p) for p in python if importing.search(p.read_text())] == []


def test_unsafe_is_said_only_where_it_must_be() -> None:
    found = {
        path.relative_to(ENGINE).as_posix()
        for path in files(".rs", under=ENGINE)
        if re.search(r"\bunsafe\b", re.sub(r"//.*", "", path.read_text()))
    }
    assert found <= MAY_BE_UNSAFE
    bindings = [p for p in files(".rs", under=ROOT / "rust" / "python")]
    assert bindings
    assert [str(p) for p in bindings if re.search(r"\bunsafe\b", product_code(p))] == []


def test_the_bindings_leave_and_take_the_interpreter_in_one_place() -> None:
    # Elsewhere it would be done without the gate that rust/python/src/exit.rs describes.
    ways = re.compile(r"\bPython::(?:try_)?attach\b|\.detach\(")
    bindings = files(".rs", under=ROOT / "rust" / "python")
    found = {p.name for p in bindings if ways.search(product_code(p))}
    assert found == {"errors.rs", "exit.rs"}
    # And what does it beneath, at its first use.
    lazy = re.compile(
        r"derive\([^)]*\bFromPyObject\b|\bintern!|\bPySequence\b|\bPyMapping\b"
        r"|\bis_instance_of::<Py\w+Error>|\.value\(py\)"
    )
    assert [str(p) for p in bindings if lazy.search(product_code(p))] == []


def test_rooms_that_read_hostile_input_deny_what_could_panic() -> None:
    checked = 0
    for path in files(".rs", under=ENGINE):
        if room(path) not in HOSTILE_INPUT:
            continue
        checked += 1
        # Lint levels reach the modules below: a folder's mod.rs may speak for its files.
        speaks_for = {path, path.parent / "mod.rs"} if path.parent != ENGINE else {path}
        text = "".join(p.read_text() for p in speaks_for if p.exists())
        denied = set()
        for attribute in re.findall(r"^#!\[(?:deny|forbid)\(([^]]*)\)\]", text, flags=re.M):
            denied |= set(re.findall(r"clippy::(\w+)", attribute))
        assert denied >= DENIED, f"{path} does not deny {DENIED - denied}"
        excused = {
            lint
            for attribute in re.findall(r"\b(?:allow|expect)\(([^)]*)\)\]", product_code(path))
            for lint in re.findall(r"clippy::(\w+)", attribute)
        }
        assert not excused & DENIED, f"{path} excuses itself from {excused & DENIED}"
    assert checked >= 3


def test_nothing_is_left_undone_or_private() -> None:
    # Spelled in pieces, so that this file does not find itself.
    undone = "|".join(["TO" + "DO", "FIX" + "ME", "X" * 3, "todo" + "!", "unimple" + "mented!"])
    private = "|".join(f"/{name}/" for name in ["work", "root", "workspace", r"home/\w+"])
    pattern = re.compile(rf"\b(?:{undone})\b|(?<![\w.])(?:{private})")
    texts = [
        *files(".rs", ".cu", ".cuh", ".py", ".pyi", ".toml", ".md", ".sh", ".json"),
        *TOP_TEXTS,
    ]
    found = [
        f"{path}:{number}: {line.strip()}"
        for path in texts
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == []


TOP_TEXTS = [
    path
    for name in ["README.md", "CHANGELOG.md", "Cargo.toml", "pyproject.toml", ".ci/run"]
    if (path := ROOT / name).exists()
]


def test_the_public_interface_is_documented() -> None:
    missing = []
    named = [(onegraph, name) for name in onegraph.__all__]
    for module in (onegraph.graphs, onegraph.results, onegraph.stats):
        named += [
            (module, name) for name in module.__all__ if inspect.isclass(getattr(module, name))
        ]
    for module, name in named:
        item = getattr(module, name)
        if name.startswith("__"):
            continue
        if not item.__doc__:
            missing.append(name)
        if inspect.isclass(item):
            for member, value in vars(item).items():
                if member.startswith("_") or not (callable(value) or isinstance(value, property)):
                    continue
                if not inspect.getdoc(value):
                    missing.append(f"{name}.{member}")
    assert missing == []


def test_an_import_loads_nothing_that_is_slow() -> None:
    """What takes longer to import than all the rest of the package together waits for its use."""
    code = (
        "import sys; before = set(sys.modules); import onegraph; print(*set(sys.modules) - before)"
    )
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True, timeout=60).split()
    assert "onegraph._native" in loaded
    slow = {
        "asyncio",
        "click",
        "huggingface_hub",
        "importlib.metadata",
        "matplotlib",
        "numpy",
        "rich",
    }
    assert slow & set(loaded) == set()
    # 117 with Python 3.11, two thirds of them built in.
    assert len(loaded) < 160, sorted(loaded)


def test_the_installed_package_holds_no_model() -> None:
    listed = importlib.metadata.files("onegraph")
    if not listed:
        pytest.skip("onegraph is not installed from a wheel here; `.ci/run` does")
    sizes = {str(f): Path(str(f.locate())).stat().st_size for f in listed if f.locate().is_file()}
    assert [f for f in sizes if f.endswith((".gguf", ".safetensors", ".bin"))] == []
    assert {f: n for f, n in sizes.items() if n > 1 << 20 and "_native" not in f} == {}


#: What a wheel holds as the source does: the documentation that `onegraph help` opens, and the
#: parts of the server's page.
PAGES = {
    path.relative_to(ROOT).as_posix()
    for folder in ("pages", "server/chat")
    for path in (ROOT / "python" / "onegraph" / folder).rglob("*")
    if path.suffix in (".md", ".py", ".html", ".css", ".js")
}

#: The terms of the package, and of what it carries.
TERMS = {"LICENSE", "THIRD_PARTY_LICENSES"}


def test_the_installed_package_holds_the_pages() -> None:
    found = importlib.metadata.distributions(name="onegraph")
    listed = {file.as_posix() for each in found for file in each.files or []}
    if not listed:
        pytest.skip("onegraph is not installed from a wheel here; `.ci/run` does")
    assert "python/onegraph/pages/api.md" in PAGES
    assert {page.removeprefix("python/") for page in PAGES} <= listed
    assert {name.partition(".dist-info/licenses/")[2] for name in listed} >= TERMS


def test_the_sdist_holds_the_source_and_no_model(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "maturin", "sdist", "--out", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=300,
    )
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        members = {m.name.split("/", 1)[-1]: m.size for m in archive.getmembers() if m.isfile()}
    wanted = {"pyproject.toml", "Cargo.lock", "README.md", "rust/engine/src/lib.rs"}
    assert wanted | TERMS <= members.keys()
    assert members.keys() >= PAGES
    assert [m for m in members if m.endswith((".gguf", ".safetensors", ".so", ".whl"))] == []
    assert max(members.values()) < 1 << 20, members


def test_the_package_is_built_of_locked_dependencies_or_not_at_all(tmp_path: Path) -> None:
    """As `pip install .` builds it: an entry that is missing from Cargo.lock is not looked up."""
    for name in ("Cargo.toml", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, tmp_path)
    for name in ("rust", "python"):
        built = shutil.ignore_patterns("*.so", "__pycache__")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=built)
    lock = (ROOT / "Cargo.lock").read_text()
    without = re.sub(r'\[\[package\]\]\nname = "half"\n.*?\n\n', "", lock, flags=re.S)
    assert without != lock
    (tmp_path / "Cargo.lock").write_text(without)
    done = subprocess.run(
        [sys.executable, "-m", "maturin", "pep517", "build-wheel", "-i", sys.executable],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode != 0
    assert "Cargo.lock" in done.stderr and "--locked" in done.stderr, done.stderr[-2000:]
