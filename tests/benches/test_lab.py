"""The lab of kernels, on the simulated card: its times mean nothing there, its bits do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benches" / "lab.py"

PRODUCT = ["--n-in", "512", "--n-out", "64", "--copies", "2"]
HEADS = ["--heads", "2", "--heads-kv", "1", "--head-dim", "32", "--tokens", "100"]


def lab(env: dict[str, str], *options: object) -> subprocess.CompletedProcess[str]:
    few = ["--repeats", "1", "--peak-bytes", str(1 << 20)]
    command = [sys.executable, str(SCRIPT), *map(str, options), *few]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize(
    ("kernel", "rows", "options", "constants"),
    [
        ("matvec", 1, PRODUCT, {"N_IN": "512", "Segment0": "Q4_K"}),
        ("matmul", 9, [*PRODUCT, "--type", "Q8_0"], {"Segment0": "Q8_0"}),
        ("matvec_floats", 3, PRODUCT, {"MAX_M": "4", "NORM": "false"}),
        ("skinny", 2, ["--n-in", "2048", *PRODUCT[2:]], {"ROWS": "4"}),
        ("attention_fixed", 1, HEADS, {"HEAD_DIM": "32", "SINGLE_ROW": "true"}),
        ("prompt_attention_fixed", 72, HEADS, {"HEAD_DIM": "32"}),
        ("rms_norm", 2, ["--n-in", "300"], {"GROUP": "300"}),
        ("swiglu", 2, ["--n-in", "300"], {}),
    ],
)
def test_a_kernel_is_compared_and_measured(
    ksim_env: dict[str, str],
    tmp_path: Path,
    kernel: str,
    rows: int,
    options: list[str],
    constants: dict[str, str],
) -> None:
    env = ksim_env | {"ONEGRAPH_CACHE_DIR": str(tmp_path)}
    done = lab(env, kernel, "--rows", rows, *options, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["card"].startswith("Simulated") and found["shapes"]["record"]
    (one,) = found["rows"]
    assert one["ok"] and (one["wrong"] == 0 or not one["is_exact"])
    its = next(k for k in one["kernels"] if k["kernel"] == kernel)
    assert constants.items() <= dict(its["constants"]).items()
    assert its["moved"] > 0 and its["memory_us"] > 0
    if options[: len(PRODUCT)] == PRODUCT:
        assert its["launches"] == 2 and its["operations"] == 2 * rows * 512 * 64


def test_what_is_not_chosen_or_missing_is_said(ksim_env: dict[str, str], tmp_path: Path) -> None:
    env = ksim_env | {"ONEGRAPH_CACHE_DIR": str(tmp_path)}
    done = lab(env, "skinny", "--rows", 1, *PRODUCT)
    assert done.returncode == 1
    assert "--rows 1: skinny is not chosen there, but matvec" in done.stderr
    done = lab(env, "matvec", "--type", "F16", *PRODUCT)
    assert done.returncode == 2 and "--type F16: matvec has no weights of it" in done.stderr
    done = lab(env, "matvec", "--rows", 1, *PRODUCT)
    assert done.returncode == 0, done.stderr
    for said in ["1 rows: the interpreter's bits: 0 differ", "memory: ", "no figure", "WARPS_K 2"]:
        assert said in done.stdout
