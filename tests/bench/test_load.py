"""Load by others is named: on the processor by a real one, on a card by what nvidia-smi said."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import shapes
import synth
from onegraph.bench import load, machine, nvidia_smi
from onegraph.bench.load import Watch
from onegraph.bench.nvidia_smi import Card, Process

pytestmark = pytest.mark.thorough

RECORDED = Path(__file__).parent / "recorded"
SMALL = ["-p", "8", "-n", "4", "-r", "2", "--device", "cpu", "--threads", "1"]


def recorded(name: str) -> Card:
    cards = (RECORDED / f"nvidia_smi_{name}_cards.csv").read_text()
    processes = (RECORDED / f"nvidia_smi_{name}_processes.csv").read_text()
    (card,) = nvidia_smi.parsed(cards, processes)
    return card


@pytest.fixture
def busy() -> Iterator[subprocess.Popen[bytes]]:
    """Another process that keeps a core busy."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        time.sleep(0.3)
        yield process
        process.kill()


# --- the processor --------------------------------------------------------------------------------


def seconds_busy() -> float:
    """Of this process's cores; what a hypervisor's other guests took is no less busy."""
    ours = os.sched_getaffinity(0)
    times = [t for n, t in enumerate(psutil.cpu_times(percpu=True)) if n in ours]
    return sum(t.user + t.nice + t.system + t.irq + t.softirq + t.steal for t in times)


def test_another_processs_work_is_load_and_ones_own_is_not(busy: subprocess.Popen[bytes]) -> None:
    begin, before = time.monotonic(), seconds_busy()
    watch = Watch()
    before_all = (seconds_busy() - before) / (time.monotonic() - begin)
    watch.begin()
    me, before, begin = psutil.Process(), seconds_busy(), time.monotonic()
    mine = me.cpu_times()
    while time.monotonic() < begin + 1:  # work of our own
        pass
    found, after, took = watch.end(), seconds_busy(), time.monotonic() - begin
    all_busy = after - before
    own = sum(me.cpu_times()[:2]) - sum(mine[:2])
    # The moment before counts too, and the machine may have been busier then.
    assert found.cpus_busy >= (all_busy - own) / took - 0.25
    assert found.cpus_busy <= max(found.n_cpus - own / took, before_all) + 0.25
    assert found.n_cpus == len(os.sched_getaffinity(0))
    (said,) = load.said([found.record()])
    assert said.startswith("other processes kept ") and f" of {found.n_cpus} cores busy" in said
    assert "(load average " in said and said.endswith("; end them")


def test_a_calm_machine_is_no_news() -> None:
    calm = load.Load(n_cpus=16, average_before=9.0, average_after=9.0, cpus_busy=0.1)
    # Its load average may be that of an earlier run of one's own.
    assert load.said([calm.record()]) == []
    assert load.said([]) == []
    untold = replace(calm, cpus_busy=None)
    assert load.said([untold.record()]) == [
        "the load average was 9.00 on 16 cores before; end what else runs"
    ]


@pytest.mark.parametrize("form", ["md", "json"])
def test_bench_names_a_load_by_others(form: str, cli, tmp_path: Path, busy) -> None:
    model = tmp_path / "tiny.gguf"
    synth.write(model, shapes.find("tiny-llama"), "Q4_K_M")
    # A machine without nvidia-smi.
    done = cli("bench", model, *SMALL, "-o", form, env={"PATH": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    said = done.stdout if form == "md" else done.stderr
    assert "WARNING: other processes kept " in said
    if form == "json":
        for r in json.loads(done.stdout):
            assert 0.25 <= r["cpus_busy_by_others"] <= r["n_cpus"]
            assert r["load_average_before"] >= 0 and r["load_average_after"] >= 0
            assert any("cores busy" in line for line in r["load_warnings"])
            assert r["gpu_utilization_by_others"] is None and r["gpu_processes_of_others"] == []


# --- the card -------------------------------------------------------------------------------------


def test_what_nvidia_smi_said_is_read() -> None:
    card = recorded("busy")
    assert (card.name, card.utilization) == ("NVIDIA H100 80GB HBM3", 100)
    assert (card.clock, card.most_clock, card.slowed_by) == (1980, 1980, ())
    assert card.processes == (Process(590, "python3", 1476 << 20),)
    shares = nvidia_smi.parsed_shares((RECORDED / "nvidia_smi_busy_pmon.txt").read_text())
    assert shares == {590: 99}


def test_what_nvidia_smi_does_not_tell_is_none() -> None:
    cards = (RECORDED / "nvidia_smi_busy_cards.csv").read_text()
    (card,) = nvidia_smi.parsed(
        cards.replace("100, 1485, 1980", "[N/A], [N/A], [N/A]").replace("0x0", "[N/A]"), ""
    )
    assert (card.utilization, card.clock, card.slowed_by) == (None, None, ())
    (slow,) = nvidia_smi.parsed(cards.replace("0x0000000000000000", "0x0000000000000044"), "")
    assert slow.slowed_by == ("power cap", "hardware thermal slowdown")
    assert nvidia_smi.parsed("", "") == nvidia_smi.parsed("no devices were found", "") == []


@pytest.fixture
def answering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A program called nvidia-smi that prints what a real one did, of the file `state`'s name."""
    program, state = tmp_path / "nvidia-smi", tmp_path / "state"
    program.write_text(f"""#!/bin/sh
read name < {state}
case "$1" in
  --query-gpu=*throttle*) exit 2 ;;
  --query-gpu=*) exec cat {RECORDED}/nvidia_smi_"$name"_cards.csv ;;
  --query-compute-apps=*) exec cat {RECORDED}/nvidia_smi_"$name"_processes.csv ;;
  pmon) exec cat {RECORDED}/nvidia_smi_"$name"_pmon.txt ;;
esac
exit 2
""")
    program.chmod(0o755)
    state.write_text("busy\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    yield state


def test_others_on_the_card_are_named_with_what_they_use(answering: Path) -> None:
    watch = Watch(nvidia_smi.finder(0, ["NVIDIA H100 80GB HBM3"]))
    watch.begin()
    found = watch.end().record()
    assert found["gpu_utilization_by_others"] == 100
    assert found["gpu_memory_by_others"] == 1476 << 20
    assert found["gpu_processes_of_others"] == ["python3 (pid 590)"]
    assert (found["gpu_clock_before_mhz"], found["gpu_clock_after_mhz"]) == (1980, 1980)
    assert (
        "other processes used 100% of the card's time and held 1.4 GiB of the card: python3 "
        "(pid 590); end them"
    ) in found["load_warnings"]


def test_memory_that_is_held_alone_is_said_too(answering: Path) -> None:
    answering.write_text("held\n")
    watch = Watch(nvidia_smi.finder(0, ["NVIDIA H100 80GB HBM3"]), pause=True)
    watch.begin()
    said = load.said([watch.end().record()])
    assert said[-1] == "other processes held 0.8 GiB of the card: python3 (pid 735); end them"


def test_the_measuring_process_is_no_other() -> None:
    card = recorded("busy")
    mine = replace(card, processes=(Process(os.getpid(), "python3", 1 << 30),), utilization=0.0)
    later = replace(mine, processes=(*mine.processes, Process(1, "init", 1 << 20)))
    looks = iter([replace(mine, processes=()), mine, mine])
    watch = Watch(lambda: next(looks))
    watch.begin()
    assert watch.end().gpu_processes == ()
    looks = iter([replace(mine, processes=()), mine, later])
    watch = Watch(lambda: next(looks))
    watch.begin()
    assert watch.end().gpu_processes == ("init (pid 1)",)
    # Where the numbers are another machine's, one's own process looks like another.
    looks = iter([replace(mine, processes=()), card, card])
    watch = Watch(lambda: next(looks))
    watch.begin()
    assert watch.end().gpu_processes == ()


def test_a_clock_that_moved_is_said_with_what_held_it() -> None:
    card = replace(recorded("held"), processes=())
    looks = iter([card, card, replace(card, clock=1410, slowed_by=("power cap",))])
    watch = Watch(lambda: next(looks))
    watch.begin()
    found = watch.end().record()
    moved = "the card's clock moved between 1410 and 1980 MHz (power cap)"
    assert found["load_warnings"][-1] == load.said([found])[-1] == moved
    steady = replace(card, clock=1700, slowed_by=("power cap",))
    watch = Watch(lambda: steady)
    watch.begin()
    held = "the card's clock was held at 1700 of 1980 MHz (power cap)"
    assert watch.end().record()["load_warnings"][-1] == held


def test_without_nvidia_smi_nothing_breaks(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert nvidia_smi.cards() == [] and nvidia_smi.shares() == {}
    watch = Watch(nvidia_smi.finder(0, ["some card"]))
    watch.begin()
    assert watch.end().gpu_utilization is None
    failing = tmp_path / "nvidia-smi"
    failing.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed'\nexit 9\n")
    failing.chmod(0o755)
    assert nvidia_smi.cards() == []
    assert machine.watch("cpu").look is None


def test_a_card_is_found_by_its_name_and_by_what_is_visible(answering, monkeypatch) -> None:
    name = "NVIDIA H100 80GB HBM3"
    assert nvidia_smi.finder(1, ["NVIDIA RTX 6000", name])().uuid.startswith("GPU-295a0fb3")
    assert nvidia_smi.finder(0, ["NVIDIA RTX 6000", name])() is None
    assert nvidia_smi.finder(3, [name])() is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-295a")
    assert nvidia_smi.finder(0, [name])().name == name
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert nvidia_smi.finder(0, [name])().name == name
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4")
    assert nvidia_smi.finder(0, [name])() is None


@pytest.mark.gpu
def test_a_card_tells_its_clock(cli, smollm2: Path) -> None:
    done = cli("bench", smollm2, "-p", 64, "-n", 32, "-r", 2, "--device", "cuda", "-o", "json")
    if "no NVIDIA" in done.stderr:
        pytest.skip("no NVIDIA card: `pytest -m gpu tests/bench` on a machine with one")
    assert done.returncode == 0, done.stderr
    for r in json.loads(done.stdout):
        assert 0 < r["gpu_clock_after_mhz"] <= r["gpu_clock_most_mhz"]
        assert not any(f"(pid {os.getpid()})" in who for who in r["gpu_processes_of_others"])
