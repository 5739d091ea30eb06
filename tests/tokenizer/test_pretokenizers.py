"""Where words are cut, for every kind of character, as both oracles cut."""
# ruff: noqa: RUF001 (look-alike letters are the point)

import sys
import unicodedata
from collections import Counter
from pathlib import Path

import onegraph
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import oracles
from support.oracles import HuggingFace, LlamaCpp

pytestmark = pytest.mark.thorough

PRE = [
    *("gpt-2", "smollm", "llama-bpe", "qwen2", "qwen35", "gpt-4o", "tekken", "deepseek-llm"),
    *("deepseek-coder", "falcon", "default", "seed-coder", "deepseek-v3", "laguna"),
]
#: What llama.cpp cuts by general regular expressions. They recurse with every character of a word,
#: and are slow: it is asked about some characters, a few at once.
GENERAL = [
    *("gpt-4o", "tekken", "deepseek-llm", "deepseek-coder", "falcon", "seed-coder"),
    *("deepseek-v3", "laguna"),
]
#: In front of the character in question: a letter, a digit, a mark, spaces, an apostrophe.
PROBES = ["a", "1", "!", " ", "\n", "'", "a ", "\t"]
#: Letters, numbers and marks new in Unicode 16: HF tokenizers knows them, llama.cpp not yet.
UNICODE_16 = [
    *((0x0897, 0x0897), (0x10EFC, 0x10EFC), (0x11F5A, 0x11F5A)),
    *((0x1B4E, 0x1B4F), (0x1B7F, 0x1B7F), (0x1C89, 0x1C8A), (0xA7CB, 0xA7CD), (0xA7DA, 0xA7DC)),
    *((0x105C0, 0x105F3), (0x10D40, 0x10D8F), (0x10EC2, 0x10EC4), (0x11380, 0x113E2)),
    *((0x116D0, 0x116E3), (0x11BC0, 0x11BF9), (0x13460, 0x143FA), (0x16100, 0x16139)),
    *((0x16D40, 0x16D79), (0x18CFF, 0x18CFF), (0x1CCF0, 0x1CCF9), (0x1E5D0, 0x1E5FF)),
]
#: Digits of Unicode 17, which one step of SmolLM's published pre-tokenizer knows already.
UNICODE_17 = [(0x11DE0, 0x11DE9), (0x16FF4, 0x16FF6)]


def probing(pre: str) -> oracles.Metadata:
    """Each probe merges with the first byte of any character, if they are in one word."""
    leads = [*range(0x80), *range(0xC2, 0xF5)]
    return oracles.byte_level([(p[-1:].encode(), bytes([b])) for p in PROBES for b in leads], pre)


def code_points() -> list[str]:
    """All of planes 0 and 1, some of the others, no surrogates."""
    codes = [*range(0x20000), *range(0x20000, sys.maxunicode + 1, 37)]
    return [chr(c) for c in codes if not 0xD800 <= c < 0xE000]


def behind(probe: str, characters: list[str], probes: list[str]) -> list[str]:
    """What is asked of behind a probe: each probe takes its share of the characters, and all take
    those that are one of few of their kind, which an expression may tell apart."""
    kinds = Counter(map(unicodedata.category, characters))
    share = probes.index(probe)
    return [
        c
        for i, c in enumerate(characters)
        if i % len(probes) == share or ord(c) < 256 or kinds[unicodedata.category(c)] < 100
    ]


def without(ranges: list[tuple[int, int]]) -> list[str]:
    new = {c for first, last in ranges for c in range(first, last + 1)}
    return [c for c in code_points() if ord(c) not in new]


@pytest.mark.parametrize("pre", PRE)
def test_cuts_at_every_kind_of_character(pre: str, tmp_path: Path) -> None:
    data = probing(pre)
    path = oracles.write(tmp_path / "model.gguf", data, model=True)
    ours, llama_cpp = onegraph.Tokenizer(path), LlamaCpp(path)
    assert not ours.missing_bytes
    characters = without(UNICODE_16)
    assert ours.decode(ours.encode("".join(characters))) == "".join(characters)
    every = [c for c in characters if oracles.known_to_llama_cpp(pre, c)]
    for probe in PROBES:
        known = behind(probe, every, PROBES)
        known, at_once = (known[::2], 500) if pre in GENERAL else (known, len(known))
        for at in range(0, len(known), at_once):
            text = "".join(f"{probe}{c}a" for c in known[at : at + at_once])
            ids = ours.encode(text, add_special=False)
            (theirs,) = llama_cpp.encode([text])
            assert ids == theirs, f"after {probe!r}: {first_difference(ours, ids, theirs)}"
    if pre == "default":
        return
    hugging_face = HuggingFace(data)
    characters = without(UNICODE_17)
    for probe in PROBES[:4]:
        text = "".join(f"{probe}{c}a" for c in behind(probe, characters, PROBES[:4]))
        ids = ours.encode(text, add_special=False)
        (theirs,) = hugging_face.encode([text])
        assert ids == theirs, f"after {probe!r}: {first_difference(ours, ids, theirs)}"


def first_difference(ours: onegraph.Tokenizer, a: list[int], b: list[int]) -> tuple[str, str]:
    at = next(i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
    return tuple(
        repr(b"".join(ours.token_bytes(i) for i in ids[max(at - 4, 0) : at + 4])) for ids in (a, b)
    )  # type: ignore[return-value]


#: What the expressions tell apart, thickly, and whatever else there is.
TEXTS = st.text(
    st.one_of(
        st.sampled_from(" \t\n\r\u3000\xa0aAzZsStTlLéÉßǅʰªא中ḀЖ١²½Ⅷ09"),
        st.sampled_from("'!/$`+_-。！\u0301\u0903\u20dd\u200d"),
        st.characters(exclude_categories=["Cs"]),
    ),
    max_size=60,
)


@pytest.fixture(scope="module", params=[pre for pre in PRE if pre != "default"])
def pairing(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[onegraph.Tokenizer, HuggingFace]:
    """Any two bytes of one word merge, from its front on: so the tokens show where words end."""
    every = [bytes([a, b]) for a in range(256) for b in range(256)]
    data = oracles.byte_level([(two[:1], two[1:]) for two in every], request.param)
    path = tmp_path_factory.mktemp("vocabulary") / "model.gguf"
    return onegraph.Tokenizer(oracles.write(path, data)), HuggingFace(data)


@given(text=TEXTS)
@example(text="中AB. 中A א ABא1 \u0301AB \u0301a !\u0301's AB's ſ'Sx")
@settings(max_examples=300, deadline=None)
def test_cuts_of_any_text(pairing: tuple[onegraph.Tokenizer, HuggingFace], text: str) -> None:
    ours, hugging_face = pairing
    new = {c for first, last in UNICODE_17 for c in range(first, last + 1)}
    text = "".join(c for c in text if ord(c) not in new)
    ids = ours.encode(text, add_special=False)
    assert [ids] == hugging_face.encode([text])
    assert ours.decode(ids) == text


@pytest.mark.parametrize("pre", ["llama-bpe", "qwen2", "qwen35", "gpt-4o"])
def test_the_long_s_is_an_s(pre: str, tmp_path: Path) -> None:
    """`(?i:'s)` takes it in the published expression; llama.cpp writes `'[sS]`."""
    data = oracles.byte_level([(b"\xbf", b"a")], pre)
    ours = onegraph.Tokenizer(oracles.write(tmp_path / "model.gguf", data))
    texts = ["'ſa", "'Sa", "'sa", "'ſ", "'RE'Ve'lL", "'ſſ", "x'ſa"]
    assert [ours.encode(t, add_special=False) for t in texts] == HuggingFace(data).encode(texts)


def test_default_where_the_file_names_none(tmp_path: Path) -> None:
    data = oracles.byte_level([(b"1", b"2"), (b"!", b"1")], "default")
    named = onegraph.Tokenizer(oracles.write(tmp_path / "named.gguf", data))
    del data["pre"]
    unnamed = onegraph.Tokenizer(oracles.write(tmp_path / "unnamed.gguf", data))
    for text in ["1234567", "a1!12", "x ²3³12 123"]:
        assert named.encode(text) == unnamed.encode(text)
