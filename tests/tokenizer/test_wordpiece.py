"""WordPiece: ids of llama.cpp's own test strings, of the published tokenizer, and its bounds."""

from __future__ import annotations

import functools
import random
import sys
import unicodedata
from pathlib import Path

import gguf
import onegraph
import pytest
import tokenizers
from support import published, strings
from support.encoders import SHAPES, write

MARKER = "\n__ggml_vocab_test__\n"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> onegraph.Tokenizer:
    path = tmp_path_factory.mktemp("wordpiece") / "bert.gguf"
    return onegraph.Tokenizer(write(path, SHAPES["odd"], "F16"))


@pytest.fixture(scope="module")
def bge(vectors: Path) -> Path:
    return published.vocabulary(vectors, "bert-bge")


def hugging_face(path: Path) -> tokenizers.Tokenizer:
    """The published tokenizer of a file's vocabulary."""
    field = gguf.GGUFReader(path).fields["tokenizer.ggml.tokens"].contents()
    kinds = gguf.GGUFReader(path).fields["tokenizer.ggml.token_type"].contents()
    texts = {}
    for i, (text, kind) in enumerate(zip(field, kinds, strict=True)):
        begins = text.removeprefix("▁")
        texts[text if kind == 3 else begins if begins != text else f"##{text}"] = i
    found = tokenizers.Tokenizer(tokenizers.models.WordPiece(texts, unk_token="[UNK]"))
    found.normalizer = tokenizers.normalizers.BertNormalizer()
    found.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    return found


@functools.cache
def newer() -> set[str]:
    """Punctuation that the published pre-tokenizer, of an early Unicode, does not know."""
    characters = map(chr, range(128, sys.maxunicode))
    marks = (c for c in characters if unicodedata.category(c).startswith("P"))
    cut = tokenizers.pre_tokenizers.BertPreTokenizer().pre_tokenize_str
    return {c for c in marks if len(cut(f"a{c}a")) == 1}


def test_ids_of_published_strings(bge: Path) -> None:
    tokenizer = onegraph.Tokenizer(bge)
    texts = Path(f"{bge}.inp").read_bytes().decode().split(MARKER)
    lines = Path(f"{bge}.out").read_text().splitlines()
    assert len(texts) - 1 <= len(lines) <= len(texts) and len(lines) >= 40
    for text, line in zip(texts, lines, strict=False):
        expected = [int(word) for word in line.split()]
        assert tokenizer.encode(text, add_special=False) == expected, repr(text)


@pytest.mark.thorough
@pytest.mark.parametrize("category", strings.CATEGORIES)
def test_as_hugging_face(bge: Path, category: str) -> None:
    ours, theirs = onegraph.Tokenizer(bge), hugging_face(bge)
    for text in strings.strings(category):
        text = "".join(c for c in text if c not in newer())
        wanted = theirs.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, add_special=False) == wanted, repr(text)


def test_words_are_the_longest_tokens_that_they_begin_with(made: onegraph.Tokenizer) -> None:
    def said(text: str) -> list[str]:
        return [made.token_text(i) for i in made.encode(text, add_special=False)]

    assert said("The teas") == ["▁the", "▁tea", "s"]
    assert said("NAÏVE?!") == ["▁naive", "▁?", "▁!"]
    assert said("raining un日本") == ["▁rain", "ing", "▁u", "n", "▁日", "▁本"]
    # Of a word all is known, or nothing; no word is longer than 100 characters.
    assert said("tea€s é") == ["[UNK]", "▁e"]
    assert said("a" * 100) == ["▁a", *"a" * 99]
    assert said("a" * 101) == ["[UNK]"]
    assert said(" \t\u200b\0\u00ad\ufffd ") == []
    # What spells a special token is text, where nobody says otherwise.
    assert said("[CLS]") == ["▁[", "▁c", "l", "s", "▁]"]
    trusted = made.encode("tea [SEP] tea", add_special=False, parse_special=True)
    assert [made.token_text(i) for i in trusted] == ["▁tea", "[SEP]", "▁tea"]


def test_a_text_has_its_tokens_around_it(made: onegraph.Tokenizer) -> None:
    ids = made.encode("tea cup", add_special=True)
    assert [made.token_text(i) for i in ids] == ["[CLS]", "▁tea", "▁cup", "[SEP]"]
    assert made.decode(ids, skip_special=True) == "tea cup"
    assert made.encode("", add_special=True) == [2, 3]
    assert (made.add_bos, made.add_eos) == (True, True)


def test_time_is_linear_in_the_text(made: onegraph.Tokenizer) -> None:
    letters = random.Random(3).choices("abc é日.", k=200_000)
    text = "".join(letters)
    half = len(text) // 2
    middle = text.index(" ", half)
    parts = [made.encode(part, add_special=False) for part in (text[:middle], text[middle:])]
    assert made.encode(text, add_special=False) == parts[0] + parts[1]


def test_cased_vocabularies_keep_letters_and_accents(tmp_path: Path) -> None:
    keys = {"tokenizer__ggml__normalizer__lowercase": False}
    path = write(tmp_path / "bert.gguf", SHAPES["odd"], "F16", **keys)
    cased = onegraph.Tokenizer(path)
    assert cased.encode("tea Tea", add_special=False)[1] == 1  # [UNK]
    assert cased.encode("naïve", add_special=False) == [1]
