"""What the compiler made of the order around the wait: machine code of sm_90, from NVRTC by way of
nvdisasm, neither of which needs a card. A model has some hundred kernels, each of which the real
compiler takes a second for: thorough."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest
import shapes
import synth
from support.backends import EXHAUSTIVE
from support.card import real_nvrtc

pytestmark = pytest.mark.thorough

# griddepcontrol.wait and griddepcontrol.launch_dependents.
WAIT, TRIGGER = "ACQBULK", "PREEXIT"
# cp.async.bulk.
BULK = "UBLKCP.S.G"
# Loads of what the model has, norms, one number and four. Loads of what kernels write are strong.
CONSTANT, CONSTANTS = "LDG.E", "LDG.E.128"
WORD, QUAD = "LDG.E.STRONG.GPU", "LDG.E.128.STRONG.GPU"
PAIR = "LDG.E.64.STRONG.GPU"
MEMORY = re.compile(r"(LDG|LDGSTS|UBLKCP|LD|STG|ST|ATOM|ATOMG|RED|REDG|ACQBULK|PREEXIT)(\.|$)")
WRITE = re.compile(r"(STG|ST|ATOM|ATOMG|RED|REDG)(\.|$)")


@dataclass(frozen=True)
class Order:
    """Of the accesses of a kernel: which must come ahead of its wait, which else may, and which
    must come behind it and never ahead."""

    ahead: frozenset[str] = frozenset()
    may: frozenset[str] = frozenset()
    behind: frozenset[str] = frozenset()


def order(ahead: Iterable[str] = (), may: Iterable[str] = (), behind: Iterable[str] = ()) -> Order:
    return Order(frozenset(ahead), frozenset(may), frozenset(behind))


#: Kernels that do something before their wait; the others do nothing.
ORDERS = {
    # Weights; the norm's, the position, and what the sums are added to; then x.
    "matvec": order([BULK], [CONSTANTS, WORD], [QUAD]),
    "matmul": order([BULK]),
    "skinny": order([BULK], [CONSTANTS], [QUAD]),
    "split": order([], [CONSTANT], [QUAD]),
    # Keys and values of earlier steps, found by position, slot and page; then q.
    "attention_fixed": order([BULK], [WORD], [QUAD]),
    # What the slot draws by, and its stop tokens; then logits.
    "sample_adjust": order([WORD, PAIR], [], [QUAD]),
}
#: Variants of a kernel that are read, unless ONEGRAPH_EXHAUSTIVE asks for all.
EACH = 8
#: At load, not in a step: launched by itself.
APART = {"repack"}

COMPILE = """
import sys
from onegraph import _native, nvrtc
path, max_batch, *kv_types = sys.argv[1:]
for kv_type in kv_types:
    _native.compile_kernels(path, "sm_90", n_ctx=256, max_batch=int(max_batch), kv_type=kv_type,
                            prefill_chunk=64, nvrtc_folders=nvrtc.folders(), progress=None)
"""


def nvdisasm() -> Path:
    try:
        files = importlib.metadata.files("nvidia-cuda-nvdisasm") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    found = [Path(str(f.locate())) for f in files if f.name == "nvdisasm"]
    installed = found[0] if found else shutil.which("nvdisasm")
    if installed is None:
        pytest.skip("no nvdisasm; `pip install nvidia-cuda-nvdisasm`, 5 MB, runs this")
    return Path(installed)


def accesses(listing: str) -> dict[str, list[str]]:
    """By kernel, what touches global memory, waits and triggers, in the order it stands."""
    parts = re.split(r"^\.text\.(\w+):$", listing, flags=re.MULTILINE)
    found = {}
    for name, text in zip(parts[1::2], parts[2::2], strict=True):
        code = re.findall(r"/\*[0-9a-f]{4,}\*/ +(?:@!?U?P\w+ +)?([A-Z][A-Z0-9_.]*)", text)
        found[name] = [word for word in code if MEMORY.match(word)]
    return found


@pytest.fixture(scope="module")
def kernels(
    tmp_path_factory: pytest.TempPathFactory, tiny_llama: Path
) -> list[tuple[str, list[str]]]:
    """Each kernel of small models' steps and prompts with its accesses; of most kinds several."""
    tool, compiler = nvdisasm(), real_nvrtc()
    if compiler is None:
        pytest.skip("pip install 'nvidia-cuda-nvrtc-cu12>=12.9', or set ONEGRAPH_TEST_NVRTC")
    folder = tmp_path_factory.mktemp("sass")
    env = os.environ | {"ONEGRAPH_CACHE_DIR": str(folder), "ONEGRAPH_NVRTC": str(compiler)}
    # Rows wide enough for a step of two to have a kernel of its own.
    wide = folder / "wide.gguf"
    heads = {"n_head": 32, "n_head_kv": 4, "head_dim": 64}
    shape = dataclasses.replace(shapes.find("tiny-llama"), n_layer=1, n_embd=2048, **heads)
    synth.write(wide, shape, "Q4_K_M")
    models = [[str(wide), "2", "i16", "q8_0"]]
    if EXHAUSTIVE:
        models.append([str(tiny_llama), "1", "i16", "q8_0"])
    for model in models:
        command = [sys.executable, "-c", COMPILE, *model]
        subprocess.run(command, env=env, check=True, timeout=500)
    images = defaultdict(list)
    for entry in sorted(folder.rglob("*.cubin")):
        data = entry.read_bytes()
        image = data[data.index(b"\x7fELF") :]
        images[frozenset(re.findall(rb"\.text\.(\w+)", image))].append(image)
    found = []
    for of_one_kind in images.values():
        for image in of_one_kind[:: 1 if EXHAUSTIVE else -(-len(of_one_kind) // EACH)]:
            path = folder / "image.elf"
            path.write_bytes(image)
            done = subprocess.run([tool, "-c", path], capture_output=True, text=True, check=True)
            found += accesses(done.stdout).items()
    return found


def check(name: str, found: list[str]) -> None:
    """That a kernel's accesses stand in the order that it is to have."""
    assert WAIT in found, f"{name} never waits"
    trigger = found.index(TRIGGER)
    waits = [at for at, word in enumerate(found[:trigger]) if word == WAIT]
    assert waits, f"{name} triggers before it waits"
    # Others, ahead of it, are of blocks that have nothing to do.
    wait = waits[-1]
    ahead = {word for word in found[:wait] if word != WAIT}
    behind = set(found[wait:])
    wanted = ORDERS.get(name, Order())
    assert not any(WRITE.match(word) for word in ahead), f"{name} writes before it waits: {ahead}"
    assert wanted.ahead <= ahead, f"{name} waits before {wanted.ahead - ahead}"
    assert ahead <= wanted.ahead | wanted.may, f"{name} waits after {ahead}"
    assert wanted.behind <= behind, f"{name} has no {wanted.behind - behind} behind its wait"


def test_weights_are_asked_for_before_the_wait_and_activations_after(
    kernels: list[tuple[str, list[str]]],
) -> None:
    names = {name for name, _ in kernels}
    assert names > set(ORDERS) | APART
    assert {"embed", "sample_adjust", "sample_draw", "kv_scatter_fixed", "select_rows"} <= names
    for name, found in kernels:
        if name in APART:
            assert WAIT not in found
        else:
            check(name, found)


@pytest.mark.parametrize("name", ["matvec", "matmul", "skinny", "attention_fixed"])
def test_a_wait_that_stands_elsewhere_is_seen(
    name: str, kernels: list[tuple[str, list[str]]]
) -> None:
    found = next(accesses for other, accesses in kernels if other == name)
    rest = [word for word in found if word not in (WAIT, TRIGGER)]
    for at, complaint in [(0, "waits before"), (len(rest), "before it waits|waits after")]:
        with pytest.raises(AssertionError, match=complaint):
            check(name, [*rest[:at], WAIT, TRIGGER, *rest[at:]])
    with pytest.raises(AssertionError, match="triggers before it waits"):
        check(name, [TRIGGER, WAIT, *rest])
