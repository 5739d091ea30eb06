"""Results of many prompts in the order in which they end."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import onegraph
import pytest

PROMPTS = [f"Number {i} is" for i in range(12)]


@pytest.fixture(scope="module")
def llm(smollm2: Path) -> Iterator[onegraph.LLM]:
    with onegraph.LLM(smollm2, device="cpu", n_ctx=128, max_batch=2) as llm:
        yield llm


def test_each_result_is_that_of_its_own_place(llm: onegraph.LLM) -> None:
    told: list[tuple[str, int, int | None]] = []
    found = dict(
        llm.generate(
            PROMPTS,
            as_completed=True,
            max_tokens=3,
            seed=1,
            progress=lambda *now: told.append(now),
        )
    )
    whole = llm.generate(PROMPTS, max_tokens=3, seed=1)
    assert [found[i].token_ids for i in range(12)] == [each.token_ids for each in whole]
    assert told == [("generate", i, 12) for i in range(1, 13)]


def test_who_ends_first_comes_first(llm: onegraph.LLM) -> None:
    prompts = [[1] * 8, [1] * 120]  # of the second a few tokens fit
    order = [i for i, _ in llm.generate(prompts, as_completed=True, ignore_eos=True, max_tokens=40)]
    assert order == [1, 0]


def test_an_iterable_is_read_as_there_is_room(llm: onegraph.LLM) -> None:
    taken = itertools.count()
    prompts = (f"{next(taken)} and" for _ in itertools.count())
    results = llm.generate(prompts, as_completed=True, max_tokens=2)
    for _ in range(5):
        next(results)
    assert next(taken) <= 5 + 2 * llm.max_batch
    results.close()


def test_conversations_and_texts_are_answered(llm: onegraph.LLM) -> None:
    asked = ["Hi", [{"role": "user", "content": "Hi"}]]
    found = dict(llm.chat(asked, as_completed=True, max_tokens=3, temperature=0.0))
    assert found[0].text == found[1].text == llm.chat("Hi", max_tokens=3, temperature=0.0).text


def test_an_error_names_the_prompt(llm: onegraph.LLM) -> None:
    with pytest.raises(onegraph.ContextError, match=r"^prompt\[1\]: "):
        list(llm.generate(["a", [1] * 500], as_completed=True, max_tokens=1))


@pytest.mark.parametrize("one", ["Hi", [1, 2], 5])
def test_one_prompt_is_refused(llm: onegraph.LLM, one: object) -> None:
    with pytest.raises(onegraph.ArgumentError, match="prompt is a single one; pass a list"):
        llm.generate(one, as_completed=True)
    with pytest.raises(onegraph.ArgumentError, match="cannot be combined with stream or n"):
        llm.generate(PROMPTS, as_completed=True, n=2)
