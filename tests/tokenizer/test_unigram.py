"""Unigram vocabularies: ids of llama.cpp and of HF tokenizers, over one made here and XLM-R's, and
the charsmap that normalizes their texts."""
# ruff: noqa: RUF001 (look-alike letters are the point)

import re
from pathlib import Path

import onegraph
import pytest
from support import oracles, published, strings
from support.oracles import HuggingFace, LlamaCpp, unigram


def read(tmp_path: Path, data: oracles.Metadata, *, model: bool = False) -> onegraph.Tokenizer:
    return onegraph.Tokenizer(oracles.write(tmp_path / "model.gguf", data, model=model))


def plain(text: str) -> str:
    """Without what HF reads as bytes or as the space in front; and without marks: of a grapheme
    whose front is a key of the charsmap it drops the rest."""
    text = text.replace("<0x", "<0 x").replace("▁", "_")
    return re.sub("[\u0300-\u036f\u1160-\u11ff\ufe00-\ufe0f\u200c-\u200d]", "", text)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("of_bytes", "merged", "prefix"),
    [(False, False, False), (False, False, True), (False, True, True), (True, True, True)],
)
def test_as_both_oracles(tmp_path: Path, of_bytes: bool, merged: bool, prefix: bool) -> None:
    data = unigram(of_bytes=of_bytes, remove_extra_whitespaces=merged, add_space_prefix=prefix)
    ours = read(tmp_path, data, model=True)
    llama_cpp, hugging_face = LlamaCpp(tmp_path / "model.gguf"), HuggingFace(data)
    for category in strings.CATEGORIES:
        texts = strings.strings(category)
        ids = [ours.encode(text, add_special=False) for text in texts]
        # What is unknown to llama.cpp has no bytes.
        assert of_bytes or ids == llama_cpp.encode(texts), category
        special = [ours.encode(text, parse_special=True) for text in texts]
        theirs = llama_cpp.encode(texts, add_special=True, parse_special=True)
        assert of_bytes or special == theirs, category
        # A text of spaces alone has none put in front.
        texts = [plain(text if merged else f"x{text}") for text in texts]
        ids = [ours.encode(text, add_special=False) for text in texts]
        assert ids == hugging_face.encode(texts), category


@pytest.mark.thorough
def test_xlm_r_as_both_oracles(vectors: Path, tmp_path: Path) -> None:
    """The published vocabulary, whose charsmap has thousands of keys."""
    of_file = published.vocabulary(vectors, "nomic-bert-moe")
    data = oracles.metadata(of_file)
    data["precompiled_charsmap"] = bytes(data["precompiled_charsmap"])
    ours = onegraph.Tokenizer(of_file)
    llama_cpp = LlamaCpp(oracles.write(tmp_path / "model.gguf", data, model=True))
    hugging_face = HuggingFace(data)
    for category in strings.CATEGORIES:
        texts = strings.strings(category)
        ids = [ours.encode(text, add_special=False) for text in texts]
        assert ids == llama_cpp.encode(texts), category
        texts = [plain(text) for text in texts]
        ids = [ours.encode(text, add_special=False) for text in texts]
        assert ids == hugging_face.encode(texts), category


def test_texts_are_normalized(tmp_path: Path) -> None:
    ours = read(tmp_path, unigram())

    def said(text: str) -> str:
        return "".join(ours.token_text(i) for i in ours.encode(text, add_special=False))

    for text, wanted in [
        ("Ａa", "▁Aa"),
        (" the\t\n  quick\u3000 ", "▁the▁quick"),
        ("the\u200b\xadFOX", "▁theFOX"),
        # The longest key counts, and what is behind it stays.
        ("\u1100\u1161\u11a8x\u1100\u1161\u1161", "▁각x<unk>"),
        ("①ﬁ", "▁1fi"),
        ("the<s>FOX</s>", "▁the<s>FOX</s>"),
    ]:
        assert said(text) == wanted, ascii(text)
    assert said("") == said(" \t\u200b ") == ""
    assert not any(map(ours.is_special, ours.encode("<s></s>", add_special=False)))
    assert ours.decode(ours.encode("  the  quick  FOX "), skip_special=True) == "the quick FOX"
    assert [ours.token_text(i) for i in ours.encode("")] == ["<s>", "</s>"]
    # Spaces are merged before the first word even where the file asks for none in front.
    merged = read(tmp_path, unigram(add_space_prefix=False))
    assert merged.encode("the") == ours.encode("the")
    ids = ours.encode("the<mask>  FOX", add_special=False, parse_special=True)
    assert "".join(ours.token_text(i) for i in ids) == "▁the<mask>▁FOX"


def test_the_best_sum_of_scores_wins(tmp_path: Path) -> None:
    pieces = {"a": -2.0, "b": -2.0, "ab": -3.0, "abc": -9.0, "c": -5.5, "bc": -6.5, "▁": -1.0}
    data = unigram(
        tokens=["<s>", "<pad>", "</s>", "<unk>", *pieces],
        scores=[0.0] * 4 + [*pieces.values()],
        token_type=[3, 3, 3, 2] + [1] * len(pieces),
        precompiled_charsmap=b"",
    )
    ours = read(tmp_path, data)

    def said(text: str) -> list[str]:
        return [ours.token_text(i) for i in ours.encode(text, add_special=False)]

    assert said("ab") == ["▁", "ab"]
    # Of equal sums the one whose last piece is the longest.
    assert said("abc") == ["▁", "a", "bc"]
    assert said("abcab") == ["▁", "a", "bc", "ab"]
    # An unknown character costs 10 more than the lowest score; a run of them is one token.
    assert said("axxb a") == ["▁", "a", "<unk>", "b", "▁", "a"]


def test_bytes_of_what_no_piece_covers(tmp_path: Path) -> None:
    ours = read(tmp_path, unigram(of_bytes=True))
    ids = ours.encode("\U00012345", add_special=False)
    assert [ours.token_text(i) for i in ids[1:]] == [f"<0x{b:02X}>" for b in b"\xf0\x92\x8d\x85"]
    assert ours.decode(ids) == "\U00012345"


def test_defaults_are_those_of_t5(tmp_path: Path) -> None:
    data = unigram()
    head = ["<pad>", "</s>", "<unk>", "<s>"]
    data["tokens"][:4], data["token_type"][:4] = head, [3, 3, 2, 3]
    for key in [*data]:
        if key.endswith("_id") or key.startswith("add_") or key.startswith("remove_"):
            del data[key]
    ours = read(tmp_path, data)
    assert (ours.add_bos, ours.add_eos, ours.bos_id, ours.eos_id) == (False, True, None, 1)
    assert [ours.token_text(i) for i in ours.encode("the")][-1] == "</s>"
    assert ours.decode(ours.encode("  the  ")) == "  the  "
