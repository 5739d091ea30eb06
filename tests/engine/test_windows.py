"""Layers that see a window: a sequence has pages for what its next tokens see, and no others."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import shapes
import synth
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onegraph import LLM, _native
from support.prompts import words

pytestmark = pytest.mark.thorough

LOAD: dict[str, Any] = {"device": "cpu", "threads": 1, "progress": False}


def info(path: Path, **options: Any) -> Any:
    return json.loads(_native.model_info(path, device="cpu", **options))


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five layers that see 48 tokens, and one that sees all."""
    path = tmp_path_factory.mktemp("models") / "gemma3.gguf"
    synth.write(path, shapes.find("tiny-gemma3"), "Q8_0", seed=1)
    return path


@pytest.fixture(scope="module")
def alone(gemma: Path) -> Iterator[LLM]:
    with LLM(gemma, max_batch=1, prefix_cache=False, **LOAD) as llm:
        yield llm


@pytest.fixture(scope="module")
def crowded(gemma: Path) -> Iterator[LLM]:
    """A host's memory of a few pages, so that what is evicted is dropped there sooner or later."""
    with LLM(gemma, max_batch=3, prefix_host_bytes=1 << 20, **LOAD) as llm:
        yield llm


Request = tuple[int, int, int, int, bool, int]
requests = st.tuples(
    st.integers(0, 2),
    st.integers(0, 250),
    st.integers(1, 120),
    st.integers(1, 90),
    st.booleans(),
    st.integers(-1, 40),
)


def ask(llm: LLM, request: Request) -> tuple[list[int], list[float]]:
    """What a request gives, up to where it is left."""
    text, begins, ends, most, drafts, leaves = request
    # Some begin alike, and repeat themselves, so that there is something to draft.
    prompt = words(begins, text) + words(max(ends // 3, 1), begins) * 3
    options: dict[str, Any] = {"temperature": 0.7, "seed": text, "ignore_eos": True, "logprobs": 1}
    if drafts:
        options["prompt_lookup_num_tokens"] = 8
    tokens: list[int] = []
    logprobs: list[float] = []
    with llm.generate(prompt, stream=True, max_tokens=most, **options) as stream:
        for piece in stream:
            tokens += piece.token_ids
            logprobs += [token.logprob for token in piece.logprobs or []]
            if 0 <= leaves <= len(tokens):
                break
    return tokens, logprobs


known: dict[Request, tuple[list[int], list[float]]] = {}


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(together=st.lists(requests, min_size=1, max_size=7))
def test_requests_that_come_and_go_are_each_as_alone(
    alone: LLM, crowded: LLM, together: list[Request]
) -> None:
    """Longer than the window, some left before their end, some with drafts, some that begin alike:
    nobody's tokens depend on the others, and in the end every page is there."""
    with ThreadPoolExecutor(len(together)) as threads:
        found = list(threads.map(lambda request: ask(crowded, request), together))
    for request, (tokens, logprobs) in zip(together, found, strict=True):
        whole = (*request[:4], False, -1)
        if whole not in known:
            known[whole] = ask(alone, whole)
        n = len(tokens)
        assert (tokens, logprobs) == (known[whole][0][:n], known[whole][1][:n])
        assert n == len(known[whole][0]) or 0 <= request[5] <= n
    # A slot is free before its caller can know; a request that was left, soon after.
    crowded.generate(words(5, 9), max_tokens=1)
    pages = crowded.stats().window_pages
    assert pages.total == 3 * 3 + 8
    if crowded.stats().running == 0:
        assert (pages.sequences, pages.free + pages.prefixes) == (0, pages.total)


def test_a_prompt_is_known_where_texts_part(gemma: Path, alone: LLM) -> None:
    """The pages of the last window stay with a prompt, and with the place where two have parted."""
    system = words(300, 0)
    with LLM(gemma, max_batch=2, **LOAD) as llm:

        def cached(prompt: list[int]) -> int:
            options: dict[str, Any] = {"max_tokens": 5, "temperature": 0.0, "ignore_eos": True}
            found = llm.generate(prompt, **options)
            assert found.token_ids == alone.generate(prompt, **options).token_ids
            return found.usage.cached_tokens

        assert cached(system + words(9, 1)) == 0
        assert cached(system + words(9, 1)) == 308
        # Where the texts part.
        assert cached(system + words(9, 2)) == 300
        # Texts that take what room there is.
        for seed in range(10, 14):
            assert cached(words(400, seed)) == 0
        assert cached(system + words(9, 3)) == 300


@pytest.mark.parametrize(
    ("name", "n_ctx", "max_batch", "whole", "windowed", "pages", "times"),
    [
        # Of the window of 512 tokens 8 pages, one before it and one for the next tokens, a
        # sequence; and 8 pages for a chunk of a prompt.
        ("gemma-3-270m", 32768, 8, 3, 15, 8 * 10 + 8, 5),
        ("gemma-3-270m", 8192, 1, 3, 15, 10 + 8, 3),
        ("gemma-3-27b", 131072, 1, 10, 52, 18 + 8, 5),
        ("gemma-3-27b", 8192, 4, 10, 52, 4 * 18 + 8, 3),
    ],
)
def test_layers_with_a_window_take_what_they_see(
    tmp_path: Path,
    name: str,
    n_ctx: int,
    max_batch: int,
    whole: int,
    windowed: int,
    pages: int,
    times: int,
) -> None:
    """The memory before and after, of true shapes."""
    path = tmp_path / "model.gguf"
    synth.outline(path, shapes.find(name), "Q8_0")
    found = info(path, n_ctx=n_ctx, max_batch=max_batch)
    memory, per_token = found["memory"], found["decode"]["kv_bytes_per_position"]
    of_layer = per_token // (whole + windowed)
    all_pages = max_batch * n_ctx // 64 + 1
    windows = memory["windows"]
    assert (windows["n_layer"], windows["pages"]) == (windowed, pages + 1)
    assert windows["bytes"] == (pages + 1) * 64 * windowed * of_layer
    assert windows["kv_bytes_without"] == all_pages * 64 * per_token
    assert memory["kv_bytes"] == all_pages * 64 * whole * of_layer + windows["bytes"]
    assert memory["kv_bytes"] * times <= windows["kv_bytes_without"]


def test_a_model_whose_layers_see_alike_has_one_kind_of_pages(tiny: Path) -> None:
    assert info(tiny)["memory"]["windows"] is None
    with LLM(tiny, max_batch=1, **LOAD) as llm:
        assert llm.stats().window_pages.total == 0
