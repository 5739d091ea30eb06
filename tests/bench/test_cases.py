"""llama-bench's lists, ranges and test names."""

import onegraph
import pytest
from onegraph.bench.cases import Case, cases, context, numbers, pairs


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], [512]),
        (["0"], [0]),
        (["128,256"], [128, 256]),
        (["128", "256, 1"], [128, 256, 1]),
        (["1-4"], [1, 2, 3, 4]),
        (["0-4096+1024"], [0, 1024, 2048, 3072, 4096]),
        (["1-100*4"], [1, 4, 16, 64]),
        (["16,1-8*2"], [16, 1, 2, 4, 8]),
    ],
)
def test_lists_and_ranges(given: list[str], expected: list[int]) -> None:
    assert numbers("-p", given, [512]) == expected


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("many", "-p 'many' is not a number or a range"),
        ("-5", "-p '-5' is not a number"),
        ("", "-p '' is not a number"),
        ("٣", "is not a number"),
        ("8-1", "'8-1' never reaches its end"),
        ("0-8*2", "'0-8[*]2' never reaches its end"),
        ("1-8*1", "never reaches its end"),
        ("1-8+0", "never reaches its end"),
        ("1-100000", "-p has over 1000 values; use a larger step"),
    ],
)
def test_what_is_no_list_is_refused(given: str, said: str) -> None:
    with pytest.raises(onegraph.ArgumentError, match=said):
        numbers("-p", [given], [512])


def test_a_value_below_the_least_is_refused() -> None:
    with pytest.raises(onegraph.ArgumentError, match="-npl 0: must be at least 1"):
        numbers("-npl", ["0"], [1], least=1)


@pytest.mark.parametrize("wrong", ["512", "512,", "1,2,3", "a,b", "0,128", "512,0"])
def test_a_pair_is_two_lengths(wrong: str) -> None:
    with pytest.raises(onegraph.ArgumentError, match="-pg"):
        pairs("-pg", [wrong])


def test_the_tests_are_llama_benchs_in_its_order() -> None:
    found = cases([512, 0], [128], pairs("-pg", ["256,64"]), [0, 1024], [1, 4])
    assert [case.name for case in found] == [
        *("pp512", "tg128", "tg128 x 4", "pp256+tg64"),
        *("pp512 @ d1024", "tg128 @ d1024", "tg128 @ d1024 x 4", "pp256+tg64 @ d1024"),
    ]
    assert found[4] == Case(512, 0, 1024, 1)
    assert found[4].n_ctx == 1537


def test_no_test_at_all_is_refused() -> None:
    with pytest.raises(onegraph.ArgumentError, match="-p 0 -n 0 leaves no test"):
        cases([0], [0])


def test_a_context_holds_the_longest_test_and_no_more_than_the_model() -> None:
    found = [Case(10, 0), Case(0, 300, 50)]
    assert context(found, 8192, 64) == context(found, None, 64) == 384
    # Rounding up asks for nothing that the model does not have.
    assert context(found, 360, 64) == 360 and context(found, 351, 64) == 351
    with pytest.raises(onegraph.ArgumentError, match=r"tg300 @ d50 needs a context of 351.*350"):
        context(found, 350, 64)
