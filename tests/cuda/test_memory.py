"""The memory of a card, simulated: foreseen, kept to, and given back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import shapes
import synth


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2 layers of 2 KV heads of 32 values: 512 bytes of keys and values a token in f16."""
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    synth.write(path, shapes.find("tiny-llama"), "Q4_K_M", seed=1)
    return path


def run(code: str, path: Path, env: dict[str, str], **more: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        env=env | {"ONEGRAPH_CACHE_DIR": str(path.parent / "cache")} | more,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_what_does_not_fit_is_foreseen_and_a_smaller_load_succeeds(
    tiny: Path, ksim_env: dict[str, str]
) -> None:
    code = """
import json, logging, re, sys
import onegraph
from onegraph import LLM

said = []
handler = logging.Handler()
handler.emit = lambda record: said.append(record.getMessage())
logging.getLogger("onegraph").addHandler(handler)
logging.getLogger("onegraph").setLevel(logging.DEBUG)
out = {}
large = {"device": "cuda", "max_batch": 64, "prefill_chunk": 64}
try:
    LLM(sys.argv[1], n_ctx=512, **large)
except onegraph.OutOfMemoryError as e:
    out["error"] = str(e)
fit = int(re.search(r"n_ctx=(\\d+)", out["error"])[1])
options = {"max_tokens": 2, "ignore_eos": True, "seed": 1}
with LLM(sys.argv[1], n_ctx=fit, **large) as llm:
    out["fit"] = [llm.n_ctx, len(llm.generate("tea", **options).token_ids)]
with LLM(sys.argv[1], **large) as llm:
    out["chosen"] = [llm.n_ctx, len(llm.generate("tea", **options).token_ids)]
out["said"] = said
print(json.dumps(out))
"""
    # Keys and values need 1 KiB a token, and much is set aside for kernels and graphs.
    found = run(code, tiny, ksim_env, KSIM_MEMORY=str(112 << 20))
    error = found["error"]
    assert "needs 0.1 GiB (weights 0.0, KV 0.1, scratch 0.1), 0.1 free on" in error
    assert "would fit" in error and "max_batch=" in error
    n_ctx = found["fit"][0]
    assert 256 <= n_ctx < 512 and n_ctx % 64 == 0 and f"context {n_ctx} would fit" in error
    assert found["fit"][1] == 2
    assert found["chosen"] == [n_ctx, 2]
    warning = f"GPU memory holds a context of {n_ctx} tokens, not 512"
    assert any(warning in text for text in found["said"])
    for part in ("upload", "compile"):
        assert any(text.startswith(f"load, side by side: {part}") for text in found["said"])


def test_info_foresees_what_a_load_needs_to_the_byte(tiny: Path, ksim_env: dict[str, str]) -> None:
    ask = """
import json, sys
from onegraph import _native
from onegraph.cli.info import _free_on

info = json.loads(_native.model_info(sys.argv[1], n_ctx=256, max_batch=2, device="cuda"))
print(json.dumps([info["error"], info["memory"], _free_on("cuda:0")]))
"""
    load = """
import json, sys
from onegraph import LLM, OutOfMemoryError

try:
    LLM(sys.argv[1], device="cuda", n_ctx=256, max_batch=2, progress=False).close()
    print(json.dumps(None))
except OutOfMemoryError as e:
    print(json.dumps(str(e)))
"""
    enough = 1 << 30
    error, memory, free = run(ask, tiny, ksim_env, KSIM_MEMORY=str(enough))
    assert error is None and memory["device"] == "cuda:0"
    parts = ("weights_bytes", "kv_bytes", "scratch_bytes")
    assert memory["total_bytes"] == sum(memory[part] for part in parts)
    least = enough - free + memory["total_bytes"]
    assert run(load, tiny, ksim_env, KSIM_MEMORY=str(least)) is None
    assert "needs 0.1 GiB" in run(load, tiny, ksim_env, KSIM_MEMORY=str(least - 1))


def test_the_file_is_not_mapped_once_it_is_on_the_card(
    tiny: Path, ksim_env: dict[str, str]
) -> None:
    code = """
import json, sys
from onegraph import LLM

with LLM(sys.argv[1], device="cuda", max_batch=1, prefill_chunk=64) as llm:
    maps = open("/proc/self/maps").read()
with LLM(sys.argv[1], device="cpu", max_batch=1) as llm:
    control = open("/proc/self/maps").read()
print(json.dumps([sys.argv[1] in maps, sys.argv[1] in control]))
"""
    assert run(code, tiny, ksim_env) == [False, True]


def test_ctrl_c_while_weights_move_leaves_nothing(tiny: Path, ksim_env: dict[str, str]) -> None:
    """A load that is broken off between two pieces of the file frees what it took."""
    code = """
import ctypes, json, sys, time
from onegraph import LLM

def progress(stage, done, total):
    if stage == "weights":
        raise KeyboardInterrupt

try:
    LLM(sys.argv[1], device="cuda", prefill_chunk=64, progress=progress)
    raise SystemExit("the load was not broken off")
except KeyboardInterrupt:
    pass
stats = (ctypes.c_uint64 * 32)()
driver = ctypes.CDLL("libcuda.so")
for _ in range(500):
    driver.ksimStats(stats, ctypes.sizeof(stats))
    if stats[1] == 0:
        break
    time.sleep(0.02)
left = stats[1]
with LLM(sys.argv[1], device="cuda", prefill_chunk=64) as llm:
    tokens = len(llm.generate("tea", max_tokens=2, ignore_eos=True).token_ids)
print(json.dumps([left, tokens]))
"""
    assert run(code, tiny, ksim_env) == [0, 2]


CYCLES = """
import json, sys
from onegraph import LLM, _native, nvrtc

def free():
    return json.loads(_native.cuda_devices(nvrtc.folders()))["cards"][0]["free_bytes"]

def cycle():
    with LLM(sys.argv[1], device="cuda", max_batch=2, n_ctx=256, prefill_chunk=64) as llm:
        return llm.generate(["tea", "toast"], max_tokens=3, seed=1, ignore_eos=True)

for _ in range(2):
    cycle()
begin = free()
for _ in range(int(sys.argv[2])):
    cycle()
print(json.dumps([begin, free()]))
"""


def cycles(path: Path, env: dict[str, str], times: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CYCLES, str(path), str(times)],
        env=env | {"ONEGRAPH_CACHE_DIR": str(path.parent / "cache")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    begin, end = json.loads(done.stdout)
    assert begin == end


def test_loading_and_unloading_gives_all_memory_back(tiny: Path, ksim_env: dict[str, str]) -> None:
    cycles(tiny, ksim_env | {"KSIM_LEAKS": "fail"}, 5)


@pytest.mark.gpu
@pytest.mark.card_alone
def test_a_hundred_cycles_on_a_card_give_all_memory_back(tiny: Path) -> None:
    cycles(tiny, dict(os.environ), 100)
