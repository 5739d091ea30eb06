"""Tokens that `generate` draws, against the sampler's specification written again in float64."""

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import shapes
import synth
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onegraph import LLM

N_TOKENS = 40
MASK = 0xFFFFFFFF


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    synth.write(path, shapes.find("tiny-llama"), "F16", seed=2)
    with LLM(path, device="cpu", max_batch=4) as llm:
        yield llm


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x32-10, Salmon et al. 2011."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        a, b = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & MASK, (a >> 32) ^ c3 ^ k1, a & MASK
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return [c0, c1, c2, c3]


def gumbel(seed: int, index: int, n: int) -> NDArray[np.float64]:
    key = [seed & MASK, seed >> 32]
    words = [w for group in range((n + 3) // 4) for w in philox([group, index, 0, 0], key)]
    complement = (MASK - np.array(words[:n], dtype=np.float64) + 0.5) / 2**32
    noise: NDArray[np.float64] = -np.log(-np.log1p(-complement))
    return noise


def choose(
    logits: NDArray[Any], prompt: list[int], generated: list[int], seed: int, o: dict[str, Any]
) -> int:
    y = logits.astype(np.float64)
    bias: dict[int, float] = o.get("logit_bias", {})
    forced = [t for t, b in bias.items() if b == math.inf]
    if forced:
        y[[t for t in range(len(y)) if t not in forced]] = -np.inf
    else:
        for token, b in bias.items():
            y[token] += b
    repeat, last_n = o.get("repeat_penalty", 1.0), o.get("repeat_last_n", -1)
    sequence = [(token, False) for token in prompt] + [(token, True) for token in generated]
    window = sequence if last_n == -1 else sequence[max(len(sequence) - last_n, 0) :]
    for token in {token for token, _ in window}:
        y[token] = y[token] / repeat if y[token] > 0 else y[token] * repeat
    for token, count in Counter(token for token, drawn in window if drawn).items():
        y[token] -= o.get("presence_penalty", 0.0) + o.get("frequency_penalty", 0.0) * count
    if o["temperature"] == 0:
        return int(y.argmax())
    z = y / o["temperature"]
    order = [int(t) for t in np.argsort(-z, kind="stable") if z[t] > -np.inf]
    if o.get("top_k", 0):
        order = order[: o["top_k"]]
    p = np.exp(z[order] - z[order[0]])
    if o.get("top_p", 1.0) < 1.0:
        order = order[: int((np.cumsum(p) < o["top_p"] * p.sum()).sum()) + 1]
    if o.get("min_p", 0.0):
        order = [t for t, p in zip(order, p, strict=False) if p >= o["min_p"]]
    noise = gumbel(seed, len(generated), len(z))
    return max(order, key=lambda t: float(z[t] + noise[t]))


PLAIN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.0},
        {"temperature": 0.4},
        {"temperature": 5.0},
        {"top_k": 7},
        {"top_p": 0.7},
        {"min_p": 0.2},
        {"top_k": 30, "top_p": 0.9, "min_p": 0.05, "temperature": 1.7},
        {"repeat_penalty": 1.5},
        {"presence_penalty": 1.5, "frequency_penalty": 0.7},
        {"presence_penalty": -1.5, "temperature": 0.0},
        {"repeat_penalty": 3.0, "temperature": 0.0},
        {"repeat_penalty": 3.0, "temperature": 0.0, "repeat_last_n": 5},
        {"presence_penalty": 1.5, "frequency_penalty": 0.7, "repeat_last_n": 3},
        {"repeat_penalty": 3.0, "frequency_penalty": 2.0, "repeat_last_n": 64},
        {"logit_bias": {7: 4.0, 9: -math.inf, 11: 3.5}},
        {"logit_bias": {40: math.inf, 41: math.inf, 42: math.inf, 43: 2.0}},
    ],
    ids=str,
)
def test_each_option_draws_as_specified(llm: LLM, options: dict[str, Any]) -> None:
    prompt = llm.tokenize("tea and toast and tea")
    merged = {**PLAIN, **options}
    seed = 2**40 + 3
    result = llm.generate(prompt, max_tokens=N_TOKENS, seed=seed, ignore_eos=True, **merged)
    rows = llm.logits(prompt + result.token_ids)[len(prompt) - 1 : -1]
    expected: list[int] = []
    for row in rows:
        expected.append(choose(row, prompt, result.token_ids[: len(expected)], seed, merged))
    assert result.token_ids == expected


#: Of few tokens, so that the same come again and again.
FEW = st.integers(3, 8)


@given(
    prompt=st.lists(FEW, min_size=1, max_size=30),
    window=st.sampled_from([-1, 0, 1, 64, 2**62]) | st.integers(2, 40),
    repeat=st.sampled_from([1.0, 0.5, 1.8]),
    presence=st.sampled_from([0.0, 0.7, -0.6]),
    frequency=st.sampled_from([0.0, 0.3, -0.2]),
    temperature=st.sampled_from([0.0, 1.0]),
    seed=st.integers(0, 2**64 - 1),
)
@settings(max_examples=40, deadline=None)
def test_penalties_look_at_the_last_tokens_of_prompt_and_output(
    llm: LLM,
    prompt: list[int],
    window: int,
    repeat: float,
    presence: float,
    frequency: float,
    temperature: float,
    seed: int,
) -> None:
    options: dict[str, Any] = {
        **PLAIN,
        "temperature": temperature,
        "repeat_penalty": repeat,
        "presence_penalty": presence,
        "frequency_penalty": frequency,
        "repeat_last_n": window,
        "logit_bias": dict.fromkeys(range(3, 9), math.inf),
    }
    result = llm.generate(prompt, max_tokens=30, seed=seed, ignore_eos=True, **options)
    rows = llm.logits(prompt + result.token_ids)[len(prompt) - 1 : -1]
    expected: list[int] = []
    for row in rows:
        expected.append(choose(row, prompt, result.token_ids[: len(expected)], seed, options))
    assert result.token_ids == expected


def test_the_first_draw_follows_the_softmax(llm: LLM) -> None:
    prompt = llm.tokenize("tea")
    logits = llm.logits(prompt)[-1].astype(np.float64)
    p = np.exp(logits - logits.max())
    p /= p.sum()
    draws = 2000
    bins = np.add.reduceat(p, np.arange(0, 512, 32))
    counts = np.zeros(16)
    for seed in range(draws):
        result = llm.generate(prompt, max_tokens=1, seed=seed, ignore_eos=True, **PLAIN)
        counts[result.token_ids[0] // 32] += 1
    chi2 = float(((counts - bins * draws) ** 2 / (bins * draws)).sum())
    assert chi2 < 15 + 4 * math.sqrt(30), (counts, bins * draws)


def test_a_draw_depends_on_seed_and_index_alone(llm: LLM) -> None:
    prompt = llm.tokenize("tea")
    run = llm.generate(prompt, max_tokens=12, seed=5, ignore_eos=True, **PLAIN).token_ids
    again = llm.generate([prompt] * 3, max_tokens=12, seed=5, ignore_eos=True, **PLAIN)
    assert [r.token_ids for r in again] == [run] * 3
    shorter = llm.generate(prompt, max_tokens=5, seed=5, ignore_eos=True, **PLAIN)
    assert shorter.token_ids == run[:5]
