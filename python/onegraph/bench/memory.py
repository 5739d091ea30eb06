"""How fast memory is read: what the speed of decoding is measured by."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from onegraph import _native, arguments, nvrtc

__all__ = ["Peak", "read_peak"]

#: Bytes that a measurement of the CPU reads: far more than its caches hold.
CPU_BYTES = 512 << 20
TURNS = 7


@dataclass(frozen=True, slots=True)
class Peak:
    """The fastest of a few reads of one large buffer."""

    bytes_per_second: float
    #: Size of the buffer.
    buffer_bytes: int
    #: How it was read.
    by: str


def read_peak(device: str, threads: int, cpu_bytes: int = CPU_BYTES) -> Peak:
    """How fast `device` ("cpu", "cuda:N" or several cards) reads its memory, measured now."""
    if device == "cpu":
        return _cpu(threads, cpu_bytes)
    cards = arguments.cards(device)
    peaks = [_native.cuda_read_peak(card, nvrtc.folders(), turns=TURNS) for card in cards]
    rate, read = sum(rate for rate, _ in peaks), sum(read for _, read in peaks)
    return Peak(rate, read, "a kernel that sums a buffer" + (", on each card" if cards[1:] else ""))


def _cpu(threads: int, total: int) -> Peak:
    import numpy as np

    part = max(total // 8 // threads, 1)
    parts = [np.ones(part, np.int64) for _ in range(threads)]
    least = float("inf")
    for _ in range(TURNS):
        # The largest of whole numbers: read at full width, no sum to wait for.
        workers = [threading.Thread(target=np.max, args=(one,)) for one in parts]
        begin = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        least = min(least, time.perf_counter() - begin)
    read = part * 8 * threads
    return Peak(read / least, read, f"numpy.max of a buffer, {threads} threads")
