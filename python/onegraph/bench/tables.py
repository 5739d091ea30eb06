"""Tables of records in Markdown, no wider than they are asked to be.

What all rows of a table share stands above it, what all tests share below.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from onegraph.bench.cases import Case
from onegraph.bench.fidelity import GREEDY_BAR
from onegraph.bench.statistics import doubt, mean, sample_stddev

__all__ = [
    "WIDTH",
    "bench_doubts",
    "bench_foot",
    "bench_table",
    "compare_table",
    "machine_line",
    "markdown",
    "plus_minus",
]

#: Columns of a terminal where nobody says how many there are.
WIDTH = 80

Record = dict[str, Any]


def markdown(titles: Sequence[str], rows: Iterable[Sequence[str]], numbers: int) -> str:
    """A Markdown table, padded for reading; its last `numbers` columns are right-aligned."""
    body = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    widths = [
        max(len(title), 3, *(len(row[i]) for row in body)) if body else max(len(title), 3)
        for i, title in enumerate(titles)
    ]
    right = [i >= len(titles) - numbers for i in range(len(titles))]

    def line(cells: Sequence[str]) -> str:
        padded = [
            c.rjust(w) if r else c.ljust(w) for c, w, r in zip(cells, widths, right, strict=True)
        ]
        return "| " + " | ".join(padded) + " |"

    rule = ["-" * (w - 1) + ":" if r else "-" * w for w, r in zip(widths, right, strict=True)]
    return "\n".join([line(titles), line(rule), *map(line, body)])


def plus_minus(values: Sequence[float] | None) -> str:
    """Mean and sample standard deviation: `12.34 ± 0.67`, `123.4 ± 0.7`, `1234 ± 1`. One value has
    no deviation."""
    if not values:
        return ""
    average = mean(values)
    digits = 0 if average >= 1000 else 1 if average >= 100 else 2
    spread = f" ± {sample_stddev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{average:.{digits}f}{spread}"


def _wide(table: str) -> int:
    return max(map(len, table.splitlines()))


def machine_line(processor: str, driver: str | None, nvrtc: str | None) -> str:
    """The processor or card, and what drives it."""
    parts = [processor, f"driver {driver}" if driver else "", f"NVRTC {nvrtc}" if nvrtc else ""]
    return ", ".join(part for part in parts if part)


# --- bench ----------------------------------------------------------------------------------------


def bench_table(records: Sequence[Record], width: int = WIDTH) -> str:
    """Markdown of bench records, below a line of what they share. Of what llama-bench does not
    have, columns that leave no room within `width` are left out, and named."""
    if not records:
        return ""
    first = records[0]
    several = len({r["mode"] for r in records}) > 1
    columns = {"test": [_test_name(r) for r in records]}
    if several:
        columns["mode"] = [r["mode"] for r in records]
    words = len(columns)
    columns["t/s"] = [plus_minus(r["samples_ts"]) for r in records]
    columns["no sampling"] = [plus_minus(r["samples_ts_without_sampling"]) for r in records]
    columns["GB/s"] = [
        f"{r['bytes_per_second'] / 1e9:.1f}" if r["bytes_per_second"] else "" for r in records
    ]
    columns["% of peak"] = [
        f"{100 * r['part_of_read_peak']:.0f}" if r["part_of_read_peak"] else "" for r in records
    ]
    left_out: list[str] = []
    while True:
        # A prompt has none of these.
        shown = {k: v for k, v in columns.items() if any(v)}
        rows = list(zip(*shown.values(), strict=True))
        table = markdown(list(shown), rows, len(shown) - words)
        if _wide(table) <= width or len(shown) == words + 1:
            break
        name = list(shown)[-1]
        del columns[name]
        left_out.insert(0, name)
    heading = [
        first["model_type"],
        f"{first['model_size'] / 2**20:.2f} MiB",
        f"{first['model_n_params'] / 1e6:.2f} M params",
        first["backends"],
        *([] if several else [first["mode"]] if first["backends"] != "CPU" else []),
    ]
    if first["backends"] == "CPU":
        n = first["n_threads"]
        heading.append(f"{n} thread{'s' if n > 1 else ''}")
    heading.append(f"keys and values {first['type_k']}")
    lines = [", ".join(heading), "", table]
    if left_out:
        lines += ["", f"no room for {', '.join(left_out)}: -o json has them"]
    return "\n".join(lines)


def bench_foot(records: Sequence[Record]) -> list[str]:
    """What belongs below a table, line by line: build, machine, how peak and output were told."""
    first = records[0]
    lines = [
        f"build: {first['build_commit']} ({first['build_number']})",
        machine_line(first["gpu_info"] or first["cpu_info"], first["driver"], first["nvrtc"]),
    ]
    if first["read_peak_bytes_per_second"]:
        peak = first["read_peak_bytes_per_second"] / 1e9
        lines.append(f"read peak: {peak:.1f} GB/s, {first['read_peak_by']}")
    modes = {r["mode"]: r for r in records}
    for mode, r in modes.items():
        of = f", {mode}" if len(modes) > 1 else ""
        kl = f"{'' if r['check_ok'] else 'WRONG: '}KL {r['check_mean_kl']:.1e} nats"
        lines.append(
            f"output{of}: {kl}, {r['check']}, {r['check_tokens']} tokens; first choice the same "
            f"for {r['check_top_1']:.1%}"
        )
    return lines


def bench_doubts(records: Sequence[Record]) -> list[str]:
    """Of each test whose repetitions disagree, by how much."""
    said = [(r, doubt(r["samples_ts"], "repetitions")) for r in records]
    return [f"{_test_name(r)}: {why}" for r, why in said if why]


def _test_name(record: Record) -> str:
    names = ("n_prompt", "n_gen", "n_depth", "n_seq")
    return Case(**{name: record[name] for name in names}).name


# --- compare --------------------------------------------------------------------------------------


def compare_table(records: Sequence[Record], width: int = WIDTH) -> str:
    """Markdown of the records of a race: a table a test, a column an engine. Engines that leave no
    room within `width` have a table of their own, beside onegraph again."""
    tests: dict[str, list[Record]] = {}
    for r in records:
        test = f"pp{r['n_prompt'] + r['n_depth']}+tg{r['n_gen']}"
        tests.setdefault(test, []).append(r)
    tables = []
    for test, (ours, *others) in tests.items():
        while True:
            n = len(others)
            while n > 1 and _wide(_race(test, [ours, *others[:n]])) > width:
                n -= 1
            tables.append(_race(test, [ours, *others[:n]]))
            others = others[n:]
            if not others:
                break
    return "\n\n".join(tables)


def _race(test: str, records: Sequence[Record]) -> str:
    rows = {
        "decode t/s": ["failed" if r["failure"] else plus_minus(r["samples_ts"]) for r in records],
        "onegraph is": [_times(r["decode_ratio"]) for r in records],
        "least to most": [
            f"{ratio['least']:.2f}x to {ratio['most']:.2f}x" if (ratio := r["decode_ratio"]) else ""
            for r in records
        ],
        "wall decode t/s": [plus_minus(r["samples_ts_wall"]) for r in records],
        "prompt t/s": [plus_minus(r["samples_ts_prompt"]) for r in records],
        "first token ms": [plus_minus(r["samples_first_token_ms"]) for r in records],
        "output": ["" if r["failure"] else _output(r["check"]) for r in records],
    }
    told = [[name, *cells] for name, cells in rows.items() if any(cells)]
    return markdown([test, *(r["engine"] for r in records)], told, len(records))


def _times(ratio: Record | None) -> str:
    if ratio is None:
        return ""
    return "no ratio" if ratio["median"] is None else f"{ratio['median']:.2f}x"


def _output(check: Record) -> str:
    if "mean_kl" in check:
        return f"KL {check['mean_kl']:.1e}" + ("" if check["ok"] else " WRONG")
    agrees = check["first_choice_agreement"]
    if agrees is None:
        return "gives no text"
    return f"agrees {agrees:.1%}" + ("" if agrees >= GREEDY_BAR else " DIFFERS")
