"""`prompt_lookup_num_tokens`: drafts from the text itself change the time and nothing else."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import onegraph
import pytest
from onegraph import LLM, Result

pytestmark = pytest.mark.thorough

CODE = """\
def mean(values):
    return sum(values) / len(values)


def spread(values):
    return max(values) - min(values)
"""
EDIT = f"Rename `values` to `items`.\n\nBefore:\n\n{CODE}\nAfter:\n\ndef mean(items):\n"


def same(a: Result, b: Result) -> bool:
    return (a.text, a.token_ids, a.finish_reason, a.stop_reason, a.logprobs) == (
        *(b.text, b.token_ids, b.finish_reason),
        *(b.stop_reason, b.logprobs),
    )


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.0},
        {"temperature": 0.7, "seed": 4, "logprobs": 2},
        {"temperature": 0.7, "seed": 5, "repeat_penalty": 0.85, "repeat_last_n": 20},
        {"temperature": 0.0, "stop": ["min("]},
    ],
    ids=["greedy", "drawn", "penalized", "stopped"],
)
def test_an_edit_of_code_is_the_same_in_fewer_steps(smol: LLM, sampling: dict[str, Any]) -> None:
    options = {"max_tokens": 48, "ignore_eos": True, **sampling}
    plain = smol.generate(EDIT, **options)
    drafted = smol.generate(EDIT, prompt_lookup_num_tokens=7, **options)
    assert same(plain, drafted), (plain, drafted)
    assert (plain.usage.drafted_tokens, plain.usage.accepted_tokens) == (0, 0)
    usage = drafted.usage
    assert usage.completion_tokens > usage.accepted_tokens > 4
    assert usage.drafted_tokens >= usage.accepted_tokens


def test_pieces_of_a_stream_come_one_by_one_and_in_order(smol: LLM) -> None:
    options: dict[str, Any] = {"max_tokens": 40, "temperature": 0, "prompt_lookup_num_tokens": 31}
    whole = smol.generate(EDIT, **options)
    stream = smol.generate(EDIT, stream=True, **options)
    pieces = list(stream)
    assert "".join(piece.text for piece in pieces) == whole.text
    assert [i for piece in pieces for i in piece.token_ids] == whole.token_ids
    assert all(len(piece.token_ids) <= 1 for piece in pieces)


def test_a_batch_may_be_mixed(smol: LLM) -> None:
    prompts = [EDIT, "Once upon a time", EDIT + "    return", "1, 2, 3, 1, 2, 3, 1, 2,"]
    options: dict[str, Any] = {"max_tokens": 30, "temperature": 0.5, "seed": 2, "ignore_eos": True}
    alone = [smol.generate(prompt, **options) for prompt in prompts]
    streams = [
        smol.generate(prompt, stream=True, prompt_lookup_num_tokens=9 * (i % 2 == 0), **options)
        for i, prompt in enumerate(prompts)
    ]
    found = ["".join(piece.text for piece in stream) for stream in streams]
    assert found == [result.text for result in alone]


def test_ten_thousand_tokens_are_the_same(llm: LLM) -> None:
    # Of three tokens, so that much repeats itself, and of all.
    few = {token: math.inf for token in (5, 9, 60)}
    accepted = equal = 0
    for bias, n in ((few, 13), (None, 12)):
        prompts = [[5, 9, 60 + i, 5, 9] for i in range(n)]
        options: dict[str, Any] = {"max_tokens": 400, "seed": 6, "ignore_eos": True}
        plain, drafted = (
            llm.generate(prompts, logit_bias=bias, prompt_lookup_num_tokens=most, **options)
            for most in (0, 7)
        )
        assert [one.text for one in plain] == [one.text for one in drafted]
        for a, b in zip(plain, drafted, strict=True):
            equal += sum(x == y for x, y in zip(a.token_ids, b.token_ids, strict=True))
            accepted += b.usage.accepted_tokens
    assert equal == 10_000 and accepted > 200, accepted


def test_what_was_drafted_is_counted(smollm2: Path) -> None:
    with LLM(smollm2, device="cpu", n_ctx=512, max_batch=1) as llm:
        sampling = onegraph.Sampling(temperature=0, max_tokens=40, prompt_lookup_num_tokens=5)
        results = [llm.generate(EDIT, sampling=sampling) for _ in range(2)]
        stats = llm.stats()
        assert stats.drafted_tokens == sum(r.usage.drafted_tokens for r in results) > 0
        assert stats.accepted_tokens == sum(r.usage.accepted_tokens for r in results) > 0
