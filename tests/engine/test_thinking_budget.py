"""Reasoning that is closed by its own marker where it has had its tokens."""

from collections.abc import Iterator
from typing import Any

import onegraph
import pytest
from support import scripted

MARKERS = ["<think>", "</think>"]
REASONING, ANSWER = "one two three four five", "tea"
SAID = [{"role": "user", "content": "Hi"}]
#: Whether the template opens the reasoning, or the model.
BEGINS = {"opened": "<think>", "opens": "<|turn0|>"}


@pytest.fixture(scope="module", params=[*BEGINS])
def llm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    begin = BEGINS[request.param]
    script = f"{REASONING}</think>{ANSWER}"
    template = "{# <think> </think> #}{% for m in messages %}{{ m.content }}{% endfor %}" + begin
    path = scripted.write(
        tmp_path_factory.mktemp("thinking") / "model.gguf",
        [script if request.param == "opened" else f"<think>{script}"],
        template=template,
        markers=[marker for marker in MARKERS if marker != begin],
        begins=[begin],
    )
    with onegraph.LLM(path, device="cpu", max_batch=4) as llm:
        yield llm


def chat(llm: Any, budget: int | None, **options: Any) -> Any:
    return llm.chat(SAID, temperature=0.0, max_tokens=40, thinking_token_budget=budget, **options)


def test_reasoning_ends_at_its_budget_and_the_answer_follows(llm: Any) -> None:
    whole = chat(llm, None)
    assert (whole.reasoning, whole.text) == (REASONING, ANSWER)
    close = llm.tokenize("</think>", parse_special=True)[-1]
    first = whole.token_ids.index(close)
    opens = whole.token_ids[0] == llm.tokenize("<think>", parse_special=True)[-1]
    most = first - opens
    for budget in range(most + 2):
        found = chat(llm, budget)
        kept = min(budget, most) + opens
        assert found.token_ids[:kept] == whole.token_ids[:kept]
        assert found.token_ids[kept:] == whole.token_ids[first:]
        assert found.text == ANSWER and REASONING.startswith(found.reasoning or "")
        assert found.finish_reason == "stop"


@pytest.mark.parametrize(
    "form", [{"choice": ["tea", "milk"]}, {"regex": "t[a-z]+"}, {"grammar": 'start: "tea"'}]
)
def test_the_answer_behind_it_is_held_to_its_form(llm: Any, form: dict[str, Any]) -> None:
    found = chat(llm, 2, **form)
    assert found.text == ANSWER and found.reasoning == chat(llm, 2).reasoning


def test_streams_and_batches_have_the_same_tokens(llm: Any) -> None:
    alone = chat(llm, 3).token_ids
    streamed = llm.chat(SAID, temperature=0.0, max_tokens=40, thinking_token_budget=3, stream=True)
    assert [i for piece in streamed for i in piece.token_ids] == list(alone)
    many = llm.chat([SAID] * 3, temperature=0.0, max_tokens=40, thinking_token_budget=3)
    assert [each.token_ids for each in many] == [alone] * 3


def test_what_it_cannot_be_is_refused(llm: Any) -> None:
    with pytest.raises(onegraph.ArgumentError, match=r"thinking_token_budget = -1"):
        chat(llm, -1)
    with pytest.raises(onegraph.ArgumentError, match=r"thinking_token_budget = 5: only chat knows"):
        llm.generate("Hi", thinking_token_budget=5)
