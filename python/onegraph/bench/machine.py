"""What was measured on what: versions, processor, card, driver, commit."""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import json
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path

import onegraph
from onegraph import _native, arguments, nvrtc
from onegraph.bench import nvidia_smi
from onegraph.bench.load import Watch

__all__ = ["Machine", "describe", "n_threads", "now", "watch"]


@dataclass(frozen=True, slots=True)
class Machine:
    """This machine and this build. What cannot be told is None."""

    version: str
    #: Commit of the source, with "-dirty" where files differ from it.
    commit: str | None
    cpu: str
    gpu: str | None
    driver: str | None
    nvrtc: str | None
    python: str
    system: str


def describe(device: str) -> Machine:
    """This machine, with the card `device` ("cuda:N", or "cuda:N,M" of several)."""
    gpu = driver = compiler = None
    if device != "cpu":
        found = json.loads(_native.cuda_devices(nvrtc.folders()))
        cards = {card["device"]: card for card in found["cards"]}
        numbers = arguments.cards(device)
        gpu = cards.get(f"cuda:{numbers[0]}", {}).get("name")
        if gpu and len(numbers) > 1:
            gpu = f"{len(numbers)} x {gpu}"
        driver, compiler = found["driver"], found["nvrtc"]["version"]
        driver = _driver_release() or (f"CUDA {driver}" if driver else None)
    return Machine(
        version=onegraph.__version__,
        commit=commit(),
        cpu=_cpu(),
        gpu=gpu,
        driver=driver,
        nvrtc=compiler,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
    )


def watch(device: str, *, pause: bool = False) -> Watch:
    """Looks at the load of this machine and of the card `device`, where it is one; `pause` as
    `Watch` has it. It takes a moment, in which nothing of ours runs: call it before a model is
    loaded."""
    if device == "cpu":
        return Watch(pause=pause)
    cards = json.loads(_native.cuda_devices(nvrtc.folders()))["cards"]
    names = [card["name"] for card in cards]
    # Of several the first, which all others wait for.
    ordinal = arguments.cards(device)[0]
    return Watch(nvidia_smi.finder(ordinal, names), pause)


def now() -> str:
    """The time, as llama-bench writes it."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def n_threads(threads: int | None) -> int:
    """CPU threads in use: those asked for, else as many as the machine runs at once."""
    import os

    return threads or len(os.sched_getaffinity(0))


def _driver_release() -> str | None:
    """Release and CUDA version of the kernel's driver, such as 580.126.09."""
    with contextlib.suppress(OSError):
        for word in Path("/proc/driver/nvidia/version").read_text().split():
            if word.replace(".", "").isdecimal() and "." in word:
                return word
    return None


def _cpu() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def commit() -> str | None:
    """Commit of a source tree that this package runs from or was installed from by its address.

    A package that was built and installed elsewhere does not know.
    """
    here = Path(__file__)
    with contextlib.suppress(OSError, subprocess.SubprocessError):

        def git(*args: str) -> str:
            return subprocess.check_output(
                ["git", "-C", str(here.parent), *args],
                text=True,
                stderr=subprocess.DEVNULL,
                timeout=10,
            ).strip()

        # A copy that merely lies inside some repository is not tracked there.
        git("ls-files", "--error-unmatch", here.name)
        return git("describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
    with contextlib.suppress(importlib.metadata.PackageNotFoundError, ValueError):
        origin = importlib.metadata.distribution("onegraph").read_text("direct_url.json")
        found = json.loads(origin or "{}").get("vcs_info", {}).get("commit_id")
        return str(found)[:12] if found else None
    return None
