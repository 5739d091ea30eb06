"""How probable a text is that was there."""

import numpy as np
import pytest
from onegraph import LLM, ArgumentError, ContextError

TEXT = "The capital of France is Paris."


def test_scores_are_the_bits_that_generating_gives(smol: LLM) -> None:
    made = smol.generate(TEXT, max_tokens=6, temperature=0.0, logprobs=3)
    assert made.logprobs is not None
    ids = smol.tokenize(TEXT)
    scored = smol.score([*ids, *made.token_ids], top=3)
    assert [each.token_id for each in scored] == [*ids, *made.token_ids]
    for found, expected in zip(scored[len(ids) :], made.logprobs, strict=True):
        assert (found.logprob, found.top) == (expected.logprob, expected.top)
        assert found.text == expected.text and found.rank == 1


def test_scores_are_those_of_the_logits(llm: LLM) -> None:
    ids = llm.tokenize("some tea and toast")
    logits = llm.logits(ids).astype(np.float64)
    scored = llm.score(ids, top=5)
    first = scored[0]
    assert (first.token_id, first.logprob, first.rank, first.top) == (ids[0], None, None, ())
    for row, token, found in zip(logits, ids[1:], scored[1:], strict=False):
        log_softmax = row - row.max() - np.log(np.exp(row - row.max()).sum())
        assert found.logprob == pytest.approx(log_softmax[token], abs=1e-5)
        assert found.rank == 1 + int((row > row[token]).sum())
        assert [each.token_id for each in found.top] == [*np.argsort(-row, kind="stable")[:5]]


def test_several_texts_have_a_list_each_and_are_those_alone(llm: LLM) -> None:
    texts = ["tea", "some toast", "tea and toast"]
    assert llm.score(texts) == [llm.score(text) for text in texts]
    assert llm.score(llm.tokenize(texts[2])) == llm.score(texts[2])
    assert llm.score([[5]]) == [llm.score([5])] and len(llm.score([5])) == 1


def test_what_cannot_be_scored_is_named(llm: LLM) -> None:
    with pytest.raises(ArgumentError, match=r"top = 101: must be from 0 to 100"):
        llm.score("tea", top=101)
    with pytest.raises(ArgumentError, match="vocabulary"):
        llm.score([5, 10**6])
    with pytest.raises(ContextError, match=r"text\[1\]"):
        llm.score(["tea", "toast " * 2000])
