"""A long text can be left in the middle, whatever takes the time."""

import signal
from collections.abc import Iterator
from types import FrameType

import onegraph
import pytest
from support import oracles
from support.oracles import sentencepiece

N = 16_000_000
TEXTS = {
    "one word": "a" * N,
    "one run of letters of three bytes": "中" * (N // 3),
    "many words": "some words " * (N // 11),
    "special tokens": "<|im_end|>" * (N // 10),
    "almost special tokens": "<|im_end|" * (N // 9),
}


class Ticks(Exception):
    """The handler ran for the third time."""


@pytest.fixture
def handler() -> Iterator[None]:
    """Raises at the third signal. While nothing looks at signals they are one, handled once: so
    only a call that looks at them is ended by a timer's."""
    ticks = 0

    def tick(_signal: int, _frame: FrameType | None) -> None:
        nonlocal ticks
        ticks += 1
        if ticks == 3:
            raise Ticks

    before = signal.signal(signal.SIGALRM, tick)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module", params=["smollm2", "sentencepiece"])
def tokenizer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> onegraph.Tokenizer:
    if request.param == "smollm2":
        return onegraph.Tokenizer(request.getfixturevalue("smollm2"))
    path = tmp_path_factory.mktemp("vocabulary") / "model.gguf"
    return onegraph.Tokenizer(oracles.write(path, sentencepiece(add_space_prefix=False)))


@pytest.mark.parametrize("text", TEXTS)
def test_a_signal_ends_encoding(tokenizer: onegraph.Tokenizer, text: str, handler: None) -> None:
    with pytest.raises(Ticks):
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        tokenizer.encode(TEXTS[text], parse_special=True)
        signal.setitimer(signal.ITIMER_REAL, 0)
    assert tokenizer.decode(tokenizer.encode("still usable", add_special=False)) == "still usable"
