"""Every class of attack on model files that worked somewhere: a typed error, at once, for each.

The classes that are no files are tested where they live: requests that are cancelled or abandoned
with the engine, devices that are silently replaced with the Python interface.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

import onegraph
import pytest
from onegraph import _native

HERE = Path(__file__)
SCRIPTS = sorted(set(HERE.parent.glob("*.py")) - {HERE, HERE.with_name("hostile_gguf.py")})


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.stem)
def test_attack(script: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, script, tmp_path], check=True, stdout=subprocess.DEVNULL)
    rows = json.loads((tmp_path / "attacks.json").read_text())
    assert rows
    for row in rows:
        path = tmp_path / f"{row['name']}.gguf"
        start = time.perf_counter()
        if row["door"] == "encode":
            survives(path, row["expect"])
        else:
            with pytest.raises(onegraph.ModelError, match=row["expect"]):
                enter(path, row["door"])
            assert time.perf_counter() - start < 1, row["name"]


def enter(path: Path, door: str) -> None:
    if door == "plan":
        _native.model_plan(path)
    elif door == "tokenizer":
        onegraph.Tokenizer(path)
    else:
        raise AssertionError(f"no door {door!r}")


def survives(path: Path, prompt: str) -> None:
    """A megabyte of a prompt becomes tokens in linear time."""
    tokenizer = onegraph.Tokenizer(path)
    text = prompt * ((1 << 20) // len(prompt.encode()))
    start = time.perf_counter()
    ids = tokenizer.encode(text, parse_special=True)
    seconds = time.perf_counter() - start
    # A tenth of a second is usual; the machine may be busy.
    assert seconds < 3, f"{path.name}: {seconds:.1f} s for {len(text)} x {prompt!r}"
    assert all(id < tokenizer.n_vocab for id in ids)
