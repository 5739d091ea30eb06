"""SentencePiece vocabularies made here, so that no published one is needed."""

import re
from pathlib import Path

import onegraph
import pytest
from support import oracles, strings
from support.oracles import (
    BYTE,
    NORMAL,
    HuggingFace,
    LlamaCpp,
    sentencepiece,
)

pytestmark = pytest.mark.thorough


def read(tmp_path: Path, data: oracles.Metadata, *, model: bool = False) -> onegraph.Tokenizer:
    return onegraph.Tokenizer(oracles.write(tmp_path / "model.gguf", data, model=model))


@pytest.mark.parametrize("prefix", [True, False])
def test_as_both_oracles(tmp_path: Path, prefix: bool) -> None:
    data = sentencepiece(add_space_prefix=prefix)
    ours = read(tmp_path, data, model=True)
    llama_cpp, hugging_face = LlamaCpp(tmp_path / "model.gguf"), HuggingFace(data)
    for category in strings.CATEGORIES:
        # llama.cpp merges `<` and `s>` into the control token `<s>`. SentencePiece itself, and
        # onegraph, let no plain text become one.
        texts = [re.sub("<(/?s|unk)>", r"<\1 >", text) for text in strings.strings(category)]
        ids = [ours.encode(text, add_special=False) for text in texts]
        assert ids == llama_cpp.encode(texts), category
        assert ids == hugging_face.encode(texts), category
        for text, one in zip(texts, ids, strict=True):
            # The space in front of text behind a token found whole does not come off again.
            if not (prefix and "\n\n" in text):
                assert ours.decode(one) == text.replace("▁", " ")
        special = [ours.encode(text, parse_special=True) for text in texts]
        assert special == llama_cpp.encode(texts, add_special=True, parse_special=True), category


def test_merges_spell_no_control_token(tmp_path: Path) -> None:
    data = sentencepiece()
    # One merge away from `<s>`, and the best merge of all.
    for key, value in (("tokens", "s>"), ("scores", 1.0), ("token_type", NORMAL)):
        data[key].append(value)
    ours = read(tmp_path, data)
    for text in ["<s>", "a <s>b</s>", "<unk>", "<|im_end|>"]:
        ids = ours.encode(text, add_special=False)
        assert not any(map(ours.is_special, ids))
        assert ours.decode(ids) == text
    assert ours.encode("<s>", add_special=False, parse_special=True) == [1]


@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize("eos", [True, False])
def test_added_tokens(tmp_path: Path, bos: bool, eos: bool) -> None:
    ours = read(tmp_path, sentencepiece(add_bos_token=bos, add_eos_token=eos), model=True)
    assert (ours.add_bos, ours.add_eos) == (bos, eos)
    theirs = LlamaCpp(tmp_path / "model.gguf")
    for text in ["", " ", "the quick", "\n\n"]:
        ids = ours.encode(text)
        assert [ids] == theirs.encode([text], add_special=True)
        assert (ids[:1] == [1], ids[-1:] == [2]) == (bos, eos)
        assert ours.decode(ids) == text
        assert ours.encode(text, add_special=False) == ids[bos : len(ids) - eos]


def test_bytes_of_what_no_piece_covers(tmp_path: Path) -> None:
    ours = read(tmp_path, sentencepiece())
    ids = ours.encode("\U00012345", add_special=False)
    assert [ours.token_text(i) for i in ids[1:]] == [f"<0x{b:02X}>" for b in b"\xf0\x92\x8d\x85"]
    assert [ours.token_bytes(i) for i in ids[1:]] == [b"\xf0", b"\x92", b"\x8d", b"\x85"]
    assert ours.decode(ids) == "\U00012345"


def test_a_run_without_bytes_is_one_unknown_token(tmp_path: Path) -> None:
    data = sentencepiece()
    byte = data["token_type"].index(BYTE)
    for key in ("tokens", "scores", "token_type"):
        del data[key][byte : byte + 256]
    ours = read(tmp_path, data)
    unknown = "\U00012345\U00012346"
    ids = ours.encode(f"the{unknown}{unknown}the{unknown}", add_special=False)
    assert ids.count(0) == 2
    assert ours.decode(ids) == "thethe"


def test_a_space_in_front_of_text_behind_each_special_token(tmp_path: Path) -> None:
    ours = read(tmp_path, sentencepiece())
    (the,) = ours.encode("the", add_special=False)
    end = ours.token_id("<|im_end|>")
    assert ours.encode("the<|im_end|>the", parse_special=True) == [1, the, end, the]


def test_spaces_after_special_tokens_of_phi_3(tmp_path: Path) -> None:
    """Its published vocabulary strips white space behind them; no field of GGUF says so."""
    path = tmp_path / "model.gguf"
    data = sentencepiece()
    found = {}
    for name in ("Phi-3 mini", "other"):
        found[name] = onegraph.Tokenizer(oracles.write(path, data, name=name))
    (the,) = found["other"].encode("the", add_special=False)
    end = found["other"].token_id("<|im_end|>")
    stripped = found["Phi-3 mini"].encode("<|im_end|> \n the", parse_special=True)
    assert stripped == [1, end, the]
    assert len(found["other"].encode("<|im_end|> \n the", parse_special=True)) > 3
