"""Vectors over HTTP, by the clients that programs use."""

from __future__ import annotations

import base64
import dataclasses
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import ollama
import openai
import pytest
import shapes
import synth
from onegraph import LLM
from onegraph.server import asgi
from support.serving import Served, http, serving

TEXTS = ["tea", "The sky is blue", "toast and tea"]
IDS = [[5, 6, 7], [8], [9, 10]]


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path = tmp_path_factory.mktemp("embedding") / "embedding.gguf"
    synth.write(path, shapes.find("tiny-qwen3-embedding"), "Q8_0", seed=3)
    with LLM(path, device="cpu", max_batch=2) as llm:
        yield llm


@pytest.fixture(scope="module")
def served(embedder: LLM, llm: LLM) -> Iterator[Served]:
    with serving(asgi({"embedding": embedder, "tiny": llm}, max_queue=64)) as served:
        yield served


@pytest.fixture(scope="module")
def by_openai(served: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="any", max_retries=0)


@pytest.fixture(scope="module")
def by_ollama(served: Served) -> ollama.Client:
    return ollama.Client(served.url)


@pytest.mark.parametrize("form", [None, "float", "base64"])
@pytest.mark.parametrize("given", ["tea", TEXTS, IDS[0], IDS], ids=["text", "texts", "ids", "many"])
def test_openai(by_openai: openai.OpenAI, embedder: LLM, given: Any, form: Any) -> None:
    """The bits of `LLM.embed` come through either form."""
    asked = {} if form is None else {"encoding_format": form}
    made = by_openai.embeddings.create(model="embedding", input=given, **asked)
    wanted = np.atleast_2d(embedder.embed(given))
    found: list[Any] = [each.embedding for each in made.data]
    if form == "base64":
        found = [np.frombuffer(base64.b64decode(each), "<f4") for each in found]
    assert (np.array(found, np.float32) == wanted).all()
    assert [each.index for each in made.data] == list(range(len(wanted)))
    assert (made.model, made.object, made.data[0].object) == ("embedding", "list", "embedding")
    several = given if isinstance(given[0], str | list) and not isinstance(given, str) else [given]
    n = sum(len(embedder.tokenize(each) if isinstance(each, str) else each) for each in several)
    assert (made.usage.prompt_tokens, made.usage.total_tokens) == (n, n)


def test_openai_dimensions(by_openai: openai.OpenAI, embedder: LLM) -> None:
    made = by_openai.embeddings.create(model="embedding", input="tea", dimensions=64)
    found = np.array(made.data[0].embedding, np.float32)
    assert (found == embedder.embed("tea", dimensions=64)).all()


def test_a_model_that_talks_embeds_too(by_openai: openai.OpenAI, llm: LLM) -> None:
    made = by_openai.embeddings.create(model="tiny", input="tea")
    assert (np.array(made.data[0].embedding, np.float32) == llm.embed("tea")).all()


@pytest.mark.parametrize(
    ("body", "field", "said"),
    [
        ({}, "input", "input: missing"),
        ({"input": ""}, "input", "input = no token: "),
        ({"input": []}, "input", "must be a string, token ids, or a list of strings"),
        ({"input": 5}, "input", "input = 5: "),
        ({"input": ["tea", ""]}, "input[1]", "input[1] = no token: "),
        ({"input": ["tea", 5]}, "input[1]", "input[1] = 5: must be a string or token ids"),
        ({"input": [[1, True]]}, "input[0]", "must be a string or token ids"),
        ({"input": [True]}, "input[0]", "input[0] = True: must be a string or token ids"),
        ({"input": [1, 9999]}, "input", "token 9999: the vocabulary has 512 tokens"),
        ({"input": "tea", "dimensions": 0}, "dimensions", "must be from 1 to 256"),
        ({"input": "tea", "dimensions": 300}, "dimensions", "must be from 1 to 256"),
        ({"input": "tea", "dimensions": "x"}, "dimensions", "must be an integer"),
        ({"input": "tea", "encoding_format": "int8"}, "encoding_format", '"float" or "base64"'),
        ({"input": ["tea"] * 2049}, "input", "2049 texts; the limit is 2048"),
    ],
)
def test_openai_errors_name_the_field(
    served: Served, body: dict[str, Any], field: str, said: str
) -> None:
    # Its texts end with no token of their own, so that an empty one has none.
    status, answer = served.post("/v1/embeddings", {"model": "embedding", **body})
    if said.endswith("no token: "):
        status, answer = served.post("/v1/embeddings", {"model": "tiny", **body})
    assert (status, answer["error"]["param"]) == (400, field), answer
    assert said in answer["error"]["message"]


def test_a_text_beyond_the_context(served: Served, embedder: LLM, by_ollama: ollama.Client) -> None:
    long = "tea and toast " * 300
    status, answer = served.post("/v1/embeddings", {"model": "embedding", "input": long})
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
    assert answer["error"]["param"] == "input"
    assert "the context holds 512" in answer["error"]["message"]
    cut = embedder.embed(long, truncate=True)
    status, answer = served.post(
        "/v1/embeddings", {"model": "embedding", "input": long, "truncate": True}
    )
    assert (np.array(answer["data"][0]["embedding"], np.float32) == cut).all()
    # ollama cuts unless it is told not to.
    made = by_ollama.embed("embedding", long)
    assert (np.array(made.embeddings[0], np.float32) == cut).all()
    assert made.prompt_eval_count == 512
    with pytest.raises(ollama.ResponseError, match="the context holds 512") as refused:
        by_ollama.embed("embedding", long, truncate=False)
    assert refused.value.status_code == 400


def test_ollama(by_ollama: ollama.Client, embedder: LLM) -> None:
    made = by_ollama.embed("embedding", TEXTS)
    assert (np.array(made.embeddings, np.float32) == embedder.embed(TEXTS)).all()
    assert made.model == "embedding"
    assert made.prompt_eval_count == sum(len(embedder.tokenize(text)) for text in TEXTS)
    assert made.total_duration is not None and made.load_duration is not None
    assert 0 <= made.load_duration < made.total_duration < 600e9
    one = by_ollama.embed("embedding:latest", "tea", dimensions=32)
    wanted = embedder.embed("tea", dimensions=32)
    assert (np.array(one.embeddings, np.float32) == wanted[None]).all()
    assert one.model == "embedding:latest"
    assert list(by_ollama.embed("embedding", "").embeddings) == []
    assert list(by_ollama.embed("embedding", []).embeddings) == []


def test_what_ollama_had_before_gives_vectors_of_any_length(
    by_ollama: ollama.Client, embedder: LLM, served: Served
) -> None:
    made = by_ollama.embeddings("embedding", "tea")
    found = np.array(made.embedding, np.float32)
    assert (found == embedder.embed("tea", normalize=False)).all()
    assert np.linalg.norm(found) > 2
    assert list(by_ollama.embeddings("embedding", "").embedding) == []
    assert set(served.post("/api/embeddings", {"prompt": "tea"})[1]) == {"embedding"}


def test_ollama_errors(served: Served, by_ollama: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="dimensions = 257: must be from 1 to 256"):
        by_ollama.embed("embedding", "tea", dimensions=257)
    status, answer = served.post("/api/embed", {"model": "embedding", "input": [[1, 2]]})
    assert status == 400 and "must be a string or a list of strings" in answer["error"]
    assert served.post("/api/embed", {"model": "nothing", "input": "tea"})[0] == 404


def test_ollama_shows_what_a_model_is_for(by_ollama: ollama.Client) -> None:
    assert by_ollama.show("embedding").capabilities == ["embedding"]
    assert "completion" in (by_ollama.show("tiny").capabilities or [])


def test_a_client_that_leaves_takes_its_texts_along(served: Served, embedder: LLM) -> None:
    body = {"model": "embedding", "input": [[3 + i % 500 for i in range(500)]] * 200}
    for _ in range(4):
        with served.connect() as connection:
            connection.sendall(http("/v1/embeddings", body, content_type="application/json"))
            connection.settimeout(0.2)
            with pytest.raises(socket.timeout):
                connection.recv(1)
    status, _ = served.post("/v1/embeddings", {"model": "embedding", "input": "tea"})
    assert status == 200
    assert embedder.stats().running == 0


def test_rerank(tmp_path: Path) -> None:
    """As Jina, Cohere and llama.cpp have it, with the bits of `LLM.rank`."""
    shape = dataclasses.replace(shapes.find("tiny-qwen3-embedding"), pooling="rank")
    synth.write(tmp_path / "rank.gguf", shape, "Q8_0", seed=3)
    with LLM(tmp_path / "rank.gguf", device="cpu", max_batch=2) as ranker:
        scores = ranker.rank("a drink", TEXTS)
        order = np.argsort(-scores, kind="stable").tolist()
        asked = {"query": "a drink", "documents": TEXTS}
        with serving(asgi({"rank": ranker})) as served:
            for at in ("/v1/rerank", "/rerank", "/v2/rerank", "/v1/reranking"):
                status, answer = served.post(at, asked)
                assert status == 200
                assert [each["index"] for each in answer["results"]] == order
                found = [each["relevance_score"] for each in answer["results"]]
                assert (np.array(found, np.float32) == scores[order]).all()
                assert (answer["object"], answer["model"]) == ("list", "rank")
                assert answer["usage"]["prompt_tokens"] > 0
            objects = [{"text": text} for text in TEXTS]
            more = {"documents": objects, "top_n": 2, "return_documents": True}
            status, answer = served.post("/v1/rerank", asked | more)
            shown = [each["document"] for each in answer["results"]]
            assert shown == [{"text": TEXTS[i]} for i in order[:2]]
            for body, said in [
                ({"query": "tea"}, "documents: missing"),
                ({"documents": TEXTS}, "query: missing"),
                (asked | {"documents": []}, "documents"),
                (asked | {"documents": ["tea", 3]}, "documents[1]"),
                (asked | {"top_n": 0}, "top_n"),
                (asked | {"documents": ["tea " * 600]}, "documents[0]: the text has"),
            ]:
                status, answer = served.post("/v1/rerank", body)
                assert (status, said in answer["error"]["message"]) == (400, True)
