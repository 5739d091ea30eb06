"""States of layers behind drafts: whatever is accepted of them, texts are those of single steps."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import shapes
import synth
from onegraph import LLM, Result


@pytest.mark.parametrize("shape", ["tiny-qwen35", "tiny-llama-gqa"])
def test_as_many_drafts_are_accepted_as_was_set(tmp_path: Path, shape: str) -> None:
    path, known = tmp_path / "known.gguf", shapes.find(shape)
    synth.write(path, known, "Q4_K_M", seed=1, known=True)
    after = synth.followers(known)
    first, rounds = 100, 20
    with LLM(path, device="cpu", n_ctx=512, max_batch=1, progress=False) as llm:
        # A first draft on the CPU has up to three: more do not pay by what is known then.
        for right in range(4):
            prompt = synth.drafted(after, first, right, rounds)
            # The first token is the prompt's; a round gives one more than are right.
            options: dict[str, Any] = {"max_tokens": 1 + rounds // 2 * (right + 1), "seed": right}
            options |= {"prompt_lookup_num_tokens": max(right, 1), "ignore_eos": True}
            found = llm.generate(prompt, **options)
            expected = [first]
            while len(expected) <= len(found.token_ids):
                expected.append(int(after[expected[-1]]))
            assert found.token_ids == expected[1:]
            assert found.usage.accepted_tokens == rounds // 2 * right
            assert found.usage.drafted_tokens >= found.usage.accepted_tokens
            assert right == 0 or found.usage.drafted_tokens == found.usage.accepted_tokens


def numbers(found: Result) -> tuple[Any, ...]:
    return (found.text, found.token_ids, found.finish_reason, found.stop_reason, found.logprobs)


#: Requests of every kind that has a say in the next token; of three tokens, so that they repeat.
FEW = {"logit_bias": {token: math.inf for token in (60, 61, 62)}, "ignore_eos": True}
KINDS: list[dict[str, Any]] = [
    {"temperature": 0.0, **FEW},
    {"temperature": 1.0, "seed": 4, "logprobs": 2, **FEW},
    {"temperature": 1.0, "seed": 5, "frequency_penalty": 2.0, "repeat_last_n": 7, **FEW},
    {"temperature": 0.0, "frequency_penalty": 2.0, "repeat_penalty": 1.2, **FEW},
    {"temperature": 1.0, "seed": 6, "stop_token_ids": [61], **FEW},
    {"temperature": 1.0, "seed": 7, "regex": "(one, two, three; )+"},
]


@pytest.mark.parametrize(
    "shape", ["tiny-qwen35", "tiny-qwen35moe", "tiny-lfm2", "tiny-nemotron-h", "tiny-qwen4exp"]
)
def test_states_roll_back(tmp_path: Path, shape: str) -> None:
    path = tmp_path / "states.gguf"
    synth.write(path, shapes.find(shape), "Q8_0", seed=1)
    prompt = [60, 61, 62, 60, 61, 62, 60, 61, 9, 60, 61]
    kinds = [{"max_tokens": 60} | kind for kind in KINDS]
    load: dict[str, Any] = {"device": "cpu", "n_ctx": 192, "max_batch": 6, "progress": False}
    with LLM(path, **load) as llm:
        plain = [llm.generate(prompt, **kind) for kind in kinds]
        lookups = [kind | {"prompt_lookup_num_tokens": 7} for kind in kinds]
        drafted = [llm.generate(prompt, **kind) for kind in lookups]
        for a, b in zip(plain, drafted, strict=True):
            assert numbers(a) == numbers(b)
        accepted = sum(b.usage.accepted_tokens for b in drafted)
        assert accepted > 20
        # Drafted or not, side by side, one of them given up early.
        mixed = [lookups[i] if i % 3 else kinds[i] for i in range(len(kinds))]
        streams = [llm.generate(prompt, stream=True, **kind) for kind in mixed]
        streams[1].close()
        for i, stream in enumerate(streams):
            found = [token for piece in stream for token in piece.token_ids]
            assert found == list(plain[i].token_ids)[: len(found)]
            assert i == 1 or len(found) == len(plain[i].token_ids)
        # An answer's state serves the next turn.
        turn = prompt + list(drafted[2].token_ids) + [5, 6, 60, 61]
        kept = llm.generate(turn, **lookups[2])
    with LLM(path, prefix_cache=False, **load) as llm:
        fresh = llm.generate(turn, **kinds[2])
    assert kept.usage.cached_tokens > len(prompt)
    assert numbers(fresh) == numbers(kept)
