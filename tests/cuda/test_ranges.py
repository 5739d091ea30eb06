"""The named ranges that profilers show: told by NVIDIA's NVTX library to a listener of our own."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

LISTENER = """
#include <nvtx3/nvToolsExt.h>
#include <stdio.h>
#include <stdlib.h>

static FILE *out;
static int push(const char *name) {
    fprintf(out, "+%s\\n", name);
    return fflush(out);
}
static int pop(void) {
    fputs("-\\n", out);
    return fflush(out);
}

__attribute__((visibility("default"))) int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t find) {
    const NvtxExportTableCallbacks *callbacks = find(NVTX_ETID_CALLBACKS);
    NvtxFunctionTable table = 0;
    unsigned int size = 0;
    out = fopen(getenv("RANGES"), "w");
    if (!out || !callbacks) return 0;
    if (!callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size)) return 0;
    *table[NVTX_CBID_CORE_RangePushA] = (NvtxFunctionPointer)push;
    *table[NVTX_CBID_CORE_RangePop] = (NvtxFunctionPointer)pop;
    return 1;
}
"""

SERVED = """
with onegraph.LLM(path, device="cuda", n_ctx=128, max_batch=1, prefill_chunk=64) as llm:
    prompt = [7 + i % 400 for i in range(100)]
    out["tokens"] = llm.generate(prompt, max_tokens=12, temperature=0, ignore_eos=True).token_ids
"""


@pytest.fixture(scope="module")
def nvtx() -> Path:
    """The folder of NVTX's headers and library."""
    found = importlib.util.find_spec("nvidia.nvtx")
    assert found is not None and found.submodule_search_locations, "pip install nvidia-nvtx-cu12"
    return Path(found.submodule_search_locations[0])


def test_load_capture_chunks_and_steps_are_ranges(
    simulated: Any, nvtx: Path, tmp_path: Path, ksim_env: dict[str, str]
) -> None:
    (tmp_path / "listener.c").write_text(LISTENER)
    listener, ranges = tmp_path / "listener.so", tmp_path / "ranges"
    command = ["cc", "-shared", "-fPIC", "-I", nvtx / "include", "-o", listener, "listener.c"]
    subprocess.run(command, cwd=tmp_path, check=True)
    plain = simulated(SERVED)
    folders = f"{nvtx / 'lib'}:{ksim_env['LD_LIBRARY_PATH']}"
    told = simulated(
        SERVED,
        env={
            "LD_LIBRARY_PATH": folders,
            "NVTX_INJECTION64_PATH": os.fspath(listener),
            "RANGES": os.fspath(ranges),
        },
    )
    assert told["tokens"] == plain["tokens"]
    lines = ranges.read_text().splitlines()
    assert lines.count("-") == len(lines) - lines.count("-"), "each range ends"
    begun = Counter(line[1:] for line in lines if line != "-")
    assert begun["onegraph: load"] == 1 and begun["onegraph: compile"] == 1
    assert begun["onegraph: capture of the decode step of 1 rows"] == 1
    # A hundred tokens in two chunks, and what of eleven steps was queued before the last was known.
    chunks = sum(n for name, n in begun.items() if name.startswith("onegraph: a prompt's chunk"))
    assert chunks == 2
    assert begun["onegraph: the decode step of 1 rows"] >= 11
