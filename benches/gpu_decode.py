"""Decode speed on a card, beside llama.cpp's `llama-bench` where it is on PATH.

    python benches/gpu_decode.py llama-3.2-1b llama-3.1-8b

writes synthetic files of the named shapes (models/shapes.toml) and prints, for each, the median
decode rate of greedy generation with everything in it: graph replays, sampling, text. llama-bench's
`tg128` samples nothing; both run in turn, on the same file, from an empty cache.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import onegraph

REPOSITORY = Path(__file__).resolve().parents[1]
N_GEN = 128


def ours(path: Path, rounds: int) -> float:
    """Median tokens per second."""
    with onegraph.LLM(path, device="cuda", n_ctx=1024) as llm:
        rates = [
            llm.generate(
                [3 + turn] * 8, max_tokens=N_GEN, temperature=0, ignore_eos=True
            ).timings.decode_tokens_per_second
            for turn in range(rounds + 1)
        ]
    # The first round compiles and captures.
    return statistics.median(rates[1:])


def llama_cpp(path: Path, rounds: int) -> float | None:
    """Mean tokens per second of llama-bench, or None where it is not installed."""
    program = shutil.which("llama-bench")
    if program is None:
        return None
    options = ["-m", path, "-p", "0", "-n", str(N_GEN), "-fa", "1", "-ngl", "99", "-o", "json"]
    done = subprocess.run(
        [program, *map(str, options), "-r", str(rounds)], capture_output=True, text=True, check=True
    )
    return float(json.loads(done.stdout)[0]["avg_ts"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("shapes", nargs="+")
    parser.add_argument("--mix", default="Q4_K_M")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    print("| model | tok/s | llama.cpp | ratio |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for shape in arguments.shapes:
            path = Path(folder) / f"{shape}.gguf"
            command = [sys.executable, "models/synth.py", shape, "--mix", arguments.mix, "-o", path]
            subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
            rate, theirs = ours(path, arguments.rounds), llama_cpp(path, arguments.rounds)
            beside = f"{theirs:.0f} | {rate / theirs:.2f}" if theirs else "llama-bench not found |"
            print(f"| {shape} {arguments.mix} | {rate:.0f} | {beside} |", flush=True)
            path.unlink()


if __name__ == "__main__":
    main()
