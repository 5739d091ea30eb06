"""No text is slow: a megabyte of anything tokenizes in under a second."""

import time

import onegraph
import pytest
from tokenizer import oracles
from tokenizer.test_sentencepiece import sentencepiece

MEGABYTE = 1_000_000
UNITS = {
    "letter": "a",
    "space": " ",
    "newline": "\n",
    "digit": "0",
    "full stop": ".",
    "emoji": "😀",
    "Han": "中",
    "NUL": "\0",
    "combining mark": "\u0301",
    "apostrophe": "'",
    "contraction": "'s",
    "newline and space": "\n ",
    "letter and space": "a ",
    "mark and newline": "!\n",
    "joined emoji": "👩\u200d",
    "noncharacter": "\U0010ffff",
    "no-break space": "\xa0",
    "less-than": "<",
    "token": "<|im_end|>",
    "cut token": "<|im_end|",
    "alphabet": "abcdefghijklmnopqrstuvwxyz",
}
KINDS = ["smollm", "gpt-2", "llama-bpe", "qwen2", "default", "sentencepiece", "merging", "growing"]


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> onegraph.Tokenizer:
    kind: str = request.param
    if kind == "sentencepiece":
        data = sentencepiece(add_space_prefix=False)
    elif kind == "merging":
        # Every pair of runs merges, up to the longest token a vocabulary may have.
        runs = [(b"a" * 2**i, b"a" * 2**i) for i in range(11)]
        spaces = [(b" " * len(a), b" " * len(b)) for a, b in runs]
        data = oracles.byte_level(runs + spaces, "gpt-2")
    elif kind == "growing":
        # A run grows by one letter a merge.
        data = oracles.byte_level([(b"a" * i, b"a") for i in range(1, 2000)], "llama-bpe")
    else:
        data = oracles.metadata(request.getfixturevalue("smollm2"))
        data["pre"] = kind
    path = tmp_path_factory.mktemp("vocabulary") / "model.gguf"
    return onegraph.Tokenizer(oracles.write(path, data))


@pytest.mark.parametrize("unit", UNITS)
def test_a_megabyte_in_a_second(tokenizer: onegraph.Tokenizer, unit: str) -> None:
    text = UNITS[unit] * (MEGABYTE // len(UNITS[unit].encode()))
    # Only a text with this character spells special tokens.
    for parse_special in (False, True) if "<" in text else (False,):
        # Time of this process, so that a busy machine does not count.
        start = time.process_time()
        ids = tokenizer.encode(text, add_special=False, parse_special=parse_special)
        assert time.process_time() - start < 1.0
        assert len(ids) > 200
    start = time.process_time()
    decoded = tokenizer.decode(ids, skip_special=False)
    assert time.process_time() - start < 1.0
    missing = set(tokenizer.missing_bytes) & set(UNITS[unit].encode())
    assert missing or decoded == text


def test_time_grows_with_length_alone(tokenizer: onegraph.Tokenizer) -> None:
    def seconds(n: int) -> float:
        best = 9.0
        for _ in range(2):
            start = time.process_time()
            tokenizer.encode("a" * n)
            best = min(best, time.process_time() - start)
        return best

    # 16 times the text: n log n takes some 20 times as long, n squared 256 times.
    assert seconds(800_000) < 80 * max(seconds(50_000), 0.002)
