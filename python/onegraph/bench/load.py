"""What else ran while something was measured: load on the processor, load on the card, and the
card's clock. What a machine does not tell is None, and costs nothing.

The processor's load by others is what /proc/stat says all processes used, less what this process
and its ended children did. The card's is what `nvidia-smi` says; nothing is installed for it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from onegraph.bench.nvidia_smi import Card, Process, shares

__all__ = ["Load", "Watch", "said"]

#: Shortest time over which the processor's load is told, in seconds: the kernel counts in 1/100.
SHORTEST = 0.3
#: Cores that others may use before it is said: this many, or this part of all.
FEW_CORES, FEW_OF_CORES = 0.25, 0.05
#: Utilization of a card by others that is said, in percent.
FEW_PERCENT = 5.0
#: Part by which a card's clock may move before it is said.
FEW_OF_CLOCK = 0.03

Record = dict[str, Any]


# --- the processor --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Moment:
    """Seconds: of the clock, of this process, and of all processes on the cores it may use."""

    at: float
    own: float
    #: None where the machine does not tell.
    busy: float | None

    @classmethod
    def now(cls) -> _Moment:
        own = os.times()
        used = own.user + own.system + own.children_user + own.children_system
        return cls(time.monotonic(), used, _busy_seconds())


def _cores() -> set[int]:
    return os.sched_getaffinity(0)


def _busy_seconds() -> float | None:
    """Seconds that the cores of this process were busy since the machine began, a hypervisor's
    other guests among what they were busy with."""
    ours, ticks, seen = _cores(), 0, False
    with contextlib.suppress(OSError, ValueError), open("/proc/stat") as file:
        for line in file:
            name, *counts = line.split()
            number = name.removeprefix("cpu")
            if name.startswith("cpu") and number.isdecimal() and int(number) in ours:
                user, nice, system, _, _, irq, softirq, steal = map(int, counts[:8])
                ticks += user + nice + system + irq + softirq + steal
                seen = True
    return ticks / os.sysconf("SC_CLK_TCK") if seen and ticks else None


def _others(begin: _Moment, end: _Moment) -> float | None:
    """Cores that other processes kept busy between two moments."""
    took = end.at - begin.at
    if begin.busy is None or end.busy is None or took <= 0:
        return None
    return max(0.0, min(float(len(_cores())), (end.busy - begin.busy - end.own + begin.own) / took))


def _load_average() -> float | None:
    with contextlib.suppress(OSError):
        return os.getloadavg()[0]
    return None


# --- both, before and after -----------------------------------------------------------------------


@dataclass(frozen=True)
class Load:
    """What others did around a measurement, and the card's clock before and after it."""

    n_cpus: int
    #: Processes that ran or waited for a core, mean of a minute, what is measured among them.
    average_before: float | None
    average_after: float | None
    #: Cores that other processes kept busy: the most of before and meanwhile.
    cpus_busy: float | None
    #: Percent of the time that other processes' kernels ran on the card.
    gpu_utilization: float | None = None
    #: Bytes of the card's memory that other processes held.
    gpu_memory: int | None = None
    gpu_processes: tuple[str, ...] = ()
    #: Clock of the card behind the warm-up and behind the last repetition, and its highest, in MHz.
    clock_before: int | None = None
    clock_after: int | None = None
    most_clock: int | None = None
    #: What held the clock back.
    slowed_by: tuple[str, ...] = ()

    def record(self) -> Record:
        """As fields of a record, with what is to be said of it."""
        fields: Record = {
            "n_cpus": self.n_cpus,
            "load_average_before": self.average_before,
            "load_average_after": self.average_after,
            "cpus_busy_by_others": self.cpus_busy,
            "gpu_utilization_by_others": self.gpu_utilization,
            "gpu_memory_by_others": self.gpu_memory,
            "gpu_processes_of_others": list(self.gpu_processes),
            "gpu_clock_before_mhz": self.clock_before,
            "gpu_clock_after_mhz": self.clock_after,
            "gpu_clock_most_mhz": self.most_clock,
            "gpu_slowed_by": list(self.slowed_by),
        }
        return fields | {"load_warnings": said([fields])}


@dataclass
class Watch:
    """Looks at the machine before anything is loaded, and around each measurement.

    `look` tells the card's state; None on the CPU. `pause` says that what is measured works in
    other processes, too: the processor is then looked at between measurements alone, and of the
    card's processes those count that were there before any.
    """

    look: Callable[[], Card | None] | None = None
    pause: bool = False
    _first: Card | None = field(default=None, init=False)
    _idle: float | None = field(default=None, init=False)
    _average: float | None = field(default=None, init=False)
    _begin: _Moment = field(init=False)
    _card: Card | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._average = _load_average()
        self._idle = self._sample()
        self._first = self.look() if self.look else None
        self._begin = _Moment.now()

    def begin(self) -> None:
        """A measurement begins, behind its warm-up: the clock is the one that it begins with."""
        if self.look:
            self._card = self.look()
        self._begin = _Moment.now()

    def end(self) -> Load:
        """It has ended, and the card is not yet at rest."""
        after = self.look() if self.look else None
        if self.pause:
            meanwhile = self._sample()
        else:
            time.sleep(max(0.0, SHORTEST - (time.monotonic() - self._begin.at)))
            meanwhile = _others(self._begin, _Moment.now())
        busy = [cores for cores in (self._idle, meanwhile) if cores is not None]
        # What was calm before the load is no word on a later measurement.
        self._idle = meanwhile
        before, self._average = self._average, _load_average()
        load = Load(
            n_cpus=len(_cores()),
            average_before=before,
            average_after=self._average,
            cpus_busy=max(busy, default=None),
        )
        return load if after is None else self._with_card(load, after)

    def _sample(self) -> float | None:
        begin = _Moment.now()
        if begin.busy is None:
            return None
        time.sleep(SHORTEST)
        return _others(begin, _Moment.now())

    def _with_card(self, load: Load, after: Card) -> Load:
        first, begun = self._first, self._card or after
        others = _of_others(after, first, before_only=self.pause)
        # Before anything was loaded, whatever ran on the card was another's.
        used = [first.utilization or 0.0] if first else [0.0]
        if others:
            share = shares()
            used.append(sum(share.get(p.pid, 0.0) for p in others))
        return replace(
            load,
            gpu_utilization=min(100.0, max(used)),
            gpu_memory=sum(p.memory or 0 for p in others),
            gpu_processes=tuple(f"{p.name} (pid {p.pid})" for p in others),
            clock_before=begun.clock,
            clock_after=after.clock,
            most_clock=after.most_clock,
            slowed_by=tuple(dict.fromkeys((*begun.slowed_by, *after.slowed_by))),
        )


def _of_others(card: Card, first: Card | None, before_only: bool) -> list[Process]:
    """The processes on a card that are not this one and none that it started; `before_only` those
    that were there at first.

    In a container the numbers of processes may be the host's, and this one's not among them: then
    those count that were there at first, too.
    """
    own = _tree(os.getpid())
    if not before_only and any(p.pid in own for p in card.processes):
        return [p for p in card.processes if p.pid not in own]
    before = {p.pid for p in first.processes} if first else set()
    return [p for p in card.processes if p.pid in before - own]


def _tree(root: int) -> set[int]:
    """A process and those that it started, directly or not."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if entry.isdecimal():
            with contextlib.suppress(OSError, ValueError, IndexError):
                with open(f"/proc/{entry}/stat", errors="replace") as file:
                    # The name, in brackets, may have any character.
                    parent = int(file.read().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry))
    found, todo = set(), [root]
    while todo:
        one = todo.pop()
        found.add(one)
        todo += [child for child in children.get(one, ()) if child not in found]
    return found


def said(records: Sequence[Record]) -> list[str]:
    """What a reader of these records' speeds must know of the load around them: a sentence for the
    processor, one for the card, one for its clock; none where all was calm."""
    lines = []
    busiest = max(records, key=lambda r: r["cpus_busy_by_others"] or 0.0, default=None)
    if busiest is None:
        return []
    cores, n = busiest["cpus_busy_by_others"], busiest["n_cpus"]
    average = busiest["load_average_before"]
    if cores is not None and cores >= max(FEW_CORES, FEW_OF_CORES * n):
        of_all = "" if average is None else f" (load average {average:.2f} before)"
        lines.append(f"other processes kept {cores:.1f} of {n} cores busy{of_all}; end them")
    elif cores is None and average is not None and average >= n / 2:
        lines.append(f"the load average was {average:.2f} on {n} cores before; end what else runs")
    return [*lines, *_of_card(records)]


def _of_card(records: Sequence[Record]) -> Iterator[str]:
    percent = max(r["gpu_utilization_by_others"] or 0.0 for r in records)
    memory = max(r["gpu_memory_by_others"] or 0 for r in records)
    parts = [f"used {percent:.0f}% of the card's time"] if percent >= FEW_PERCENT else []
    parts += [f"held {memory / 2**30:.1f} GiB of the card"] if memory else []
    if parts:
        who = dict.fromkeys(name for r in records for name in r["gpu_processes_of_others"])
        named = f": {', '.join(who)}" if who else ""
        yield f"other processes {' and '.join(parts)}{named}; end them"
    ends = ("gpu_clock_before_mhz", "gpu_clock_after_mhz")
    clocks = [r[end] for r in records for end in ends if r[end]]
    if not clocks:
        return
    why = dict.fromkeys(reason for r in records for reason in r["gpu_slowed_by"])
    by = f" ({', '.join(why)})" if why else ""
    if max(clocks) - min(clocks) > FEW_OF_CLOCK * max(clocks):
        yield f"the card's clock moved between {min(clocks)} and {max(clocks)} MHz{by}"
    elif why:
        most = records[0]["gpu_clock_most_mhz"]
        yield f"the card's clock was held at {min(clocks)}{f' of {most}' if most else ''} MHz{by}"
