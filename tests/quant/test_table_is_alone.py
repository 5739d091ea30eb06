"""A type is its own files and one row of the table: no other engine source names one."""

import re
from pathlib import Path

from onegraph import _native

SOURCE = Path(__file__).resolve().parents[2] / "rust" / "engine" / "src"


def test_no_engine_source_outside_the_table_names_a_type() -> None:
    names = [t[0] for t in _native.quant_types()]
    # F32 is Rust's own float and a type of GGUF metadata too: only the string counts.
    spellings = [s for n in names if n != "F32" for s in (n, n.lower(), n.replace("_", ""))]
    spellings += ['"F32"']
    word = re.compile(r"(?<![A-Za-z0-9])(" + "|".join(sorted(set(spellings))) + r")(?![A-Za-z0-9])")
    sources = [p for p in SOURCE.rglob("*.rs") if SOURCE / "quant" not in p.parents]
    assert sources
    found = [
        f"{path.relative_to(SOURCE)}:{number}: {line.strip()}"
        for path in sources
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if word.search(line)
    ]
    assert not found, "\n".join(found)
