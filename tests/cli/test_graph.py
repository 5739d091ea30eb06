"""`onegraph graph` and `onegraph check`, on the simulated card: the shape and the bars are real
there, the times are not."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from onegraph import check
from onegraph.cli.graph import _microseconds, across_layers
from support.terminal import Terminal

pytestmark = pytest.mark.thorough

#: What a progress bar is drawn with.
BAR = re.compile("[\u2501\u2578\u257a]|bytes$|KiB$")
#: Of a block, in their order.
MOMENTS = ["begun", "asked", "waited", "ready", "summed", "ended"]
REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shapes") / "tiny-llama.gguf"
    command = [sys.executable, "models/synth.py", "tiny-llama", "--mix", "Q4_K_M", "-o", path]
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
    return path


@pytest.fixture(scope="module")
def card(ksim_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process with the simulated card."""
    return ksim_env | {"ONEGRAPH_CACHE_DIR": str(tmp_path_factory.mktemp("kernels"))}


def test_the_fused_plan_is_printed_without_a_card(cli: Any, tiny: Path) -> None:
    done = cli("graph", tiny, "--plan")
    assert done.returncode == 0, done.stderr
    lines = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    assert [number for number, _ in lines] == [str(i) for i in range(len(lines))]
    text = [line for _, line in lines]
    # Of two layers q, k and v, attention, its product, gate and up, down; and what is around them.
    assert len(text) == 2 * 5 + 3
    assert text[0].startswith("x = embed(token_embd.weight Q6_K[")
    qkv = "q, k, v = [products, rope](x): 1 matvec, 2 matvec, 3 matvec, 4 rope, 5 rope"
    assert text[1] == qkv
    assert "[heads, store, attention](" in text[2]
    assert text[3].startswith("x = [product, add](") and text[4].count("matvec") == 2
    several = cli("graph", tiny, "--plan", "--batch-size", 8).stdout
    assert several == done.stdout
    refused = cli("graph", tiny, "--plan", "--each")
    assert refused.returncode == 2 and "--each: the plan depends" in refused.stderr


def test_the_graph_is_shown(cli: Any, tiny: Path, card: dict[str, str], tmp_path: Path) -> None:
    dot = tmp_path / "step.dot"
    options = ["graph", tiny, "--n-ctx", 64, "--repeats", 1]
    done = cli(*options, "--dot", dot, env=card)
    assert done.returncode == 0, done.stderr
    said = done.stdout
    assert "a step of 1 row at position 48" in said
    assert "one graph, " in said and "programmatic; " in said
    for column in ["launches", "us each", "GB/s", "% peak"]:
        assert column in said
    lines = {line.strip().split("  ")[0]: line.split() for line in said.splitlines() if line}
    # Two layers: attention twice, and each fused product twice but the head.
    assert lines["attention_fixed"][1] == "2"
    assert lines["embed"][1] == "1"
    # Every kernel has its bytes, and the way from the sum to the replay is there.
    assert all(
        len(line) == 8 for name, line in lines.items() if name in {"attention_fixed", "embed"}
    )
    for line in ["of it boundaries", "overlapped by the replay", "replay"]:
        assert line in lines
    assert f"the graph is in {dot}" in said
    assert dot.read_text().startswith("digraph")


def test_stamps_say_when_each_kernel_came_to_which_moment(
    cli: Any, tiny: Path, card: dict[str, str]
) -> None:
    options = ["graph", tiny, "--n-ctx", 64, "--repeats", 1, "--stamps"]
    done = cli(*options, env=card)
    assert done.returncode == 0, done.stderr
    table = done.stdout[done.stdout.index("stamps, us") :].splitlines()
    for column in ["sms", "crowded", "lead", "start", "ready", "sums", "spread", "end", "whole"]:
        assert column in table[0]
    assert any(line.startswith("attention_fixed") for line in table)
    whole = json.loads(cli(*options, "--json", env=card).stdout)
    ended = -1.0
    for kernel in whole["kernels"]:
        stamps = kernel["stamps"]
        moments = {moment["name"]: moment for moment in stamps["moments"]}
        assert list(moments) == [name for name in MOMENTS if name in moments]
        assert {"begun", "waited"} <= set(moments), kernel["label"]
        for moment in stamps["moments"]:
            assert 0 <= moment["first"] <= moment["median"] <= moment["last"]
        if kernel["kernel"] in {"matvec", "attention_fixed"}:
            assert set(MOMENTS) == set(moments), kernel["label"]
        # No block learns of the predecessor's end before that.
        assert moments["waited"]["first"] >= ended
        ended = moments["ended"]["last"] if "ended" in moments else ended
        assert stamps["sms"] >= 1
    # Without, there are none.
    plain = json.loads(cli(*options[:-1], "--json", env=card).stdout)
    assert all(kernel["stamps"] is None for kernel in plain["kernels"])


def test_the_graph_as_json(cli: Any, tiny: Path, card: dict[str, str]) -> None:
    options = ["graph", tiny, "--n-ctx", 64, "--repeats", 1, "--json"]
    whole = json.loads(cli(*options, "--batch-size", 2, env=card).stdout)
    assert (whole["kind"], whole["batch_size"], whole["graphs"]) == ("full", 2, 1)
    # Node count = launch count, a chain.
    assert whole["nodes"] == whole["launches"] == len(whole["kernels"])
    assert whole["edges"] == whole["nodes"] - 1
    assert whole["programmatic_edges"] == whole["edges"], "small kernels overlap by default"
    assert whole["replay_us"] > 0 and whole["eager_us"] > 0 and whole["read_peak_gb_s"] > 0
    kinds = {k["kernel"] for k in whole["kernels"]}
    assert {"embed", "split", "matmul", "attention_fixed", "sample_draw"} <= kinds
    assert all(k["us"] > 0 and min(k["grid"]) > 0 and k["block"] > 0 for k in whole["kernels"])
    read = sum(k["bytes"] for k in whole["kernels"] if k["kernel"] == "matmul")
    assert tiny.stat().st_size / 2 < read < 2 * tiny.stat().st_size

    assert whole["boundary_us"] > 0
    assert all(k["moved"] > k["bytes"] for k in whole["kernels"])
    # Keys and values of two sequences of 49 tokens, 4 heads of 64 16-bit integers and their unit;
    # queries and sums.
    kv = 2 * (2 * 49) * 4 * (2 * 64 + 2)
    rows = 2 * 2 * (4 * 64) * 4
    attention = [k["moved"] for k in whole["kernels"] if k["kernel"] == "attention_fixed"]
    assert attention == [kv + rows] * 2


def test_a_prompt_as_json(cli: Any, tiny: Path, card: dict[str, str]) -> None:
    options = ["graph", tiny, "--repeats", 1, "--json", "--prompt", 32]
    whole, behind = (
        json.loads(cli(*options, "--depth", depth, env=card).stdout) for depth in (0, 30)
    )
    for found, depth in ((whole, 0), (behind, 30)):
        assert (found["prompt"], found["position"], found["batch_size"]) == (32, depth, 1)
        assert (found["kind"], found["graphs"], found["nodes"]) == ("full", 1, found["launches"])
        assert found["multiply_peak_tflop_s"] > 0 and found["replay_us"] > 0
        # 4 heads of 64, two layers; scores and values.
        attention = [k for k in found["kernels"] if "attention" in k["kernel"]]
        pairs = sum(depth + row + 1 for row in range(32))
        assert [k["operations"] for k in attention] == [4 * 4 * 64 * pairs] * 2
        kv = 2 * (depth + 32) * 4 * (2 * 64 + 2)
        assert [k["moved"] for k in attention] == [kv + 2 * 32 * (4 * 64) * 4] * 2
    # Of what is multiplied nothing depends on the depth: 256 wide, 512 in the middle, 512 tokens.
    layer = 256 * (4 * 256) + 3 * 256 * 512
    for found in (whole, behind):
        products = [k for k in found["kernels"] if k["kernel"] in ("matmul", "matvec")]
        assert sum(k["operations"] for k in products) == 2 * (2 * 32 * layer + 256 * 512)


def test_a_prompt_is_shown(cli: Any, tiny: Path, card: dict[str, str]) -> None:
    done = cli("graph", tiny, "--repeats", 1, "--prompt", 40, env=card)
    assert done.returncode == 0, done.stderr
    said = done.stdout
    assert "a prompt of 40 tokens at position 0" in said and " tokens/s\n" in said
    lines = {line.strip().split("  ")[0]: line.split() for line in said.splitlines() if line}
    header = ["launches", "us", "share", "MB", "%", "read", "GFLOP", "%", "mul"]
    assert lines["kernel"][1:] == header
    # All columns, and without those of products.
    assert len(lines["matmul"]) == 8 and len(lines["embed"]) == 6
    for line in ["of it boundaries", "overlapped by the replay", "replay"]:
        assert line in lines


@pytest.mark.parametrize("kv_type", ["i16", "q8_0"])
def test_a_step_in_pieces_leaves_attention_out_of_its_graphs(
    cli: Any, tiny: Path, card: dict[str, str], kv_type: str
) -> None:
    options = ["graph", tiny, "--n-ctx", 64, "--repeats", 1, "--json", "--kv-type", kv_type]
    pieces = json.loads(cli(*options, "--cuda-graph", "piecewise", env=card).stdout)
    # Cut at the attentions of two layers, which are in no graph and of no edge.
    attentions = [k for k in pieces["kernels"] if "attention" in k["kernel"]]
    assert len(attentions) == 2
    assert (pieces["kind"], pieces["graphs"]) == ("piecewise", 3)
    assert pieces["nodes"] == pieces["launches"] - 2
    assert pieces["edges"] == pieces["nodes"] - 3


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--device", "cpu"], 1, ["captures no graphs", "--device cuda"]),
        (["--each", "--json"], 2, ["--each is for the table"]),
        (
            ["--cuda-graph", "none"],
            2,
            ["--batch-size 1: with --cuda-graph none", "use one"],
        ),
        (["--position", "57"], 2, ["--position 57: must be from 0 to 56"]),
        (["--repeats", "0"], 2, ["--repeats 0: must be from 1"]),
        (["--batch-size", "0"], 2, ["--batch-size 0: must be 1 or more"]),
        (["--depth", "3"], 2, ["--depth: only applies to a --prompt"]),
        (["--prompt", "3", "--stamps"], 2, ["--stamps: only applies to a step"]),
        (["--prompt", "0"], 2, ["--prompt 0: must be 1 or more"]),
        (["--prompt", "3", "--depth", "-1"], 2, ["--depth -1: must be 0 or more"]),
        (["--prompt", "50", "--depth", "7"], 2, ["--prompt 50: must be from 1 to 49"]),
    ],
)
def test_graph_says_what_is_wrong(
    cli: Any, tiny: Path, card: dict[str, str], options: list[str], code: int, words: list[str]
) -> None:
    done = cli("graph", tiny, "--n-ctx", 64, *options, env=card)
    assert (done.returncode, done.stdout) == (code, "")
    assert all(word in done.stderr for word in words), done.stderr


@pytest.mark.parametrize("options", [(), ("--kv-type", "q8_0")], ids=["default", "q8_0"])
def test_check_meets_its_bars(
    options: tuple[str, ...], cli: Any, tiny: Path, card: dict[str, str]
) -> None:
    options = ("--n-ctx", "64", "--max-batch", "2", "--tokens", "80", "--sums", "7000", *options)
    done = cli("check", tiny, *options, "--json", env=card)
    assert done.returncode == 0, done.stderr + done.stdout
    found = json.loads(done.stdout)
    assert found["ok"] and found["device"] == "cuda:0"
    types = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]
    types += ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]
    types += ["IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS"]
    types += ["IQ1_M", "MXFP4", "NVFP4"]
    assert [s["type"] for s in found["sums"]] == types
    assert all(s["sums"] >= 1024 and s["wrong"] == 0 for s in found["sums"])
    assert [(g["batch_size"], g["steps"], g["ok"]) for g in found["graphs"]] == [
        (1, 64, True),
        (2, 64, True),
    ]
    for path in ["prefill", "decode"]:
        measured = found["logits"][path]
        assert measured["tokens"] == 80 and measured["ok"]
        assert (measured["mean_kl"], measured["max_logit_difference"]) == (0, 0)
        assert measured["top_1"] == 1


@pytest.mark.parametrize(
    "args",
    [
        ["graph", "--repeats", 1],
        ["graph", "--repeats", 1, "--each"],
        ["graph", "--repeats", 1, "--prompt", 40],
        ["check", "--max-batch", 1, "--tokens", 8, "--sums", 600],
    ],
)
def test_a_table_fits_a_terminal_of_80_columns(
    args: list[object],
    terminal: Callable[..., Terminal],
    cli: Any,
    tiny: Path,
    card: dict[str, str],
) -> None:
    name, *options = args
    shown = terminal(name, tiny, "--n-ctx", 64, *options, env=card)
    assert shown.wait(300) == 0
    # A bar is drawn over itself, from the begin of the line.
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", shown.seen) if not BAR.search(line)]
    assert [line for line in lines if len(line) > 80] == []
    assert "\u2026" not in shown.seen, "a name is cut"
    whole = [line for line in lines if re.search(r"\d  ?\S", line)]
    assert len(whole) >= 8
    if "--each" not in options:
        # No row goes over two lines: there are as many as where there is room for all.
        piped = cli(name, tiny, "--n-ctx", 64, *options, env=card).stdout.splitlines()
        assert len([line for line in lines if line]) == len([line for line in piped if line])


@pytest.mark.parametrize("us", [0.004, 999.99, -999.99, 21036.25])
def test_a_long_time_has_no_more_room_than_a_short_one(us: float) -> None:
    """A simulated card beside a compiler takes milliseconds for a kernel."""
    assert len(_microseconds(us, 2)) <= len("-999.99")
    assert float(_microseconds(us, 2)) == pytest.approx(us, rel=1e-3, abs=0.005)


def test_a_run_on_a_card_says_which_options_are_of_the_cpu(
    cli: Any, tiny: Path, card: dict[str, str]
) -> None:
    ask = ["run", tiny, "ab", "--raw", "--device", "cuda", "--n-ctx", 64, "--max-tokens", 1]
    done = cli(*ask, "--threads", 2, env=card)
    assert (done.returncode, done.stderr) == (0, "no effect on cuda:0: --threads\n")
    # Nor is anything said of the CPU where it was not taken.
    assert cli(*ask, env=card).stderr == ""


def test_check_is_for_a_card(cli: Any, tiny: Path) -> None:
    done = cli("check", tiny, "--device", "cpu")
    assert (done.returncode, done.stdout) == (1, "")
    assert "what GPUs are compared with" in done.stderr and "--device cuda" in done.stderr
    done = cli("check", tiny, "--tokens", "0")
    assert done.returncode == 2 and "--tokens 0: must be 1 or more" in done.stderr


def test_a_missed_bar_is_seen() -> None:
    import numpy as np

    exact = np.array([[0.0, 1.0, 2.0], [3.0, 1.0, 0.0]], np.float32)

    def distance(found: Any) -> check.Distance:
        d = check.Distance()
        d.add(exact, np.asarray(found, np.float32))
        return d

    same = distance(exact)
    assert (same.tokens, same.kl, same.max_logit, same.top_1) == (2, 0, 0, 1)
    assert same.is_none
    # A constant added to all logits changes no probability.
    shifted = distance(exact + 0.04)
    assert shifted.kl < 1e-12 and abs(shifted.max_logit - 0.04) < 1e-6
    assert not shifted.is_none
    # Computed by hand: softmax of (0, 1, 2) against that of (0, 1, 1), half of it for two tokens.
    p = np.exp([0, 1, 2]) / np.exp([0, 1, 2]).sum()
    q = np.exp([0, 1, 1]) / np.exp([0, 1, 1]).sum()
    other = distance([[0, 1, 1], [3, 1, 0]])
    assert abs(other.kl - (p * np.log(p / q)).sum() / 2) < 1e-9
    assert other.top_1 == 0.5 and not other.is_none
    broken = distance([[0, np.nan, 1], [3, 1, 0]])
    assert broken.kl == broken.max_logit == float("inf") and not broken.is_none


def test_labels_are_alike_across_layers() -> None:
    assert across_layers("matvec blk.11.attn_q.weight blk.11.attn_k.weight") == (
        "matvec attn_q.weight attn_k.weight"
    )
    assert across_layers("attention 11") == "attention"
    assert across_layers("delta_net delta[11]") == "delta_net delta"
    assert across_layers("matvec output.weight") == "matvec output.weight"
