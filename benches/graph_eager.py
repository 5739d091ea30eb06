"""What a captured decode step gains over the same kernels launched one by one, on a card.

    python benches/graph_eager.py smollm2-135m llama-3.2-1b llama-3.1-8b --record graph_eager.json
    python benches/graph_eager.py llama-3.2-1b --sequences 1,8,32,64,128,256 --chart graph_eager.svg

writes synthetic files of the named shapes (models/shapes.toml), loads each as `full`, `piecewise`
and `none`, and prints medians of the decode rate of greedy generation, sampling and text included,
of so many sequences together. Every way must give the same tokens, or nothing is printed. A row is
printed, and recorded, as soon as it is measured.
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
from runs import together

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


#: Of each mode, by the number of sequences: rates of the rounds, and the tokens of every sequence.
Measured = dict[int, tuple[list[float], list[list[int]]]]


def measure(path: Path, mode: Any, sequences: list[int], args: argparse.Namespace) -> Measured:
    """The first round of each number compiles and captures."""
    options = {"temperature": 0, "ignore_eos": True}
    load: dict[str, Any] = {"n_ctx": args.tokens + 64, "max_batch": max(sequences)}
    found: Measured = {}
    graph = onegraph.GraphOptions(mode=mode)
    with onegraph.LLM(path, device="cuda", graph=graph, progress=False, **load) as llm:
        for n in sequences:
            rates, tokens = [], []
            for turn in range(args.rounds + 1):
                rate, results = together(llm, n, turn, args.tokens, **options)
                rates.append(rate)
                tokens += [r.token_ids for r in results]
            found[n] = rates[1:], tokens
        stats = llm.graph_stats()
    assert stats is not None and (stats.eager > 0) == (mode == "none"), stats
    return found


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Tokens a second by the number of sequences, a line for each model and way."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    names = {"full": "one graph", "piecewise": "in pieces", "none": "eager"}
    for model in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == model]
        for mode, style in zip(MODES, ["o-", "^:", "s--"], strict=True):
            points = [(row["sequences"], row["median"][mode]) for row in own]
            axes.plot(*zip(*points, strict=True), style, label=f"{model}, {names[mode]}")
    numbers = sorted({row["sequences"] for row in rows})
    axes.set(xscale="log", yscale="log", xlabel="sequences together", ylabel="tokens a second")
    axes.set_xticks(numbers, [str(n) for n in numbers])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("shapes", nargs="+", help="names in models/shapes.toml, or GGUF files")
    parser.add_argument("--mix", default="Q4_K_M")
    parser.add_argument("--sequences", default="1", help="numbers of sequences, by commas")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--record", type=Path, help="write the figures as JSON")
    parser.add_argument("--chart", type=Path, help="draw the figures: .svg, .png or .pdf")
    arguments = parser.parse_args()
    sequences = sorted({int(n) for n in arguments.sequences.split(",")})
    record: dict[str, Any] = {**machine(), "tokens": arguments.tokens, "rows": []}
    print(f"{record['card']}, CUDA {record['driver']}, commit {record['commit']}\n")
    print("| model | sequences | graph, tok/s | in pieces | eager | graph / eager |")
    print("|---|---|---|---|---|---|")
    for shape in arguments.shapes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(shape)
            mix = ""
            if path.suffix != ".gguf":
                path = Path(folder) / f"{shape}.gguf"
                mix = MIXES.get(shape, arguments.mix)
                command = [sys.executable, "models/synth.py", shape, "--mix", mix, "-o", path]
                subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
            found = {mode: measure(path, mode, sequences, arguments) for mode in MODES}
        for n in sequences:
            texts = [found[mode][n][1] for mode in MODES]
            if any(text != texts[0] for text in texts):
                raise SystemExit(f"{shape}, {n}: graph and eager give different tokens")
            rates = {mode: found[mode][n][0] for mode in MODES}
            medians = {mode: statistics.median(rates[mode]) for mode in MODES}
            row = {"model": path.stem, "mix": mix, "sequences": n}
            record["rows"].append({**row, "rates": rates, "median": medians})
            ratio = medians["full"] / medians["none"]
            columns = " | ".join(f"{medians[mode]:,.0f}" for mode in MODES)
            print(f"| {path.stem} {mix} | {n} | {columns} | {ratio:.2f} |", flush=True)
            if arguments.record:
                arguments.record.write_text(json.dumps(record, indent=1) + "\n")
    if arguments.chart:
        draw(record["rows"], arguments.chart)


if __name__ == "__main__":
    main()
