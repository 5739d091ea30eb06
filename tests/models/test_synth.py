"""Synthetic models: whole, deterministic, and alive enough to test with."""

import math
from pathlib import Path

import gguf
import gguf_io
import mix as mixes
import numpy as np
import pytest
import shapes
import synth
import vocabulary
from onegraph import _native
from support.reference import Reference, log_softmax

SMALL = [name for name in shapes.load() if name.startswith(("tiny-", "odd-"))]
TYPES = [t[0] for t in _native.quant_types()]


def greedy(model: Reference, ids: list[int], count: int) -> list[int]:
    ids = list(ids)
    for _ in range(count):
        ids.append(int(model.logits(ids)[-1].argmax()))
    return ids


@pytest.mark.thorough
@pytest.mark.parametrize("name", SMALL)
def test_a_forward_pass_is_finite_and_its_logits_are_spread(name: str, tmp_path: Path) -> None:
    shape = shapes.find(name)
    path = tmp_path / "model.gguf"
    synth.write(path, shape, "Q4_K_M", seed=3)
    model = Reference(path)
    prompt = [int(i) for i in np.random.default_rng(0).integers(3, shape.n_vocab, 24)]
    ids = greedy(model, prompt, 24)
    logits = model.logits(ids)
    assert np.isfinite(logits).all()
    assert 2.0 <= logits.std(axis=1).mean() <= 4.0
    top = np.exp(log_softmax(logits)).max(axis=1)
    assert top.mean() <= 0.7, "one token dominates"
    generated = ids[len(prompt) :]
    assert min(generated) >= len(vocabulary.SPECIAL), "a control token ends or breaks the text"
    assert len(set(generated)) >= 8, "the text runs in circles"


@pytest.mark.parametrize("name", ["tiny-llama-gqa", "odd-qwen2-448", "tiny-qwen3"])
def test_the_last_token_depends_on_the_first(name: str, tmp_path: Path) -> None:
    shape = shapes.find(name)
    synth.write(tmp_path / "model.gguf", shape, "Q8_0")
    model = Reference(tmp_path / "model.gguf")
    ids = [int(i) for i in np.random.default_rng(0).integers(3, shape.n_vocab, 40)]
    changed = [ids[0] - 1 if ids[0] > 3 else ids[0] + 1, *ids[1:]]
    assert np.abs(model.logits(ids)[-1] - model.logits(changed)[-1]).max() > 0.05


def test_the_next_token_is_known_where_that_is_asked_for(tmp_path: Path) -> None:
    shape = shapes.find("tiny-qwen3moe")
    usual, known = tmp_path / "usual.gguf", tmp_path / "known.gguf"
    synth.write(usual, shape, "Q4_K_M")
    synth.write(known, shape, "Q4_K_M", known=True)
    a, b = (gguf.GGUFReader(path).tensors for path in (usual, known))
    for one, other in zip(a, b, strict=True):
        assert (one.name, one.tensor_type, one.data_offset) == (
            *(other.name, other.tensor_type),
            other.data_offset,
        )
    assert usual.stat().st_size == known.stat().st_size
    model, after = Reference(known), synth.followers(shape)
    ids = [int(i) for i in np.random.default_rng(0).integers(3, shape.n_vocab, 24)]
    ids = [token for token in ids if after[token] >= 0]
    logits = model.logits(ids)
    assert list(logits.argmax(axis=1)) == list(after[ids])
    # At a temperature of 1 too.
    assert np.exp(log_softmax(logits)).max(axis=1).min() > 1 - 1e-6
    # Each ordinary token once.
    assert sorted(after[after >= 0]) == list(np.flatnonzero(after >= 0))
    with pytest.raises(ValueError, match="tiny-llama has no head of its own"):
        synth.write(known, shapes.find("tiny-llama"), known=True)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("mix", ["Q4_K_M", "F32", "Q8_0", "Q4_0+Q6_K+F16"])
def test_the_file_is_what_its_shape_says(name: str, mix: str, tmp_path: Path) -> None:
    shape = shapes.find(name)
    size = synth.write(tmp_path / "model.gguf", shape, mix)
    assert size == (tmp_path / "model.gguf").stat().st_size
    reader = gguf.GGUFReader(tmp_path / "model.gguf")
    found = {t.name: tuple(int(n) for n in t.shape) for t in reader.tensors}
    assert found == dict(shape.tensors())
    elems = {t[0]: t[2] for t in _native.quant_types()}
    for t in reader.tensors:
        assert t.tensor_type.name == mixes.type_of(shape, mix, t.name, int(t.shape[0]), elems)
    last = reader.tensors[-1]
    assert last.data_offset + last.n_bytes == size


@pytest.mark.parametrize("kind", TYPES)
def test_every_type_has_the_deviation_asked_for(kind: str, tmp_path: Path) -> None:
    shape = shapes.find("tiny-llama")
    synth.write(tmp_path / "model.gguf", shape, kind, seed=1)
    reader = gguf.GGUFReader(tmp_path / "model.gguf")
    matrices = [t for t in reader.tensors if len(t.shape) == 2]
    assert {t.tensor_type.name for t in matrices} == {kind}
    for t in matrices:
        w = gguf.quants.dequantize(t.data, t.tensor_type)[len(vocabulary.SPECIAL) :]
        sigma = synth.deviation(shape, t.name, int(t.shape[0]))
        assert np.isfinite(w).all()
        assert w.std() == pytest.approx(sigma, rel=0.06)
        assert abs(w.mean()) < 0.05 * sigma
        assert len(np.unique(w, axis=0)) == len(w), "equal rows would tie"


def test_a_type_that_only_the_engine_knows_goes_through_its_quantizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(synth.KINDS, "Q8_0")
    shape = shapes.find("odd-llama-96")
    synth.write(tmp_path / "model.gguf", shape, "Q8_0")
    reader = gguf.GGUFReader(tmp_path / "model.gguf")
    (t,) = (t for t in reader.tensors if t.name == "blk.1.ffn_up.weight")
    assert t.tensor_type.name == "Q8_0"
    w = gguf.quants.dequantize(t.data, t.tensor_type)
    assert w.std() == pytest.approx(synth.deviation(shape, t.name, 96), rel=0.05)


def test_same_arguments_same_bytes(tmp_path: Path) -> None:
    shape = shapes.find("odd-llama-576")
    for name, seed, threads in (("a", 5, 1), ("b", 5, 4), ("c", 6, 4)):
        synth.write(tmp_path / name, shape, "Q4_K_M", seed=seed, threads=threads)
    a, b, c = ((tmp_path / name).read_bytes() for name in "abc")
    assert a == b
    assert len(a) == len(c)
    assert a != c


def test_portions_do_not_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control rows are found wherever a tensor is cut."""
    monkeypatch.setattr(synth, "PORTION", 1 << 10)
    shape = shapes.find("odd-llama-576")
    synth.write(tmp_path / "model.gguf", shape, "Q8_0")
    rows = Reference(tmp_path / "model.gguf").weight("token_embd.weight")
    assert rows is not None
    deviation = rows.std(axis=1)
    quiet = len(vocabulary.SPECIAL)
    assert deviation[:quiet].max() < 0.3 * deviation[quiet:].min()


def test_llama_cpps_own_mix() -> None:
    """28 layers get more bits in the first and last eighth and in every third between."""
    elems = {t[0]: t[2] for t in _native.quant_types()}
    shape = shapes.find("llama-3.2-3b")

    def layers(part: str, kind: str) -> list[int]:
        return [
            i
            for i in range(shape.n_layer)
            if mixes.type_of(shape, "Q4_K_M", f"blk.{i}.{part}.weight", 3072, elems) == kind
        ]

    more = [0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 24, 25, 26, 27]
    assert layers("attn_v", "Q6_K") == layers("ffn_down", "Q6_K") == more
    assert layers("attn_q", "Q4_K") == layers("ffn_up", "Q4_K") == list(range(28))

    def kind(name: str, model: str, mix: str = "Q4_K_M", cols: int = 4096) -> str:
        return mixes.type_of(shapes.find(model), mix, name, cols, elems)

    assert kind("token_embd.weight", "llama-3.2-3b") == "Q6_K"
    assert kind("token_embd.weight", "llama-3.1-8b") == "Q4_K"
    assert kind("output.weight", "llama-3.1-8b") == "Q6_K"
    assert kind("blk.0.attn_v.weight", "llama-3.1-8b", "Q5_K_M") == "Q6_K"
    assert kind("blk.5.attn_v.weight", "llama-3.1-8b", "Q5_K_M") == "Q5_K"
    assert kind("blk.0.attn_norm.weight", "llama-3.1-8b") == "F32"
    assert kind("blk.0.attn_q.bias", "qwen2.5-1.5b") == "F32"
    assert kind("blk.0.ffn_up.weight", "smollm2-135m", cols=576) == "Q5_0"
    assert kind("blk.0.attn_v.weight", "smollm2-135m", cols=576) == "Q8_0"
    assert kind("blk.0.ffn_up.weight", "smollm2-135m", "Q8_0", cols=100) == "F16"
    assert kind("blk.0.ffn_up.weight", "llama-3.1-8b", "IQ4_XS") == "IQ4_XS"
    assert kind("blk.0.ffn_up.weight", "smollm2-135m", "IQ4_XS", cols=576) == "IQ4_NL"


def test_mixes_of_fewer_bits() -> None:
    elems = {t[0]: t[2] for t in _native.quant_types()}

    def kind(mix: str, part: str, model: str = "llama-3.1-8b", cols: int = 4096) -> str:
        return mixes.type_of(shapes.find(model), mix, f"{part}.weight", cols, elems)

    assert kind("Q3_K_M", "blk.0.attn_q") == kind("Q3_K_M", "token_embd") == "Q3_K"
    assert kind("Q3_K_M", "output") == "Q6_K"
    assert [kind("Q3_K_M", f"blk.{i}.attn_v") for i in (0, 1, 2)] == ["Q5_K", "Q5_K", "Q4_K"]
    assert [kind("Q3_K_M", f"blk.{i}.ffn_down") for i in (0, 1, 2)] == ["Q5_K", "Q5_K", "Q4_K"]
    assert kind("Q3_K_M", "blk.9.attn_output") == "Q4_K"
    assert kind("Q3_K_L", "blk.9.attn_output") == kind("Q3_K_L", "blk.9.attn_v") == "Q5_K"
    assert kind("Q3_K_S", "blk.9.ffn_down") == "Q3_K"
    assert kind("Q2_K_M", "blk.9.ffn_down") == kind("Q2_K_M", "blk.9.attn_output") == "Q3_K"
    # Four query heads share one of values, or three.
    assert kind("Q2_K_M", "blk.9.attn_v") == kind("Q2_K_S", "blk.9.attn_v") == "Q4_K"
    assert kind("Q2_K_M", "blk.9.attn_v", "llama-3.2-3b", 3072) == "Q3_K"
    assert [kind("Q2_K_S", f"blk.{i}.ffn_down") for i in (3, 4)] == ["Q4_K", "Q2_K"]
    assert kind("Q2_K_M", "blk.9.ffn_up", "smollm2-135m", 576) == "Q4_0"


def test_sizes_of_the_true_shapes() -> None:
    """Weights of each model, as its publisher counts them."""
    for name, billions in {
        "smollm2-135m": 0.1345,
        "llama-3.2-1b": 1.236,
        "llama-3.2-3b": 3.213,
        "llama-3.1-8b": 8.030,
        "qwen2.5-1.5b": 1.544,
        "qwen3-0.6b": 0.596,
        "qwen3-4b": 4.022,
        "qwen3-8b": 8.191,
        "gemma-3-270m": 0.268,
        "gemma-3-1b": 1.000,
        "gemma-3-4b": 3.880,
        "gemma-3-12b": 11.766,
        "gemma-3-27b": 27.009,
        "gemma-4-e2b": 4.629,
        "gemma-4-e4b": 7.463,
        "gemma-4-12b": 11.907,
        "gemma-4-26b-a4b": 25.233,
        "gemma-4-31b": 30.697,
        "granite-3.3-2b": 2.534,
        "granite-3.3-8b": 8.171,
        "lfm2-1.2b": 1.170,
        "lfm2-8b-a1b": 8.34,
        "ministral-3-8b": 8.49,
        "qwen3-next-80b-a3b": 79.67,
        # 125 and 51 billion in the table of n-grams.
        "qwen3.8-flash-next": 176.94,
        "glm-4-9b": 9.400,
        "exaone-4.0-32b": 32.00,
        "command-r7b": 8.028,
        "command-a": 111.06,
        "command-r-08-2024": 32.30,
        "laguna-xs.2": 33.44,
        "nemotron-3-nano-30b-a3b": 31.58,
        "granite-4.0-h-tiny": 6.94,
        "glm-4.7-flash": 29.94,
        "deepseek-v2-lite": 15.706,
        "deepseek-r1": 671.03,
        "phi-3.5-mini": 3.821,
        "phi-4": 14.66,
        "seed-oss-36b": 36.15,
        "olmo-2-1b": 1.485,
        "olmo-2-7b": 7.299,
        "olmo-3-7b": 7.298,
    }.items():
        tensors = shapes.find(name).tensors()
        weights = sum(math.prod(dims) for part, dims in tensors if part != "rope_freqs.weight")
        assert weights / 1e9 == pytest.approx(billions, rel=1e-3), name


def test_the_made_up_vocabulary_is_whole() -> None:
    meta = vocabulary.made_up(5000, "smollm")
    tokens = gguf_io.decode(meta["tokenizer.ggml.tokens"])
    assert len(tokens) == len(set(tokens)) == 5000
    assert len(vocabulary.byte_characters()) == 256
    known = set(tokens)
    for merge in gguf_io.decode(meta["tokenizer.ggml.merges"]):
        left, right = merge.split(" ")
        assert {left, right, left + right} <= known
    assert vocabulary.controls(meta) == [0, 1, 2]


def test_another_files_vocabulary_is_taken_over_and_filled_up(tmp_path: Path) -> None:
    small, large = shapes.find("odd-qwen3-160"), shapes.find("odd-llama-96")
    synth.write(tmp_path / "source.gguf", small, "F16")
    synth.write(tmp_path / "model.gguf", large, "F16", vocab=tmp_path / "source.gguf")
    source, model = (gguf_io.Reader(tmp_path / n).metadata for n in ("source.gguf", "model.gguf"))
    tokens = model["tokenizer.ggml.tokens"]
    assert tokens[: small.n_vocab] == source["tokenizer.ggml.tokens"]
    assert len(tokens) == large.n_vocab == len(model["tokenizer.ggml.token_type"])
    assert tokens[-1] == f"[PAD{large.n_vocab - 1}]"
    assert model["tokenizer.ggml.merges"] == source["tokenizer.ggml.merges"]
    with pytest.raises(ValueError, match=r"331 tokens; the shape has room for 300"):
        synth.write(tmp_path / "no.gguf", small, "F16", vocab=tmp_path / "model.gguf")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["llama-9"], "no shape 'llama-9'; there are smollm2-135m"),
        (["tiny-llama", "--mix", "Q9"], "no type 'Q9'; use F32"),
        (["tiny-llama", "--vocab", __file__], "is no GGUF file"),
        (["tiny-llama", "--vocab", "/no/such/file"], "No such file"),
    ],
)
def test_wrong_use_says_what_is_right(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        synth.main([*arguments, "-o", str(tmp_path / "out.gguf")])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.gguf"
    synth.main(["tiny-qwen3", "--mix", "Q6_K", "-o", str(out), "--seed", "4"])
    assert "GB/s" in capsys.readouterr().err
    assert gguf_io.Reader(out).metadata["general.architecture"] == "qwen3"
