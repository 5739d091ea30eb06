"""How a model gets onto a card: seconds of a load whose kernels are compiled and of those after it,
the rate of the upload, what it takes of the card's memory, and prompts of a few lengths.

    python benches/load_and_prompt.py model.gguf

The kernel cache is a folder of its own, empty at first. Each prompt runs twice before it is timed,
so that no kernel is compiled and no graph captured in between.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import tempfile
import time
from pathlib import Path

import onegraph
from onegraph import _native, nvrtc


def free() -> int:
    """Free bytes of the first card."""
    found = json.loads(_native.cuda_devices(nvrtc.folders()))
    if not found["cards"]:
        raise SystemExit(f"no card: {found['error']}")
    return int(found["cards"][0]["free_bytes"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--lengths", default="16,64,300,512,2048", help="prompts, in tokens")
    parser.add_argument("--chunk", type=int, default=512, help="prefill_chunk")
    given = parser.parse_args()
    logging.basicConfig(level=logging.DEBUG, format="%(message)s")
    size = given.model.stat().st_size
    lengths = [int(n) for n in given.lengths.split(",")]
    with tempfile.TemporaryDirectory() as cache:
        os.environ["ONEGRAPH_CACHE_DIR"] = cache
        for turn in ("kernels compiled", "kernels cached"):
            before = free()
            llm = onegraph.LLM(given.model, device="cuda", prefill_chunk=given.chunk)
            taken = before - free()
            rate = size / dict(llm._engine.load_parts)["upload"] / 1e9
            seconds = llm._engine.load_seconds
            print(f"{turn}: {seconds:.2f} s, upload {rate:.1f} GB/s, takes {taken / 2**30:.2f} GiB")
            if turn == "kernels compiled":
                llm.close()
    options = {"max_tokens": 1, "temperature": 0, "ignore_eos": True}
    for n in (n for n in lengths if n < llm.n_ctx):
        prompts = [[3 + (i * 7 + turn) % 400 for i in range(n)] for turn in range(7)]
        times = []
        for prompt in prompts:
            begun = time.perf_counter()
            llm.generate(prompt, **options)
            times.append(time.perf_counter() - begun)
        took = statistics.median(times[2:])
        print(f"prompt of {n}: {took * 1e3:.2f} ms, {n / took:.0f} tokens a second")
    llm.close()


if __name__ == "__main__":
    main()
