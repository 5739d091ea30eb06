"""Records as SQL, as llama-bench prints it: `CREATE TABLE` where there is none, then `INSERT`.

What llama-bench has too goes into its own table, `llama_bench`, with its columns and their types:
one database takes both programs' output, in either order. All that a record has is in a table of
its own, `onegraph_bench` or `onegraph_compare`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

__all__ = ["LLAMA_BENCH", "written"]

#: The columns of llama-bench's table, in its order. Those that are filled here are in every version
#: that knows a depth.
LLAMA_BENCH = {
    **dict.fromkeys(["build_commit"], "TEXT"),
    **dict.fromkeys(["build_number"], "INTEGER"),
    **dict.fromkeys(["cpu_info", "gpu_info", "backends", "model_filename", "model_type"], "TEXT"),
    **dict.fromkeys(
        ["model_size", "model_n_params", "n_batch", "n_ubatch", "n_threads"], "INTEGER"
    ),
    **dict.fromkeys(["cpu_mask"], "TEXT"),
    **dict.fromkeys(["cpu_strict", "poll"], "INTEGER"),
    **dict.fromkeys(["type_k", "type_v"], "TEXT"),
    **dict.fromkeys(["n_gpu_layers", "n_cpu_moe"], "INTEGER"),
    **dict.fromkeys(["split_mode"], "TEXT"),
    **dict.fromkeys(["main_gpu", "no_kv_offload", "flash_attn"], "INTEGER"),
    **dict.fromkeys(["devices", "tensor_split", "tensor_buft_overrides"], "TEXT"),
    **dict.fromkeys(
        ["use_mmap", "use_direct_io", "embeddings", "no_op_offload", "no_host"], "INTEGER"
    ),
    **dict.fromkeys(["n_prompt", "n_gen", "n_depth"], "INTEGER"),
    **dict.fromkeys(["test_time"], "TEXT"),
    **dict.fromkeys(["avg_ns", "stddev_ns"], "INTEGER"),
    **dict.fromkeys(["avg_ts", "stddev_ts"], "REAL"),
}
#: Numbers that the first record may not have: its None says nothing of the type.
NUMBERS = {
    **dict.fromkeys(
        [
            *("avg_ts", "stddev_ts", "avg_ts_without_sampling", "stddev_ts_without_sampling"),
            *("bytes_per_second", "read_peak_bytes_per_second", "part_of_read_peak"),
            *("load_average_before", "load_average_after", "cpus_busy_by_others"),
            "gpu_utilization_by_others",
        ],
        "REAL",
    ),
    **dict.fromkeys(
        [
            *("bytes_per_step", "gpu_memory_by_others", "gpu_clock_before_mhz"),
            *("gpu_clock_after_mhz", "gpu_clock_most_mhz"),
        ],
        "INTEGER",
    ),
}

Record = dict[str, Any]


def written(records: Iterable[Record]) -> Iterator[str]:
    """The statements, each record's as soon as it is there."""
    begun = False
    for record in records:
        race = "engine" in record
        own = "onegraph_compare" if race else "onegraph_bench"
        if not begun:
            if not race:
                yield _create("llama_bench", LLAMA_BENCH)
            yield _create(own, {name: _type(name, value) for name, value in record.items()})
            begun = True
        # Its table has no column for several sequences: it would read their rate as that of one.
        if not race and record["n_seq"] == 1:
            yield _insert("llama_bench", _for_llama_bench(record))
        yield _insert(own, record)


def _for_llama_bench(record: Record) -> Record:
    # A build's number is a whole one there.
    return {
        name: None if name == "build_number" else value
        for name, value in record.items()
        if name in LLAMA_BENCH
    }


def _type(name: str, value: object) -> str:
    if isinstance(value, int):  # truth values among them
        return "INTEGER"
    return "REAL" if isinstance(value, float) else NUMBERS.get(name, "TEXT")


def _create(table: str, columns: Mapping[str, str]) -> str:
    # In quotes: "check" is a word of SQL.
    listed = ",\n".join(f'  "{name}" {kind}' for name, kind in columns.items())
    return f"CREATE TABLE IF NOT EXISTS {table} (\n{listed}\n);\n"


def _insert(table: str, record: Record) -> str:
    values = ", ".join(map(_literal, record.values()))
    names = ", ".join(f'"{name}"' for name in record)
    return f"INSERT INTO {table} ({names}) VALUES ({values});"


def _literal(value: object) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "NULL"
    if isinstance(value, int | float):
        return repr(int(value) if isinstance(value, bool) else value)
    text = value if isinstance(value, str) else json.dumps(value)
    return "'" + text.replace("'", "''") + "'"
