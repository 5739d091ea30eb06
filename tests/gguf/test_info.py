"""`model_info` and `model_plan` against the `gguf` package's reading of the same file."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import gguf
import onegraph
import pytest
import shapes
import synth
from onegraph import _native
from support import tiny_gguf as tiny


def info(path: Path, **options: Any) -> dict[str, Any]:
    return json.loads(_native.model_info(path, device="cpu", **options))


def check_sizes(found: dict[str, Any], path: Path) -> None:
    reader = gguf.GGUFReader(path)
    tensors: Counter[str] = Counter()
    params: Counter[str] = Counter()
    size: Counter[str] = Counter()
    for t in reader.tensors:
        tensors[t.tensor_type.name] += 1
        params[t.tensor_type.name] += int(t.n_elements)
        size[t.tensor_type.name] += int(t.n_bytes)
    assert found["n_tensors"] == len(reader.tensors)
    assert found["n_params"] == params.total()
    assert found["tensor_bytes"] == size.total()
    assert found["bits_per_weight"] == pytest.approx(8 * size.total() / params.total())
    mix = {q["type"]: (q["tensors"], q["params"], q["bytes"]) for q in found["quant_mix"]}
    assert mix == {name: (tensors[name], params[name], size[name]) for name in tensors}
    by_size = [q["bytes"] for q in found["quant_mix"]]
    assert by_size == sorted(by_size, reverse=True)
    assert found["file_bytes"] == path.stat().st_size
    assert found["files"] == [{"path": str(path), "bytes": path.stat().st_size}]


@pytest.mark.thorough
def test_smollm2(smollm2: Path) -> None:
    found = info(smollm2, n_ctx=2048, max_batch=4)
    check_sizes(found, smollm2)
    assert found["error"] is None
    assert found["architecture"] == "llama"
    assert found["shape"] == {
        "n_ctx_train": 8192,
        "n_layer": 30,
        "n_embd": 576,
        "n_ff": 1536,
        "n_head": 9,
        "n_head_kv": 3,
        "head_dim": 64,
        "n_vocab": 49152,
        "n_expert": None,
        "n_expert_used": None,
        "n_ff_exp": None,
        "n_ff_shared": None,
        "rms_eps": pytest.approx(1e-5),
    }
    assert found["rope"] == {
        "dim": 64,
        "base": 100_000.0,
        "style": "interleaved",
        "scaling": {"type": "none"},
        "frequency_factors": False,
    }
    assert found["tokenizer"]["pre"] == "smollm"
    assert found["tokenizer"]["eos"] == {"id": 2, "text": "<|im_end|>"}
    assert found["chat_template"]["first_line"].startswith("{% for message in messages %}")
    memory = found["memory"]
    assert memory["device"] == "cpu"
    # 4 sequences of 32 pages and the reserved page; K and V, 30 layers of 3 heads of 64 integers of
    # 16 bits and their unit.
    per_token = 2 * 30 * 3 * (64 * 2 + 2)
    assert memory["kv_pages"] == 4 * 32 + 1
    assert memory["kv_bytes"] == (4 * 32 + 1) * 64 * per_token
    assert memory["kv_bytes_per_sequence"] == 2048 * per_token
    assert memory["weights_bytes"] == found["tensor_bytes"]
    parts = ("weights_bytes", "kv_bytes", "scratch_bytes")
    assert memory["total_bytes"] == sum(memory[k] for k in parts)
    # Everything once (the embedding is the head too), and one row of the embedding.
    row = 576 // 32 * 34
    assert found["decode"] == {
        "weight_bytes": found["tensor_bytes"] + row,
        "active_params": found["n_params"] + 576,
        "kv_bytes_per_position": per_token,
    }


def test_experts(tmp_path: Path) -> None:
    """A token reads those that it is routed to, of all layers, and one row of the embedding."""
    path = tmp_path / "model.gguf"
    synth.outline(path, shapes.find("qwen3-30b-a3b"), "Q8_0")
    found = info(path)
    assert found["error"] is None and found["unused_tensors"] == []
    shape = found["shape"]
    assert (shape["n_expert"], shape["n_expert_used"], shape["n_ff_exp"]) == (128, 8, 768)
    not_read = 48 * 120 * 3 * 2048 * 768 + 151935 * 2048
    assert found["decode"]["active_params"] == found["n_params"] - not_read
    assert found["decode"]["weight_bytes"] == found["tensor_bytes"] - not_read // 32 * 34
    # "A3B": 3.3 billion of 30.5, of which an embedding is looked up.
    assert 2.9e9 < found["decode"]["active_params"] < 3.4e9


def test_layers_of_a_convolution(tmp_path: Path) -> None:
    """18 of 24 layers have a state instead of keys and values; all but two have experts."""
    path = tmp_path / "model.gguf"
    synth.outline(path, shapes.find("lfm2-8b-a1b"), "Q8_0")
    found = info(path)
    assert found["error"] is None and found["unused_tensors"] == []
    assert found["layers"] == [{"n_layer": 6, "window": None}]
    assert found["shape"]["n_head_kv"] == 8
    # Two tokens of float32 in each.
    assert found["memory"]["state_bytes_per_sequence"] == 18 * 2 * 2048 * 4
    # The embedding is the last matrix too, and one row of it is looked up.
    not_read = 22 * 28 * 3 * 2048 * 1792 - 2048
    assert found["decode"]["active_params"] == found["n_params"] - not_read
    # "8B-A1B": 8.3 billion, of which 1.5 billion take part.
    assert 1.5e9 < found["decode"]["active_params"] < 1.6e9


def test_layers_of_two_kinds_and_layers_that_store_nothing(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    synth.outline(path, shapes.find("gemma-4-e2b"), "Q8_0")
    found = info(path, n_ctx=4096, max_batch=1, kv_type="f16")
    assert found["error"] is None and found["unused_tensors"] == []
    assert found["layers"] == [{"n_layer": 28, "window": 512}, {"n_layer": 7, "window": None}]
    # Twelve of the first 15 layers have a head of 256, three one of 512; the last 20 have none.
    assert found["decode"]["kv_bytes_per_position"] == 2 * 2 * (12 * 256 + 3 * 512)
    # "E2B": of the embeddings of each layer's own a token reads one row.
    read = found["n_params"] - 262143 * 35 * 256
    # The embedding is the head too.
    assert found["decode"]["active_params"] == read + 1536
    assert 2.2e9 < found["decode"]["active_params"] < 2.4e9

    synth.outline(path, shapes.find("gemma-4-26b-a4b"), "Q8_0")
    found = info(path, n_ctx=4096, max_batch=1)
    assert found["layers"] == [{"n_layer": 25, "window": 1024}, {"n_layer": 5, "window": None}]
    assert (found["shape"]["n_expert"], found["shape"]["n_expert_used"]) == (128, 8)
    read = found["n_params"] - 30 * 120 * 3 * 2816 * 704
    assert found["decode"]["active_params"] == read + 2816
    assert 3.6e9 < found["decode"]["active_params"] < 4.0e9


def test_an_expert_of_every_token(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    synth.outline(path, shapes.find("qwen3.5-35b-a3b"), "Q8_0")
    found = info(path)
    assert found["error"] is None and found["unused_tensors"] == []
    shape = found["shape"]
    assert shape["n_ff"] is None, "all of it is experts"
    assert (shape["n_expert"], shape["n_expert_used"]) == (256, 8)
    assert (shape["n_ff_exp"], shape["n_ff_shared"]) == (512, 512)
    not_read = 40 * 248 * 3 * 2048 * 512 + 248319 * 2048
    assert found["decode"]["active_params"] == found["n_params"] - not_read
    # "35B-A3B".
    assert 34e9 < found["n_params"] < 36e9
    assert 2.8e9 < found["decode"]["active_params"] < 3.4e9
    # 30 layers with a matrix of 128 x 128 for each of 32 heads, and the last three tokens of the
    # convolution over 16 heads of queries, 16 of keys and 32 of values.
    state = 30 * (32 * 128 * 128 + 3 * (16 + 16 + 32) * 128) * 4
    assert found["memory"]["state_bytes_per_sequence"] == state
    assert found["layers"] == [{"n_layer": 10, "window": None}]


def test_a_model_most_of_whose_layers_scan(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    synth.outline(path, shapes.find("nemotron-3-nano-30b-a3b"), "Q8_0")
    found = info(path)
    assert found["error"] is None and found["unused_tensors"] == []
    assert found["rope"] is None
    # "30B-A3B": 31.6 billion, of which a token reads 3.2.
    assert 31.5e9 < found["n_params"] < 31.7e9
    assert 3.1e9 < found["decode"]["active_params"] < 3.3e9
    assert found["layers"] == [{"n_layer": 6, "window": None}]
    # 23 layers with 128 numbers for each of 64 x 64 values, and the last three tokens of the
    # convolution over these values and eight groups of two times 128.
    state = 23 * (64 * 64 * 128 + 3 * (64 * 64 + 2 * 8 * 128)) * 4
    assert found["memory"]["state_bytes_per_sequence"] == state


@pytest.mark.parametrize("arch", tiny.ARCHITECTURES)
def test_every_architecture(tmp_path: Path, arch: str) -> None:
    path = tiny.write(tmp_path / "tiny.gguf", arch)
    found = info(path)
    check_sizes(found, path)
    assert found["error"] is None
    assert found["unused_tensors"] == []
    interleaved = {"llama", "granite", "muse-glimmer", "smollm3", "ernie4_5", "glm4", "cohere2"}
    assert found["rope"]["style"] == ("interleaved" if arch in interleaved else "halves")
    window = 64 if arch in ("gemma3", "muse-glimmer", "cohere2") else None
    assert found["layers"] == [{"n_layer": tiny.N_LAYER, "window": window}]
    assert found["tokenizer"] == {
        "model": "gpt2",
        "pre": "gpt-2",
        "n_vocab": tiny.N_VOCAB,
        "bos": {"id": 10, "text": "<s>"},
        "eos": {"id": 11, "text": "</s>"},
        "add_bos": True,
        "add_eos": False,
        "add_space_prefix": False,
        "error": None,
    }
    assert found["chat_template"] == {
        "bytes": len(tiny.CHAT_TEMPLATE),
        "first_line": tiny.CHAT_TEMPLATE.splitlines()[0],
    }
    assert found["memory"]["n_ctx"] == tiny.N_CTX
    assert found["memory"]["max_batch"] == 8


def test_kv_types_and_context(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "tiny.gguf")
    half, full = (info(path, n_ctx=100, max_batch=1, kv_type=t)["memory"] for t in ("f16", "F32"))
    assert (half["kv_type"], full["kv_type"]) == ("F16", "F32")
    # 100 tokens take two pages of 64.
    per_token = 2 * tiny.N_LAYER * tiny.N_HEAD_KV * tiny.HEAD_DIM * 2
    assert half["kv_bytes_per_sequence"] == 128 * per_token
    assert full["kv_bytes"] == 2 * half["kv_bytes"]


def test_rope_scaling_is_told(tmp_path: Path) -> None:
    kinds = gguf.GGUFValueType
    path = tiny.write(
        tmp_path / "yarn.gguf",
        extra={
            "llama.rope.scaling.type": ("yarn", kinds.STRING),
            "llama.rope.scaling.factor": (4.0, kinds.FLOAT32),
            "llama.rope.scaling.original_context_length": (64, kinds.UINT32),
        },
    )
    assert info(path)["rope"]["scaling"] == {
        "type": "yarn",
        "factor": 4.0,
        "original_ctx": 64,
        "attn_factor": 1.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
    }


def test_what_cannot_run_is_described_all_the_same(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "gpt2.gguf", "gpt2")
    found = info(path)
    check_sizes(found, path)
    assert (
        "supported: llama, qwen2, qwen3, qwen3moe, gpt-oss, qwen35, qwen35moe, qwen3next, "
        "gemma3, gemma4, granite, lfm2, lfm2moe, mistral3, muse-glimmer, olmo2, smollm3, "
        "ernie4_5, seed_oss, hunyuan-dense, glm4, exaone4, glm4moe, phi3, cohere2, "
        "command-r, laguna, nemotron_h, nemotron_h_moe, granitehybrid, deepseek2, "
        "qwen4exp, bert, nomic-bert, nomic-bert-moe, gemma-embedding" in found["error"]
    )
    assert found["architecture"] == "gpt2"
    assert found["shape"]["n_layer"] == tiny.N_LAYER
    assert found["shape"]["n_vocab"] == tiny.N_VOCAB
    assert found["tokenizer"]["n_vocab"] == tiny.N_VOCAB
    assert found["memory"] is None and found["decode"] is None

    found = info(tiny.write(tmp_path / "vocab.gguf", vocab_only=True))
    assert "vocabulary only" in found["error"]
    assert found["tokenizer"]["n_vocab"] == tiny.N_VOCAB
    assert found["bits_per_weight"] is None


def test_text_of_the_file_cannot_drive_the_terminal(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "tiny.gguf")
    text = path.read_bytes()
    for old, new in ((b"{% for m in", b"\x1b[2J\x07  m in"), (b"tiny", b"t\x1b[1")):
        assert text.count(old) == 1 and len(old) == len(new)
        text = text.replace(old, new)
    path.write_bytes(text)
    found = info(path)
    assert found["name"] == "t\\u{1b}[1"
    assert found["chat_template"]["first_line"].startswith("\\u{1b}[2J\\u{7}  m in")


def test_arguments_out_of_range(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "tiny.gguf")
    with pytest.raises(onegraph.ArgumentError, match="n_ctx = 0: must be from 2 to 256"):
        info(path, n_ctx=0)
    with pytest.raises(onegraph.ArgumentError, match=r"n_ctx = 257: .* trained for 256 tokens"):
        info(path, n_ctx=257)
    with pytest.raises(onegraph.ArgumentError, match="max_batch = 1025: must be from 1 to 1024"):
        info(path, max_batch=1025)
    with pytest.raises(onegraph.ArgumentError, match='kv_type = "f17": must be one of f32, f16'):
        info(path, kv_type="f17")
    with pytest.raises(onegraph.ArgumentError, match="heads of 16 values cannot be stored"):
        info(path, kv_type="q4_0")


def test_plan_as_text_and_as_json(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "tiny.gguf", "qwen3")
    text = _native.model_plan(path)
    assert "rope(q, 4 heads, halves)" in text
    plan = json.loads(_native.model_plan(path, json=True))
    assert len(plan["weights"]) == len(list(tiny.tensors("qwen3")))
    assert text.count("\n  ") == len(plan["buffers"]) + len(plan["ops"])
    with pytest.raises(onegraph.ModelError, match='architecture "gpt2" is not supported'):
        _native.model_plan(tiny.write(tmp_path / "gpt2.gguf", "gpt2"))
