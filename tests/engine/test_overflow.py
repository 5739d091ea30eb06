"""A sequence whose numbers overflow ends with an error that says where; others go on."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gguf
import numpy as np
import onegraph
import pytest
import shapes
import synth
from onegraph import LLM

#: The token whose embedding is infinite.
BAD = 40


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A random model in Q8_0, in which the scales of one row of the embedding are infinite."""
    path = tmp_path / "model.gguf"
    synth.write(path, shapes.find("odd-llama-96"), "Q8_0", seed=3)
    (table,) = (t for t in gguf.GGUFReader(path, "r+").tensors if t.name == "token_embd.weight")
    blocks = table.data.reshape(len(table.data), -1, 34)
    blocks[BAD, :, :2] = np.frombuffer(np.float16(np.inf).tobytes(), np.uint8)
    table.data.base.flush()
    return path


def test_a_prompt_that_overflows_fails_alone(model: Path) -> None:
    with LLM(model, device="cpu", n_ctx=64, max_batch=2) as llm:
        place = r"the product with blk\.0\.attn_q\.weight at position 1 of sequence slot 0"
        with pytest.raises(onegraph.ModelError, match=place):
            llm.generate([5, BAD, 7], max_tokens=2)
        with pytest.raises(onegraph.ModelError, match=place):
            llm.logits([5, BAD, 7])
        assert len(llm.generate([5, 6, 7], max_tokens=2, ignore_eos=True).token_ids) == 2


def test_a_step_that_overflows_fails_alone(model: Path) -> None:
    """Both decode in the same steps; the one that draws the token ends, the other draws its own."""
    with LLM(model, device="cpu", n_ctx=64, max_batch=2) as llm:

        def good() -> list[int]:
            bias = {BAD: -1e4}
            return llm.generate(
                [5, 6, 7], max_tokens=40, ignore_eos=True, logit_bias=bias, seed=1
            ).token_ids

        alone = good()
        assert len(alone) == 40
        with ThreadPoolExecutor(1) as thread:
            for _ in range(3):
                other = thread.submit(good)
                with pytest.raises(onegraph.ModelError, match="at position 3 of sequence slot"):
                    llm.generate([9, 8, 7], max_tokens=5, logit_bias={BAD: 1e4})
                assert other.result() == alone
