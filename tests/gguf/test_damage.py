"""A sample of what the Rust tests do in full, through the module: damage never gets further than a
typed error."""

import random
from pathlib import Path

import onegraph
import pytest
from onegraph import _native
from support import tiny_gguf as tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write(tmp_path_factory.mktemp("damage") / "tiny.gguf")


def outcome(path: Path) -> str:
    """ "valid", or the class of the error."""
    try:
        _native.model_plan(path)
    except onegraph.Error as e:
        assert str(e)
        return type(e).__name__
    return "valid"


def test_truncations(model: Path, tmp_path: Path) -> None:
    data = model.read_bytes()
    header = tiny.header_bytes(model)
    lengths = {*range(64), *range(header - 64, header + 64), *range(len(data) - 64, len(data))}
    lengths |= set(random.Random(0).sample(range(len(data)), 500))
    path = tmp_path / "cut.gguf"
    # The last tensor is 64 floats, a multiple of the alignment: no byte is padding.
    for n in sorted(lengths - {0}):
        path.write_bytes(data[:n])
        found = outcome(path)
        # What ends with the header, its padding or not, is a model without its numbers.
        assert found == "ModelError" or (found == "valid" and header - 32 < n <= header), n
    path.write_bytes(b"")
    assert outcome(path) == "FileError"
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
