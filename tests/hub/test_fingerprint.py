"""The sample of a file that a load compares: what it finds, and how much it reads."""

import io
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onegraph.hub import fingerprint
from onegraph.hub.fingerprint import BLOCK, BLOCKS

SIZE = 3_000_001


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sample") / "whole"
    path.write_bytes(b"\xa5" * SIZE)
    return path


@settings(max_examples=60, deadline=None)
@given(start=st.integers(0, SIZE - 1), more=st.integers(0, 100_000))
def test_every_run_of_one_255th_and_a_block_is_found(whole: Path, start: int, more: int) -> None:
    length = SIZE // (BLOCKS - 1) + 1 + BLOCK + more
    start = min(start, SIZE - length)
    with whole.open("r+b") as file:
        before = fingerprint.sample(file)
        file.seek(start)
        file.write(bytes(length))
        file.flush()
        assert fingerprint.sample(file) != before
        file.seek(start)
        file.write(b"\xa5" * length)
        file.flush()
        assert fingerprint.sample(file) == before


@pytest.mark.parametrize("size", [0, 1, BLOCK, BLOCK * BLOCKS - 1, BLOCK * BLOCKS])
def test_a_small_file_is_read_whole(size: int, tmp_path: Path) -> None:
    path = tmp_path / "small"
    content = bytearray(b"\xa5" * size)
    path.write_bytes(content)
    with path.open("rb") as file:
        before = fingerprint.sample(file)
    for at in range(0, size, max(1, size // 50)):
        content[at] ^= 1
        path.write_bytes(content)
        with path.open("rb") as file:
            assert fingerprint.sample(file) != before
        content[at] ^= 1


def test_a_size_is_part_of_it_and_a_mebibyte_is_all_it_reads(tmp_path: Path) -> None:
    read = 0

    class Counted(io.FileIO):
        def read(self, n: int = -1) -> bytes:
            nonlocal read
            data = super().read(n)
            read += len(data)
            return data

    samples = set()
    for size in [1 << 33, (1 << 33) + 1]:  # 8 GiB of nothing: a sparse file
        path = tmp_path / str(size)
        with path.open("wb") as file:
            file.truncate(size)
        with Counted(path) as counted:
            samples.add(fingerprint.sample(counted))
    assert read == 2 * BLOCKS * BLOCK == 2 << 20
    assert len(samples) == 2
