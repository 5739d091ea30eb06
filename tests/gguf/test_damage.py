"""A sample of what the Rust tests do in full, through the module: damage never gets further than a
typed error, at once."""

import random
import time
from pathlib import Path

import onegraph
import pytest
import tiny_gguf as tiny
from onegraph import _native


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write(tmp_path_factory.mktemp("damage") / "tiny.gguf")


def outcome(path: Path) -> str:
    """ "valid", or the class of the error."""
    fastest = 1.0
    # A busy machine may take our turn away once, not thrice.
    for _ in range(3):
        start = time.perf_counter()
        try:
            _native.model_plan(path)
            result = "valid"
        except onegraph.Error as e:
            result = type(e).__name__
            assert str(e)
        fastest = min(fastest, time.perf_counter() - start)
        if fastest < 0.05:
            return result
    raise AssertionError(f"{fastest:.3f} s")


def test_truncations(model: Path, tmp_path: Path) -> None:
    data = model.read_bytes()
    header = tiny.header_bytes(model)
    lengths = {*range(64), *range(header - 64, header + 64), *range(len(data) - 64, len(data))}
    lengths |= set(random.Random(0).sample(range(len(data)), 500))
    path = tmp_path / "cut.gguf"
    # The last tensor is 64 floats, a multiple of the alignment: no byte is padding.
    for n in sorted(lengths):
        path.write_bytes(data[:n])
        assert outcome(path) == ("ModelError" if n else "FileError"), n
    path.write_bytes(data)
    assert outcome(path) == "valid"


def test_bit_flips_of_the_header(model: Path, tmp_path: Path) -> None:
    data = bytearray(model.read_bytes())
    header = tiny.header_bytes(model)
    assert header <= 16 << 10
    path = tmp_path / "flipped.gguf"
    seen = {"valid": 0, "ModelError": 0}
    for bit in random.Random(1).sample(range(header * 8), 3000):
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        seen[outcome(path)] += 1
        data[bit // 8] ^= 1 << bit % 8
    # Flips in names and texts that nothing reads are valid.
    assert seen["valid"] > 100 and seen["ModelError"] > 1000, seen
