"""Every public call with values that it does not take: an `onegraph.Error` that names the argument,
and never an error of a conversion underneath."""

import asyncio
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onegraph
import pytest
from onegraph import LLM, ChatTemplate, Tokenizer

#: Half of a surrogate pair, as `os.fsdecode`, `json.loads` and a terminal may give it.
HALF = "tea \ud800"
HUGE = 10**5000  # Python itself refuses to write it

NO_INTEGERS = ["5", b"5", 1.5, math.nan, math.inf, True, [1], object(), 2**63, -(2**70), HUGE]
NO_NUMBERS = ["0.5", b"0.5", True, [0.5], {}, object(), 10**400, -HUGE, 1j, math.nan]
NO_FLAGS = [0, 1, "yes", "", None, [], object()]
NO_TEXTS = [HALF, b"tea", 7, 1.5, ["tea"], object()]
NO_TOKENS = [None, 1.5, True, -1, 2**32, 2**64, HUGE, math.nan, b"5", {}]
NO_IDS = [
    *[7, 1.5, b"hi", bytearray(b"hi"), memoryview(b"hi"), {1: 2}, {1, 2}, object()],
    *[np.array(5), np.zeros((2, 2)), np.array([0.5]), range(-1, 3), (1, b"2")],
    *[[token] for token in NO_TOKENS],
]
NO_PROMPTS = [
    *[HALF, None, ["a", b"b"], ["a", HALF], ["a", 1], [[1], [HUGE]], [[1], iter([1])], [[], [1]]],
    *NO_IDS,
]
NO_SIZES = ["5", b"5", 7, object(), {1}, {1: 1}, iter([1]), *[[v] for v in NO_INTEGERS], [-1]]
NO_MESSAGES = [
    *[None, 7, "tea", b"tea", {"role": "user"}, object()],
    *[[{"role": "user", "content": HALF}], [{"role": HALF, "content": "tea"}]],
    *[[{"role": "user", "content": "tea", HALF: 1}], [{"role": "user", "content": b"tea"}]],
    *[[{"role": "user", "content": HUGE}], [{"role": "user", "content": object()}]],
]
NO_VARIABLES = [
    *[7, "tea", b"tea", ["tea"], [("a", 1)], object(), {HALF: 1}, {7: 1}, {b"a": 1}],
    *[{"a": HALF}, {"a": object()}, {"a": {HALF: 1}}, {"a": [HUGE]}, {"messages": []}],
]
NO_PATHS: list[Any] = [7, 1.5, b"m.gguf", True, None, object(), HALF, "\0", "a\0.gguf"]

#: Keyword of generating -> values that it refuses.
SAMPLING: dict[str, list[Any]] = {
    "max_tokens": [*NO_INTEGERS, 0, -1],
    "temperature": [*NO_NUMBERS, None, -1, math.inf, 1e300],
    "top_k": [*NO_INTEGERS, None, -1],
    "top_p": [*NO_NUMBERS, None, -0.1, math.inf, 1e300],
    "min_p": [*NO_NUMBERS, None, -0.1, math.inf, 1e300],
    "repeat_penalty": [*NO_NUMBERS, None, 0, math.inf, 1e300],
    "presence_penalty": [*NO_NUMBERS, None, 3, -math.inf, -1e300],
    "frequency_penalty": [*NO_NUMBERS, None, 3, -math.inf, -1e300],
    "repeat_last_n": [*NO_INTEGERS, None, -2, -(2**63)],
    "logit_bias": [
        *[0, 7, [], [(1, 1.0)], "tea", object(), {512: 1.0}, {1: 1e300}, {1: -1e39}],
        *[
            {token: 1.0}
            for token in [*NO_INTEGERS, -1, 2**32, 2**33]
            if not isinstance(token, list)
        ],
        *[{1: bias} for bias in [*NO_NUMBERS, None]],
    ],
    "seed": [*[v for v in NO_INTEGERS if v != 2**63], -1, 2**64],
    "stop": [
        *[7, 1.5, b"x", True, object(), "", HALF, [""], [HALF], [7], [None], {"a": 1}],
        *[["x"] * 65, iter(["x"])],
    ],
    "stop_token_ids": [*NO_SIZES, [512], [0] * 1025],
    "logprobs": [*NO_INTEGERS, -1, 101],
    "ignore_eos": NO_FLAGS,
    "prompt_lookup_num_tokens": [*NO_INTEGERS, None, -1, 32],
}

#: Keyword of loading -> values that it refuses.
LOADING: dict[str, list[Any]] = {
    "device": [*NO_TEXTS, None, "gpu", "", "cuda:", "cuda:-1", "cuda:" + "9" * 50, "c\0pu"],
    "n_ctx": [*NO_INTEGERS, -1, 0, 1, 513],
    "max_batch": [*NO_INTEGERS, None, -1, 0, 1025],
    "kv_type": [*NO_TEXTS, None, "", "f64", "f16\0", "x" * 5000],
    "graph": ["full", {}, True, 7, object(), onegraph.GraphOptions],
    "warmup": NO_FLAGS,
    "threads": [*NO_INTEGERS, -1, 0, 1025],
    "prefill_chunk": [*NO_INTEGERS, -1, 0, 100, 2**20],
    "progress": [7, "yes", object(), []],
}

#: Field of `GraphOptions` -> values that it, or loading with it, refuses.
GRAPH: dict[str, list[Any]] = {
    "mode": [*NO_TEXTS, None, "", "half"],
    "batch_sizes": [*NO_SIZES, [], [0], [9]],
    "max_batch": [*NO_INTEGERS, -1, 0],
    "padding": NO_FLAGS,
    "pdl": [v for v in NO_FLAGS if v is not None],
}


@pytest.fixture(scope="module")
def template() -> ChatTemplate:
    return ChatTemplate("{{ messages[0].content }}")


def refuses(name: str, values: list[Any], call: Callable[[Any], object]) -> None:
    """Whether `call` refuses each of the values by an error that begins with the argument."""
    for value in values:
        kind = f"{type(value).__name__} in {name}"
        try:
            call(value)
        except onegraph.ArgumentError as e:
            assert str(e).startswith(name), (kind, str(e))
            assert len(str(e)) < 500, kind
        else:
            pytest.fail(f"{kind} was taken: {ascii(value)[:80]}")


@pytest.mark.parametrize("name", SAMPLING)
def test_sampling_keywords(llm: LLM, name: str) -> None:
    async def first(value: Any) -> None:
        async for _ in llm.agenerate("tea", **{name: value}):
            break

    messages = [{"role": "user", "content": "tea"}]
    calls: list[Callable[[Any], object]] = [
        lambda value: llm.generate("tea", **{name: value}),
        lambda value: llm.generate(["tea", "toast"], **{name: value}),
        lambda value: llm.generate("tea", stream=True, **{name: value}),
        lambda value: llm.chat(messages, **{name: value}),
        lambda value: asyncio.run(first(value)),
    ]
    # An iterator must not be used up by the first of the calls.
    for call in calls:
        refuses(name, SAMPLING[name], call)
    assert llm.generate("tea", max_tokens=1, ignore_eos=True).token_ids


def test_prompts(llm: LLM) -> None:
    async def first(value: Any) -> None:
        async for _ in llm.agenerate(value):
            break

    refuses("prompt", NO_PROMPTS, llm.generate)
    refuses("prompt", [*NO_IDS, HALF, None, [], ["a", "b"]], lambda v: asyncio.run(first(v)))
    single = [v for v in NO_IDS if not isinstance(v, np.ndarray)]  # rows are prompts of a batch
    refuses("prompt", [*single, HALF, None, []], lambda v: llm.generate(v, stream=True))
    refuses("stream", NO_FLAGS, lambda v: llm.generate("tea", stream=v))
    tokens: Iterator[int] = iter([5, 6])
    refuses("prompt", [tokens], llm.generate)
    assert list(tokens) == [5, 6], "the refused iterator was used up"


def test_conversations(llm: LLM, template: ChatTemplate) -> None:
    said = [{"role": "user", "content": "tea"}]
    refuses("messages", [*(v for v in NO_MESSAGES if v != "tea"), HALF], llm.chat)
    for call in (template.render, template.rendering):
        refuses("messages", NO_MESSAGES, call)
    for call in (llm.chat, template.render, template.rendering):
        no_tools = [v for v in NO_MESSAGES if v is not None]
        refuses("tools", no_tools, lambda v, call=call: call(said, v))
    refuses("parse_special", NO_FLAGS, lambda v: llm.chat(said, parse_special=v))
    refuses("template", NO_VARIABLES, lambda v: llm.chat(said, template_kwargs=v))
    refuses("stream", NO_FLAGS, lambda v: llm.chat(said, stream=v))
    refuses("add_generation_prompt", NO_FLAGS, lambda v: template.render(said, None, v))
    for value in (HALF, object(), {HALF: 1}, [HUGE]):
        refuses("template variable", [value], lambda v: template.render(said, variable=v))
    refuses("template variable", [HALF], lambda v: template.render(said, **{v: 1}))
    refuses("source", [*NO_TEXTS, None], ChatTemplate)
    refuses("bos_token", [*NO_TEXTS, None], lambda v: ChatTemplate("", v))
    refuses("eos_token", [*NO_TEXTS, None], lambda v: ChatTemplate("", "", v))


def test_texts_and_ids(llm: LLM) -> None:
    tokenizer = llm.tokenizer
    for encode in (llm.tokenize, tokenizer.encode):
        refuses("text", [*NO_TEXTS, None], encode)
        refuses("add_special", NO_FLAGS, lambda v, encode=encode: encode("tea", v))
        refuses("parse_special", NO_FLAGS, lambda v, encode=encode: encode("tea", True, v))
    refuses("rendering", ["tea", None, b"tea", 7, object()], tokenizer.encode_rendering)
    rendering = ChatTemplate("").rendering([])
    refuses("add_special", NO_FLAGS, lambda v: tokenizer.encode_rendering(rendering, v))
    for decode in (llm.detokenize, tokenizer.decode):
        refuses("ids", [*NO_IDS, ["a"], "tea", None, iter([5])], decode)
        refuses("skip_special", NO_FLAGS, lambda v, decode=decode: decode([5], v))
    for one in (tokenizer.token_bytes, tokenizer.token_text, tokenizer.is_special):
        refuses("id", [*NO_TOKENS, "a"], one)
    refuses("id", [*NO_TOKENS, "a"], tokenizer.stream().push)
    refuses("text", [*NO_TEXTS, None], tokenizer.token_id)
    refuses("skip_special", NO_FLAGS, tokenizer.stream)
    refuses("continuation", NO_FLAGS, lambda v: tokenizer.stream(True, v))


def test_logits_and_graphs(llm: LLM) -> None:
    refuses("ids", [*NO_IDS, "tea", None, [], [512], iter([5]), [5] * 513], llm.logits)
    # Refused before 20 GB are taken for them.
    refuses("ids", [[5] * 10_000_000], llm.logits)
    refuses("path", [*NO_TEXTS, None, "sideways"], lambda v: llm.logits([5], v))
    refuses("ids", [*NO_IDS, "tea", ["a"], [], [512]], llm.verify_graph)
    refuses("batch_sizes", NO_SIZES, lambda v: llm.verify_graph([5], batch_sizes=v))
    refuses("rtol", [*NO_NUMBERS, None, -1, math.inf], lambda v: llm.verify_graph([5], rtol=v))
    refuses("atol", [*NO_NUMBERS, None, -1, math.inf], lambda v: llm.verify_graph([5], atol=v))
    refuses("batch_size", [*NO_INTEGERS, None, 0, -1, 5], llm.profile_graph)
    refuses("position", [*NO_INTEGERS, None, -1, 512], lambda v: llm.profile_graph(1, position=v))
    refuses("prompt", [*NO_INTEGERS, 0, -1, 512], lambda v: llm.profile_graph(prompt=v))
    refuses("repeats", [*NO_INTEGERS, None, 0, -1], lambda v: llm.profile_graph(1, repeats=v))
    no_file = [v for v in NO_PATHS if v not in (None, "\0", "a\0.gguf")]
    refuses("dot", no_file, lambda v: llm.profile_graph(1, dot=v))


@pytest.mark.parametrize("name", LOADING)
def test_loading(tiny: Path, name: str) -> None:
    refuses(name, LOADING[name], lambda v: LLM(tiny, **{"device": "cpu", name: v}))


@pytest.mark.parametrize("name", GRAPH)
def test_options_of_graphs(tiny: Path, name: str) -> None:
    def load(value: Any) -> None:
        LLM(tiny, device="cpu", graph=onegraph.GraphOptions(**{name: value}))

    refuses(f"graph.{name}", GRAPH[name], load)


@pytest.mark.parametrize("enter", [LLM, Tokenizer])
def test_paths(enter: Callable[[Any], object], tmp_path: Path) -> None:
    names = ["m" * 5000, "m" * 5000 + ".gguf", f"{tmp_path}/{'m' * 300}.gguf", "\udcff.gguf"]
    names += ["/" + "m/" * 5000 + "m.gguf", "~nobody-of-this-name/m.gguf", "", "/", str(tmp_path)]
    for value in [*NO_PATHS, *names, *map(Path, names)]:
        with pytest.raises((onegraph.ArgumentError, onegraph.FileError)):
            enter(value)


def test_every_class_of_errors_is_an_error() -> None:
    classes = [getattr(onegraph, name) for name in onegraph.__all__]
    errors = [c for c in classes if isinstance(c, type) and issubclass(c, BaseException)]
    assert len(errors) == 10
    assert [c for c in errors if not issubclass(c, onegraph.Error)] == []
