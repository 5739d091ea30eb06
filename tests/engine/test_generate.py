"""What comes out of `generate`, whole, in pieces and in batches."""

import math
from pathlib import Path

import numpy as np
import onegraph
import pytest
from onegraph import LLM, Result
from support import tiny_gguf
from support.reference import log_softmax

GREEDY = {"temperature": 0.0}


def same(a: Result, b: Result) -> bool:
    return (a.text, a.token_ids, a.finish_reason, a.logprobs) == (
        b.text,
        b.token_ids,
        b.finish_reason,
        b.logprobs,
    )


def test_greedy_takes_the_argmax_of_the_logits(smol: LLM) -> None:
    ids = smol.tokenize("The capital of France is")
    result = smol.generate(ids, max_tokens=24, **GREEDY)
    assert result.text.startswith(" Paris")
    rows = smol.logits(ids + result.token_ids)
    assert result.token_ids == rows[len(ids) - 1 : -1].argmax(axis=1).tolist()
    assert smol.detokenize(result.token_ids) == result.text
    assert same(result, smol.generate("The capital of France is", max_tokens=24, **GREEDY))


@pytest.mark.thorough
def test_a_batch_equals_its_single_calls(smol: LLM) -> None:
    prompts = [
        "The sea",
        "A much longer prompt, so that lengths differ: " * 4,
        "1, 2, 3,",
        "def f(",
    ]
    for options in [GREEDY, {"seed": 7, "temperature": 1.2, "logprobs": 2}]:
        alone = [smol.generate(p, max_tokens=10, **options) for p in prompts]
        # More prompts than the four slots: some wait.
        together = smol.generate(prompts + prompts[::-1], max_tokens=10, **options)
        assert all(same(a, b) for a, b in zip(alone + alone[::-1], together, strict=True))


def test_a_prompt_may_be_text_or_tokens(llm: LLM) -> None:
    ids = llm.tokenize("tea and toast")
    by_text = llm.generate("tea and toast", max_tokens=10, seed=1)
    assert same(by_text, llm.generate(ids, max_tokens=10, seed=1))
    assert same(by_text, llm.generate(np.array(ids), max_tokens=10, seed=1))
    both = llm.generate([ids, "tea and toast"], max_tokens=10, seed=1)
    assert same(both[0], both[1])


def test_pieces_make_up_the_whole(smol: LLM) -> None:
    prompt = "Write something with emoji: 🎉 日本語"
    whole = smol.generate(prompt, max_tokens=60, seed=11, temperature=2.0, top_p=1.0, logprobs=1)
    with smol.generate(
        prompt, stream=True, max_tokens=60, seed=11, temperature=2.0, top_p=1.0, logprobs=1
    ) as stream:
        assert stream.result is None
        pieces = list(stream)
    assert "".join(p.text for p in pieces) == whole.text
    assert [t for p in pieces for t in p.token_ids] == whole.token_ids
    assert [lp for p in pieces for lp in p.logprobs or []] == whole.logprobs
    assert [p.finish_reason for p in pieces[:-1]] == [None] * (len(pieces) - 1)
    assert pieces[-1].finish_reason == whole.finish_reason
    assert stream.result is not None and same(stream.result, whole)
    assert stream.seed == whole.seed == 11
    assert list(stream) == []


def test_a_stop_string_ends_the_text_at_every_cut(llm: LLM) -> None:
    free = llm.generate("tea", max_tokens=60, seed=3, ignore_eos=True)
    assert len(free.text) > 40
    for length in (1, 2, 5, 11):
        for start in range(0, len(free.text) - length, 3):
            stop = free.text[start : start + length]
            expected = free.text[: free.text.index(stop)]
            result = llm.generate("tea", max_tokens=60, seed=3, ignore_eos=True, stop=stop)
            assert (result.text, result.finish_reason) == (expected, "stop"), repr(stop)
            assert result.token_ids == free.token_ids[: len(result.token_ids)]
            stream = llm.generate(
                "tea", stream=True, max_tokens=60, seed=3, ignore_eos=True, stop=["\0no", stop]
            )
            assert "".join(p.text for p in stream) == expected
    # One that does not come up changes nothing, the held text at the end included.
    almost = free.text[-4:] + "\0"
    assert same(free, llm.generate("tea", max_tokens=60, seed=3, ignore_eos=True, stop=almost))


def test_the_token_that_ends_a_text_is_no_part_of_it(smol: LLM) -> None:
    eos = smol.tokenizer.end_of_text_ids[0]
    forced = smol.generate("Hi", max_tokens=5, logit_bias={eos: math.inf}, logprobs=0)
    assert (forced.text, forced.token_ids, forced.logprobs) == ("", [], [])
    assert forced.finish_reason == "stop"
    assert forced.usage.completion_tokens == 0
    ignored = smol.generate("Hi", max_tokens=5, logit_bias={eos: math.inf}, ignore_eos=True)
    assert (ignored.token_ids, ignored.finish_reason) == ([eos] * 5, "length")


def test_logprobs_are_those_of_the_unmodified_logits(smol: LLM) -> None:
    ids = smol.tokenize("Once upon a time")
    result = smol.generate(
        ids, max_tokens=12, seed=5, temperature=0.5, repeat_penalty=1.3, logprobs=20
    )
    assert result.logprobs is not None and len(result.logprobs) == len(result.token_ids) == 12
    exact = log_softmax(smol.logits(ids + result.token_ids))[len(ids) - 1 : -1]
    for row, token, found in zip(exact, result.token_ids, result.logprobs, strict=True):
        assert found.token_id == token
        assert found.logprob == pytest.approx(row[token], abs=1e-5)
        order = np.argsort(-row, kind="stable")[:20]
        assert [t.token_id for t in found.top] == order.tolist()
        assert [t.logprob for t in found.top] == pytest.approx(row[order].tolist(), abs=1e-5)
    assert smol.generate(ids, max_tokens=2).logprobs is None


def test_seeds(llm: LLM) -> None:
    def run(**options: object) -> Result:
        return llm.generate("tea", max_tokens=30, temperature=1.5, **options)  # type: ignore[call-overload,no-any-return]

    assert run(seed=1).token_ids == run(seed=1).token_ids
    assert run(seed=1).token_ids != run(seed=2).token_ids
    assert run(seed=2**64 - 1).seed == 2**64 - 1
    drawn = run()
    assert drawn.seed != run().seed
    assert run(seed=drawn.seed).token_ids == drawn.token_ids
    # A list with one seed: every prompt its own call. Without: each its own seed.
    one, two = llm.generate(["tea", "tea"], max_tokens=30, temperature=1.5, seed=1)
    assert one.token_ids == two.token_ids == run(seed=1).token_ids
    one, two = llm.generate(["tea", "tea"], max_tokens=30, temperature=1.5)
    assert one.seed != two.seed


def test_usage_and_timings_add_up(smol: LLM) -> None:
    result = smol.generate("Hello there, how are you?", max_tokens=16, seed=1, ignore_eos=True)
    usage, timings = result.usage, result.timings
    assert usage.prompt_tokens == len(smol.tokenize("Hello there, how are you?"))
    assert usage.completion_tokens == 16
    assert timings.load_seconds > 0 and timings.queue_seconds >= 0
    rate = usage.prompt_tokens / timings.prefill_seconds
    assert timings.prefill_tokens_per_second == pytest.approx(rate)
    assert timings.decode_tokens_per_second == pytest.approx(15 / timings.decode_seconds)
    assert timings.decode_tokens_per_second_without_sampling >= timings.decode_tokens_per_second > 0


def test_the_shortest_prompts(llm: LLM, smol: LLM) -> None:
    for model in (llm, smol):
        one = model.tokenize("a", add_special=False)[:1]
        assert len(model.generate(one, max_tokens=3, ignore_eos=True).token_ids) == 3
        # Neither model puts a token in front of a text.
        with pytest.raises(onegraph.ArgumentError, match="at least one token; give some text"):
            model.generate("")


def test_an_empty_text_is_a_prompt_where_a_token_stands_in_front(tmp_path: Path) -> None:
    with LLM(tiny_gguf.write(tmp_path / "bos.gguf"), device="cpu") as llm:
        assert llm.tokenize("") == [10]
        result = llm.generate("", max_tokens=3, ignore_eos=True)
        assert (result.usage.prompt_tokens, len(result.token_ids)) == (1, 3)


def test_the_context_can_be_filled_to_the_last_token(llm: LLM) -> None:
    ids = llm.tokenize("a") * 512
    for length in (511, 480, 449, 448, 447):
        result = llm.generate(ids[:length], max_tokens=600, seed=1, ignore_eos=True)
        assert len(result.token_ids) == 512 - length
        assert result.finish_reason == "length"
    with pytest.raises(onegraph.ContextError, match="512 tokens, but the context holds 512"):
        llm.generate(ids)
    with pytest.raises(onegraph.ContextError, match="holds 512") as caught:
        llm.generate(["fine", ids + ids])
    assert str(caught.value).startswith("prompt[1]: the prompt has 1024 tokens, but the context")
    # What it was trained for is all there is: no larger n_ctx is advised.
    assert str(caught.value).endswith("the model was trained for 512, the largest possible n_ctx")
    assert llm.logits(ids).shape == (512, 512)
    with pytest.raises(
        onegraph.ArgumentError,
        match=r"513 tokens: the context holds 512; .* the largest possible n_ctx",
    ):
        llm.logits(ids + ids[:1])


def test_a_smaller_context_gives_the_same_bits(tiny: Path, llm: LLM) -> None:
    whole = llm.generate("tea and toast", max_tokens=40, seed=4, logprobs=1)
    with LLM(tiny, device="cpu", n_ctx=100, max_batch=1, threads=1) as small:
        assert small.n_ctx == 100
        assert same(small.generate("tea and toast", max_tokens=40, seed=4, logprobs=1), whole)
        assert np.array_equal(small.logits([5, 6, 7]), llm.logits([5, 6, 7]))


@pytest.mark.thorough
def test_logits_by_both_ways_have_the_same_bits(smol: LLM) -> None:
    ids = smol.tokenize(
        "The order of every sum is fixed by shape and type, never by the batch. " * 9
    )
    assert len(ids) > 130
    whole = smol.logits(ids)
    assert whole.shape == (len(ids), smol.n_vocab) and whole.dtype == np.float32
    assert np.array_equal(whole, smol.logits(ids, path="decode"))
    assert np.array_equal(whole[:70], smol.logits(ids[:70]))


@pytest.mark.parametrize("kv_type", ["f32", "f16", "q8_0", "i16"])
def test_every_encoding_of_keys_and_values_generates(tiny: Path, kv_type: str) -> None:
    with LLM(tiny, device="cpu", kv_type=kv_type, max_batch=2) as llm:
        a, b = llm.generate(["tea", "toast and tea"], max_tokens=80, seed=2, logprobs=0)
        assert same(a, llm.generate("tea", max_tokens=80, seed=2, logprobs=0))
        assert same(b, llm.generate("toast and tea", max_tokens=80, seed=2, logprobs=0))
