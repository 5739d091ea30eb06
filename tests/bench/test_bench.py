"""`onegraph bench` as a process: llama-bench's options, fields and formats."""

import csv
import io
import json
import statistics
from pathlib import Path

import onegraph
import pytest
import shapes
import synth
from support.backends import EXHAUSTIVE

#: What a script that reads llama-bench's JSON looks for.
LLAMA_BENCH_FIELDS = [
    *("build_commit", "build_number", "cpu_info", "gpu_info", "backends", "model_filename"),
    *("model_type", "model_size", "model_n_params", "n_threads", "type_k", "type_v"),
    *("n_gpu_layers", "n_prompt", "n_gen", "n_depth", "test_time", "avg_ns"),
    *("stddev_ns", "avg_ts", "stddev_ts", "samples_ns", "samples_ts"),
]

SMALL = ["-p", "8", "-n", "4", "-r", "2", "--device", "cpu", "--threads", "1"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    synth.write(path, shapes.find("tiny-llama"), "Q4_K_M")
    return path


def test_json_has_llama_benchs_fields_and_its_arithmetic(cli, tiny: Path) -> None:
    options = ["-p", "64", "-n", "4", "-pg", "64,4", "-d", "0,8", "-npl", "1,2", "-r", "2"]
    done = cli("bench", tiny, *options, "--device", "cpu", "--threads", 1, "-o", "json")
    assert done.returncode == 0, done.stderr
    # Beside the records, words about a machine that is busy with something else, and no more.
    for line in done.stderr.splitlines():
        assert "repetitions disagree" in line or line.startswith("WARNING: other processes kept ")
    records = json.loads(done.stdout)
    shapes = [(r["n_prompt"], r["n_gen"], r["n_depth"], r["n_seq"]) for r in records]
    assert shapes == [
        *[(64, 0, 0, 1), (0, 4, 0, 1), (0, 4, 0, 2), (64, 4, 0, 1)],
        *[(64, 0, 8, 1), (0, 4, 8, 1), (0, 4, 8, 2), (64, 4, 8, 1)],
    ]
    for r in records:
        assert list(r)[: len(LLAMA_BENCH_FIELDS)] == LLAMA_BENCH_FIELDS
        work = r["n_prompt"] + r["n_gen"] * r["n_seq"]
        assert len(r["samples_ns"]) == len(r["samples_ts"]) == 2
        for ns, ts in zip(r["samples_ns"], r["samples_ts"], strict=True):
            assert ts == pytest.approx(work / ns * 1e9, rel=1e-4)
        assert r["avg_ts"] == pytest.approx(statistics.mean(r["samples_ts"]))
        if r["samples_ts_without_sampling"] is not None:
            plain = statistics.mean(r["samples_ts_without_sampling"])
            assert r["avg_ts_without_sampling"] == pytest.approx(plain)
        assert r["stddev_ts"] == pytest.approx(statistics.stdev(r["samples_ts"]))
        assert r["avg_ns"] == pytest.approx(statistics.mean(r["samples_ns"]), abs=1)
        assert r["stddev_ns"] == pytest.approx(statistics.stdev(r["samples_ns"]), abs=1)
        # No speed without a check of the output.
        assert r["check_ok"] is True and r["check_mean_kl"] <= 2e-6 and r["check_tokens"] == 32
        assert r["backends"] == "CPU" and r["mode"] == "cpu" and r["type_k"] == "i16"
    steps = records[1]
    # Every weight once a step, and keys and values of a few positions.
    decode = json.loads(onegraph._native.model_info(tiny))["decode"]
    weights, entry = decode["weight_bytes"], decode["kv_bytes_per_position"]
    assert weights + entry < steps["bytes_per_step"] < weights + 10 * entry
    assert steps["avg_ts_without_sampling"] >= steps["avg_ts"]
    assert steps["part_of_read_peak"] > 0
    assert steps["bytes_per_second"] == pytest.approx(steps["bytes_per_step"] * steps["avg_ts"])
    assert records[5]["bytes_per_step"] == steps["bytes_per_step"] + 7 * entry
    assert records[0]["bytes_per_step"] is None and records[0]["avg_ts_without_sampling"] is None


@pytest.mark.thorough
def test_csv_json_lines_and_markdown_say_the_same(cli, tiny: Path) -> None:
    lines = cli("bench", tiny, *SMALL, "-o", "jsonl").stdout.splitlines()
    records = [json.loads(line) for line in lines]
    assert [(r["n_prompt"], r["n_gen"]) for r in records] == [(8, 0), (0, 4)]
    rows = list(csv.DictReader(io.StringIO(cli("bench", tiny, *SMALL, "-o", "csv").stdout)))
    assert [(r["n_prompt"], r["n_gen"]) for r in rows] == [("8", "0"), ("0", "4")]
    assert list(rows[0]) == list(records[0])
    assert len(json.loads(rows[0]["samples_ns"])) == 2
    heading, table, foot = cli("bench", tiny, *SMALL).stdout.split("\n\n")
    assert heading == (
        "llama 1M Q4_K, 0.86 MiB, 1.44 M params, CPU, 1 thread, keys and values "
        f"{records[0]['type_k']}"
    )
    lines = table.splitlines()
    assert len(lines) == 4 and len({len(line) for line in lines}) == 1
    assert [cell.strip() for cell in lines[0].split("|")[1:-1]] == [
        *("test", "t/s", "no sampling", "GB/s", "% of peak"),
    ]
    assert lines[2].startswith("| pp8 ") and lines[3].startswith("| tg4 ") and " ± " in lines[3]
    assert [line.partition(":")[0] for line in foot.splitlines()[:4]][::2] == [
        *("build", "read peak"),
    ]
    assert "output: KL " in foot and "steps against a prompt, 32 tokens; first choice" in foot


@pytest.mark.thorough
def test_a_prompt_behind_a_depth_is_timed_by_itself(cli, tiny: Path) -> None:
    options = ["-p", "16", "-n", "0", "-d", "0,384", "-r", "25", "--device", "cpu"]
    done = cli("bench", tiny, *options, "--threads", 1, "-o", "json")
    assert done.returncode == 0, done.stderr
    # The least: what else runs on this machine only adds.
    alone, behind = (min(r["samples_ns"]) for r in json.loads(done.stdout))
    # As from an empty cache but for attention, and without the work on the depth, 24 times as much.
    assert 0.4 * alone < behind < 12 * alone


def test_graph_and_eager_are_one_without_a_card(cli, tiny: Path) -> None:
    done = cli("bench", tiny, *SMALL, "--graph", "--eager", "-o", "jsonl")
    assert done.returncode == 0
    assert "--graph --eager: both are the same on the CPU, which is measured once" in done.stderr
    assert [json.loads(r)["mode"] for r in done.stdout.splitlines()] == ["cpu", "cpu"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["-p", "many"], "-p 'many' is not a number or a range"),
        (["-p", "0", "-n", "0"], "-p 0 -n 0 leaves no test; set one of them"),
        (["-pg", "4"], "-pg '4' is not two numbers such as 512,128"),
        (["-r", "0"], "0 is not in the range"),
        (["--n-ctx", "64"], "No such option"),
        (["--plot", "chart.txt"], "must end in .png, .svg, .pdf"),
        (["-o", "xml"], "'xml' is not one of"),
        (
            ["-p", "100000"],
            "pp100000 needs a context of 100001 tokens, but the model was trained for 512; reduce",
        ),
        (
            ["-p", "0", "-n", "100", "-d", "400-500+50"],
            "tg100 @ d500 needs a context of 601 tokens",
        ),
    ],
)
def test_wrong_use_is_said_before_anything_is_measured(options, said: str, cli, tiny) -> None:
    done = cli("bench", tiny, *options, "--device", "cpu")
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert said in done.stderr and "Traceback" not in done.stderr


def test_a_chart_needs_a_folder(cli, tiny: Path, tmp_path: Path) -> None:
    done = cli("bench", tiny, *SMALL, "--plot", tmp_path / "none" / "chart.png")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"there is no folder {tmp_path}/none; create it" in done.stderr


@pytest.mark.thorough
def test_the_chart_is_drawn(cli, tiny: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    chart = tmp_path / "chart.svg"
    done = cli("bench", tiny, *SMALL, "--plot", chart)
    assert done.returncode == 0 and done.stderr == f"wrote {chart}\n"
    assert "<svg" in chart.read_text()


@pytest.mark.skipif(not EXHAUSTIVE, reason="ONEGRAPH_EXHAUSTIVE=1 runs it on the simulated card")
def test_graph_and_eager_have_rows_of_their_own(cli, tiny: Path, ksim_env) -> None:
    options = ["-p", "8", "-n", "2", "-r", "1", "--graph", "--eager", "--device", "cuda"]
    done = cli("bench", tiny, *options, "-o", "json", env=ksim_env)
    assert done.returncode == 0, done.stderr
    records = json.loads(done.stdout)
    assert [r["mode"] for r in records] == ["graph", "graph", "eager", "eager"]
    assert all(r["check"] == "GPU against CPU interpreter" and r["check_ok"] for r in records)
    assert all(r["backends"] == "CUDA" and r["gpu_info"] and r["driver"] for r in records)
    assert records[1]["part_of_read_peak"] > 0


@pytest.mark.gpu
def test_a_card_has_rows_for_graph_and_eager(cli, smollm2: Path) -> None:
    options = ["-p", "64", "-n", "32", "-r", "2", "--graph", "--eager", "--device", "cuda"]
    done = cli("bench", smollm2, *options, "-o", "json")
    if "no NVIDIA" in done.stderr:
        pytest.skip("no NVIDIA card: `pytest -m gpu tests/bench` on a machine with one")
    assert done.returncode == 0, done.stderr
    records = json.loads(done.stdout)
    assert [r["mode"] for r in records] == ["graph", "graph", "eager", "eager"]
    assert all(r["check"] == "GPU against CPU interpreter" and r["check_ok"] for r in records)
    assert records[1]["avg_ts"] > records[3]["avg_ts"]
