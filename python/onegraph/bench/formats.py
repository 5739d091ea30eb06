"""Tables and records: Markdown to paste, CSV, JSON and JSON lines, with llama-bench's field names.

A record is a dict that JSON can write; a table is made of records.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from onegraph.bench.machine import Machine
from onegraph.bench.measurement import CONVENTION
from onegraph.bench.race import Entrant, Result
from onegraph.bench.statistics import Ratio, mean, sample_stddev
from onegraph.bench.suite import Outcome

__all__ = [
    "FORMATS",
    "bench_foot",
    "bench_record",
    "bench_table",
    "compare_record",
    "compare_table",
    "machine_line",
    "markdown",
    "written",
]

FORMATS = ("md", "csv", "json", "jsonl")

Record = dict[str, Any]


def written(form: str, records: Iterable[Record]) -> Iterator[str]:
    """The lines of `csv`, `json` or `jsonl`, each as soon as its record is there. A CSV cell of a
    list or an object is its JSON."""
    writer: Any = None
    begun = False
    for record in records:
        if form == "jsonl":
            yield json.dumps(record)
        elif form == "json":
            yield ("[\n" if not begun else ",\n") + _indented(record)
        else:
            row = {k: _cell(v) for k, v in record.items()}
            out = io.StringIO()
            if writer is None:
                fields = list(row)
                writer = csv.DictWriter(out, fields, lineterminator="\n")
                writer.writeheader()
            else:
                writer = csv.DictWriter(out, fields, lineterminator="\n", extrasaction="ignore")
            writer.writerow(row)
            yield out.getvalue().rstrip("\n")
        begun = True
    if form == "json":
        yield "]" if begun else "[]"


def _indented(record: Record) -> str:
    return "\n".join("  " + line for line in json.dumps(record, indent=2).splitlines())


def _cell(value: object) -> object:
    if isinstance(value, list | dict):
        return json.dumps(value)
    return "" if value is None else value


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
    """Mean and sample standard deviation: `123.45 ± 0.67`."""
    return f"{mean(values):.2f} ± {sample_stddev(values):.2f}" if values else ""


# --- bench ----------------------------------------------------------------------------------------


def bench_record(outcome: Outcome, model: Record, machine: Machine, options: Record) -> Record:
    """One test as llama-bench writes it, then what it does not have. `model` is `onegraph info`."""
    plain = outcome.rates_without_sampling
    peak = outcome.peak
    per_second = outcome.bytes_per_second
    return {
        "build_commit": machine.commit or "unknown",
        "build_number": machine.version,
        "cpu_info": machine.cpu,
        "gpu_info": machine.gpu or "",
        "backends": "CPU" if outcome.mode == "cpu" else "CUDA",
        "model_filename": model["path"],
        "model_type": model_type(model),
        "model_size": model["tensor_bytes"],
        "model_n_params": model["n_params"],
        "n_threads": options["threads"],
        "type_k": options["kv_type"],
        "type_v": options["kv_type"],
        "n_gpu_layers": 0 if outcome.mode == "cpu" else model["shape"]["n_layer"] + 1,
        "n_prompt": outcome.case.n_prompt,
        "n_gen": outcome.case.n_gen,
        "n_depth": outcome.case.n_depth,
        "test_time": outcome.started,
        "avg_ns": round(mean(outcome.samples_ns)),
        "stddev_ns": round(sample_stddev(outcome.samples_ns)),
        "avg_ts": outcome.avg_ts,
        "stddev_ts": outcome.stddev_ts,
        "samples_ns": outcome.samples_ns,
        "samples_ts": outcome.rates,
        "n_seq": outcome.case.n_seq,
        "mode": outcome.mode,
        "n_ctx": outcome.settings["n_ctx"],
        "avg_ts_without_sampling": mean(plain) if plain else None,
        "stddev_ts_without_sampling": sample_stddev(plain) if plain else None,
        "bytes_per_step": outcome.bytes_per_step,
        "bytes_per_second": per_second,
        "read_peak_bytes_per_second": peak.bytes_per_second if peak else None,
        "read_peak_by": peak.by if peak else None,
        "part_of_read_peak": per_second / peak.bytes_per_second if peak and per_second else None,
        "check": outcome.check.what,
        "check_mean_kl": outcome.check.mean_kl,
        "check_top_1": outcome.check.top_1,
        "check_tokens": outcome.check.n_tokens,
        "check_ok": outcome.check.ok,
        "driver": machine.driver or "",
        "nvrtc": machine.nvrtc or "",
        "python": machine.python,
        "system": machine.system,
    }


def model_type(model: Record) -> str:
    """Architecture, size and quantization, such as `llama 135M Q4_1`."""
    n = model["n_params"]
    size = f"{n / 1e9:.1f}B" if n >= 1e9 else f"{n / 1e6:.0f}M"
    most = max(model["quant_mix"], key=lambda part: part["params"])["type"]
    return f"{model['architecture']} {size} {most}"


def bench_table(records: Sequence[Record]) -> str:
    """Markdown of bench records: llama-bench's columns, then the ones it does not have."""
    titles = ["model", "size", "params", "backend", "mode", "test"]
    numeric = ["t/s", "t/s, no sampling", "GB/s", "% of read peak", "KL"]
    rows = []
    for r in records:
        plain = r["avg_ts_without_sampling"]
        rows.append(
            [
                r["model_type"],
                f"{r['model_size'] / 2**20:.2f} MiB",
                f"{r['model_n_params'] / 1e6:.2f} M",
                r["backends"],
                r["mode"],
                _test_name(r),
                f"{r['avg_ts']:.2f} ± {r['stddev_ts']:.2f}",
                f"{plain:.2f} ± {r['stddev_ts_without_sampling']:.2f}" if plain else "",
                f"{r['bytes_per_second'] / 1e9:.1f}" if r["bytes_per_second"] else "",
                f"{100 * r['part_of_read_peak']:.0f}" if r["part_of_read_peak"] else "",
                f"{r['check_mean_kl']:.1e}" + ("" if r["check_ok"] else " WRONG"),
            ]
        )
    return markdown(titles + numeric, rows, len(numeric))


def bench_foot(record: Record) -> str:
    """What belongs below a table: build, machine, and how peak and output were told."""
    lines = [
        f"build: {record['build_commit']} ({record['build_number']})",
        machine_line(record["gpu_info"] or record["cpu_info"], record["driver"], record["nvrtc"]),
    ]
    if record["read_peak_bytes_per_second"]:
        peak = record["read_peak_bytes_per_second"] / 1e9
        lines.append(f"read peak: {peak:.1f} GB/s, {record['read_peak_by']}")
    checked = f"{record['check']}, {record['check_tokens']} tokens"
    lines.append(f"KL: {checked}; first choice the same for {record['check_top_1']:.1%}")
    return "\n".join(lines)


def machine_line(processor: str, driver: str | None, nvrtc: str | None) -> str:
    """The processor or card, and what drives it."""
    parts = [processor, f"driver {driver}" if driver else "", f"NVRTC {nvrtc}" if nvrtc else ""]
    return ", ".join(part for part in parts if part)


def _test_name(record: Record) -> str:
    from onegraph.bench.cases import Case

    names = ("n_prompt", "n_gen", "n_depth", "n_seq")
    return Case(**{name: record[name] for name in names}).name


# --- compare --------------------------------------------------------------------------------------


def compare_record(result: Result, entrant: Entrant, machine: Machine, model: Record) -> Record:
    """One engine's part of one case."""
    other = entrant is not result.ours
    decode = result.decode_ratio(entrant) if other else None
    prompt = result.prompt_ratio(entrant) if other else None
    settings = entrant.settings
    check: Record = {"first_choice_agreement": entrant.agreement}
    if not other:
        check = asdict(result.check) | {"ok": result.check.ok}
    return {
        "engine": entrant.name,
        "engine_version": settings.version if settings else None,
        "engine_device": settings.device if settings else None,
        "engine_options": settings.options if settings else {},
        "engine_clock": settings.clock if settings else None,
        "warnings": list(settings.warnings) if settings else [],
        "failure": entrant.failure,
        "model_filename": model["path"],
        "model_type": model_type(model),
        "n_prompt": result.case.n_prompt,
        "n_gen": result.case.n_gen,
        "n_depth": result.case.n_depth,
        "convention": CONVENTION,
        "avg_ts": mean(entrant.decode_rates) if entrant.decode_rates else None,
        "stddev_ts": sample_stddev(entrant.decode_rates) if entrant.decode_rates else None,
        "samples_ts": entrant.decode_rates,
        "samples_ts_wall": entrant.wall_decode_rates,
        "samples_ts_without_sampling": [
            m.rate_without_sampling for m in entrant.rounds if m.rate_without_sampling is not None
        ],
        "samples_ts_prompt": entrant.prompt_rates,
        "samples_first_token_ms": [1e3 * s for s in entrant.first_token_seconds],
        "decode_ratio": _ratio(decode),
        "prompt_ratio": _ratio(prompt),
        "check": check,
        "machine": asdict(machine),
    }


def _ratio(ratio: Ratio | None) -> Record | None:
    """A ratio as a record; its median is None where the rounds disagree, `doubt` says why."""
    if ratio is None:
        return None
    return asdict(ratio) | {"median": ratio.headline, "doubt": ratio.doubt}


def compare_table(records: Sequence[Record]) -> str:
    """Markdown of the records of a race, to paste."""
    titles = ["engine", "version", "on", "test"]
    numeric = [
        *("prompt t/s", "first token ms", "decode t/s", "decode t/s, wall", "onegraph is"),
        "output",
    ]
    rows = []
    for r in records:
        test = f"pp{r['n_prompt'] + r['n_depth']}+tg{r['n_gen']}"
        front = [r["engine"], r["engine_version"] or "", r["engine_device"] or "", test]
        if r["failure"]:
            rows.append([*front, "", "", "failed", "", "", ""])
            continue
        ratio = r["decode_ratio"]
        times = ""
        if ratio:
            spread = f"{ratio['least']:.2f} to {ratio['most']:.2f}"
            median = ratio["median"]
            times = f"no ratio: {spread}" if median is None else f"{median:.2f}x ({spread})"
        rows.append(
            [
                *front,
                plus_minus(r["samples_ts_prompt"]),
                plus_minus(r["samples_first_token_ms"]),
                plus_minus(r["samples_ts"]),
                plus_minus(r["samples_ts_wall"]),
                times,
                _output(r["check"]),
            ]
        )
    return markdown(titles + numeric, rows, len(numeric))


def _output(check: Record) -> str:
    from onegraph.bench.fidelity import GREEDY_BAR

    if "mean_kl" in check:
        return f"KL {check['mean_kl']:.1e}" + ("" if check["ok"] else " WRONG")
    agrees = check["first_choice_agreement"]
    if agrees is None:
        return "gives no text"
    return f"agrees {agrees:.1%}" + ("" if agrees >= GREEDY_BAR else " DIFFERS")
