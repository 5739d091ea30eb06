"""Charts: a picture by matplotlib, one in the terminal by plotext."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onegraph.bench.cases import Case
from onegraph.bench.race import Result
from onegraph.bench.statistics import mean, sample_stddev
from onegraph.errors import ArgumentError, FileError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["check", "check_terminal", "draw", "figure", "terminal"]

SUFFIXES = (".png", ".svg", ".pdf")
#: One colour for an engine in every chart; apart from each other without colour vision, too.
COLOURS = {
    "onegraph": "#0072B2",
    "ollama": "#E69F00",
    "llama-server": "#009E73",
    "llama-bench": "#56B4E9",
    "xllamacpp": "#009E73",
    "llama-cpp-python": "#CC79A7",
    "vllm": "#D55E00",
}
#: Keeps grid lines out of a number.
CLEAR = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
#: What a picture says at its foot.
FOOT = "bars: mean; whiskers: sample standard deviation"
OTHER_COLOUR = "#7F7F7F"

Record = dict[str, Any]


def check(path: Path) -> None:
    """Raises where no chart can be drawn to `path`: `ArgumentError` for its ending, `FileError`
    where matplotlib or the folder is missing, or the file cannot be written."""
    if path.suffix.lower() not in SUFFIXES:
        raise ArgumentError(f"--plot {path}: must end in {', '.join(SUFFIXES)}")
    if not path.absolute().parent.is_dir():
        raise FileError(f"--plot {path}: there is no folder {path.absolute().parent}; create it")
    if importlib.util.find_spec("matplotlib") is None:
        raise FileError("--plot needs matplotlib: run `pip install matplotlib`")
    try:
        # Only writing tells: rights alone do not say whether a disk takes files.
        there = path.exists()
        path.open("ab").close()
        if not there:
            path.unlink()
    except OSError as e:
        raise FileError(f"--plot {path}: {e.strerror or e}; use a writable path") from e


def check_terminal() -> None:
    """Raises `FileError` where plotext, which draws in the terminal, is not there."""
    if importlib.util.find_spec("plotext") is None:
        raise FileError("--chart needs plotext: run `pip install plotext`")


def _name(record: Record) -> str:
    names = ("n_prompt", "n_gen", "n_depth")
    return Case(**{name: record[name] for name in names}, n_seq=record.get("n_seq", 1)).name


def draw(records: Sequence[Record], path: Path, title: str) -> None:
    """Draws the records of `bench` or of `compare` to a file."""
    picture = figure(records, title)
    try:
        picture.savefig(path)
    except OSError as e:
        raise FileError(f"cannot write {path}: {e.strerror or e}; check the folder") from e


def figure(records: Sequence[Record], title: str) -> Figure:
    """The chart of the records of `bench` or of `compare`: bars with whiskers for the spread."""
    # Its own figure, no pyplot: no window system is asked for anything.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(layout="constrained", dpi=150)
    FigureCanvasAgg(made)
    race = bool(records) and "engine" in records[0]
    (_race if race else _bench)(made, records, title)
    counts = [len(r["samples_ts"]) for r in records if r["samples_ts"]]
    alone = counts and max(counts) == 1
    foot = f"one {'round' if race else 'repetition'}: its spread is not known" if alone else FOOT
    made.supxlabel(foot, fontsize=9, color="#555555")
    return made


def _bars(axes: Any, values: Sequence[tuple[str, float, float, str]], unit: str) -> None:
    """Horizontal bars, one a line from the top: label, value, deviation, colour."""
    where = range(len(values))[::-1]
    axes.barh(
        list(where),
        [v for _, v, _, _ in values],
        xerr=[d for _, _, d, _ in values],
        color=[colour for *_, colour in values],
        error_kw={"elinewidth": 1.2, "capsize": 3, "ecolor": "#333333"},
        height=0.72,
    )
    axes.set_yticks(list(where), [label for label, *_ in values], fontsize=11)
    axes.set_xlabel(unit, fontsize=11)
    longest = max((v + d for _, v, d, _ in values), default=1.0)
    axes.set_xlim(0, longest * 1.22)  # room for the number behind the longest bar
    for y, (_, value, deviation, _) in zip(where, values, strict=True):
        text = f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
        axes.text(
            value + deviation + longest * 0.015, y, text, va="center", fontsize=11, bbox=CLEAR
        )
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.grid(True, color="#DDDDDD", linewidth=0.8)
    axes.set_axisbelow(True)


def _race(figure: Any, records: Sequence[Record], title: str) -> None:
    ran = [r for r in records if not r["failure"]]
    parts = [
        ("decode", "tokens per second (more is better)", "samples_ts"),
        ("prompt", "tokens per second (more is better)", "samples_ts_prompt"),
        ("time to first token", "milliseconds (less is better)", "samples_first_token_ms"),
    ]
    parts = [part for part in parts if any(r[part[2]] for r in ran)]
    several = len({_name(r) for r in ran}) > 1
    lines = max((sum(1 for r in ran if r[key]) for *_, key in parts), default=1)
    figure.set_size_inches(8, 1.1 + len(parts) * (0.95 + 0.36 * lines))
    figure.suptitle(_race_title(ran, title), fontsize=13)
    for axes, (name, unit, key) in zip(_column(figure, len(parts)), parts, strict=True):
        axes.set_title(name, loc="left", fontsize=12, fontweight="bold")
        values = []
        for r in ran:
            if r[key]:
                label = f"{r['engine']}\n{_name(r)}" if several else r["engine"]
                colour = COLOURS.get(r["engine"], OTHER_COLOUR)
                values.append((label, mean(r[key]), sample_stddev(r[key]), colour))
        _bars(axes, values, unit)


def _race_title(ran: Sequence[Record], title: str) -> str:
    if not ran:
        return title
    names = list(dict.fromkeys(_name(r) for r in ran))
    machine = ran[0]["machine"]
    on = machine["gpu"] or machine["cpu"]
    tests = f", {names[0]}" if len(names) == 1 else ""
    return f"{title}{tests}\n{on}"


def _column(figure: Any, n: int) -> list[Any]:
    axes = figure.subplots(max(n, 1), 1, squeeze=False)
    return [row[0] for row in axes]


def _bench(figure: Any, records: Sequence[Record], title: str) -> None:
    kinds = [
        ("prompt", [r for r in records if r["n_prompt"] and not r["n_gen"]]),
        ("generation", [r for r in records if r["n_gen"] and not r["n_prompt"]]),
        ("prompt and generation", [r for r in records if r["n_gen"] and r["n_prompt"]]),
    ]
    kinds = [(name, part) for name, part in kinds if part]
    lines = sum(len(part) for _, part in kinds)
    figure.set_size_inches(8, 1.1 + 0.95 * len(kinds) + 0.42 * lines)
    on = (records[0]["gpu_info"] or records[0]["cpu_info"]) if records else ""
    figure.suptitle(f"{title}\n{on}", fontsize=13)
    modes = list(dict.fromkeys(r["mode"] for r in records))
    palette = list(COLOURS.values())
    for axes, (name, part) in zip(_column(figure, len(kinds)), kinds, strict=True):
        axes.set_title(name, loc="left", fontsize=12, fontweight="bold")
        values = [
            (
                _name(r) + (f" ({r['mode']})" if len(modes) > 1 else ""),
                r["avg_ts"],
                r["stddev_ts"],
                palette[modes.index(r["mode"]) % len(palette)],
            )
            for r in part
        ]
        _bars(axes, values, "tokens per second (more is better)")


def terminal(results: Sequence[Result]) -> str | None:
    """The decode rates as bars of text; None where plotext is not installed or nothing ran."""
    if importlib.util.find_spec("plotext") is None:
        return None
    plotext: Any = importlib.import_module("plotext")  # it says nothing of its types
    if not hasattr(plotext, "simple_bar"):  # from version 6 on
        return None
    labels, values = [], []
    several = len(results) > 1
    for result in results:
        for entrant in (result.ours, *result.others):
            if entrant.failure is None and entrant.decode_rates:
                test = f" {result.case.name}" if several else ""
                least, most = min(entrant.decode_rates), max(entrant.decode_rates)
                labels.append(f"{entrant.name}{test} {least:.1f} to {most:.1f}")
                values.append(round(mean(entrant.decode_rates), 1))
    if not values:
        return None
    plotext.clear_figure()
    plotext.simple_bar(
        labels,
        values,
        width=76,
        title="decode, tokens per second: least to most, mean",
    )
    return str(plotext.uncolorize(plotext.build())).rstrip()
