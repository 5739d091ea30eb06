"""The cards of this machine as `nvidia-smi` tells them: use, clock and whose processes are on them.

Where that program is not there, or fails, no card is told. Nothing is installed for it.
"""

from __future__ import annotations

import csv
import os
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Card", "Process", "cards", "finder", "parsed", "parsed_shares", "shares"]

#: Longest wait for nvidia-smi, in seconds: a card that is in trouble keeps it for long.
PATIENCE = 10.0

#: Bits of nvidia-smi's clocks_event_reasons.active that hold a busy card back, by NVML's names.
SLOWED_BY = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
_CARDS = (
    *("uuid", "pci.bus_id", "name", "utilization.gpu", "memory.used"),
    *("clocks.sm", "clocks.max.sm"),
)
#: The name of the reasons in drivers from 535 on, and the one before, which they take too.
_REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
_PROCESSES = ("gpu_uuid", "pid", "used_gpu_memory", "process_name")


@dataclass(frozen=True, slots=True)
class Process:
    """A process that computes on a card."""

    pid: int
    name: str
    #: Bytes of the card's memory; None where they are not told.
    memory: int | None


@dataclass(frozen=True, slots=True)
class Card:
    """A card at one moment."""

    uuid: str
    name: str
    #: Percent of the last moments in which a kernel ran, whosever it was.
    utilization: float | None
    #: Clock of the multiprocessors, and the highest that they have, in MHz.
    clock: int | None
    most_clock: int | None
    #: What holds the clock back, of `SLOWED_BY`.
    slowed_by: tuple[str, ...]
    processes: tuple[Process, ...] = ()


def parsed(cards: str, processes: str) -> list[Card]:
    """The cards of nvidia-smi's answers, as CSV with headings and without units, to `--query-gpu`
    of `_CARDS` and the reasons, and to `--query-compute-apps` of `_PROCESSES`."""
    on: dict[str, list[Process]] = {}
    for row in _rows(processes, len(_PROCESSES)):
        uuid, pid, memory, name = row
        if (number := _number(pid)) is not None:
            mebibytes = _number(memory)
            held = None if mebibytes is None else round(mebibytes * 2**20)
            # nvidia-smi gives the whole path of some.
            on.setdefault(uuid, []).append(Process(int(number), name.rpartition("/")[2], held))
    found = []
    for uuid, _, name, used, _, clock, most, reasons in _rows(cards, len(_CARDS) + 1):
        try:
            bits = int(reasons, 16)
        except ValueError:  # [N/A]
            bits = 0
        slowed = tuple(why for bit, why in SLOWED_BY.items() if bits & bit)
        now, highest = _number(clock), _number(most)
        found.append(
            Card(
                uuid,
                name,
                _number(used),
                None if now is None else round(now),
                None if highest is None else round(highest),
                slowed,
                tuple(on.get(uuid, ())),
            )
        )
    return found


def _rows(text: str, width: int) -> Iterable[list[str]]:
    for row in csv.reader(text.splitlines()[1:], skipinitialspace=True):
        if len(row) == width:
            yield [cell.strip() for cell in row]


def _number(text: str) -> float | None:
    """A number; None for nvidia-smi's [N/A] and [Not Supported]."""
    try:
        return float(text)
    except ValueError:
        return None


def parsed_shares(use: str) -> dict[int, float]:
    """Percent of the multiprocessors' time of each process, by its number, of `nvidia-smi pmon`."""
    shares: dict[int, float] = {}
    columns: list[str] = []
    for line in use.splitlines():
        if line.startswith("# gpu"):
            columns = line.removeprefix("#").split()
        elif not line.startswith("#") and columns:
            # A name may have spaces: it is the last column.
            row = dict(zip(columns, line.split(), strict=False))
            pid, share = _number(row.get("pid", "")), _number(row.get("sm", ""))
            if pid is not None and share is not None:
                shares[int(pid)] = shares.get(int(pid), 0.0) + share
    return shares


def _ask(*options: str) -> str | None:
    """What nvidia-smi prints; None where it is not there, fails or does not answer."""
    try:
        done = subprocess.run(
            ["nvidia-smi", *options],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None


def cards() -> list[Card]:
    """All cards now; empty where nvidia-smi does not tell them."""
    form = "--format=csv,nounits"
    for reasons in _REASONS:
        listed = _ask(f"--query-gpu={','.join((*_CARDS, reasons))}", form)
        if listed is not None:
            break
    else:
        return []
    return parsed(listed, _ask(f"--query-compute-apps={','.join(_PROCESSES)}", form) or "")


def shares() -> dict[int, float]:
    """Percent of the multiprocessors' time of each process now, by its number."""
    return parsed_shares(_ask("pmon", "-c", "1") or "")


def finder(ordinal: int, names: Sequence[str]) -> Callable[[], Card | None]:
    """A function that looks at CUDA's card `ordinal`, where CUDA calls its cards `names` in order.

    CUDA counts the fastest first and nvidia-smi by slots: cards of one name are in the same order
    in both. It gives None where which card it is cannot be told.
    """
    visible = [one.strip() for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]

    def look() -> Card | None:
        found = cards()
        if ordinal >= len(names):
            return None
        if visible != [""]:
            chosen = visible[ordinal] if ordinal < len(visible) else ""
            if not chosen.isdecimal():
                return next((c for c in found if chosen and c.uuid.startswith(chosen)), None)
            one_kind = len({c.name for c in found}) == 1
            return found[int(chosen)] if one_kind and int(chosen) < len(found) else None
        name = names[ordinal]
        same = [c for c in found if c.name == name]
        rank = list(names[:ordinal]).count(name)
        return same[rank] if rank < len(same) else None

    return look
