"""Tables fit a terminal of 80 columns, whatever was measured."""

from typing import Any

import pytest
from onegraph.bench.statistics import doubt
from onegraph.bench.tables import bench_doubts, bench_table, compare_table, plus_minus


def bench_record(**other: Any) -> dict[str, Any]:
    return {
        "model_type": "llama 8.0B Q4_K",
        "model_size": 4_912_898_304,
        "model_n_params": 8_030_261_312,
        "backends": "CUDA",
        "mode": "graph",
        "n_threads": 16,
        "type_k": "i16",
        "n_prompt": 0,
        "n_gen": 128,
        "n_depth": 0,
        "n_seq": 1,
        "together": 1.0,
        "samples_ts": [518.8, 519.4],
        "samples_ts_without_sampling": [521.2, 521.5],
        "bytes_per_second": 2.41e12,
        "part_of_read_peak": 0.54,
        "check_ok": True,
        "check_mean_kl": 1e-7,
    } | other


def race_record(engine: str, **other: Any) -> dict[str, Any]:
    ours = engine == "onegraph"
    ratio = {"median": 1.89, "least": 1.88, "most": 1.9, "doubt": None, "rounds": 2}
    return {
        "engine": engine,
        "failure": None,
        "n_prompt": 512,
        "n_gen": 128,
        "n_depth": 0,
        "samples_ts": [518.8, 519.4],
        "samples_ts_wall": [508.8, 509.4],
        "samples_ts_prompt": [12518.8, 12519.4],
        "samples_first_token_ms": [1018.8, 1019.4],
        "decode_ratio": None if ours else ratio,
        "check": {"mean_kl": 1e-7, "ok": True} if ours else {"first_choice_agreement": 0.97},
    } | other


def columns(table: str) -> list[str]:
    first = next(line for line in table.splitlines() if line.startswith("|"))
    return [cell.strip() for cell in first.split("|")[1:-1]]


def widest(table: str) -> int:
    return max(map(len, table.splitlines()))


def test_a_usual_bench_table_has_all_its_columns() -> None:
    records = [bench_record(n_depth=d, mode=m) for d in (0, 16384) for m in ("graph", "eager")]
    table = bench_table(records)
    assert widest(table) <= 80 and "no room" not in table
    assert columns(table) == ["test", "mode", "t/s", "no sampling", "GB/s", "% of peak"]
    assert "| tg128 @ d16384 | eager | 519.1 ± 0.4 | 521.4 ± 0.2 | 2410.0 |        54 |" in table
    alone = bench_table(records[:1])
    assert "mode" not in columns(alone) and alone.startswith("llama 8.0B Q4_K, 4685.3")
    assert ", CUDA, graph, keys and values i16\n" in alone
    assert bench_table([]) == ""


def test_columns_without_room_are_left_out_and_named() -> None:
    long = bench_record(n_prompt=131072, n_depth=131072, samples_ts=[123456.7, 123450.7])
    records = [long, long | {"mode": "eager"}]
    table = bench_table(records)
    assert widest(table) <= 80 and "| pp131072+tg128 @ d131072 | eager | 123454 ± 4 |" in table
    assert "no room for % of peak: -o json has them" in table
    assert bench_table(records, 200).count("% of peak") == 1
    # The rate itself stays, in however small a terminal.
    assert columns(bench_table(records, 20)) == ["test", "mode", "t/s"]


def test_what_no_row_has_is_no_column() -> None:
    prompt = {
        "samples_ts_without_sampling": None,
        "bytes_per_second": None,
        "part_of_read_peak": None,
    }
    assert columns(bench_table([bench_record(**prompt)])) == ["test", "t/s"]


@pytest.mark.parametrize("rivals", [1, 2, 3, 5])
def test_a_race_of_any_number_fits(rivals: int) -> None:
    names = ["llama-cpp-python", "llama-server", "xllamacpp", "ollama", "vllm"][:rivals]
    table = compare_table([race_record("onegraph"), *map(race_record, names)])
    assert widest(table) <= 80
    parts = table.split("\n\n")
    assert [name for part in parts for name in columns(part)[2:]] == names
    for part in parts:
        assert columns(part)[:2] == ["pp512+tg128", "onegraph"]
        rows = {line.split("|")[1].strip(): line for line in part.splitlines()}
        assert "519.1 ± 0.4" in rows["decode t/s"] and "12519 ± 0" in rows["prompt t/s"]
        assert "1.89x" in rows["onegraph is"] and "1.88x to 1.90x" in rows["least to most"]
        assert "KL 1.0e-07" in rows["output"] and "agrees 97.0%" in rows["output"]


def test_each_test_of_a_race_has_a_table() -> None:
    records = [
        race_record(engine, n_depth=depth) for depth in (0, 512) for engine in ("onegraph", "vllm")
    ]
    tables = compare_table(records).split("\n\n")
    assert [columns(table)[0] for table in tables] == ["pp512+tg128", "pp1024+tg128"]


def test_wrong_output_and_failures_are_marked() -> None:
    wrong = race_record("ollama", check={"first_choice_agreement": 0.5})
    none = {"samples_ts": [], "samples_ts_wall": [], "samples_ts_prompt": [], "decode_ratio": None}
    failed = race_record("vllm", failure="died", samples_first_token_ms=[], **none)
    table = compare_table([race_record("onegraph"), wrong, failed])
    assert "agrees 50.0% DIFFERS" in table and "failed" in table


def test_rates_have_the_digits_that_matter() -> None:
    assert plus_minus([12.34, 12.38]) == "12.36 ± 0.03"
    assert plus_minus([218.0, 222.0]) == "220.0 ± 2.8"
    assert plus_minus([51000.4, 51002.4]) == "51001 ± 1"
    # One repetition has no spread, and none is made up for it.
    assert plus_minus([519.14]) == "519.1"
    assert plus_minus([]) == plus_minus(None) == ""


def test_repetitions_that_disagree_are_said() -> None:
    assert doubt([100, 124], "repetitions") is None and doubt([5.0], "repetitions") is None
    said = doubt([9.001, 12.1], "repetitions")
    assert said is not None and said.startswith(
        "the 2 repetitions disagree, from 9.001 to 12.1 t/s, by more than 25%"
    )
    records = [bench_record(), bench_record(samples_ts=[9.001, 12.1], n_gen=8)]
    assert bench_doubts(records) == [f"tg8: {said}"]
