"""Half a megabyte of anything becomes tokens and comes back. That the work is linear in the text is
counted in steps by the tests of rust/engine/src/tokenizer; quadratic, none of these would end."""

import onegraph
import pytest
from support import oracles
from support.oracles import characters, sentencepiece, unigram

pytestmark = pytest.mark.thorough

BYTES = 500_000
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
KINDS = [
    *("smollm", "gpt-2", "llama-bpe", "qwen2", "qwen35", "gpt-4o", "tekken", "deepseek-llm"),
    *(
        "deepseek-coder",
        "falcon",
        "default",
        "sentencepiece",
        "characters",
        "unigram",
        "merging",
        "growing",
    ),
]


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> onegraph.Tokenizer:
    kind: str = request.param
    if kind == "sentencepiece":
        data = sentencepiece(add_space_prefix=False)
    elif kind == "characters":
        data = characters()
    elif kind == "unigram":
        data = unigram(of_bytes=True, precompiled_charsmap=b"", remove_extra_whitespaces=False)
        data["add_space_prefix"] = False
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
def test_half_a_megabyte_comes_back(tokenizer: onegraph.Tokenizer, unit: str) -> None:
    text = UNITS[unit] * (BYTES // len(UNITS[unit].encode()))
    # Only a text with this character spells special tokens.
    for parse_special in (False, True) if "<" in text else (False,):
        ids = tokenizer.encode(text, add_special=False, parse_special=parse_special)
        assert len(ids) > 200
    decoded = tokenizer.decode(ids, skip_special=False)
    missing = set(tokenizer.missing_bytes) & set(UNITS[unit].encode())
    assert missing or decoded == text
