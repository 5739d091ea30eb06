"""Gemma 4's BPE of characters, on vocabularies made here."""

import re
from pathlib import Path

import onegraph
import pytest
from support import oracles, strings
from support.oracles import BYTE, CONTROL, NORMAL, HuggingFace, LlamaCpp, characters


def read(tmp_path: Path, data: oracles.Metadata, *, model: bool = False) -> onegraph.Tokenizer:
    return onegraph.Tokenizer(oracles.write(tmp_path / "model.gguf", data, model=model))


@pytest.mark.thorough
def test_as_both_oracles(tmp_path: Path) -> None:
    data = characters()
    ours = read(tmp_path, data, model=True)
    llama_cpp, hugging_face = LlamaCpp(tmp_path / "model.gguf"), HuggingFace(data)
    for category in strings.CATEGORIES:
        # llama.cpp ends a text at `</s>` whatever it is.
        texts = [re.sub("<(/?s|unk)>", r"<\1 >", text) for text in strings.strings(category)]
        ids = [ours.encode(text, add_special=False) for text in texts]
        assert ids == llama_cpp.encode(texts), category
        assert ids == hugging_face.encode(texts), category
        for text, one in zip(texts, ids, strict=True):
            assert ours.decode(one) == text.replace("▁", " ")
        special = [ours.encode(text, parse_special=True) for text in texts]
        assert special == llama_cpp.encode(texts, add_special=True, parse_special=True), category


def test_a_run_of_newlines_that_is_a_token_is_one_without_merges(tmp_path: Path) -> None:
    data = characters(newlines=False)
    ours = read(tmp_path, data, model=True)
    texts = ["\n" * n for n in range(1, 12)] + ["the\n\n\nthe", "\r\n\n", " \n\n \n"]
    ids = [ours.encode(text, add_special=False) for text in texts]
    assert ids == LlamaCpp(tmp_path / "model.gguf").encode(texts)
    assert [len(one) for one in ids[:7]] == [1, 1, 1, 1, 1, 6, 7]
    assert [ours.decode(one) for one in ids] == texts


def test_merges_reach_over_no_newline(tmp_path: Path) -> None:
    data = characters()
    for token in ("e\n", "e\nt"):
        data["tokens"].append(token)
        data["token_type"].append(NORMAL)
    data["merges"] += ["e \n", "e\n t"]
    ours = read(tmp_path, data)
    ids = ours.encode("the\nthe", add_special=False)
    assert [ours.token_text(i) for i in ids] == ["the", "\n", "the"]


def test_bytes_of_what_no_token_covers(tmp_path: Path) -> None:
    ours = read(tmp_path, characters())
    ids = ours.encode("the\U00012345", add_special=False)
    assert [ours.token_text(i) for i in ids[1:]] == [f"<0x{b:02X}>" for b in b"\xf0\x92\x8d\x85"]
    assert [ours.token_bytes(i) for i in ids[1:]] == [b"\xf0", b"\x92", b"\x8d", b"\x85"]
    assert ours.decode(ids) == "the\U00012345"
    assert not ours.missing_bytes
    # A text that looks like a byte token is none.
    ids = ours.encode("<0x41>", add_special=False)
    assert not [i for i in ids if ours.token_text(i) == "<0x41>"]
    assert ours.decode(ids) == "<0x41>"


def test_a_step_that_is_no_token_falls_back_to_bytes(tmp_path: Path) -> None:
    data = characters()
    data["merges"] = ["중 국", "중국 어"]
    for token in ("중", "국", "어"):
        data["tokens"].append(token)
        data["token_type"].append(NORMAL)
    ours = read(tmp_path, data, model=True)
    texts = ["중국", "중국어", "중 국", "a중국b"]
    ids = [ours.encode(text, add_special=False) for text in texts]
    assert ids == LlamaCpp(tmp_path / "model.gguf").encode(texts)
    assert [ours.decode(one) for one in ids] == texts


def test_text_starts_with_the_first_token_even_where_the_file_says_not(tmp_path: Path) -> None:
    """Files of Gemma 4 were published that say so; llama.cpp starts with it all the same."""
    ours = read(tmp_path, characters(add_bos_token=False), model=True)
    assert ours.add_bos
    assert [ours.encode("the")] == LlamaCpp(tmp_path / "model.gguf").encode(
        ["the"], add_special=True
    )
    assert ours.encode("the")[0] == 1
    data = characters()
    del data["bos_token_id"], data["add_bos_token"]
    assert not read(tmp_path, data).add_bos


def test_turns_and_tool_calls_end_generation(tmp_path: Path) -> None:
    data = characters()
    for token, kind in (("<turn|>", CONTROL), ("<|tool_response>", 4), ("<tool_call|>", 4)):
        data["tokens"].append(token)
        data["token_type"].append(kind)
    ours = read(tmp_path, data)
    names = {ours.token_text(i) for i in ours.end_of_text_ids}
    assert names == {"</s>", "<|im_end|>", "<turn|>", "<|tool_response>"}


def test_what_no_token_covers_needs_all_bytes(tmp_path: Path) -> None:
    data = characters()
    data["token_type"][data["token_type"].index(BYTE)] = NORMAL
    with pytest.raises(onegraph.ModelError, match="with 255 of 256 byte tokens; expected <0x00>"):
        read(tmp_path, data)


@pytest.mark.parametrize(
    ("merge", "message"),
    [
        ("the", '"the"; expected two token texts with one space between'),
        (" the", '" the"; expected two token texts'),
        ("the ", '"the "; expected two token texts'),
        ("", '""; expected two token texts'),
    ],
)
def test_damaged_merges_are_refused(tmp_path: Path, merge: str, message: str) -> None:
    data = characters()
    at = len(data["merges"])
    data["merges"].append(merge)
    expected = f"tokenizer.ggml.merges[{at}] is {message}"
    with pytest.raises(onegraph.ModelError, match=re.escape(expected)):
        read(tmp_path, data)


def test_merges_that_are_missing_are_refused(tmp_path: Path) -> None:
    data = characters()
    del data["merges"]
    message = "tokenizer.ggml.merges is missing; expected an array of strings; BPE needs its merges"
    with pytest.raises(onegraph.ModelError, match=re.escape(message)):
        read(tmp_path, data)


def test_the_kind_is_named(tmp_path: Path) -> None:
    assert "BPE of characters (gemma4)" in repr(read(tmp_path, characters()))
