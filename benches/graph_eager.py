"""What a captured decode step gains over the same kernels launched one by one, on a card.

    python benches/graph_eager.py smollm2-135m llama-3.2-1b llama-3.1-8b --record graph_eager.json

writes synthetic files of the named shapes (models/shapes.toml), loads each as `full`, `piecewise`
and `none` (`cuda_graph`), and prints medians of the decode rate of greedy generation, sampling and
text included. Every way must give the same tokens, or nothing is printed. A row is printed, and
recorded, as soon as it is measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import onegraph
from onegraph import _native, nvrtc

REPOSITORY = Path(__file__).resolve().parents[1]
MODES = ["full", "piecewise", "none"]
#: A file of one type where the columns take no K-quant.
MIXES = {"smollm2-135m": "Q8_0"}


def machine() -> dict[str, Any]:
    """Card, driver, package and commit."""
    found = json.loads(_native.cuda_devices(nvrtc.folders()))
    if not found["cards"]:
        raise SystemExit(f"no card: {found['error']}")
    git = ["git", "-C", str(REPOSITORY), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True).stdout.strip()
    return {
        "card": found["cards"][0]["name"],
        "driver": found["driver"],
        "nvrtc": found["nvrtc"]["version"],
        "onegraph": onegraph.__version__,
        "commit": commit or None,
    }


def measure(path: Path, mode: str, tokens: int, rounds: int) -> tuple[list[float], list[list[int]]]:
    """Decode rates of each round, and the tokens; the first round compiles and captures."""
    options = {"temperature": 0, "ignore_eos": True, "max_tokens": tokens}
    with onegraph.LLM(path, device="cuda", n_ctx=tokens + 64, max_batch=1, cuda_graph=mode) as llm:
        results = [llm.generate([3 + turn] * 8, **options) for turn in range(rounds + 1)]
        stats = llm.graph_stats()
    assert stats is not None and (stats.eager > 0) == (mode == "none"), stats
    rates = [r.timings.decode_tokens_per_second for r in results[1:]]
    return rates, [r.token_ids for r in results]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("shapes", nargs="+", help="names in models/shapes.toml, or GGUF files")
    parser.add_argument("--mix", default="Q4_K_M")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--record", type=Path, help="write the figures as JSON")
    arguments = parser.parse_args()
    record: dict[str, Any] = {**machine(), "tokens": arguments.tokens, "rows": []}
    print(f"{record['card']}, CUDA {record['driver']}, commit {record['commit']}\n")
    print("| model | graph, tok/s | in pieces | eager | graph / eager |\n|---|---|---|---|---|")
    for shape in arguments.shapes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(shape)
            mix = ""
            if path.suffix != ".gguf":
                path = Path(folder) / f"{shape}.gguf"
                mix = MIXES.get(shape, arguments.mix)
                command = [sys.executable, "models/synth.py", shape, "--mix", mix, "-o", path]
                subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
            rates, texts = {}, {}
            for mode in MODES:
                rates[mode], texts[mode] = measure(path, mode, arguments.tokens, arguments.rounds)
        if not texts["full"] == texts["piecewise"] == texts["none"]:
            raise SystemExit(f"{shape}: graph and eager give different tokens; no speed is shown")
        medians = {mode: statistics.median(rates[mode]) for mode in MODES}
        record["rows"].append({"model": path.stem, "mix": mix, "rates": rates, "median": medians})
        ratio = medians["full"] / medians["none"]
        columns = " | ".join(f"{medians[mode]:.0f}" for mode in MODES)
        print(f"| {path.stem} {mix} | {columns} | {ratio:.2f} |", flush=True)
        if arguments.record:
            arguments.record.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
