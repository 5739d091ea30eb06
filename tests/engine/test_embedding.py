"""Texts as vectors: against an independent pass, llama.cpp, themselves in other company, and what
is refused."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import onegraph
import pytest
import shapes
import synth
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onegraph import LLM
from support.card_process import run_on
from support.reference import Reference

pytestmark = pytest.mark.thorough

Vectors = NDArray[Any]

EMBEDDING = "tiny-qwen3-embedding"

#: Shapes whose last norm, head or layers are unlike, beside that of Qwen3-Embedding.
OTHERS = ["tiny-llama", "tiny-gemma3", "tiny-granite", "tiny-lfm2", "tiny-qwen35", "tiny-cohere2"]
OTHERS += ["odd-llama-96"]

#: Token ids of texts of several lengths; some cross a page of the cache, or a pass of 512 rows.
IDS = [[(7 * i + n * n) % 500 + 3 for i in range(n)] for n in (1, 2, 17, 64, 65, 300)]


def write(folder: Path, name: str, mix: str, pooling: str) -> Path:
    path = folder / f"{name}-{mix}-{pooling or 'unsaid'}.gguf"
    synth.write(path, dataclasses.replace(shapes.find(name), pooling=pooling), mix, seed=3)
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("embedding"), EMBEDDING, "Q8_0", "last")


@pytest.fixture(scope="module")
def embedder(path: Path) -> Iterator[LLM]:
    with LLM(path, device="cpu", max_batch=3) as llm:
        yield llm


def pooled(states: Vectors, pooling: str) -> Vectors:
    """The definition, in NumPy."""
    vector = states[-1] if pooling == "last" else states.mean(axis=0)
    return vector / np.linalg.norm(vector)


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize("mix", ["F16", "Q8_0", "Q4_K_M"])
def test_vectors_are_those_of_an_independent_pass(tmp_path: Path, mix: str, pooling: str) -> None:
    path = write(tmp_path, EMBEDDING, mix, pooling)
    reference = Reference(path)
    wanted = [pooled(reference.hidden(ids), pooling) for ids in IDS]
    # What is multiplied with integers keeps 11 bits; then keys and values as they are, and in the
    # cache's default type.
    of_products = 0.0 if mix == "F16" else 1e-3
    for kv_type, far in (("f32", 2e-6), ("i16", 2e-4)):
        with LLM(path, device="cpu", kv_type=kv_type) as llm:
            assert (llm.pooling, llm.n_embd) == (pooling, 256)
            found = llm.embed(IDS)
        assert (found.dtype, found.shape) == (np.float32, (len(IDS), 256))
        assert np.abs(found - wanted).max() < max(far, of_products)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1.0, atol=1e-6)


@pytest.mark.parametrize("name", OTHERS)
def test_any_model_embeds(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, name, "Q8_0", "")
    reference = Reference(path)
    ids = [[i % 250 for i in text[:120]] for text in IDS]
    with LLM(path, device="cpu", kv_type="f32") as llm:
        assert llm.pooling is None
        for pooling in ("last", "mean"):
            wanted = [pooled(reference.hidden(text), pooling) for text in ids]
            # Products of Q8_0 keep 11 bits of what they multiply.
            assert np.abs(llm.embed(ids, pooling=pooling) - wanted).max() < 2e-3
        # A file that says nothing: the state that has seen the whole text.
        assert (llm.embed(ids) == llm.embed(ids, pooling="last")).all()


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize(("mix", "far"), [("F16", 2e-3), ("Q8_0", 2e-2)])
def test_agrees_with_llama_cpp(tmp_path: Path, mix: str, far: float, pooling: str) -> None:
    """Texts too: which tokens a text begins and ends with is a part of it. With halves it rounds
    what they multiply to halves, and to 8 bits with Q8_0."""
    path = write(tmp_path, EMBEDDING, mix, pooling)
    texts: list[Any] = ["tea", "The sky is blue\nwhy?", "\N{SNOWMAN} né", *IDS]
    xllamacpp = pytest.importorskip("xllamacpp", reason="llama.cpp, of the extra [test]")
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx = 512
    params.n_parallel = 1
    params.port = 0
    params.warmup = False
    params.embedding = True
    server = xllamacpp.Server(params)
    with LLM(path, device="cpu") as llm:
        for text in texts:
            answer: Any = server.handle_embeddings({"input": text})
            answer = json.loads(answer) if isinstance(answer, str) else answer
            n = len(llm.tokenize(text) if isinstance(text, str) else text)
            assert answer["usage"]["prompt_tokens"] == n
            wanted = np.array(answer["data"][0]["embedding"])
            assert 1 - wanted @ llm.embed(text) < far


def test_a_text_ends_with_the_token_that_the_file_names(embedder: LLM) -> None:
    end = embedder.tokenizer.eos_id
    ids = embedder.tokenize("tea")
    assert end is not None and ids[-1] == end == 0
    assert embedder.tokenize("") == [end]
    assert (embedder.embed("tea") == embedder.embed(ids)).all()
    assert (embedder.embed("tea") != embedder.embed(ids[:-1])).any()
    # Who writes it into a text writes letters.
    assert (embedder.embed("tea<|endoftext|>") != embedder.embed(ids)).any()


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.lists(st.integers(0, 511), min_size=1, max_size=90)
        | st.text(st.characters(codec="utf-8"), max_size=40),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from(["last", "mean"]),
)
def test_a_list_gives_the_bits_of_each_text_alone(
    embedder: LLM, texts: list[Any], pooling: str
) -> None:
    kept: list[Any] = [text for text in texts if isinstance(text, str)]
    for batch in (kept, [text for text in texts if not isinstance(text, str)]):
        if batch:
            together = embedder.embed(batch, pooling=pooling)
            alone = [embedder.embed(text, pooling=pooling) for text in batch]
            assert (together == np.stack(alone)).all()


def test_neither_company_nor_what_is_kept_changes_a_bit(embedder: LLM) -> None:
    long = [3 + i % 400 for i in range(500)]
    alone = embedder.embed(long, pooling="mean")
    stream = embedder.generate("go on", max_tokens=200, ignore_eos=True, stream=True)
    next(stream)
    assert (embedder.embed([long, long], pooling="mean") == alone).all()
    stream.close()
    # Keys and values that a prompt left are not taken: no hidden state comes with them.
    embedder.generate(long[:480], max_tokens=1)
    assert (embedder.embed(long, pooling="mean") == alone).all()
    text = embedder.generate(long[:100], max_tokens=8, temperature=0.0)
    assert text.token_ids == embedder.generate(long[:100], max_tokens=8, temperature=0.0).token_ids


def test_one_thread_and_several_give_the_same_bits(path: Path, embedder: LLM) -> None:
    with LLM(path, device="cpu", threads=1, max_batch=1) as one:
        for pooling in ("last", "mean"):
            wanted = embedder.embed(IDS, pooling=pooling)
            assert (one.embed(IDS, pooling=pooling) == wanted).all()


ON_CARD = """
for chunk, graph in given["ways"]:
    with onegraph.LLM(path, device=given["device"], n_ctx=256, max_batch=2, prefill_chunk=chunk,
                      graph=onegraph.GraphOptions(mode=graph)) as llm:
        for pooling in ("last", "mean"):
            for ids in given["ids"]:
                made = llm.embed(ids, pooling=pooling)
                out.setdefault(f"{chunk} {graph} {pooling}", []).append(made.tobytes().hex())
"""


@pytest.mark.parametrize(
    ("name", "ways"),
    [(EMBEDDING, [(64, "full"), (128, "none")]), ("tiny-lfm2", [(64, "full")])],
)
def test_a_card_gives_the_bits_of_the_cpu(
    tmp_path: Path, ksim_env: dict[str, str], name: str, ways: list[tuple[int, str]]
) -> None:
    """Cut in chunks of 64 rows, padded ones too, and whole; launch by launch and, from a chunk's
    third run on, as a graph."""
    path = write(tmp_path, name, "Q8_0", "last")
    ids = [[i % 250 for i in IDS[5][:n]] for n in (3, 65, 70, 100)]
    found = run_on(path, ksim_env, ON_CARD, device="cuda", ids=ids, ways=ways)
    assert len(found) == 2 * len(ways)
    with LLM(path, device="cpu", n_ctx=256) as llm:
        for way, vectors in found.items():
            pooling = way.split()[-1]
            wanted = [llm.embed(text, pooling=pooling).tobytes().hex() for text in ids]
            assert vectors == wanted, way


def test_dimensions_are_the_first_ones_at_length_one(embedder: LLM) -> None:
    raw = embedder.embed("tea", normalize=False).astype(np.float64)
    for n in (1, 100, 256):
        cut = raw[:n] / np.linalg.norm(raw[:n])
        assert np.abs(embedder.embed("tea", dimensions=n) - cut).max() < 1e-7
        assert (embedder.embed("tea", dimensions=n, normalize=False) == raw[:n]).all()


def test_truncate_leaves_the_end_of_a_text_out_but_not_its_last_token(path: Path) -> None:
    with LLM(path, device="cpu", n_ctx=64) as llm:
        text = "tea and toast " * 40
        ids = llm.tokenize(text)
        assert len(ids) > 64
        cut = llm.embed(text, truncate=True)
        assert (cut == llm.embed([*ids[:63], ids[-1]])).all()
        # Token ids are taken as they are.
        assert (llm.embed(ids, truncate=True) == llm.embed(ids[:64])).all()
        assert (llm.embed("tea", truncate=True) == llm.embed("tea")).all()
        with pytest.raises(
            onegraph.ContextError, match=r"the text has \d+ tokens, but the context"
        ):
            llm.embed(text)
        said = (
            rf"text\[1\]: the text has {len(ids)} tokens, but the context holds 64; shorten it by"
        )
        with pytest.raises(onegraph.ContextError, match=said) as error:
            llm.embed(["tea", text])
        assert f"or load with n_ctx >= {len(ids)}" in str(error.value)


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ([], {}, r"text = \[\]: "),
        ([[]], {}, r"text\[0\] = no token: "),
        ([1, 9999], {}, "text = token 9999: the vocabulary has 512 tokens"),
        (["tea", [1, 9999]], {}, r"text\[1\] = token 9999"),
        (["tea", 3], {}, "text: tokens and texts are mixed"),
        (5, {}, "text = 5: "),
        ("tea", {"pooling": "max"}, 'pooling = "max": must be last, mean or cls'),
        ("tea", {"pooling": 3}, "pooling = 3: "),
        ("tea", {"dimensions": 0}, "dimensions = 0: must be from 1 to 256"),
        ("tea", {"dimensions": 257}, "dimensions = 257: must be from 1 to 256"),
        ("tea", {"dimensions": -1}, "dimensions = -1: "),
        ("tea", {"normalize": "no"}, "normalize = 'no': "),
        ("tea", {"priority": 1000}, "priority = 1000: "),
    ],
)
def test_what_is_wrong_is_named(
    embedder: LLM, text: Any, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(onegraph.ArgumentError, match=said):
        embedder.embed(text, **options)
    with pytest.raises(onegraph.ArgumentError, match=said):
        asyncio.run(embedder.aembed(text, **options))


@pytest.mark.parametrize(("number", "name"), [(2, "cls"), (4, "rank")])
def test_a_pooling_that_is_not_made_is_refused_by_name(
    tmp_path: Path, path: Path, number: int, name: str
) -> None:
    key = b"qwen3.pooling_type" + (4).to_bytes(4, "little")  # a key of type u32
    data = path.read_bytes()
    assert gguf.PoolingType(3).name == "LAST" and data.count(key + (3).to_bytes(4, "little")) == 1
    other = tmp_path / "other.gguf"
    other.write_bytes(
        data.replace(key + (3).to_bytes(4, "little"), key + number.to_bytes(4, "little"))
    )
    with LLM(other, device="cpu") as llm:
        assert llm.pooling == name
        with pytest.raises(onegraph.ArgumentError, match=f'pooling = {name}: .*pooling="last"'):
            llm.embed("tea")
        assert llm.embed("tea", pooling="last").shape == (256,)
    other.write_bytes(
        data.replace(key + (3).to_bytes(4, "little"), key + (9).to_bytes(4, "little"))
    )
    with pytest.raises(onegraph.ModelError, match=r"qwen3\.pooling_type is 9; expected 0 to 4"):
        LLM(other, device="cpu")


def test_asyncio_gives_the_same_and_leaves_the_loop_free(embedder: LLM) -> None:
    texts = [f"text {i}" for i in range(40)]

    async def run() -> tuple[Vectors, Vectors, list[Vectors]]:
        several = asyncio.gather(*(embedder.aembed(text) for text in texts[:5]))
        return await embedder.aembed(texts), await embedder.aembed("tea"), await several

    many, one, several = asyncio.run(run())
    assert (many == embedder.embed(texts)).all()
    assert (one == embedder.embed("tea")).all() and one.shape == (256,)
    assert (np.stack(several) == many[:5]).all()


def test_a_task_that_is_cancelled_takes_its_texts_along(embedder: LLM) -> None:
    long = [[3 + (i + j) % 400 for i in range(500)] for j in range(50)]

    async def run() -> None:
        task = asyncio.create_task(embedder.aembed(long, pooling="mean"))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(embedder.aembed("tea"), 60)

    asyncio.run(run())
    stats = embedder.stats()
    assert (stats.queued, stats.running) == (0, 0)


def test_a_list_longer_than_the_queue_tells_how_far_it_is(embedder: LLM) -> None:
    told: list[tuple[str, int, int | None]] = []
    texts = [[3 + i % 500] for i in range(600)]
    found = embedder.embed(texts, progress=lambda *now: told.append(now))
    assert found.shape == (600, 256)
    assert [done for _, done, _ in told] == list(range(601))
    assert {(stage, total) for stage, _, total in told} == {("embed", 600)}


def test_a_closed_model_says_so(path: Path) -> None:
    llm = LLM(path, device="cpu")
    llm.close()
    with pytest.raises(onegraph.ClosedError):
        llm.embed("tea")


def test_info_says_how_a_model_pools(path: Path, tiny: Path) -> None:
    from onegraph import _native

    def said(of: Path) -> Any:
        return json.loads(_native.model_info(of))["pooling"]

    assert (said(path), said(tiny)) == ("last", None)
