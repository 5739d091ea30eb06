"""Models with one number that is infinite or NaN: none of them answers. The first op to meet it
says where, whatever the op, the type of the weights and that of the cache: a gate, a maximum or a
cache of integers could make a number of it, and the answer another model's."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import onegraph
import pytest
import shapes
import synth
from numpy.typing import NDArray
from onegraph import LLM
from support.qwen4exp import ngrams
from support.reference import Reference

VALUES = (np.nan, np.inf, -np.inf)
KV_TYPES = ("i16", "f32", "q8_0", "f16")
MIXES = ("Q8_0", "F32", "Q4_K_M", "F16")

#: Where a block has floats of its own, and as what; of other types none of them are asked for here.
HALVES = {
    "Q8_0": (0,),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "F16": (0,),
}

PROMPT = [5, 6, 7]

UNREAD = (".input_scale", ".indexer.q_proj.weight")

#: What a message begins with: it names the tensor, or the layer and the op.
NAMED = re.compile(
    r"tensor \S+: found (NaN|-?inf) as number \d+ of|the product with \S+ at position \d+ |"
    r"KV scatter of layer \d+: a key or value at position \d+ |"
    r"the logit of token \d+ is (NaN|-?inf)|"
    r"dimension \d+ of the embedding is (NaN|-?inf)"
)

SMALL = list(tomllib.loads(Path(shapes.__file__).with_name("small_shapes.toml").read_text()))


@dataclass
class Tensor:
    name: str
    ty: str
    offset: int
    n_bytes: int
    #: The row length first.
    shape: tuple[int, ...]
    #: Of a table of n-grams, those that the prompt reads.
    rows: tuple[int, ...] = ()

    @property
    def layer(self) -> int | None:
        match = re.match(r"blk\.(\d+)\.", self.name)
        return int(match[1]) if match else None

    def parts(self) -> Iterator[int]:
        """Where a matrix begins, of each expert; the row of a token of the prompt in a table of
        tokens."""
        if "token_embd.weight" in self.name and not self.rows:
            yield self.offset + PROMPT[1] * (self.n_bytes // self.shape[1])
            return
        if self.rows:
            yield from (self.offset + row * (self.n_bytes // self.shape[1]) for row in self.rows)
            return
        experts = self.shape[2] if len(self.shape) > 2 else 1
        for expert in range(experts):
            yield self.offset + expert * (self.n_bytes // experts)


def greedy(llm: LLM, prompt: list[int], n: int) -> list[int]:
    return llm.generate(prompt, max_tokens=n, temperature=0.0, ignore_eos=True).token_ids


@dataclass
class Answer:
    tokens: list[int]
    #: Of the prompt and these.
    logits: NDArray[np.float32]


class Model:
    """A random model in a file, one number of which can be another for a while."""

    def __init__(self, path: Path, name: str, mix: str) -> None:
        self.path, self.shape = path, shapes.find(name)
        synth.write(path, self.shape, mix, seed=1)
        # Those of the token of the prompt that has one before it and one behind.
        found = ngrams(Reference(path), PROMPT)[1] if self.shape.ngrams else []
        rows = tuple(map(int, found))
        self.tensors = [
            Tensor(
                t.name,
                t.tensor_type.name,
                int(t.data_offset),
                int(t.n_bytes),
                tuple(map(int, t.shape)),
                rows if t.name == "per_layer_token_embd.weight" else (),
            )
            for t in gguf.GGUFReader(path).tensors
        ]

    def poisoned(self, at: int, ty: str, value: float) -> Iterator[None]:
        """Has `value` in the place of each of a block's floats, in turn."""
        number = np.float32(value) if ty == "F32" else np.float16(value)
        with open(self.path, "r+b", buffering=0) as file:
            for place in (0,) if ty == "F32" else HALVES[ty]:
                kept = os.pread(file.fileno(), number.nbytes, at + place)
                os.pwrite(file.fileno(), number.tobytes(), at + place)
                yield
                os.pwrite(file.fileno(), kept, at + place)

    def answer(self, kv_type: str, clean: Answer | None = None) -> Answer:
        """The clean model's, or that of another; of the latter, where it refuses to generate, all
        that can be asked is refused."""
        with LLM(self.path, device="cpu", threads=1, max_batch=1, n_ctx=64, kv_type=kv_type) as llm:
            try:
                tokens = greedy(llm, PROMPT, 3)
            except onegraph.ModelError:
                assert clean
                # All of the tokens that it fed.
                for ask in (llm.logits, llm.embed) if self.shape.pooling else (llm.logits,):
                    with pytest.raises(onegraph.ModelError, match=NAMED):
                        ask([*PROMPT, *clean.tokens[:2]])
                raise
            return Answer(tokens, llm.logits([*PROMPT, *tokens[:2]]))

    def refuses(self, kv_type: str, clean: Answer) -> bool:
        """Whether it does not answer; else the answer is the clean model's, bit for bit."""
        try:
            found = self.answer(kv_type, clean)
        except onegraph.ModelError as error:
            assert NAMED.match(str(error)), error
            return True
        assert found.tokens == clean.tokens
        assert np.array_equal(found.logits.view(np.uint32), clean.logits.view(np.uint32))
        return False


@pytest.mark.parametrize("name", SMALL)
def test_no_model_with_a_number_that_is_not_finite_answers(name: str, tmp_path: Path) -> None:
    number = SMALL.index(name)
    model = Model(tmp_path / "model.gguf", name, MIXES[number % len(MIXES)])
    clean = {kv_type: model.answer(kv_type) for kv_type in KV_TYPES}
    # Each role in the first layer that has it or the last, with other values and caches in other
    # shapes.
    roles = {re.sub(r"^blk\.\d+", "", t.name): t for t in model.tensors[:: (-1) ** number]}
    assert len(roles) >= 10
    for asked, tensor in enumerate(roles.values()):
        value, kv_type = VALUES[(asked + number // 2) % 3], KV_TYPES[(asked + number) % 4]
        refused = [
            model.refuses(kv_type, clean[kv_type])
            for at in tensor.parts()
            for _ in model.poisoned(at, tensor.ty, value)
        ]
        # Nobody reads what a matrix's input was scaled by, nor layers that guess further tokens;
        # nor experts that no row goes to; nor, of a text as short as this, what chooses among its
        # blocks, of which attention sees all.
        unread = tensor.name.endswith(UNREAD) or tensor.layer == model.shape.n_layer
        judge = any if "_exps.weight" in tensor.name else all
        assert judge(refused) != unread and any(refused) != unread, (tensor.name, value, kv_type)


BAD = 40


@pytest.fixture(scope="module")
def embeds_nan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of floats, whose products have no grid, in which one token's embedding is NaN."""
    path = tmp_path_factory.mktemp("finite") / "model.gguf"
    synth.write(path, shapes.find("odd-llama-96"), "F32", seed=3)
    (table,) = (t for t in gguf.GGUFReader(path, "r+").tensors if t.name == "token_embd.weight")
    table.data[BAD] = np.nan
    table.data.base.flush()
    return path


def scatter(position: int) -> str:
    return (
        rf"KV scatter of layer 0: a key or value at position {position} of sequence slot \d is NaN"
    )


@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_sequences_of_a_batch_end_each_for_itself(embeds_nan: Path, kv_type: str) -> None:
    with LLM(embeds_nan, device="cpu", n_ctx=64, max_batch=3, kv_type=kv_type) as llm:

        def good() -> list[int]:
            bias = {BAD: -1e4}
            return llm.generate(
                [5, 6], max_tokens=30, ignore_eos=True, logit_bias=bias, seed=1
            ).token_ids

        def bad(length: int) -> str:
            with pytest.raises(onegraph.ModelError) as caught:
                llm.generate([9] * length, max_tokens=5, logit_bias={BAD: 1e4})
            return str(caught.value)

        alone = good()
        with ThreadPoolExecutor(3) as threads:
            for _ in range(5):
                others = [threads.submit(bad, 3), threads.submit(bad, 4)]
                assert threads.submit(good).result() == alone
                # Both, also where one step has both.
                for position, other in zip((3, 4), others, strict=True):
                    assert re.match(scatter(position), other.result())
        assert llm.saturated_sequences == 0


@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_nothing_is_kept_of_a_token_that_was_not_finite(embeds_nan: Path, kv_type: str) -> None:
    """Pages before it serve the next prompt that begins so; those with it and behind it do not."""
    before, behind = [5, 6] * 40, [7] * 100
    prompt = [*before, 8, *behind]
    with LLM(embeds_nan, device="cpu", n_ctx=256, max_batch=2, kv_type=kv_type) as llm:
        for _ in range(2):
            with pytest.raises(onegraph.ModelError, match=scatter(len(before))):
                greedy(llm, [*before, BAD, *behind], 2)
        cached = llm.generate([*before, *before], max_tokens=1).usage.cached_tokens
        assert cached <= len(before)
        found = greedy(llm, prompt, 20)
    with LLM(embeds_nan, device="cpu", n_ctx=256, max_batch=2, kv_type=kv_type) as fresh:
        assert greedy(fresh, prompt, 20) == found


def test_a_drafted_round_ends_as_a_step_does(embeds_nan: Path) -> None:
    prompt = [9, 8, 7] * 5
    with LLM(embeds_nan, device="cpu", n_ctx=128, kv_type="i16") as llm:
        tokens: list[int] = []
        with pytest.raises(onegraph.ModelError, match=scatter(len(prompt))):
            for part in llm.generate(
                prompt, stream=True, max_tokens=9, prompt_lookup_num_tokens=4, logit_bias={BAD: 1e4}
            ):
                tokens.extend(part.token_ids)
        assert tokens == [BAD]
        with pytest.raises(onegraph.ModelError, match=scatter(1)):
            llm.generate([5, BAD], max_tokens=1, logprobs=3)
