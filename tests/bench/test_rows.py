"""Finished rows are kept in every format, whatever ends a run."""

import csv
import io
import json
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import onegraph
import pytest
import shapes
import synth
from onegraph import LLM
from onegraph.bench.formats import FORMATS, written
from onegraph.bench.prompts import FIXED, random_tokens
from onegraph.results import Timings
from onegraph.sampling import resolve

pytestmark = pytest.mark.thorough

CPU = ["--device", "cpu", "--threads", "1"]


def prompts_in_table(text: str) -> list[int]:
    cells = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| pp")]
    return [int(cell.removeprefix("pp")) for cell in cells]


def prompts_in_sql(text: str) -> list[int]:
    with sqlite3.connect(":memory:") as db:
        db.executescript(text)
        rows = db.execute("SELECT n_prompt FROM onegraph_bench").fetchall()
        assert db.execute("SELECT n_prompt FROM llama_bench").fetchall() == rows
    return [n for (n,) in rows]


#: How the lengths of prompts are read back from each format.
READ: dict[str, Callable[[str], list[int]]] = {
    "md": prompts_in_table,
    "csv": lambda text: [int(r["n_prompt"]) for r in csv.DictReader(io.StringIO(text))],
    "json": lambda text: [r["n_prompt"] for r in json.loads(text)],
    "jsonl": lambda text: [json.loads(line)["n_prompt"] for line in text.splitlines()],
    "sql": prompts_in_sql,
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    synth.write(path, shapes.find("tiny-llama"), "Q4_K_M")
    return path


@pytest.fixture(scope="module")
def overflowing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that computes for a prompt of 8 tokens, and whose numbers overflow on a token
    of the second repetition's 24."""
    path = tmp_path_factory.mktemp("model") / "overflowing.gguf"
    synth.write(path, shapes.find("odd-llama-96"), "Q8_0", seed=3)
    with LLM(path, device="cpu", n_ctx=64) as llm:
        first = llm.tokenizer.bos_id if llm.tokenizer.add_bos else None
        rounds = [random_tokens(24, llm.n_vocab, seed * 1_000_003, first) for seed in range(3)]
        calm = {*rounds[0], *rounds[1], *rounds[2][:8], *llm.tokenize(FIXED)}
        bad = next(token for token in rounds[2] if token not in calm)
    (table,) = (t for t in gguf.GGUFReader(path, "r+").tensors if t.name == "token_embd.weight")
    blocks = table.data.reshape(len(table.data), -1, 34)
    blocks[bad, :, :2] = np.frombuffer(np.float16(np.inf).tobytes(), np.uint8)
    table.data.base.flush()
    return path


def test_every_format_is_tested() -> None:
    assert set(READ) == set(FORMATS)


@pytest.mark.parametrize("form", FORMATS)
def test_an_error_leaves_the_finished_rows(form: str, cli, overflowing: Path) -> None:
    done = cli("bench", overflowing, "-p", "8,24", "-n", 0, "-r", 2, *CPU, "-o", form)
    assert done.returncode == 1
    assert READ[form](done.stdout) == [8], done.stdout
    assert "interrupted; wrote the 1 finished rows" in done.stderr
    assert "error: " in done.stderr and "blk.0.attn_q.weight" in done.stderr


@pytest.mark.parametrize("form", FORMATS)
def test_an_error_before_the_first_row_prints_no_row(form: str, cli, overflowing: Path) -> None:
    done = cli("bench", overflowing, "-p", 24, "-n", 0, "-r", 2, *CPU, "-o", form)
    assert (done.returncode, done.stdout) == (1, "")
    assert "error: " in done.stderr and "finished rows" not in done.stderr


@pytest.mark.parametrize("form", FORMATS)
def test_ctrl_c_leaves_the_finished_rows(form, command, tiny, tmp_path, interruptible) -> None:
    # The second test takes a hundred times as long as the first: it is never done.
    options = ["-p", "8", "-n", "400", "-r", "1000", *CPU]
    line = [*command, "bench", str(tiny), *options, "-o", form]
    kept = tmp_path / "kept"
    for seconds in [4, 12, 36]:
        with kept.open("wb") as out:
            running = subprocess.Popen(line, stdout=out, stderr=subprocess.PIPE, text=True)
        begun = time.monotonic()
        if form == "md":  # it comes as a whole, at the end
            time.sleep(seconds)
        while form != "md" and not kept.stat().st_size and time.monotonic() < begun + 60:
            time.sleep(0.1)
        time.sleep(0.3)
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=60)
        if "the 1 finished rows" in errors:
            break
    assert running.returncode == -signal.SIGINT, errors
    assert "interrupted; wrote the 1 finished rows" in errors
    assert READ[form](kept.read_text()) == [8]


def test_sql_has_what_json_has_and_llama_benchs_table(cli, tiny: Path) -> None:
    options = ["-p", 8, "-n", 4, "-npl", "1,2", "-r", 2, *CPU]
    done = cli("bench", tiny, *options, "-o", "json")
    assert done.returncode == 0, done.stderr
    records = json.loads(done.stdout)
    records[0]["model_filename"] = 'it\'s "a" model; -- x'
    with sqlite3.connect(":memory:") as db:
        db.row_factory = sqlite3.Row
        # Twice: a database takes the output of several runs.
        for _ in range(2):
            db.executescript("\n".join(written("sql", records)))
        rows = [dict(row) for row in db.execute("SELECT * FROM onegraph_bench")]
        theirs = [dict(row) for row in db.execute("SELECT * FROM llama_bench")]
    assert len(rows) == 2 * len(records) == 6

    def plain(value: Any) -> Any:
        return json.dumps(value) if isinstance(value, list | dict) else value

    for row, record in zip(rows, records * 2, strict=True):
        assert row == {name: plain(value) for name, value in record.items()}
        assert type(row["avg_ts"]) is float and type(row["avg_ns"]) is int
    # Its table has no column for sequences: a rate of two would be read as that of one.
    assert [(r["n_prompt"], r["n_gen"]) for r in theirs] == [(8, 0), (0, 4)] * 2
    assert theirs[0]["avg_ts"] == records[0]["avg_ts"] and theirs[0]["n_batch"] is None


def test_sql_goes_into_a_table_that_llama_bench_made(cli, tiny: Path) -> None:
    # As llama-bench of 2024 to 2026 prints it, but for columns that come and go.
    made = """CREATE TABLE IF NOT EXISTS llama_bench (
  build_commit TEXT, build_number INTEGER, cpu_info TEXT, gpu_info TEXT, backends TEXT,
  model_filename TEXT, model_type TEXT, model_size INTEGER, model_n_params INTEGER,
  n_batch INTEGER, n_ubatch INTEGER, n_threads INTEGER, cpu_mask TEXT, cpu_strict INTEGER,
  poll INTEGER, type_k TEXT, type_v TEXT, n_gpu_layers INTEGER, split_mode TEXT,
  main_gpu INTEGER, no_kv_offload INTEGER, flash_attn INTEGER, tensor_split TEXT,
  use_mmap INTEGER, embeddings INTEGER, n_prompt INTEGER, n_gen INTEGER, n_depth INTEGER,
  test_time TEXT, avg_ns INTEGER, stddev_ns INTEGER, avg_ts REAL, stddev_ts REAL
);"""
    done = cli("bench", tiny, "-p", 8, "-n", 0, "-r", 1, *CPU, "-o", "sql")
    assert done.returncode == 0, done.stderr
    with sqlite3.connect(":memory:") as db:
        db.executescript(made + done.stdout)
        assert db.execute("SELECT n_prompt, avg_ts > 0 FROM llama_bench").fetchall() == [(8, 1)]


def test_a_number_that_is_none_is_null_in_sql() -> None:
    odd = {"n_seq": 2, "x": float("nan"), "y": float("inf"), "z": True, "read_peak_by": None}
    _, create, insert = written("sql", [odd])
    assert "VALUES (2, NULL, NULL, 1, NULL);" in insert and '"x" REAL' in create


def test_a_clock_starts_inside_the_prompt(tiny: Path) -> None:
    with LLM(tiny, device="cpu", n_ctx=256, prefix_cache=False) as llm:
        options = resolve({"max_tokens": 1, "temperature": 0, "ignore_eos": True})
        ids = random_tokens(200, llm.n_vocab, 1, None)
        took = [
            min(
                Timings(
                    *llm._engine.submit(ids, options, timed_from=start).collect().timings
                ).prefill_seconds
                for _ in range(3)
            )
            for start in (0, 199)
        ]
        assert 0 < took[1] < 0.7 * took[0]
        for start in (200, 201, 1 << 40):
            with pytest.raises(onegraph.ArgumentError, match=rf"timed_from = {start}: .*less than"):
                llm._engine.submit(ids, options, timed_from=start)
