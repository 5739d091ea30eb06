"""Ids of llama.cpp's own test strings over published vocabularies."""

from pathlib import Path

import onegraph
import pytest
from support import published

#: Every one that llama.cpp has ids for and that gives its text back, which BERT's does not.
VOCABULARIES = [
    *("gpt-2", "mpt", "falcon", "starcoder", "refact", "command-r", "llama-bpe", "qwen2", "qwen35"),
    *("deepseek-llm", "deepseek-coder", "llama-spm", "phi-3", "gemma-4"),
]
MARKER = "\n__ggml_vocab_test__\n"


@pytest.fixture(scope="module", params=VOCABULARIES)
def case(request: pytest.FixtureRequest, vectors: Path) -> tuple[onegraph.Tokenizer, Path]:
    path = published.vocabulary(vectors, request.param)
    return onegraph.Tokenizer(path), path


def test_ids_of_published_strings(case: tuple[onegraph.Tokenizer, Path]) -> None:
    tokenizer, path = case
    strings = Path(f"{path}.inp").read_bytes().decode().split(MARKER)
    lines = Path(f"{path}.out").read_text().splitlines()
    # Most files end with a marker, so that the last piece is no string.
    assert len(strings) - 1 <= len(lines) <= len(strings)
    assert len(lines) >= 40
    for text, line in zip(strings, lines, strict=False):
        expected = [int(word) for word in line.split()]
        assert tokenizer.encode(text, add_special=False) == expected, repr(text)
        assert tokenizer.decode(expected) == text
