"""What a new user is told to install."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

#: An installation of `onegraph` by that name, which takes it from an index.
FROM_AN_INDEX = re.compile(
    r"(?:pip3?|pipx|uv tool|uv|poetry|llm) (?:install|add) (?:-\S+ )*['\"]?onegraph(?![\w./-])"
)

TEXTS = {".md", ".py", ".pyi", ".txt", ".toml", ".rs", ".cu", ".cuh"}


def test_no_text_installs_the_package_from_an_index_where_it_is_not() -> None:
    for wrong in ["pip install onegraph", "pip install -U 'onegraph[hub]'", "llm install onegraph"]:
        assert FROM_AN_INDEX.search(wrong)
    for right in [
        "pip install .",
        "pip install '.[bench]'",
        "pip install dist/onegraph-0.1.0-cp311-abi3-manylinux_2_28_x86_64.whl",
        "pip install onegraph-0.1.0-cp311-abi3-manylinux_2_28_x86_64.whl",
        "llm install ./onegraph",
    ]:
        assert not FROM_AN_INDEX.search(right)
    folders = ["benches", "models", "python", "rust", "tests"]
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    texts = [path for path in paths if path.suffix in TEXTS] + list(ROOT.glob("*.*"))
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in texts
        if path.is_file() and path != Path(__file__).resolve()
        for line in path.read_text(errors="replace").splitlines()
        if FROM_AN_INDEX.search(line)
    ]
    assert found == []
    assert ROOT / "README.md" in texts and ROOT / "python/onegraph/cli/run.py" in texts
