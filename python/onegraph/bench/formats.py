"""Records, with llama-bench's field names, and their CSV, JSON, JSON lines and SQL.

A record is a dict that JSON can write; a table of Markdown is made of records (`tables`).
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from onegraph.bench import sql
from onegraph.bench.machine import Machine
from onegraph.bench.measurement import CONVENTION
from onegraph.bench.race import Entrant, Result
from onegraph.bench.statistics import Ratio, mean, sample_stddev
from onegraph.bench.suite import Outcome

__all__ = [
    "FORMATS",
    "bench_record",
    "compare_record",
    "written",
]

FORMATS = ("md", "csv", "json", "jsonl", "sql")

Record = dict[str, Any]


def written(form: str, records: Iterable[Record]) -> Iterator[str]:
    """The lines of `csv`, `json`, `jsonl` or `sql`, each as soon as its record is there. A CSV cell
    of a list or an object is its JSON."""
    if form == "sql":
        yield from sql.written(records)
        return
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
        "together": outcome.together,
        "mode": outcome.mode,
        "n_ctx": outcome.settings["n_ctx"],
        "samples_ts_without_sampling": plain,
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
        **outcome.load.record(),
    }


def model_type(model: Record) -> str:
    """Architecture, size and quantization, such as `llama 135M Q4_1`."""
    n = model["n_params"]
    size = f"{n / 1e9:.1f}B" if n >= 1e9 else f"{n / 1e6:.0f}M"
    most = max(model["quant_mix"], key=lambda part: part["params"])["type"]
    return f"{model['architecture']} {size} {most}"


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
        **result.load.record(),
    }


def _ratio(ratio: Ratio | None) -> Record | None:
    """A ratio as a record; its median is None where the rounds disagree, `doubt` says why."""
    if ratio is None:
        return None
    return asdict(ratio) | {"median": ratio.headline, "doubt": ratio.doubt}
