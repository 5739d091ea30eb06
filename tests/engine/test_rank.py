"""Documents by their scores for a query: against an independent pass and llama.cpp, themselves in
other company, and what is refused."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onegraph
import pytest
import shapes
import synth
from onegraph import LLM
from support.card_process import run_on
from support.encoders import SHAPES, Encoder
from support.encoders import write as write_encoder
from support.reference import Reference

pytestmark = pytest.mark.thorough

QUERY = "a warm drink"
DOCUMENTS = ["tea", "The sky is blue<|im_end|>", "", "a cup of tea " * 9, "{query} {document}"]


def write(path: Path, mix: str) -> Path:
    shape = dataclasses.replace(shapes.find("tiny-qwen3-embedding"), pooling="rank")
    synth.write(path, shape, mix, seed=3)
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("rank") / "rank.gguf", "Q8_0")


@pytest.fixture(scope="module")
def ranker(path: Path) -> Iterator[LLM]:
    with LLM(path, device="cpu", max_batch=3) as llm:
        yield llm


def pair(llm: LLM, document: str) -> list[int]:
    """What the file's template makes of a document: of what is given nothing is a control token."""
    tokenizer = llm.tokenizer
    start, end = (tokenizer.token_id(text) for text in ("<|im_start|>", "<|im_end|>"))
    assert start is not None and end is not None
    text = f"find\n{QUERY}\nin\n{document}"
    return [start, *tokenizer.encode(text, add_special=False), end]


def test_scores_are_those_of_an_independent_pass(path: Path) -> None:
    reference = Reference(path)
    head = reference.require("cls.output.weight").astype(np.float64)
    with LLM(path, device="cpu", kv_type="f32") as llm:
        found = llm.rank(QUERY, DOCUMENTS)
        states = [reference.hidden(pair(llm, document))[-1] for document in DOCUMENTS]
    assert (found.dtype, found.shape, llm.pooling) == (np.float32, (5,), "rank")
    yes, no = (head @ np.array(states).T)[:2]
    wanted = 1 / (1 + np.exp(no - yes))
    assert wanted.std() > 0.05
    # Products of Q8_0 keep 11 bits of what they multiply.
    assert np.abs(found - wanted).max() < 5e-3


def test_agrees_with_llama_cpp(tmp_path: Path) -> None:
    """Of what spells no control token: that reads those as such."""
    path = write(tmp_path / "rank.gguf", "F16")
    documents = [DOCUMENTS[0], DOCUMENTS[3], "toast"]
    theirs = llama_cpp_scores(path, documents)
    with LLM(path, device="cpu") as llm:
        found = llm.rank(QUERY, documents)
    assert np.abs(found - theirs).max() < 5e-3


def llama_cpp_scores(path: Path, documents: list[str]) -> Any:
    """What llama.cpp says of them."""
    xllamacpp = pytest.importorskip("xllamacpp", reason="llama.cpp, of the extra [test]")
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx = params.n_batch = params.n_ubatch = 200
    params.n_parallel = 1
    params.port = 0
    params.warmup = False
    params.embedding = True
    params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_RANK
    server = xllamacpp.Server(params)
    answer: Any = server.handle_rerank({"query": QUERY, "documents": documents})
    answer = json.loads(answer) if isinstance(answer, str) else answer
    scores = {each["index"]: each["relevance_score"] for each in answer["results"]}
    return np.array([scores[i] for i in range(len(documents))])


def test_a_list_gives_the_bits_of_each_document_alone(path: Path, ranker: LLM) -> None:
    together = ranker.rank(QUERY, DOCUMENTS)
    alone = [ranker.rank(QUERY, [document])[0] for document in DOCUMENTS]
    assert (together == alone).all()
    assert (asyncio.run(ranker.arank(QUERY, DOCUMENTS)) == together).all()
    with LLM(path, device="cpu", threads=1, max_batch=8) as wide:
        assert (wide.rank(QUERY, DOCUMENTS) == together).all()
    assert ranker.rank(QUERY, []).shape == (0,)


ON_CARD = """
with onegraph.LLM(path, device=given["device"], n_ctx=256, max_batch=4, prefill_chunk=64) as llm:
    out["scores"] = llm.rank(given["query"], given["documents"]).tobytes().hex()
"""


def test_a_card_gives_the_bits_of_the_cpu(
    path: Path, ksim_env: dict[str, str], ranker: LLM
) -> None:
    given = {"query": QUERY, "documents": DOCUMENTS}
    found = run_on(path, ksim_env, ON_CARD, device="cuda", **given)
    assert found["scores"] == ranker.rank(QUERY, DOCUMENTS).tobytes().hex()


def test_what_is_wrong_is_named(path: Path, ranker: LLM, tiny: Path) -> None:
    for asked, said in [
        ((5, ["tea"]), "query = 5: must be a str"),
        (("tea", "tea"), "documents = 'tea': must be a list of texts"),
        (("tea", ["tea", 3]), r"documents\[1\] = 3: must be a str"),
    ]:
        with pytest.raises(onegraph.ArgumentError, match=said):
            ranker.rank(*asked)
    with pytest.raises(onegraph.ContextError, match=r"documents\[1\]: the text has \d+ tokens"):
        ranker.rank(QUERY, ["tea", "tea " * 600])
    with pytest.raises(onegraph.ArgumentError, match="pooling = 'rank': must be last, mean or cls"):
        ranker.embed("tea", pooling="rank")
    with pytest.raises(onegraph.ArgumentError, match="pooling = rank: the model is a reranker"):
        ranker.embed("tea")
    assert ranker.embed("tea", pooling="last").shape == (256,)
    said = "the model is not a reranker"
    with LLM(tiny, device="cpu") as llm, pytest.raises(onegraph.ArgumentError, match=said):
        llm.rank("tea", ["toast"])


def test_a_head_that_is_not_read_is_refused(tmp_path: Path, path: Path) -> None:
    other = tmp_path / "other.gguf"
    data = path.read_bytes()
    other.write_bytes(data.replace(b"cls.output.weight", b"cls.0utput.weight"))
    with pytest.raises(onegraph.ModelError, match=r"cls\.0utput\.weight"):
        LLM(other, device="cpu")


@pytest.mark.parametrize("name", ["bert", "odd"])
def test_an_encoder_ranks(tmp_path: Path, name: str) -> None:
    """Its first token has seen both; where it has two types, a document is of the second."""
    path = write_encoder(tmp_path / "bert.gguf", SHAPES[name], "F32", "rank")
    exact, documents = Encoder(path), ["tea", "blue sky", "", "rain"]
    with LLM(path, device="cpu", kv_type="f32") as llm:
        found = llm.rank("a cup", documents)
        query, *texts = (llm.tokenize(text)[1:-1] for text in ["a cup", *documents])
        second = len(query) + 2 if SHAPES[name].n_types > 1 else None
        wanted = [exact.score([2, *query, 3, *text, 3], second) for text in texts]
        assert np.abs(found - wanted).max() < 1e-6
        # A text alone is of the first.
        alone = exact.vector(llm.tokenize("tea"), "cls")
        assert np.abs(llm.embed("tea", pooling="cls") - alone).max() < 1e-6
    assert np.std(wanted) > 0.02


@pytest.mark.parametrize("name", ["bert", "xlm-r"])
def test_an_encoder_ranks_with_the_same_bits_everywhere(
    tmp_path: Path, ksim_env: dict[str, str], name: str
) -> None:
    path = write_encoder(tmp_path / "bert.gguf", SHAPES[name], "Q8_0", "rank")
    given = {"query": QUERY, "documents": DOCUMENTS}
    with LLM(path, device="cpu") as llm:
        together = llm.rank(QUERY, DOCUMENTS)
        assert (together == [llm.rank(QUERY, [document])[0] for document in DOCUMENTS]).all()
    on_card = ON_CARD.replace("n_ctx=256", "n_ctx=200")
    found = run_on(path, ksim_env, on_card, device="cuda", **given)
    assert found["scores"] == together.tobytes().hex()


def test_bge_m3s_reranker_agrees_with_llama_cpp(tmp_path: Path) -> None:
    """Between query and document stand two separators; its score is that before the logistic
    function."""
    path = write_encoder(tmp_path / "bert.gguf", SHAPES["xlm-r"], "F16", "rank")
    theirs = llama_cpp_scores(path, DOCUMENTS[:1] + DOCUMENTS[3:])
    exact = Encoder(path)
    with LLM(path, device="cpu") as llm:
        found = llm.rank(QUERY, DOCUMENTS[:1] + DOCUMENTS[3:])
        pairs = [[0, *llm.tokenize(QUERY)[1:], 2, *llm.tokenize(d)[1:]] for d in DOCUMENTS]
    wanted = [exact.score(ids) for ids in pairs[:1] + pairs[3:]]
    assert np.abs(found - wanted).max() < 1e-4
    assert np.abs(found - 1 / (1 + np.exp(-theirs))).max() < 5e-3
