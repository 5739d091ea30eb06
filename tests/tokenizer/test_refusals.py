"""Vocabularies that are damaged or unknown: each error names the key, the value and the remedy."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onegraph
import pytest
from support import oracles
from support.oracles import BYTE, CONTROL, NORMAL, charsmap, sentencepiece, unigram

Change = Callable[[oracles.Metadata], None]


def put(key: str, value: Any) -> Change:
    return lambda data: data.update({key: value})


def drop(key: str) -> Change:
    return lambda data: data.pop(key) and None


def append(key: str, value: Any) -> Change:
    return lambda data: data[key].append(value)


def each(*changes: Change) -> Change:
    def change(data: oracles.Metadata) -> None:
        for one in changes:
            one(data)

    return change


def replace(key: str, at: int, value: Any) -> Change:
    return lambda data: data[key].__setitem__(at, value)


def no_bytes(data: oracles.Metadata) -> None:
    byte = data["token_type"].index(BYTE)
    for key in ("tokens", "scores", "token_type"):
        del data[key][byte : byte + 200]
    data["token_type"][0] = NORMAL
    del data["unknown_token_id"]


def steps() -> list[str]:
    """Merges of some 90,000 texts that are no tokens."""
    letters = oracles.byte_alphabet()[:175]
    pairs = [(a, b) for a in letters for b in letters]
    return [m for a, b in pairs for m in (f"{a} {b}", f"{a}{b} c", f"{a}{b} d")]


#: Of a byte-level vocabulary of 258 tokens: 256 bytes, `ab`, `<|end|>`.
BYTE_LEVEL: dict[str, tuple[Change, str]] = {
    "no model": (
        drop("model"),
        'tokenizer.ggml.model is missing; expected "gpt2", "llama", "gemma4", "',
    ),
    "model of numbers": (put("model", 7), "tokenizer.ggml.model is 7; expected a string"),
    "unknown model": (
        put("model", "rwkv"),
        'tokenizer model "rwkv" is not supported; supported: gpt2 (byte-level BPE), llama (Sent',
    ),
    "unknown pre": (
        put("pre", "bloom"),
        'pre-tokenizer "bloom" is not supported; supported: default, gpt-2, phi-2, mpt, ',
    ),
    "long pre": (put("pre", "x" * 9999), f'pre-tokenizer "{"x" * 80}" is not supported'),
    "no tokens": (drop("tokens"), "tokenizer.ggml.tokens is missing; expected an array of strings"),
    "tokens of numbers": (
        put("tokens", [1, 2, 3]),
        "tokenizer.ggml.tokens is an array of 3 i32; expected an array of strings",
    ),
    "token twice": (
        replace("tokens", 200, "a"),
        'tokenizer.ggml.tokens[200] is "a", the text of token 97 too; expected every token once',
    ),
    "long token": (
        append("tokens", "é" * 2049),
        "tokenizer.ggml.tokens[258] is 4098 bytes long; expected at most 4096 bytes",
    ),
    "too few types": (
        put("token_type", [1] * 257),
        "tokenizer.ggml.token_type is an array of 257 i32; expected one for each of the 258 tokens",
    ),
    "types of strings": (
        put("token_type", ["1"]),
        "tokenizer.ggml.token_type is an array of 1 strings; expected an array of 32-bit integers",
    ),
    "type 0": (
        replace("token_type", 3, 0),
        "tokenizer.ggml.token_type[3] is 0; expected a type from 1 to 6",
    ),
    "type 7": (
        replace("token_type", 257, 7),
        "tokenizer.ggml.token_type[257] is 7; expected",
    ),
    "no merges": (drop("merges"), "tokenizer.ggml.merges is missing; expected an array of strings"),
    "merges of floats": (
        put("merges", [0.5]),
        "tokenizer.ggml.merges is an array of 1 f32; expected an array of strings",
    ),
    "merge of one": (
        append("merges", "ab"),
        'tokenizer.ggml.merges[1] is "ab"; expected two token texts with one space between',
    ),
    "merge without left": (
        append("merges", " b"),
        'tokenizer.ggml.merges[1] is " b"; expected',
    ),
    "merge without right": (
        append("merges", "a "),
        'tokenizer.ggml.merges[1] is "a "; expected',
    ),
    "empty merge": (append("merges", ""), 'tokenizer.ggml.merges[1] is ""; expected two'),
    "merge of three": (
        append("merges", "a b c"),
        'tokenizer.ggml.merges[1] is "a b c"; expected texts in the byte-level alphabet',
    ),
    "merge of what is no byte": (
        append("merges", "a 中"),
        'tokenizer.ggml.merges[1] is "a 中"; expected texts in the byte-level alphabet',
    ),
    "too many tokens": (
        put("tokens", [str(i) for i in range(2**19 + 1)]),
        "tokenizer.ggml.tokens is an array of 524289 strings; expected 1 to 524288 tokens",
    ),
    "too many merges": (
        put("merges", ["a b"] * (2**20 + 1)),
        "tokenizer.ggml.merges is an array of 1048577 strings; expected at most 1048576 merges",
    ),
    "too many steps": (
        put("merges", steps()),
        "expected at most 65536 texts that are no token",
    ),
    "bos past the end": (
        put("bos_token_id", 258),
        "tokenizer.ggml.bos_token_id is 258; expected a token id below 258",
    ),
    "eos past the end": (
        put("eos_token_id", 2**32 - 1),
        "tokenizer.ggml.eos_token_id is 4294967295; expected a token id below 258",
    ),
    "eot of text": (
        put("eot_token_id", "x"),
        'tokenizer.ggml.eot_token_id is "x"; expected a non-negative integer',
    ),
    "eom of a bool": (
        put("eom_token_id", True),
        "tokenizer.ggml.eom_token_id is true; expected a non-negative integer",
    ),
    "add_bos of a number": (
        put("add_bos_token", 1),
        "tokenizer.ggml.add_bos_token is 1; expected a bool",
    ),
    "bos to add, but none": (
        each(put("add_bos_token", True), drop("bos_token_id")),
        "tokenizer.ggml.bos_token_id is missing; expected a token id, for "
        "tokenizer.ggml.add_bos_token is true",
    ),
    "eos to add, but none": (
        each(put("add_eos_token", True), drop("eos_token_id")),
        "tokenizer.ggml.eos_token_id is missing; expected a token id, for "
        "tokenizer.ggml.add_eos_token is true",
    ),
}
SENTENCEPIECE: dict[str, tuple[Change, str]] = {
    "no scores": (drop("scores"), "tokenizer.ggml.scores is missing; expected an array of f32"),
    "too many scores": (
        append("scores", 1.0),
        " f32; expected one for each of the ",
    ),
    "scores of integers": (
        put("scores", [1, 2]),
        "tokenizer.ggml.scores is an array of 2 i32; expected an array of 32-bit floats",
    ),
    "score that is no number": (
        replace("scores", 5, float("nan")),
        "tokenizer.ggml.scores[5] is NaN; expected a number",
    ),
    "space prefix of text": (
        put("add_space_prefix", "yes"),
        'tokenizer.ggml.add_space_prefix is "yes"; expected a bool',
    ),
    "nothing for unknown text": (
        no_bytes,
        "tokenizer.ggml.tokens is without an unknown token and with 56 of 256 byte tokens; "
        "expected <0x00> to <0xFF> or tokenizer.ggml.unknown_token_id",
    ),
}
#: Units of a double array: the root, whose children's base is 0, and where a key ends.
ROOT, LEAF = 0, 1 << 8


def map_of(units: dict[int, int], texts: bytes) -> Change:
    """A charsmap of these units."""
    array = b"".join(units.get(i, 0).to_bytes(4, "little") for i in range(max(units) + 1))
    return put("precompiled_charsmap", len(array).to_bytes(4, "little") + array + texts)


A = ord("a")
UNIGRAM: dict[str, tuple[Change, str]] = {
    "no scores": (drop("scores"), "tokenizer.ggml.scores is missing; expected an array of f32"),
    "score that is no number": (
        replace("scores", 9, float("nan")),
        "tokenizer.ggml.scores[9] is NaN; expected a finite number",
    ),
    "infinite score": (
        replace("scores", 9, float("inf")),
        "tokenizer.ggml.scores[9] is inf; expected a finite number",
    ),
    "no tokens": (
        put("tokens", []),
        "tokenizer.ggml.tokens is missing; expected an array of strings",
    ),
    "long piece": (
        replace("tokens", 9, "é" * 300),
        "tokenizer.ggml.tokens[9] is 600 bytes long; expected at most 512 bytes in a Unigram",
    ),
    "nothing for unknown text": (
        each(drop("unknown_token_id"), replace("token_type", 2, NORMAL)),
        "tokenizer.ggml.tokens is without an unknown token and with 0 of 256 byte tokens",
    ),
    "charsmap of text": (
        put("precompiled_charsmap", "abc"),
        'tokenizer.ggml.precompiled_charsmap is "abc"; expected an array of bytes',
    ),
    "charsmap without its size": (
        put("precompiled_charsmap", b"\1\2"),
        "tokenizer.ggml.precompiled_charsmap is 2 bytes without the units that they announce; exp",
    ),
    "charsmap cut": (
        put("precompiled_charsmap", charsmap({"a": "b"})[:40]),
        "tokenizer.ggml.precompiled_charsmap is 40 bytes without the units that they announce",
    ),
    "charsmap of half units": (
        put("precompiled_charsmap", b"\3\0\0\0abcd\0"),
        "tokenizer.ggml.precompiled_charsmap is 9 bytes without the units that they announce",
    ),
    "replacements that are no text": (
        put("precompiled_charsmap", charsmap({"a": "b"}) + b"\xff\0"),
        "tokenizer.ggml.precompiled_charsmap is not UTF-8 at byte 2 of its replacements",
    ),
    # `a` ends a key, and its replacement lies behind the last one.
    "replacement behind the end": (
        map_of({0: ROOT, A: A | LEAF | 1 << 10, A ^ 1: 1 << 31 | 7}, b"b\0"),
        f"tokenizer.ggml.precompiled_charsmap is a key without a replacement, unit {A}; expected ",
    ),
    "replacement without an end": (
        map_of({0: ROOT, A: A | LEAF | 1 << 10, A ^ 1: 1 << 31}, b"b"),
        f"tokenizer.ggml.precompiled_charsmap is a key without a replacement, unit {A}; expected ",
    ),
    "long replacement": (
        put("precompiled_charsmap", charsmap({"a": "b" * 65})),
        "each with a replacement of up to 64 in it",
    ),
    "unit behind the end": (
        map_of({0: ROOT, A: A | LEAF | 1 << 20}, b"b\0"),
        f"tokenizer.ggml.precompiled_charsmap is a key without a replacement, unit {A}; expected ",
    ),
    # `a` is its own child.
    "circle": (
        map_of({0: ROOT, A: A | A << 10}, b"b\0"),
        "tokenizer.ggml.precompiled_charsmap is a key of more than 64 bytes; expected keys of up",
    ),
    "long key": (
        put("precompiled_charsmap", charsmap({"a" * 65: "b"})),
        "tokenizer.ggml.precompiled_charsmap is a key of more than 64 bytes; expected keys of up",
    ),
    "extra white space of text": (
        put("remove_extra_whitespaces", "yes"),
        'tokenizer.ggml.remove_extra_whitespaces is "yes"; expected a bool',
    ),
}


def refused(path: Path, data: oracles.Metadata, change: Change, message: str) -> None:
    change(data)
    oracles.write(path / "model.gguf", data)
    with pytest.raises(onegraph.ModelError, match=re.escape(message)):
        onegraph.Tokenizer(path / "model.gguf")


@pytest.mark.parametrize("name", BYTE_LEVEL)
def test_byte_level(name: str, tmp_path: Path) -> None:
    refused(tmp_path, oracles.byte_level([(b"a", b"b")], "gpt-2"), *BYTE_LEVEL[name])


@pytest.mark.parametrize("name", SENTENCEPIECE)
def test_sentencepiece(name: str, tmp_path: Path) -> None:
    refused(tmp_path, sentencepiece(), *SENTENCEPIECE[name])


@pytest.mark.parametrize("name", UNIGRAM)
def test_unigram(name: str, tmp_path: Path) -> None:
    refused(tmp_path, unigram(), *UNIGRAM[name])


def test_what_is_odd_but_harmless(tmp_path: Path) -> None:
    """Converters leave holes, placeholders and steps of merges that are no tokens."""
    data = oracles.byte_level([(b"a", b"b")], "gpt-2")
    data["tokens"] += ["", "", "中"]
    data["token_type"] += [5, 5, NORMAL]
    data["padding_token_id"] = 2**32 - 1
    data["merges"] += ["ab c", "abc d", "a b"]
    tokenizer = onegraph.Tokenizer(oracles.write(tmp_path / "model.gguf", data))
    ids = tokenizer.encode("abcd")
    # `abc` and `abcd` are no tokens: they fall back to bytes.
    assert [tokenizer.token_bytes(i) for i in ids] == [b"a", b"b", b"c", b"d"]
    assert tokenizer.token_bytes(258) == b""
    assert tokenizer.decode([260, 258]) == "中"


def test_no_bos_where_none_is_known(tmp_path: Path) -> None:
    data = oracles.byte_level([(b"b", b"c")], "llama-bpe")
    del data["bos_token_id"], data["add_bos_token"]
    tokenizer = onegraph.Tokenizer(oracles.write(tmp_path / "model.gguf", data))
    assert not tokenizer.add_bos
    assert tokenizer.bos_id is None
    assert tokenizer.encode("a") == [97]
    data["bos_token_id"] = 257
    tokenizer = onegraph.Tokenizer(oracles.write(tmp_path / "model.gguf", data))
    assert tokenizer.encode("a") == [257, 97]


def test_ends_of_text(tmp_path: Path) -> None:
    data = oracles.byte_level([(b"b", b"c")], "gpt-2")
    added = [
        ("<|im_end|>", NORMAL),  # ends a turn whatever its type
        ("<|eom_id|>", CONTROL),
        ("</s>", NORMAL),  # plain text, as in Qwen's vocabulary
        ("[EOS]", CONTROL),
        ("<|eot|>", CONTROL),
        ("<|other|>", CONTROL),
    ]
    for text, kind in added:
        data["tokens"].append(text)
        data["token_type"].append(kind)
    ids = {text: data["tokens"].index(text) for text, _ in added}
    data["eot_token_id"] = ids["<|eot|>"]
    tokenizer = onegraph.Tokenizer(oracles.write(tmp_path / "model.gguf", data))
    names = [tokenizer.token_text(i) for i in tokenizer.end_of_text_ids]
    assert names == ["<|end|>", "<|im_end|>", "<|eom_id|>", "[EOS]", "<|eot|>"]
    assert tokenizer.eot_id == ids["<|eot|>"]
    assert tokenizer.is_special(ids["<|im_end|>"])
    assert "</s>" not in names
    # A user's text spells none of them.
    assert tokenizer.decode(tokenizer.encode("x<|im_end|>")) == "x<|im_end|>"
    assert tokenizer.encode("x<|im_end|>", parse_special=True) == [120, ids["<|im_end|>"]]


@pytest.mark.parametrize("others", [["<|return|>", "<|call|>"], ["<|flush|>", "<|calls|>"]])
def test_the_end_of_a_message_is_no_end_where_a_turn_has_several(
    others: list[str], tmp_path: Path
) -> None:
    data = oracles.byte_level([(b"b", b"c")], "gpt-4o")
    data["eos_token_id"] = len(data["tokens"])
    data["tokens"] += others
    data["token_type"] += [CONTROL] * 2
    tokenizer = onegraph.Tokenizer(oracles.write(tmp_path / "model.gguf", data))
    assert [tokenizer.token_text(i) for i in tokenizer.end_of_text_ids] == others
    assert tokenizer.is_special(data["tokens"].index("<|end|>"))
    assert tokenizer.eot_id == data["tokens"].index(others[0])


def test_files_that_are_no_vocabulary(tmp_path: Path) -> None:
    empty = tmp_path / "empty.gguf"
    empty.touch()
    text = tmp_path / "text.gguf"
    text.write_text("Once upon a time there was a file.")
    for path, kind in (
        (tmp_path, onegraph.FileError),
        (tmp_path / "missing.gguf", onegraph.FileError),
        (empty, onegraph.FileError),
        (text, onegraph.ModelError),
    ):
        with pytest.raises(kind):
            onegraph.Tokenizer(path)
    with pytest.raises(OSError, match="is a directory"):
        onegraph.Tokenizer(str(tmp_path))
