"""Drafts of a model's own layer, of an assistant and of a draft model: each guesses what it should,
and no text changes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import onegraph
import pytest
import shapes
import synth
from onegraph import LLM, _native
from support import gemma4
from support.reference import Reference, mean_kl

SHAPES = ["tiny-qwen35", "tiny-qwen35moe", "tiny-qwen3next"]


def drafting(name: str) -> shapes.Shape:
    """A shape with a layer that guesses further tokens, and a head of its own."""
    return dataclasses.replace(shapes.find(name), n_layer_nextn=1, tied=False)


def known(path: Path, name: str, agree: float) -> list[int]:
    """Writes a model whose next token is known; the token after each."""
    synth.write(path, drafting(name), "Q8_0", seed=1, known=True, agree=agree)
    return [int(t) for t in synth.followers(drafting(name))]


#: Models whose drafts are those of a draft model, in a file of its own; the second one has layers
#: that keep a state.
DRAFTED, RECURRENT = "tiny-llama-gqa", "tiny-lfm2"

#: Models whose drafts are those of an assistant, which reads what they have stored.
ASSISTED = ["tiny-gemma4", "tiny-gemma4-e"]


def small(name: str = DRAFTED, **other: Any) -> shapes.Shape:
    """The shape of a draft model with the vocabulary of that one."""
    of = shapes.find(name)
    alike = {"n_vocab": of.n_vocab, "pre": of.pre, "n_ctx": of.n_ctx, "tied": False}
    return dataclasses.replace(shapes.find("tiny-llama"), **{**alike, **other})


def assistant(name: str, **other: Any) -> shapes.Shape:
    """The shape of the assistant of a Gemma 4: three layers with a window, then one without."""
    of = shapes.find(name)
    its: dict[str, Any] = {"arch": "gemma4-assistant", "n_layer": 4, "window_pattern": 4}
    its |= {"n_layer_shared_kv": 4, "n_embd_layer": 0, "n_ff_last": 0, "tied": True}
    return dataclasses.replace(of, **{**its, "n_embd_backbone": of.n_embd, **other})


def pair(folder: Path, name: str, agree: float) -> tuple[Path, list[int], str, dict[str, Any]]:
    """A model and what drafts for it: its file, the token after each, how that is called, and what
    a load is given."""
    path, draft = folder / "model.gguf", folder / "draft.gguf"
    if name in ASSISTED:
        shape = dataclasses.replace(shapes.find(name), tied=False)
        synth.write(path, shape, "Q8_0", seed=1, known=True)
        synth.write(draft, assistant(name), "Q8_0", seed=1, known=True, agree=agree)
        return path, [int(t) for t in synth.followers(shape)], "draft", {"draft": draft}
    if name in SHAPES:
        return path, known(path, name, agree), "mtp", {}
    synth.write(path, dataclasses.replace(shapes.find(name), tied=False), "Q8_0", known=True)
    synth.write(draft, small(name), "Q8_0", seed=2, known=True, agree=agree)
    return path, [int(t) for t in synth.followers(small(name))], "draft", {"draft": draft}


def follow(after: list[int], first: int, n: int) -> list[int]:
    tokens = [first]
    while len(tokens) < n:
        tokens.append(after[tokens[-1]])
    return tokens


def runner(path: Path, part: str, **more: Any) -> Any:
    options: Any = {"n_slots": 1, "n_ctx": 64, "n_pages": 2, "kv_type": "F32", "part": part}
    made = _native.PlanRunner("cpu", str(path), None, **options, **more)
    made.map_pages(0, 0, [1])
    return made


@pytest.mark.parametrize("name", ASSISTED)
def test_guesses_of_an_assistant_are_those_of_numpy(tmp_path: Path, name: str) -> None:
    path, draft = tmp_path / "model.gguf", tmp_path / "draft.gguf"
    synth.write(path, shapes.find(name), "Q8_0", seed=2)
    synth.write(draft, assistant(name, n_embd=128, n_ff=384, window=48), "Q8_0", seed=3)
    ids = [int(i) for i in np.random.default_rng(3).integers(3, 250, 62)]
    rows, wanted = gemma4.guesses(Reference(path), Reference(draft), ids)
    n = len(rows)
    guess, followed, model = (
        runner(path, part, draft=str(draft)) for part in ("guess", "follow", "model")
    )
    model.forward(ids[:-1], list(range(n)), [0] * n, [])
    followed.write("x", model.read("x"))
    followed.forward(ids[1:], list(range(n)), [0] * n, [])
    own = np.frombuffer(followed.read("draft.after"), np.float32).reshape(n, -1)
    assert np.median(np.abs(own - rows)) < 1e-2
    guess.write_kv(model.read_kv())
    guess.write("draft.hidden", rows.astype(np.float32).tobytes())
    guess.forward(ids[1:], list(range(n)), [0] * n, list(range(n)))
    found = np.frombuffer(guess.read("draft.logits"), np.float32).reshape(n, -1)
    assert mean_kl(wanted, found) < 5e-5


@pytest.mark.parametrize("mix", ["Q8_0", "Q4_K_M"])
@pytest.mark.parametrize("name", SHAPES)
def test_guesses_are_those_of_numpy(tmp_path: Path, name: str, mix: str) -> None:
    path = tmp_path / "model.gguf"
    synth.write(path, drafting(name), mix, seed=2)
    reference = Reference(path)
    ids = [int(i) for i in np.random.default_rng(3).integers(3, 250, 40)]
    rows = reference.hidden(ids)[:-1].astype(np.float32)
    n = len(rows)
    guess, followed, model = (runner(path, part) for part in ("guess", "follow", "model"))
    guess.write("draft_hidden", rows.tobytes())
    guess.forward(ids[1:], list(range(n)), [0] * n, list(range(n)))
    found = np.frombuffer(guess.read("draft_logits"), np.float32).reshape(n, -1)
    assert mean_kl(reference.guesses(ids), found) < 5e-5
    # What follows a pass makes its rows from those of the pass, and stores what a guess stores.
    model.forward(ids[:-1], list(range(n)), [0] * n, [])
    followed.write("x", model.read("x"))
    followed.forward(ids[1:], list(range(n)), [0] * n, [])
    own = np.frombuffer(followed.read("draft_rows"), np.float32)
    assert np.median(np.abs(own.reshape(n, -1) - rows)) < 1e-2
    guess.write("draft_hidden", own.tobytes())
    guess.forward(ids[1:], list(range(n)), [0] * n, list(range(n)))
    assert guess.read_kv() == followed.read_kv()


@pytest.mark.parametrize("name", [*SHAPES, *ASSISTED])
def test_as_many_guesses_are_right_as_was_set(tmp_path: Path, name: str) -> None:
    shares = []
    for agree in (1.0, 0.7, 0.0):
        path, after, by, drafts = pair(tmp_path, name, agree)
        load: dict[str, Any] = {"device": "cpu", "n_ctx": 256, "max_batch": 1, **drafts}
        with LLM(path, speculate=f"{by}:2", **load) as llm:
            prompt = follow(after, 60, 8)
            found = llm.generate(prompt, max_tokens=91, ignore_eos=True, temperature=0.0)
            assert found.token_ids == follow(after, after[prompt[-1]], 91)
            used, stats = found.usage, llm.stats()
            for name_of in ("drafted_tokens", "accepted_tokens", "draft_rounds"):
                assert getattr(used, name_of) == getattr(stats, name_of)
            assert used.drafted_tokens <= 2 * used.draft_rounds
            shares.append(used.accepted_tokens / used.drafted_tokens)
    # The last round may have had room for fewer.
    assert shares[0] > 0.95 and shares[2] == 0
    assert 0.35 < shares[1] < 0.85


#: Requests of every kind that has a say in the next token.
KINDS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 4, "logprobs": 2},
    {"temperature": 1.0, "seed": 5, "frequency_penalty": 0.7, "repeat_last_n": 7},
    {"temperature": 0.0, "presence_penalty": 0.5, "repeat_penalty": 1.2},
    {"temperature": 0.7, "seed": 6, "stop_token_ids": [90], "top_k": 5},
    {"temperature": 1.0, "seed": 7, "regex": "(one, two, three; )+"},
    {"temperature": 0.0, "prompt_lookup_num_tokens": 5},
    {"temperature": 1.0, "seed": 8, "max_tokens": 3},
]


def numbers(found: onegraph.Result) -> tuple[Any, ...]:
    return (found.text, found.token_ids, found.finish_reason, found.stop_reason, found.logprobs)


@pytest.mark.parametrize("name", [*SHAPES, DRAFTED, RECURRENT, *ASSISTED])
def test_texts_are_those_without_drafts(tmp_path: Path, name: str) -> None:
    path, after, by, drafts = pair(tmp_path, name, 0.7)
    prompt = follow(after, 60, 9)
    kinds = [{"max_tokens": 24, "ignore_eos": "regex" not in kind} | kind for kind in KINDS]
    load: dict[str, Any] = {"device": "cpu", "n_ctx": 128, "max_batch": 4}
    with LLM(path, speculate="off", **load) as llm:
        plain = [llm.generate(prompt, **kind) for kind in kinds]
        turn = prompt + list(plain[2].token_ids) + [5, 6, 60, 61]
        again = llm.generate(turn, **kinds[2])
    every = name in ("tiny-qwen35", DRAFTED)
    for speculate in ("auto", f"{by}:1", f"{by}:3") if every else (f"{by}:3",):
        with LLM(path, speculate=speculate, **drafts, **load) as llm:
            drafted = [llm.generate(prompt, **kind) for kind in kinds]
            assert [numbers(r) for r in drafted] == [numbers(r) for r in plain]
            assert sum(r.usage.accepted_tokens for r in drafted[:3]) > 0
            # Side by side, more than there are slots, one given up early.
            streams = [llm.generate(prompt, stream=True, **kind) for kind in kinds]
            streams[1].close()
            for i, stream in enumerate(streams):
                found = [token for piece in stream for token in piece.token_ids]
                assert found == list(plain[i].token_ids)[: len(found)]
                assert i == 1 or len(found) == len(plain[i].token_ids)
            # What stands in the cache serves the next turn.
            kept = llm.generate(turn, **kinds[2])
            assert kept.usage.cached_tokens > len(prompt)
            assert numbers(kept) == numbers(again)


@pytest.mark.parametrize("name", ["tiny-qwen35", DRAFTED, ASSISTED[0]])
def test_few_pages_preempt_no_sequence_for_what_may_be_wrong(tmp_path: Path, name: str) -> None:
    path, after, by, drafts = pair(tmp_path, name, 0.8)
    prompts = [follow(after, 60 + i, 50) for i in range(4)]
    options: dict[str, Any] = {"max_tokens": 60, "ignore_eos": True, "temperature": 0.9, "seed": 2}
    load: dict[str, Any] = {"device": "cpu", "n_ctx": 128, "max_batch": 4}
    with LLM(path, speculate="off", **load) as llm:
        plain = [r.token_ids for r in llm.generate(prompts, **options)]
    with LLM(path, speculate=f"{by}:3", kv_tokens=320, **drafts, **load) as llm:
        assert [r.token_ids for r in llm.generate(prompts, **options)] == plain
        stats = llm.stats()
        assert stats.preemptions > 0 and stats.accepted_tokens > 0


def test_what_drafts_is_said_in_a_few_words(tmp_path: Path, tiny: Path) -> None:
    with pytest.raises(onegraph.ArgumentError, match="no layer that drafts"):
        LLM(tiny, device="cpu", speculate="mtp")
    for wrong in ("warp", "mtp:0", "mtp:8", "mtp:", "off:1", "draft:8", ""):
        with pytest.raises(onegraph.ArgumentError, match=r"auto, off, mtp, draft, or mtp:1"):
            LLM(tiny, device="cpu", speculate=wrong)
    with LLM(tiny, device="cpu", speculate="auto") as llm:
        assert llm.generate([5, 6], max_tokens=4).usage.drafted_tokens == 0


def test_a_layer_that_is_cut_is_refused_and_one_that_is_left_out_drafts_nothing(
    tmp_path: Path,
) -> None:
    path = tmp_path / "model.gguf"
    synth.write(path, drafting("tiny-qwen35"), "Q8_0")
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"nextn.hnorm.weight", b"nextn.hnorm.wrongs"))
    with pytest.raises(onegraph.ModelError, match=r"nextn\.hnorm\.weight"):
        LLM(path, device="cpu")
    with LLM(path, device="cpu", speculate="off") as llm:
        assert len(llm.generate([5, 6], max_tokens=4, ignore_eos=True).token_ids) == 4
    # Some converters count the layer and leave it out.
    path.write_bytes(whole.replace(b"nextn.eh_proj.weight", b"nextn.eh_proj.wrongs"))
    with LLM(path, device="cpu") as llm:
        assert llm.generate([5, 6], max_tokens=4, ignore_eos=True).usage.drafted_tokens == 0
    with pytest.raises(onegraph.ArgumentError, match="no layer that drafts"):
        LLM(path, device="cpu", speculate="mtp")


@pytest.mark.parametrize("name", [DRAFTED, "tiny-gemma3", "tiny-qwen3moe", "tiny-deepseek2"])
def test_a_model_that_drafts_for_itself_is_always_right(tmp_path: Path, name: str) -> None:
    path = tmp_path / "model.gguf"
    synth.write(path, shapes.find(name), "Q8_0", seed=5)
    prompts = [[int(i) for i in np.random.default_rng(n).integers(3, 500, n)] for n in (300, 70, 9)]
    # By its distribution a text is drawn that no guess of the largest logits foresees.
    greedy: dict[str, Any] = {"max_tokens": 41, "ignore_eos": True, "temperature": 0.0}
    drawn = {**greedy, "temperature": 1.0, "seed": 3}
    load: dict[str, Any] = {"device": "cpu", "n_ctx": 512, "max_batch": 2, "kv_type": "f32"}
    with LLM(path, **load) as llm:
        plain = llm.generate(prompts, **greedy)
        turn = prompts[1] + list(plain[1].token_ids)[:-3] + [7, 8]
        wanted = [*plain, *llm.generate(prompts, **drawn), llm.generate(turn, **greedy)]
    with LLM(path, draft=path, speculate="draft:3", **load) as llm:
        found = [llm.generate(p, **greedy) for p in prompts]
        found += llm.generate(prompts, **drawn)
        # After wrong guesses, and from keys that the cache has of another text.
        found.append(llm.generate(turn, **greedy))
        assert [r.token_ids for r in found] == [r.token_ids for r in wanted]
        for right in (*found[:3], found[-1]):
            assert right.usage.accepted_tokens == 30 and right.usage.draft_rounds == 10
        assert found[-1].usage.cached_tokens > 64
        assert all(r.usage.accepted_tokens < r.usage.drafted_tokens for r in found[3:6])


def test_what_steps_left_behind_is_made_up_for(tmp_path: Path) -> None:
    """Steps that draft nothing do not wait for the draft model; what they read it reads later."""
    path = tmp_path / "model.gguf"
    synth.write(path, dataclasses.replace(shapes.find(DRAFTED), n_layer=2), "Q8_0", seed=5)
    prompts = [[int(i) for i in np.random.default_rng(n).integers(3, 900, n)] for n in (70, 9)]
    greedy: dict[str, Any] = {"max_tokens": 81, "ignore_eos": True, "temperature": 0.0}
    bound: dict[str, Any] = {"regex": "[a-z ]{300}", "max_tokens": 40, "temperature": 0.0}
    load: dict[str, Any] = {"device": "cpu", "n_ctx": 512, "max_batch": 2, "kv_type": "f32"}
    with LLM(path, **load) as llm:
        plain = llm.generate(prompts[1], **greedy)
    with LLM(path, draft=path, speculate="draft:3", **load) as llm:
        # The next turn finds its keys in the cache.
        first = llm.generate(prompts[0], **bound)
        assert first.usage.drafted_tokens == 0
        turn = prompts[0] + list(first.token_ids) + [7, 8]
        second = llm.generate(turn, **greedy)
        assert second.usage.cached_tokens > len(prompts[0]) + 30
        assert second.usage.accepted_tokens == 60 and second.usage.draft_rounds == 20
        # While a constrained text is beside it, nothing is drafted for this one.
        stream = llm.generate(prompts[1], stream=True, **greedy)
        tokens = list(next(stream).token_ids)
        llm.generate(prompts[0], **bound)
        tokens += [token for piece in stream for token in piece.token_ids]
        assert tokens == list(plain.token_ids)
        used = stream.result.usage
        assert used.accepted_tokens == used.drafted_tokens > 0


def test_a_padded_vocabulary_is_the_same_and_another_one_is_refused(tmp_path: Path) -> None:
    path, after, _, _ = pair(tmp_path, DRAFTED, 1.0)
    load: dict[str, Any] = {"device": "cpu", "n_ctx": 256}
    wide, narrow, other = (tmp_path / name for name in ("wide", "narrow", "other"))
    tokens = shapes.find(DRAFTED).n_vocab
    synth.write(wide, small(n_vocab=tokens + 24), "Q8_0", seed=2, known=True)
    synth.write(narrow, small(n_vocab=tokens - 40), "Q8_0", seed=2, known=True)
    for draft in (wide, narrow):
        with LLM(path, draft=draft, speculate="draft:3", **load) as llm:
            found = llm.generate(follow(after, 900, 39), max_tokens=90, ignore_eos=True, seed=1)
            assert list(found.token_ids) == follow(after, after[938], 90)
            assert 0 < found.usage.accepted_tokens < found.usage.drafted_tokens
    other.write_bytes(narrow.read_bytes().replace(b"<|im_end|>", b"<|im_edn|>"))
    short, recurrent = tmp_path / "short", tmp_path / "recurrent"
    synth.write(short, small(n_ctx=64), "Q8_0")
    synth.write(recurrent, shapes.find(RECURRENT), "Q8_0")
    for draft, says in (
        (other, r"its vocabulary is another: token \d+ is .*, the model's"),
        (short, r"trained for 64 tokens, and n_ctx is 256: use n_ctx = 64"),
        (recurrent, r"keeps \d+ recurrent states"),
    ):
        with pytest.raises(onegraph.ArgumentError, match=says):
            LLM(path, draft=draft, **load)
        with LLM(path, draft=draft, speculate="off", **load) as llm:
            assert llm.generate([5, 6], max_tokens=4).usage.drafted_tokens == 0
    with pytest.raises(onegraph.FileError, match="nowhere"):
        LLM(path, draft=tmp_path / "nowhere.gguf", **load)
    with pytest.raises(onegraph.OutOfMemoryError, match=r"draft model's weights.* load without"):
        LLM(path, draft=path, kv_tokens=1 << 31, **load)
    with pytest.raises(onegraph.ArgumentError, match="no draft model is given"):
        LLM(path, speculate="draft", **load)
    with pytest.raises(onegraph.ArgumentError, match="a draft model is given"):
        LLM(path, draft=path, speculate="mtp:2", **load)
