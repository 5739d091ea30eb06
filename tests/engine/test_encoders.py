"""Encoders, models that see a whole text at once: their vectors against an independent pass and
llama.cpp, and themselves in other company; and that they generate nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onegraph
import pytest
from onegraph import LLM, _native
from support import embedding_gemma
from support.card_process import run_on
from support.embedding_gemma import EmbeddingGemma
from support.encoders import SHAPES, Encoder
from support.encoders import write as write_encoder

pytestmark = pytest.mark.thorough

TEXTS = ["tea", "The sky is blue, why?", "a naïve cup of tea", "日本 rains", "", "blue " * 90]
#: Token ids of texts of several lengths; some cross a page of the cache.
IDS = [[2, *((7 * i + n * n) % 80 + 5 for i in range(n)), 3] for n in (0, 1, 5, 62, 63, 130)]
IDS.append([7])


def write(path: Path, name: str, mix: str, pooling: str, **keys: Any) -> Path:
    """A small file of that name."""
    if name in embedding_gemma.SHAPES:
        return embedding_gemma.write(path, embedding_gemma.SHAPES[name], mix, pooling)
    return write_encoder(path, SHAPES[name], mix, pooling, **keys)


def exact_of(path: Path, name: str) -> Encoder | EmbeddingGemma:
    return EmbeddingGemma(path) if name in embedding_gemma.SHAPES else Encoder(path)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("encoder") / "bert.gguf", "bert", "Q8_0", "mean")


@pytest.fixture(scope="module")
def encoder(path: Path) -> Iterator[LLM]:
    with LLM(path, device="cpu", max_batch=3) as llm:
        yield llm


@pytest.mark.parametrize("pooling", ["cls", "mean", "last"])
@pytest.mark.parametrize(
    ("name", "mix", "far"),
    # What is multiplied with integers keeps 11 bits.
    [
        ("nomic-bert", "F32", 0),
        ("nomic-bert", "Q8_0", 4e-4),
        ("bert", "F32", 0),
        ("odd", "F16", 0),
        ("bert", "Q8_0", 4e-4),
        ("bert", "Q4_K", 4e-4),
        ("xlm-r", "Q8_0", 4e-4),
        ("nomic-bert-moe", "F32", 0),
        ("nomic-bert-moe", "Q4_K", 4e-4),
        ("gemma-embedding", "F32", 0),
        ("gemma-embedding", "Q8_0", 4e-4),
        ("gemma-embedding", "Q4_K", 4e-4),
        ("dense", "F32", 0),
        ("dense", "F16", 0),
    ],
)
def test_vectors_are_those_of_an_independent_pass(
    tmp_path: Path, name: str, mix: str, far: float, pooling: str
) -> None:
    path = write(tmp_path / "bert.gguf", name, mix, pooling)
    exact = exact_of(path, name)
    wanted = [exact.vector(ids, pooling) for ids in IDS]
    for kv_type, rounded in (("f32", 5e-7), ("i16", 5e-5)):
        with LLM(path, device="cpu", kv_type=kv_type) as llm:
            assert llm.pooling == pooling
            found = llm.embed(IDS)
            assert np.abs(found - wanted).max() < max(far, rounded)
            # Each way of pooling is to be had of each file.
            other = "mean" if pooling == "cls" else "cls"
            first = exact.vector(IDS[3], other)
            assert np.abs(llm.embed(IDS[3], pooling=other) - first).max() < max(far, rounded)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize(
    ("name", "mix", "far"),
    [
        ("bert", "F32", 2e-6),
        ("bert", "Q8_0", 3e-4),
        ("nomic-bert", "F32", 2e-6),
        ("xlm-r", "F16", 2e-6),
        ("nomic-bert-moe", "F32", 2e-6),
        ("nomic-bert-moe", "Q8_0", 3e-4),
        ("gemma-embedding", "F32", 2e-6),
        ("gemma-embedding", "Q4_K", 3e-3),
        ("dense", "F16", 2e-6),
        ("dense", "Q8_0", 3e-4),
    ],
)
def test_agrees_with_llama_cpp(
    tmp_path: Path, name: str, mix: str, far: float, pooling: str
) -> None:
    """Its GELU is the approximation by tanh, of halves, and with Q8_0 it rounds what it multiplies
    to 8 bits: no more than that is between."""
    xllamacpp = pytest.importorskip("xllamacpp", reason="llama.cpp, of the extra [test]")
    path = write(tmp_path / "bert.gguf", name, mix, pooling)
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx = params.n_batch = params.n_ubatch = 200
    params.n_parallel = 1
    params.port = 0
    params.warmup = False
    params.embedding = True
    server = xllamacpp.Server(params)
    with LLM(path, device="cpu") as llm:
        for text in [*TEXTS[:4], *IDS]:
            answer: Any = server.handle_embeddings({"input": text})
            answer = json.loads(answer) if isinstance(answer, str) else answer
            n = len(llm.tokenize(text) if isinstance(text, str) else text)
            assert answer["usage"]["prompt_tokens"] == n
            wanted = np.array(answer["data"][0]["embedding"])
            assert 1 - wanted @ llm.embed(text) < far


def test_a_list_gives_the_bits_of_each_text_alone(path: Path, encoder: LLM) -> None:
    for pooling in ("cls", "mean", "last"):
        for texts in (TEXTS, IDS, IDS * 5):
            alone = np.stack([encoder.embed(text, pooling=pooling) for text in texts])
            assert (encoder.embed(texts, pooling=pooling) == alone).all()
            with LLM(path, device="cpu", threads=1, max_batch=40) as wide:
                assert (wide.embed(texts, pooling=pooling) == alone).all()


ON_CARD = """
for mode in ("full", "none"):
    with onegraph.LLM(path, device=given["device"], max_batch=4, prefill_chunk=64,
                      graph=onegraph.GraphOptions(mode=mode)) as llm:
        for pooling in ("cls", "mean"):
            together = llm.embed(given["ids"], pooling=pooling)
            alone = [llm.embed(ids, pooling=pooling) for ids in given["ids"]]
            out[f"{mode} {pooling}"] = [v.tobytes().hex() for v in [*together, *alone]]
        try:
            llm.generate("tea")
        except onegraph.ArgumentError as e:
            out[f"{mode} said"] = str(e)
"""


@pytest.mark.parametrize(
    ("name", "mix"),
    [
        *(("bert", "Q8_0"), ("odd", "F16"), ("nomic-bert", "Q8_0")),
        *(("nomic-bert-moe", "Q8_0"), ("gemma-embedding", "Q8_0"), ("dense", "Q8_0")),
    ],
)
def test_a_card_gives_the_bits_of_the_cpu(
    tmp_path: Path, ksim_env: dict[str, str], name: str, mix: str
) -> None:
    path = write(tmp_path / "bert.gguf", name, mix, "cls")
    found = run_on(path, ksim_env, ON_CARD, device="cuda", ids=IDS)
    with LLM(path, device="cpu") as llm:
        for mode in ("full", "none"):
            assert "the model is an encoder" in found[f"{mode} said"]
            for pooling in ("cls", "mean"):
                wanted = [llm.embed(ids, pooling=pooling).tobytes().hex() for ids in IDS]
                assert found[f"{mode} {pooling}"] == wanted * 2


def test_a_text_is_one_pass_and_no_longer_than_the_context(path: Path, encoder: LLM) -> None:
    assert encoder.n_ctx == 200
    whole = [5] * 200
    assert encoder.embed(whole).shape == (256,)
    with pytest.raises(onegraph.ContextError, match="has 201 tokens, but the context holds 200"):
        encoder.embed([*whole, 5])
    text = "tea " * 300
    with pytest.raises(onegraph.ContextError, match="the text has 302 tokens"):
        encoder.embed(text)
    ids = encoder.tokenize(text)
    cut = encoder.embed(text, truncate=True)
    assert (cut == encoder.embed([*ids[:199], ids[-1]])).all()
    with LLM(path, device="cpu", n_ctx=64) as llm:
        assert (llm.embed(IDS[3]) == encoder.embed(IDS[3])).all()


def test_it_generates_nothing(encoder: LLM) -> None:
    said = "the model is an encoder, which cannot generate text; use embed"
    with pytest.raises(onegraph.ArgumentError, match=said):
        encoder.generate("tea")
    with pytest.raises(onegraph.ArgumentError, match=said):
        next(encoder.generate([5, 6], stream=True))
    with pytest.raises(onegraph.ArgumentError, match=said):
        encoder.logits([5, 6])
    with pytest.raises(onegraph.ModelError, match=said):
        encoder.chat([{"role": "user", "content": "tea"}])


@pytest.mark.parametrize("pooling", ["", "none", "mean", "cls"])
def test_where_the_file_names_no_pooling_it_is_the_mean(
    tmp_path: Path, pooling: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "bert.gguf", "odd", "F16", pooling)
    with LLM(path, device="cpu") as llm:
        assert llm.pooling == (pooling or None)
        wanted = "cls" if pooling == "cls" else "mean"
        assert (llm.embed("tea") == llm.embed("tea", pooling=wanted)).all()
    assert not caplog.records


def test_what_is_no_encoder_of_this_kind_is_refused(tmp_path: Path, tiny: Path) -> None:
    path = write(tmp_path / "bert.gguf", "odd", "F16", "", bert__rope__freq_base=1e4)
    with LLM(path, device="cpu") as llm:  # a key that says nothing here
        assert llm.embed("tea").shape == (96,)
    data = path.read_bytes()
    key = b"bert.attention.causal" + (7).to_bytes(4, "little")  # a key of type bool
    assert data.count(key + b"\0") == 1
    path.write_bytes(data.replace(key + b"\0", key + b"\1"))
    said = r"bert\.attention\.causal is true; expected false"
    with pytest.raises(onegraph.ModelError, match=said):
        LLM(path, device="cpu")
    with LLM(tiny, device="cpu") as llm:
        said = "pooling = cls: in this model, the first token sees no other"
        with pytest.raises(onegraph.ArgumentError, match=said):
            llm.embed("tea", pooling="cls")


def test_dense_layers_make_vectors_of_all_that_was_pooled(tmp_path: Path) -> None:
    shape = embedding_gemma.SHAPES["dense"]
    path = embedding_gemma.write(tmp_path / "dense.gguf", shape)
    exact = EmbeddingGemma(path)
    with LLM(path, device="cpu", kv_type="f32") as llm:
        found = llm.embed(IDS[3], dimensions=100)
        assert np.abs(found - exact.vector(IDS[3], "mean", 100)).max() < 5e-7
    for without, said in [
        ("dense_3", "a vector of 512 numbers behind it"),
        ("dense_2", r"dense_3\.weight: found the shape \[512, 256\], expected rows of 256"),
    ]:
        path = embedding_gemma.write(tmp_path / "half.gguf", shape, without=without)
        with pytest.raises(onegraph.ModelError, match=said):
            LLM(path, device="cpu")


def test_info_shows_an_encoder(path: Path) -> None:
    info = json.loads(_native.model_info(path))
    assert (info["pooling"], info["looks_ahead"], info["rope"]) == ("mean", True, None)
    assert info["error"] is None and info["memory"]["total_bytes"] > path.stat().st_size
