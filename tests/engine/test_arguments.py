"""What is refused, in which words; and where the defaults are stated."""

import dataclasses
import inspect
import logging
import math
import pydoc
import re
import threading
from pathlib import Path
from typing import Any, get_args

import onegraph
import pytest
from onegraph import LLM, GraphOptions, foreign
from onegraph import llm as llm_module
from onegraph.graphs import GraphMode
from onegraph.loaded import KvType
from onegraph.sampling import DEFAULTS, MEANING, Sampling, SamplingOptions


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -0.5}, r"temperature = -0.5: must be from 0 to 100"),
        ({"temperature": math.nan}, r"temperature = NaN: must be from 0 to 100"),
        ({"top_k": -1}, r"top_k = -1: must not be negative"),
        ({"top_p": 1.5}, r"top_p = 1.5: must be from 0 to 1"),
        ({"min_p": -0.1}, r"min_p = -0.1: must be from 0 to 1"),
        ({"repeat_penalty": 0}, r"repeat_penalty = 0: must be from 0.01 to 100"),
        ({"presence_penalty": 3}, r"presence_penalty = 3: must be from -2 to 2"),
        ({"frequency_penalty": -3}, r"frequency_penalty = -3: must be from -2 to 2"),
        ({"repeat_last_n": -2}, r"repeat_last_n = -2: must be a number of tokens, 0 for none of"),
        ({"logit_bias": {512: 1.0}}, r"logit_bias = 1 for token 512: .* has 512 tokens"),
        ({"logit_bias": {1: math.nan}}, r"logit_bias = NaN for token 1"),
        ({"logit_bias": {-1: 0.0}}, r"logit_bias = -1: must not be negative"),
        ({"max_tokens": 0}, r"max_tokens = 0: must be 1 or more"),
        ({"max_tokens": -5}, r"max_tokens = -5: must be 1 or more; max_tokens=None sets"),
        ({"max_tokens": 2**70}, r"max_tokens = 1180591620717411303424: is out of range"),
        ({"seed": -1}, r"seed = -1: must be from 0 to 2\*\*64 - 1"),
        ({"seed": 2**64}, r"seed = 18446744073709551616: must be from 0"),
        ({"logprobs": 101}, r"logprobs = 101: must be from 0 to 100"),
        ({"prompt_lookup_num_tokens": 32}, r"prompt_lookup_num_tokens = 32: must be from 0 to 31"),
        ({"stop": ""}, r'stop = "": an empty string would stop at once'),
        ({"stop": ["x"] * 65}, r"stop = 65 strings: at most 64 are allowed"),
    ],
)
def test_sampling_out_of_range_is_refused_by_name(
    llm: LLM, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(onegraph.ArgumentError, match=message):
        llm.generate("tea", **options)
    # Before the first piece is asked for.
    with pytest.raises(onegraph.ArgumentError, match=message):
        llm.generate("tea", stream=True, **options)


def test_every_token_banned(llm: LLM) -> None:
    bans = dict.fromkeys(range(llm.n_vocab), -math.inf)
    with pytest.raises(onegraph.ArgumentError, match="no token is left to draw; ban fewer"):
        llm.generate("tea", logit_bias=bans)
    assert llm.generate("tea", max_tokens=1).token_ids


def test_an_unknown_keyword_is_a_type_error_as_anywhere(llm: LLM) -> None:
    with pytest.raises(TypeError, match="'temprature'; sampling takes max_tokens, temperature"):
        llm.generate("tea", temprature=1.0)  # type: ignore[call-overload]


def test_prompts_that_are_none(llm: LLM) -> None:
    refused: list[tuple[Any, str]] = [
        ([], r"prompt = \[\]: pass a str, token ids, or a list"),
        ([1, "a"], "tokens and prompts are mixed"),
        ([512], "prompt = token 512: the vocabulary has 512 tokens, with ids from 0"),
        ([-1], "prompt = -1: must not be negative"),
        ([2**70], "prompt = 1180591620717411303424: is out of range"),
        ([[1], []], r"prompt\[1\] = no token"),
    ]
    for prompt, message in refused:
        with pytest.raises(onegraph.ArgumentError, match=message):
            llm.generate(prompt)
    with pytest.raises(onegraph.ArgumentError, match="2 prompts were given, but a stream has one"):
        llm.generate(["a", "b"], stream=True)  # type: ignore[call-overload]
    with pytest.raises(onegraph.ArgumentError, match="prompt = None: must be a sequence of"):
        llm.generate(None)  # type: ignore[call-overload]
    with pytest.raises(onegraph.ArgumentError, match="ids = no token"):
        llm.logits([])
    with pytest.raises(
        onegraph.ArgumentError, match='path = "sideways": must be prefill or decode'
    ):
        llm.logits([1], path="sideways")  # type: ignore[arg-type]
    with pytest.raises(onegraph.ArgumentError, match="512: the vocabulary has 512 tokens"):
        llm.detokenize([512])


def graph(**options: Any) -> dict[str, Any]:
    return {"graph": GraphOptions(**options)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "gpu"}, r'device = "gpu": must be auto, cpu, cuda, cuda:N or cuda:N,M'),
        ({"n_ctx": 1}, r"n_ctx = 1: must be from 2 to 512"),
        ({"n_ctx": -1}, r"n_ctx = -1: must not be negative"),
        ({"n_ctx": 513}, r"n_ctx = 513: the model was trained for 512 tokens, the maximum"),
        ({"max_batch": 0}, r"max_batch = 0: must be from 1 to 1024"),
        ({"threads": 0}, r"threads = 0: must be from 1 to 1024"),
        ({"kv_type": "f64"}, r'kv_type = "f64": must be one of .*f16.*q8_0'),
        (graph(batch_sizes=[]), r"graph.batch_sizes = \[\]: give at least one size"),
        (graph(batch_sizes=[1, 9]), r"graph.batch_sizes = 9: must be from 1 to 8"),
        (graph(max_batch=9), r"graph.max_batch = 9: must be from 1 to 8"),
        ({"graph": {"mode": "none"}}, r"graph = .*: must be an onegraph.GraphOptions"),
        ({"prefill_chunk": 100}, r"prefill_chunk = 100: must be a power of two from 64 to 4096"),
    ],
)
def test_load_options_out_of_range(tiny: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(onegraph.ArgumentError, match=message):
        LLM(tiny, **{"device": "cpu", **options})


@pytest.mark.parametrize("name", foreign.MOVED)
def test_a_load_option_that_moved_says_where_it_is_now(name: str) -> None:
    field = re.escape(foreign.MOVED[name])
    said = f"unexpected keyword argument '{name}': use {field} instead"
    with pytest.raises(TypeError, match=said):
        LLM("none.gguf", **{name: None})  # type: ignore[arg-type]


@pytest.mark.parametrize(("owner", "name"), foreign.RENAMED)
def test_an_attribute_that_was_renamed_says_its_name(llm: LLM, owner: str, name: str) -> None:
    stats = llm.stats()
    now = foreign.RENAMED[owner, name]
    assert type(stats).__name__ == owner and getattr(stats, now) == 0
    with pytest.raises(AttributeError, match=f"Stats has no attribute '{name}': use {now} instead"):
        getattr(stats, name)


def test_options_of_graphs_answer_where_they_are_made() -> None:
    with pytest.raises(onegraph.ArgumentError, match=r'graph.mode = "x": must be one of full, '):
        GraphOptions(mode="x")  # type: ignore[arg-type]
    said = r"'cuda_graph': use graph=GraphOptions\(mode=...\) instead"
    with pytest.raises(TypeError, match=said):
        GraphOptions(cuda_graph="none")  # type: ignore[call-arg]


@pytest.mark.parametrize("name", ["seed", "temperature", "tools", "echo", "stream"])
def test_a_keyword_of_a_request_is_sent_there(name: str) -> None:
    said = f"'{name}': pass it to a request, such as llm.generate"
    with pytest.raises(TypeError, match=said):
        LLM("none.gguf", **{name: 1})  # type: ignore[arg-type]


def test_words_of_the_types_are_those_that_the_engine_takes(tiny: Path) -> None:
    with pytest.raises(onegraph.ArgumentError) as error:
        GraphOptions(mode="half")  # type: ignore[arg-type]
    assert set(str(error.value).rpartition("one of ")[2].split(", ")) == {*get_args(GraphMode)}
    with pytest.raises(onegraph.ArgumentError) as error:
        LLM(tiny, kv_type="f64")  # type: ignore[arg-type]
    # The CPU takes more, which no page names.
    assert {*get_args(KvType)} <= set(str(error.value).rpartition("one of ")[2].split(", "))


def test_a_name_that_left_the_top_says_where_it_is_now() -> None:
    for module, names in {
        "graphs": ["CapturedStep", "GraphKernel", "GraphProfile", "GraphStats", "StepCheck"],
        "results": ["Timings", "TokenLogprob", "TopLogprob", "Usage"],
        "stats": ["Places"],
    }.items():
        for name in names:
            assert hasattr(getattr(onegraph, module), name)
            said = f"has no attribute '{name}': it is onegraph.{module}.{name}$"
            with pytest.raises(AttributeError, match=said):
                getattr(onegraph, name)
    with pytest.raises(AttributeError, match=r"has no attribute 'Graph'$"):
        getattr(onegraph, "Graph")  # noqa: B009


def test_graph_options_have_no_effect_on_the_cpu(tiny: Path, llm: LLM) -> None:
    with LLM(
        tiny,
        device="cpu",
        graph=GraphOptions(mode="none", batch_sizes=[4, 1, 4], max_batch=4, pdl=False),
        warmup=True,
    ) as other:
        a, b = (m.generate("tea", max_tokens=9, seed=1) for m in (llm, other))
        assert a.token_ids == b.token_ids


def test_defaults_are_stated_once_and_shown_by_help(llm: LLM) -> None:
    assert list(DEFAULTS) == list(SamplingOptions.__annotations__) == list(MEANING)
    assert list(DEFAULTS) == [field.name for field in dataclasses.fields(Sampling)]
    assert Sampling().options() == DEFAULTS
    for method in (LLM.generate, LLM.agenerate, LLM.chat, LLM.achat):
        text = pydoc.plain(pydoc.render_doc(method))
        for name, default in DEFAULTS.items():
            assert f"{name}={default!r}: " in text
    given: dict[str, Any] = {**DEFAULTS, "seed": 1}
    assert llm.generate("tea", **given).token_ids == llm.generate("tea", seed=1).token_ids
    assert len(llm.generate("tea", ignore_eos=True).token_ids) == DEFAULTS["max_tokens"]
    shown = inspect.signature(LLM).parameters
    assert (shown["max_batch"].default, shown["kv_type"].default) == (8, "i16")


def test_what_a_loaded_model_says_of_itself(llm: LLM, tiny: Path) -> None:
    assert llm.path == tiny and llm.device == "cpu"
    assert (llm.n_ctx, llm.n_vocab, llm.max_batch) == (512, 512, 4)
    assert repr(llm) == f"LLM({str(tiny)!r}, device='cpu', n_ctx=512, max_batch=4)"
    ids = llm.tokenize("tea <|im_end|>", parse_special=True)
    assert ids[-1] == 2 and llm.detokenize(ids) == "tea "
    assert llm.detokenize(ids, skip_special=False) == "tea <|im_end|>"
    assert llm.tokenizer.encode("tea") == llm.tokenize("tea")


def test_where_it_runs_is_said_once_through_logging(
    tiny: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llm_module, "_said_cpu", threading.Lock())
    with caplog.at_level(logging.INFO, logger="onegraph"):
        try:
            LLM(tiny).close()
        except onegraph.DeviceError as e:
            pytest.skip(f"this machine has a card: {e}")
        LLM(tiny).close()
    said = [r.getMessage() for r in caplog.records]
    reasons = [m for m in said if m.startswith("running on the CPU: ")]
    assert len(reasons) == 1 and "no" in reasons[0] and "libcuda.so.1" in reasons[0]
    assert [r.levelname for r in caplog.records if r.getMessage() in reasons] == ["WARNING"]
    assert len([m for m in said if m.startswith("loaded tiny.gguf in ")]) == 2


def test_cuda_without_a_card_says_why(tiny: Path) -> None:
    if any(Path("/dev").glob("nvidia[0-9]*")):
        pytest.skip("this machine has a card")
    for device in ("cuda", "cuda:1"):
        with pytest.raises(onegraph.DeviceError, match=r"no NVIDIA (driver|card) found"):
            LLM(tiny, device=device)


def test_progress_is_told(tiny: Path) -> None:
    told: list[tuple[str, int, int | None]] = []
    LLM(tiny, device="cpu", progress=lambda *now: told.append(now)).close()
    weights = [(done, total) for what, done, total in told if what == "weights"]
    assert weights and weights == sorted(weights)
    assert all(total and done <= total for done, total in weights)

    def stop(what: str, done: int, total: int | None) -> None:
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        LLM(tiny, device="cpu", progress=stop)
