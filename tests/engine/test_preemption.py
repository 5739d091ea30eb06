"""More sequences than there is memory for: some are preempted, none loses or repeats a token."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import shapes
import synth
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onegraph import LLM, ArgumentError
from onegraph.server.metrics import Metrics
from onegraph.server.models import Models
from support.prompts import words

pytestmark = pytest.mark.thorough

#: One context of memory for six sequences.
TIGHT: dict[str, Any] = {
    "device": "cpu",
    "n_ctx": 256,
    "kv_tokens": 256,
    "max_batch": 6,
    "progress": False,
}


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose layers keep a state."""
    path = tmp_path_factory.mktemp("models") / "hybrid.gguf"
    synth.write(path, shapes.find("tiny-qwen35"), "Q8_0", seed=1)
    return path


@pytest.fixture(scope="module", params=["tiny", "hybrid"])
def model(request: pytest.FixtureRequest) -> Path:
    path: Path = request.getfixturevalue(request.param)
    return path


@pytest.fixture(scope="module")
def both(model: Path) -> Any:
    """The model with room for one sequence, which has it alone, and with too little for six."""
    plain = {**TIGHT, "kv_tokens": None, "max_batch": 1, "prefix_cache": False}
    with LLM(model, **plain) as alone, LLM(model, **TIGHT) as llm:
        yield alone, llm


LOOKUP = {"prompt_lookup_num_tokens": 7}
#: Tokens so few that they repeat, for drafts of them.
FEW: dict[str, Any] = {"logit_bias": {token: math.inf for token in (60, 61)}}

#: A request: a beginning that others have too, tokens of its own, an answer's length, a seed, a
#: priority, the pieces after which it is given up, and whether it has drafts.
REQUESTS = st.lists(
    st.tuples(
        st.integers(0, 130),
        st.integers(1, 40),
        st.integers(1, 120),
        st.integers(0, 2**32),
        st.integers(-3, 3),
        st.one_of(st.none(), st.none(), st.none(), st.integers(1, 60)),
        st.booleans(),
    ),
    min_size=3,
    max_size=9,
)


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(requests=REQUESTS)
def test_each_sequence_equals_its_solo_run(both: tuple[LLM, LLM], requests: list[Any]) -> None:
    alone, llm = both
    asked = []
    for shared, own, n, seed, priority, _, drafts in requests:
        prompt = words(130, 1)[:shared] + words(own, seed)
        options = {"max_tokens": min(n, 255 - len(prompt)), "temperature": 1.0, "seed": seed}
        options |= {"ignore_eos": True, **(FEW if drafts else {})}
        asked.append((prompt, options, {"priority": priority} | (LOOKUP if drafts else {})))
    streams = [llm.generate(p, stream=True, **o, **more) for p, o, more in asked]
    found: list[list[int]] = [[] for _ in streams]

    def read(i: int) -> None:
        given_up = requests[i][5]
        for pieces, piece in enumerate(streams[i], 1):
            found[i] += piece.token_ids
            if pieces == given_up:
                streams[i].close()
                break

    threads = [threading.Thread(target=read, args=(i,)) for i in range(len(streams))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for (prompt, options, _), tokens, request in zip(asked, found, requests, strict=True):
        expected = list(alone.generate(prompt, **options).token_ids)
        assert tokens == (expected if request[5] is None else expected[: len(tokens)])
    until(
        llm,
        lambda now: now.running + now.preempted + now.pages_swapped_out + now.pages.sequences == 0,
    )


def until(llm: LLM, enough: Callable[[Any], bool]) -> None:
    late = time.monotonic() + 60
    while not enough(llm.stats()):
        assert time.monotonic() < late, llm.stats()
        time.sleep(0.001)


def test_streams_pause_and_the_count_says_so(model: Path) -> None:
    prompts = [words(60, seed) for seed in range(4)]
    options: dict[str, Any] = {"max_tokens": 150, "temperature": 0, "ignore_eos": True}
    with LLM(model, **TIGHT) as llm:
        together = llm.generate(prompts, **options)
        now = llm.stats()
        assert now.preemptions > 0 and now.pages.total == 4
        assert now.states.free == now.states.total
        # Every token of a prompt was read once, every other one computed once.
        assert now.prompt_tokens == 240 and now.generated_tokens == 600
        text = Metrics().text(Models({"m": llm}, max_queue=9).all())
        assert f'onegraph:preemptions_total{{model_name="m"}} {now.preemptions}\n' in text
        assert 'onegraph:pages_swapped_out{model_name="m"} 0\n' in text
        alone = [llm.generate(prompt, **options) for prompt in prompts]
    assert [r.token_ids for r in together] == [r.token_ids for r in alone]


def test_a_pool_or_a_host_that_is_too_small_is_refused(tiny: Path) -> None:
    with pytest.raises(ArgumentError, match="kv_tokens = 255: must be at least n_ctx = 256"):
        LLM(tiny, **{**TIGHT, "kv_tokens": 255})
    for name in ("kv_tokens", "kv_host_bytes"):
        with pytest.raises(ArgumentError, match=name):
            LLM(tiny, **{**TIGHT, name: -1})
    with LLM(tiny, **{**TIGHT, "kv_host_bytes": 0}) as llm:
        options: dict[str, Any] = {"max_tokens": 150, "temperature": 0, "ignore_eos": True}
        made = llm.generate([words(60, seed) for seed in range(3)], **options)
        assert [len(r.token_ids) for r in made] == [150] * 3 and llm.stats().preemptions == 0
