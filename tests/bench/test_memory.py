"""The read peak that decoding is measured by."""

import json
import subprocess
import sys

import onegraph
import pytest
from onegraph.bench.memory import read_peak

READ = """
import json, sys
from onegraph import _native
print(json.dumps(_native.cuda_read_peak(0, [], int(sys.argv[1]), 1)))
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_the_cpus_peak_says_how_it_was_read(threads: int) -> None:
    peak = read_peak("cpu", threads, cpu_bytes=8 << 20)
    assert peak.buffer_bytes == 8 << 20
    assert 1e8 < peak.bytes_per_second < 1e13
    assert peak.by == f"numpy.max of a buffer, {threads} threads"


@pytest.mark.thorough
def test_a_card_reads_every_byte(ksim_env: dict[str, str]) -> None:
    """The kernel's sums say whether it did; a size that is no multiple of its stride, too."""
    for size in [1 << 20, (1 << 20) + 4112]:
        done = subprocess.run(
            [sys.executable, "-c", READ, str(size)],
            env=ksim_env,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        rate, read = json.loads(done.stdout)
        assert read == size and rate > 0


def test_a_machine_without_a_card_says_so() -> None:
    cards = json.loads(onegraph._native.cuda_devices([]))["cards"]
    if cards:
        pytest.skip("this machine has a card; a machine without one shows the message")
    with pytest.raises(onegraph.DeviceError, match=r"libcuda|driver|NVIDIA"):
        read_peak("cuda:0", 1)


@pytest.mark.gpu
def test_a_real_card_reads_near_what_it_is_sold_for() -> None:
    if not json.loads(onegraph._native.cuda_devices([]))["cards"]:
        pytest.skip("no NVIDIA card: `pytest -m gpu tests/bench` on a machine with one")
    peak = read_peak("cuda:0", 1)
    assert peak.buffer_bytes > 1 << 28
    assert 1e11 < peak.bytes_per_second < 2e13
