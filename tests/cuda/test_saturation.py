"""A whole model whose keys are larger than blocks of bytes hold: said, counted by sequence,
and forgotten with the sequence, though steps are launched ahead of its end."""

from __future__ import annotations

import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest
from support.card_process import OnCard

pytestmark = pytest.mark.thorough

BODY = """
import logging
said = []
handler = logging.Handler(logging.WARNING)
handler.emit = lambda record: said.append(record.getMessage())
logging.getLogger("onegraph").addHandler(handler)
options = dict(max_tokens=6, ignore_eos=True, seed=1)
for kv_type in ("q8_0", "i16"):
    with onegraph.LLM(path, device=given["device"], kv_type=kv_type, n_ctx=256, max_batch=2,
                      prefill_chunk=64) as llm:
        # Counted when its sequence has ended, which is after its last row has come.
        finite = bool(np.isfinite(llm.logits([5, 6, 7], path="decode")).all())
        counts = []
        for prompts in ([[5]], [[5, 6, 7]], [[7] * 80, [9]]):
            texts = llm.generate(prompts, **options)
            assert all(len(t.token_ids) == 6 for t in texts)
            counts.append(llm.saturated_sequences)
        out[kv_type] = [counts, finite]
out["said"] = said
"""


@pytest.fixture(scope="module")
def large_keys(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tiny_llama` with a norm before its second layer that is 1e9 times as large."""
    path = tmp_path_factory.mktemp("large") / "large-keys.gguf"
    shutil.copyfile(tiny_llama, path)
    for tensor in gguf.GGUFReader(path, "r+").tensors:
        if tensor.name == "blk.1.attn_norm.weight":
            tensor.data[:] = np.float32(1e9) * np.sign(tensor.data)
    return path


def check(out: dict[str, object]) -> None:
    # The first is the request for logits.
    assert out["q8_0"] == [[2, 3, 5], True]
    assert out["i16"] == [[0, 0, 0], True]
    (said,) = out["said"]  # type: ignore[misc]
    assert "a q8_0 cache" in said and 'kv_type="i16" holds' in said


def test_on_the_cpu(large_keys: Path, simulated: OnCard) -> None:
    check(simulated(BODY, path=large_keys, device="cpu"))


def test_on_a_card(large_keys: Path, on_card: OnCard) -> None:
    check(on_card(BODY, path=large_keys, device="cuda"))
