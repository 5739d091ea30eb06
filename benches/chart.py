"""Draws the README's picture, tokens a second by the number of sequences that decode together, from
a record of `benches/depth_table.py`.

    python benches/chart.py benches/records/batch_h200.json -o benches/records/batch_h200.svg
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median
from typing import Any

from onegraph.bench.charts import COLOURS

#: The engines of a record, with their colours in all charts.
ENGINES = {
    "onegraph": COLOURS["onegraph"],
    "llama.cpp": COLOURS["llama-server"],
    "vLLM": COLOURS["vllm"],
}


def rates(model: dict[str, Any], engine: str) -> dict[int, float]:
    """Medians of tokens a second of all sequences, by their number."""
    found = {1: median(model[engine]["step behind 0"])}
    for name, samples in model[engine].items():
        if name.endswith(" sequences"):
            found[int(name.split()[0])] = median(samples)
    return dict(sorted(found.items()))


def draw(record: dict[str, Any], path: Path) -> None:
    """A panel of bars for each model of the record."""
    import matplotlib

    # Text stays text, and the same record makes the same file.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "onegraph"})
    from matplotlib.figure import Figure

    models = record["models"]
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    for axes, (name, model) in zip(
        figure.subplots(1, len(models), squeeze=False)[0], models.items(), strict=True
    ):
        for engine, (label, colour) in enumerate(ENGINES.items()):
            found = rates(model, label)
            where = [at + (engine - 1) * 0.29 for at in range(len(found))]
            bars = axes.bar(where, list(found.values()), 0.27, color=colour, label=label)
            axes.bar_label(bars, fmt="{:,.0f}", fontsize=6)
            axes.set_xticks(range(len(found)), [str(n) for n in found])
        axes.set_title(f"{name} {model['mix']}")
        axes.set_xlabel("sequences that decode together")
        axes.set_yticks([])
        axes.spines[["top", "right", "left"]].set_visible(False)
    figure.axes[0].set_ylabel("tokens a second, of all")
    figure.axes[0].legend(loc="upper left", frameon=False)
    machine = record["machine"]
    figure.supxlabel(f"{machine['gpu']}, driver {machine['driver']}", fontsize=8, color="#555555")
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("record", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True, help=".svg, .png or .pdf")
    arguments = parser.parse_args()
    draw(json.loads(arguments.record.read_text()), arguments.output)


if __name__ == "__main__":
    main()
