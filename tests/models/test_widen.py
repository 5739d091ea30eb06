"""Widening keeps a model's function and makes every type fit."""

from pathlib import Path

import gguf
import gguf_io
import numpy as np
import pytest
import shapes
import synth
import widen
from support.reference import Array, Reference, mean_kl

pytestmark = pytest.mark.thorough

#: Of the families that it widens: those that are Llama's block.
ODD = [
    name
    for name, shape in shapes.load().items()
    if name.startswith("odd-") and shape.arch in ("llama", "qwen2", "qwen3")
]
TEXT = [504, 3575, 282, 4649, 314, 7042, 30, 657, 6009, 335, 260, 9131]


def wide_enough(path: Path) -> bool:
    return all(
        t.shape[0] % 256 == 0 for t in gguf_io.Reader(path).tensors.values() if len(t.shape) == 2
    )


# llama.cpp's qwen2 holds n_embd equal to all heads together; a wider one need not.
@pytest.mark.parametrize("name", ODD)
def test_a_wider_model_computes_the_same(name: str, tmp_path: Path) -> None:
    shape = shapes.find(name)
    source, target = tmp_path / "source.gguf", tmp_path / "wide.gguf"
    synth.write(source, shape, "Q8_0", seed=2)
    widen.widen(source, target, "F32")
    assert wide_enough(target)
    ids = [int(i) for i in np.random.default_rng(1).integers(3, shape.n_vocab, 32)]
    narrow, wide = Reference(source), Reference(target)
    assert wide.n_head // wide.n_head_kv == narrow.n_head // narrow.n_head_kv
    # The norm weights alone are rounded again, to float32.
    np.testing.assert_allclose(wide.logits(ids), narrow.logits(ids), atol=2e-5)


@pytest.fixture(scope="module")
def exact(smollm2: Path) -> Array:
    return Reference(smollm2).logits(TEXT)


def test_smollm2_becomes_768_wide(smollm2: Path, exact: Array, tmp_path: Path) -> None:
    target = tmp_path / "wide.gguf"
    widen.widen(smollm2, target, "F32")
    assert wide_enough(target)
    wide = Reference(target, cache=False)
    assert (wide.n_embd, wide.n_head, wide.n_head_kv, wide.head_dim) == (768, 12, 4, 64)
    np.testing.assert_allclose(wide.logits(TEXT), exact, atol=1e-4)


def test_smollm2_in_superblock_types(smollm2: Path, exact: Array, tmp_path: Path) -> None:
    """The layers take every type in turn. Measured: 0.016."""
    target = tmp_path / "wide.gguf"
    widen.widen(smollm2, target, "Q6_K+Q5_K+Q4_K+Q8_0")
    kinds = {t.tensor_type.name for t in gguf.GGUFReader(target).tensors if len(t.shape) == 2}
    assert kinds == {"Q4_K", "Q5_K", "Q6_K", "Q8_0"}
    off = mean_kl(exact, Reference(target, cache=False).logits(TEXT))
    assert off <= 0.03, "the quantizers cost more than their types should"


def test_a_tensor_of_an_odd_shape_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "source.gguf"
    synth.write(source, shapes.find("odd-llama-96"), "F16")
    raw = source.read_bytes()
    # The record of the first matrix: its name, two dimensions, then 96 columns.
    at = raw.index(b"output.weight") + len(b"output.weight") + 4
    source.write_bytes(raw[:at] + (95).to_bytes(8, "little") + raw[at + 8 :])
    with pytest.raises(ValueError, match=r"output.weight has the shape \(95, 331\); expected \(96"):
        widen.widen(source, tmp_path / "wide.gguf")


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "source.gguf", tmp_path / "wide.gguf"
    synth.write(source, shapes.find("odd-llama-160"), "F16")
    widen.main([str(source), "--mix", "Q6_K", "-o", str(target)])
    assert wide_enough(target)
    with pytest.raises(SystemExit):
        widen.main([str(source), "--mix", "Q9", "-o", str(target)])
    assert "no type or mix 'Q9'" in capsys.readouterr().err
