"""Fixtures all tests share."""

import ctypes
import gc
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import hypothesis
import onegraph
import pytest
import shapes
import synth
from onegraph import hub
from support import card_lock, plans_kv
from support.backends import CASES, EXHAUSTIVE, HAS_CARD, Backend

# Finds a failing example and leaves it as it is: making it small can take minutes.
hypothesis.settings.register_profile(
    "find", phases=[hypothesis.Phase.explicit, hypothesis.Phase.reuse, hypothesis.Phase.generate]
)

#: What this process may use before a worker of pytest-xdist keeps to its own.
ALL_CORES = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()

#: Fixtures that load the simulated driver into the process of the test.
LOADS_DRIVER = {"backend", "card", "any_card"}

#: Runs the command line as a process.
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of 2 layers and 512 tokens, context 512."""
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    synth.write(path, shapes.find("tiny-llama"), "Q8_0", seed=1)
    return path


@pytest.fixture(scope="module")
def llm(tiny: Path) -> Iterator[onegraph.LLM]:
    with onegraph.LLM(tiny, device="cpu", max_batch=4) as llm:
        yield llm


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct Q4_1, a real GGUF of 98 MB."""
    override = os.environ.get("ONEGRAPH_TEST_MODEL")
    if override:
        path = Path(override)
        if not path.is_file():
            pytest.skip(f"ONEGRAPH_TEST_MODEL={override} is no file")
        return path
    try:
        return hub.resolve("smollm2", mend=True, verify=True)
    except onegraph.FileError as e:
        pytest.skip(f"{e}; set ONEGRAPH_TEST_MODEL to a copy of the file")


@pytest.fixture(scope="session")
def vectors() -> Path:
    """The published vocabularies and chat templates, kept beside the repository, not in it."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "vectors"
    path = Path(os.environ.get("ONEGRAPH_TEST_VECTORS") or beside)
    if not (path / "vocab").is_dir():
        pytest.skip(
            f"{path}/vocab is absent; `pip download --no-deps --no-binary :all: "
            "llama-cpp-python==0.3.36` fetches an archive with llama.cpp's vocabularies "
            "(vendor/llama.cpp/models/ggml-vocab-*: into vocab/) and published chat templates "
            "(vendor/llama.cpp/models/templates: into templates/); then set ONEGRAPH_TEST_VECTORS"
        )
    return path


@pytest.fixture(scope="session")
def ksim_library_dir() -> Path:
    """The folder with the simulated driver's libcuda.so and libnvrtc.so, built once."""
    override = os.environ.get("KSIM_LIBRARY_DIR")
    if override:
        return Path(override)
    if not shutil.which("cargo") or not shutil.which("g++"):
        pytest.skip("the simulated driver needs cargo and g++, or KSIM_LIBRARY_DIR")
    done = subprocess.run(
        ["cargo", "run", "--quiet", "--package", "ksim", "--", "--library-dir"],
        cwd=Path(__file__).resolve().parents[1],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


@pytest.fixture(scope="session")
def ksim_env(ksim_library_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that is to find the simulated driver; kernels are compiled
    once a run, of all of whose processes pytest-xdist puts the folders into one."""
    base = tmp_path_factory.getbasetemp()
    compiled = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "ksim"
    compiled.mkdir(exist_ok=True)
    paths = [str(ksim_library_dir), os.environ.get("LD_LIBRARY_PATH", "")]
    return os.environ | {
        "LD_LIBRARY_PATH": ":".join(filter(None, paths)),
        "ONEGRAPH_NVRTC": str(ksim_library_dir / "libnvrtc.so"),
        "KSIM_CACHE": os.environ.get("KSIM_CACHE") or str(compiled),
    }


def pytest_configure(config: pytest.Config) -> None:
    """Lets pytest-xdist hand files out in the order that they were collected in, to workers that
    have cores of their own: threads that wait for one which has no core wait spinning."""
    if not config.pluginmanager.hasplugin("xdist"):
        return
    config.option.loadscopereorder = False
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if not worker:
        # NumPy's threads are made where it is imported, which workers do before they come here.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    elif ALL_CORES:
        cores = sorted(ALL_CORES)
        first = int(worker.removeprefix("gw")) % len(cores)
        count = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        os.sched_setaffinity(0, cores[first::count])


def pytest_report_header() -> list[str]:
    """What this run leaves out, and what runs it."""
    lines = ["tests marked thorough run by `pytest -m thorough`, and where their files are named"]
    if not HAS_CARD:
        lines.append("no NVIDIA card here: `pytest -m gpu` on a machine with one runs tests of it")
    return lines


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts the files that load the simulated driver into their own process behind all others: for
    a process that has it, this is a machine with a card. Leaves out what a backend does not have,
    and of a card's cases all but a few: each shape is a kernel that is compiled for a second or
    two. Tests of a card go where there is none, thorough ones where all tests are meant and
    no marker is."""
    loading = {i.path for i in items if LOADS_DRIVER.intersection(getattr(i, "fixturenames", ()))}
    items.sort(key=lambda item: item.path in loading)
    left_out = set() if HAS_CARD else {i for i in items if i.get_closest_marker("gpu")}
    named = {Path(arg).resolve() for arg in config.args}
    if not config.option.markexpr and named == {Path(__file__).parent}:
        left_out |= {i for i in items if i.get_closest_marker("thorough")}
    of_cards = defaultdict(list)
    for item in items:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        backend = params.get("backend")
        if not isinstance(backend, Backend):
            continue
        if not backend.stores(params.get("kv_type", "I16"), params.get("head_dim", 64)):
            left_out.add(item)
        elif backend.device != "cpu" and not EXHAUSTIVE:
            of_cards[item.path, item.originalname, backend.name].append(item)
    for cases in of_cards.values():
        marked = cases[0].get_closest_marker("simulated_types")
        if cases[0].get_closest_marker("one_shape"):
            kept = cases
        elif marked:
            kept = [item for item in cases if item.callspec.params.get("ty") in marked.args]
        else:
            # The first and the last differ in every parameter.
            kept = [cases[i * (len(cases) - 1) // (CASES - 1)] for i in range(CASES)]
        left_out.update(set(cases).difference(kept or cases))
    if left_out:
        config.hook.pytest_deselected(items=[*left_out])
        items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Has a test that measures a card's memory wait until no other worker's test uses the card."""
    if not item.get_closest_marker("gpu") or "PYTEST_XDIST_WORKER" not in os.environ:
        return (yield)
    factory: pytest.TempPathFactory = item.config._tmp_path_factory  # type: ignore[attr-defined]
    alone = item.get_closest_marker("card_alone") is not None
    with card_lock.held(factory.getbasetemp().parent, alone=alone):
        return (yield)


def cpu_seconds() -> float:
    """Of this process and those of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Puts down what a test costs, for `.ci/budget`: this does not depend on what else runs."""
    before = cpu_seconds()
    try:
        return (yield)
    finally:
        item.user_properties.append(("cpu_seconds", round(cpu_seconds() - before, 3)))


@pytest.fixture(scope="module")
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """A backend that this process can run on."""
    found: Backend = request.param
    with pytest.MonkeyPatch.context() as patch:
        if found.name == "simulated":
            library_dir = request.getfixturevalue("ksim_library_dir")
            env = request.getfixturevalue("ksim_env")
            for name in ("ONEGRAPH_NVRTC", "KSIM_CACHE"):
                patch.setenv(name, env[name])
            # Of this process: the simulator may compile other kernels than the engine knows of.
            folder = request.getfixturevalue("tmp_path_factory").mktemp("kernels")
            patch.setenv("ONEGRAPH_CACHE_DIR", str(folder))
            # From now on an open of a library of these names finds these.
            for name in ("libcuda.so", "libnvrtc.so"):
                ctypes.CDLL(str(library_dir / name))
        elif found.name == "card" and hasattr(ctypes.CDLL("libcuda.so.1"), "ksimStats"):
            pytest.skip("this process has the simulated driver; `pytest -m gpu` runs this")
        yield found
    # What it left on the card goes before another test looks.
    plans_kv.forget()
    gc.collect()


@pytest.fixture(scope="module")
def all_cores() -> Iterator[None]:
    """For threads that are to meet: those of a worker with one core take turns."""
    if not ALL_CORES:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, ALL_CORES)
    yield
    os.sched_setaffinity(0, before)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Lets Ctrl-C reach the processes that a test starts: one in the background of a script ignores
    it, and so would they."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def command() -> list[str]:
    """The installed script; the module where there is none (a source tree on PYTHONPATH)."""
    script = Path(sys.executable).with_name("onegraph")
    return [str(script)] if script.exists() else [sys.executable, "-m", "onegraph"]


@pytest.fixture(scope="session")
def cli(command: list[str]) -> Run:
    """`cli("run", model, "prompt", input=...)`; standard input is empty unless given."""

    def run(*args: object, **kwargs: object) -> subprocess.CompletedProcess[str]:
        env = os.environ | {"COLUMNS": "80", "NO_COLOR": "1"} | dict(kwargs.pop("env", {}))
        options = {"capture_output": True, "text": True, "timeout": 300, "encoding": "utf-8"}
        options |= kwargs
        if "input" not in options and "stdin" not in options:
            options["stdin"] = subprocess.DEVNULL
        return subprocess.run([*command, *map(str, args)], env=env, **options)

    return run
