"""Ids to text: whole, and as a stream that never shows half a character."""

import random
from pathlib import Path

import onegraph
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import oracles, strings
from support.oracles import sentencepiece


@pytest.fixture(scope="module", params=["byte-level", "sentencepiece", "smollm2"])
def tokenizer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> onegraph.Tokenizer:
    if request.param == "smollm2":
        return onegraph.Tokenizer(request.getfixturevalue("smollm2"))
    path = tmp_path_factory.mktemp("vocabulary") / "model.gguf"
    if request.param == "sentencepiece":
        data = sentencepiece()
    else:
        halves = [(b"\xf0\x9f", b"\x98"), (b"\xe4", b"\xb8"), (b"a", b"b"), (b"\x80", b"\x80")]
        data = oracles.byte_level([(b"\xf0", b"\x9f"), *halves], "gpt-2")
    return onegraph.Tokenizer(oracles.write(path, data))


def streamed(tokenizer: onegraph.Tokenizer, ids: list[int]) -> list[str]:
    decoder = tokenizer.stream()
    return [*(decoder.push(i) for i in ids), decoder.finish()]


@pytest.mark.parametrize("seed", range(200))
def test_random_ids_are_the_text_of_their_bytes(tokenizer: onegraph.Tokenizer, seed: int) -> None:
    rng = random.Random(seed)
    # Single bytes, where there are such tokens, make broken characters likely.
    bytes_first = [i for i in range(tokenizer.n_vocab) if len(tokenizer.token_bytes(i)) == 1]
    pool = bytes_first if seed % 2 else range(tokenizer.n_vocab)
    ids = [rng.choice(pool) for _ in range(rng.randint(0, 40))]
    raw = b"".join(tokenizer.token_bytes(i) for i in ids if not tokenizer.is_special(i))
    if "▁a" in (tokenizer.token_text(i) for i in range(tokenizer.n_vocab)):
        raw = raw.removeprefix(b" ")
    expected = raw.decode("utf-8", errors="replace")
    assert tokenizer.decode(ids) == expected
    assert "".join(streamed(tokenizer, ids)) == expected


@pytest.mark.parametrize("category", strings.CATEGORIES)
def test_pieces_of_a_stream_are_whole_characters(
    tokenizer: onegraph.Tokenizer, category: str
) -> None:
    for text in strings.strings(category, 100):
        ids = tokenizer.encode(text)
        whole = tokenizer.decode(ids)
        pieces = streamed(tokenizer, ids)
        assert "".join(pieces) == whole
        if "\ufffd" not in text and not set(text.encode()) & set(tokenizer.missing_bytes):
            assert not any("\ufffd" in piece for piece in pieces)


def test_a_character_waits_for_its_last_byte(tokenizer: onegraph.Tokenizer) -> None:
    text = "\U00012345"
    ids = tokenizer.encode(text, add_special=False)
    if len(ids) < 3:
        pytest.skip("this vocabulary has a token for it")
    decoder = tokenizer.stream(continuation=True)
    assert [decoder.push(i) for i in ids][-1].endswith(text)
    decoder = tokenizer.stream(continuation=True)
    front = [decoder.push(i) for i in ids[:-1]]
    assert "".join(front).strip() == ""
    assert decoder.finish() == "\ufffd"
    assert decoder.finish() == ""


def test_bytes_that_become_no_character(tokenizer: onegraph.Tokenizer) -> None:
    by_bytes = {tokenizer.token_bytes(i): i for i in range(tokenizer.n_vocab)}
    wrong = [b"\x80", b"\xe4", b"a", b"\xe4", b"\xb8", b"b"]
    if not set(wrong) <= set(by_bytes):
        pytest.skip("this vocabulary lacks the bytes")
    ids = [by_bytes[b] for b in wrong]
    assert tokenizer.decode(ids) == "\ufffd\ufffda\ufffdb"
    assert streamed(tokenizer, ids) == ["\ufffd", "", "\ufffda", "", "", "\ufffdb", ""]


def test_special_tokens_are_no_text_unless_asked(tokenizer: onegraph.Tokenizer) -> None:
    special = next(i for i in range(tokenizer.n_vocab) if tokenizer.is_special(i))
    ids = [special, *tokenizer.encode("x", add_special=False), special]
    name = tokenizer.token_text(special)
    assert tokenizer.decode(ids) == "x"
    assert tokenizer.decode(ids, skip_special=False).replace(" ", "") == f"{name}x{name}"
    decoder = tokenizer.stream(skip_special=False)
    assert decoder.push(special) == name


@pytest.mark.parametrize("ids", [[-1], [2**32], ["a"], [0, 2**31]])
def test_ids_that_are_no_tokens(tokenizer: onegraph.Tokenizer, ids: list[int]) -> None:
    with pytest.raises(onegraph.ArgumentError):
        tokenizer.decode(ids)


def test_the_first_id_past_the_end(tokenizer: onegraph.Tokenizer) -> None:
    n = tokenizer.n_vocab
    message = f"token id = {n}: the vocabulary has {n} tokens, with ids from 0"
    decoder = tokenizer.stream()
    for call in (
        lambda: tokenizer.decode([0, n]),
        lambda: tokenizer.token_bytes(n),
        lambda: tokenizer.token_text(n),
        lambda: decoder.push(n),
    ):
        with pytest.raises(onegraph.ArgumentError, match=message):
            call()


def test_a_lone_surrogate_is_no_text(tokenizer: onegraph.Tokenizer) -> None:
    with pytest.raises(onegraph.ArgumentError, match=r"text = .* index 1 is half"):
        tokenizer.encode("a\ud800")


@settings(max_examples=300, deadline=None)
@given(text=st.text(), cut=st.integers(0, 50))
def test_any_text_comes_back(text: str, cut: int) -> None:
    tokenizer = _byte_level()
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    decoder = tokenizer.stream()
    front = "".join(decoder.push(i) for i in ids[:cut])
    assert text.startswith(front)
    assert front + "".join(decoder.push(i) for i in ids[cut:]) + decoder.finish() == text


_cache: list[onegraph.Tokenizer] = []


def _byte_level() -> onegraph.Tokenizer:
    if not _cache:
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            data = oracles.byte_level([(b"a", b"b"), (b" ", b"a"), (b"\xc3", b"\xa9")], "llama-bpe")
            _cache.append(onegraph.Tokenizer(oracles.write(Path(folder) / "m.gguf", data)))
    return _cache[0]
