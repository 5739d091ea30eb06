"""Ids of llama.cpp's own test strings over published vocabularies."""

from pathlib import Path

import onegraph
import pytest

VOCABULARIES = ["gpt-2", "llama-bpe", "llama-spm", "qwen2"]
MARKER = "\n__ggml_vocab_test__\n"


@pytest.fixture(scope="module", params=VOCABULARIES)
def case(request: pytest.FixtureRequest, vectors: Path) -> tuple[onegraph.Tokenizer, Path]:
    path = vectors / "vocab" / f"ggml-vocab-{request.param}.gguf"
    return onegraph.Tokenizer(path), path


def test_ids_of_published_strings(case: tuple[onegraph.Tokenizer, Path]) -> None:
    tokenizer, path = case
    strings = Path(f"{path}.inp").read_bytes().decode().split(MARKER)
    lines = Path(f"{path}.out").read_text().splitlines()
    # The file ends with a marker, so the last piece is no string.
    assert len(lines) == len(strings) - 1 >= 40
    for text, line in zip(strings, lines, strict=False):
        expected = [int(word) for word in line.split()]
        assert tokenizer.encode(text, add_special=False) == expected, repr(text)
        assert tokenizer.decode(expected) == text
