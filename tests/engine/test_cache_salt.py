"""`cache_salt`: what was read under one is found under the same one alone, wherever it is kept."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from onegraph import LLM, ArgumentError, Sampling
from support.prompts import words

LOAD: dict[str, Any] = {"device": "cpu", "n_ctx": 448, "max_batch": 2, "progress": False}
OPTIONS: dict[str, Any] = {"max_tokens": 4, "temperature": 0.0, "ignore_eos": True}
SALT = "a salt that nobody guesses"


def cached(llm: LLM, prompt: list[int], **more: Any) -> int:
    return llm.generate(prompt, **OPTIONS, **more).usage.cached_tokens


def test_a_salt_changes_what_is_found_and_nothing_else(tiny: Path) -> None:
    prompt = words(200)
    with LLM(tiny, **LOAD) as llm:
        plain = llm.generate(prompt, **OPTIONS)
        assert cached(llm, prompt, cache_salt=SALT) == 0
        assert cached(llm, prompt, cache_salt=SALT + " ") == 0
        for salt in (SALT, None, ""):
            found = llm.generate(prompt, cache_salt=salt, **OPTIONS)
            assert found.usage.cached_tokens >= 192 and found.token_ids == plain.token_ids
        sampling = Sampling(cache_salt=SALT, **OPTIONS)
        assert llm.generate(prompt, sampling=sampling).usage.cached_tokens >= 192
        assert asyncio.run(one(llm, prompt, SALT)) >= 192
        template = "{{ messages[0].content }}"
        asked: dict[str, Any] = {"chat_template": template, **OPTIONS}
        messages = [{"role": "user", "content": "tea and more of it " * 20}]
        assert llm.chat(messages, **asked).usage.cached_tokens == 0
        assert llm.chat(messages, cache_salt=SALT, **asked).usage.cached_tokens == 0
        assert llm.chat(messages, cache_salt=SALT, **asked).usage.cached_tokens >= 64


async def one(llm: LLM, prompt: list[int], salt: str) -> int:
    found = await llm.agenerate(prompt, cache_salt=salt, **OPTIONS)
    return found.usage.cached_tokens


def test_requests_do_not_wait_for_those_of_another_salt(tiny: Path) -> None:
    """A prompt may wait for one that begins like it, and be read from there: that tells as much."""
    prompt = words(400)
    with LLM(tiny, **LOAD) as llm:

        async def both(*salts: str) -> list[int]:
            return await asyncio.gather(*[one(llm, prompt, salt) for salt in salts])

        assert asyncio.run(both("one", "two")) == [0, 0]
        assert sorted(asyncio.run(both("three", "three")))[1] >= 384


def test_salts_are_kept_apart_on_disk_and_tell_nothing_there(tiny: Path, tmp_path: Path) -> None:
    prompt = words(400)
    with LLM(tiny, cache_dir=tmp_path, **LOAD) as llm:
        assert cached(llm, prompt, cache_salt=SALT) == 0
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) >= 6
    for path in files:
        assert SALT not in str(path) and SALT.encode() not in path.read_bytes()
    for salt, least, most in ((None, 0, 0), ("another", 0, 0), (SALT, 384, 400)):
        with LLM(tiny, cache_dir=tmp_path, **LOAD) as llm:
            assert least <= cached(llm, prompt, cache_salt=salt) <= most
    # By now each has its own.
    with LLM(tiny, cache_dir=tmp_path, **LOAD) as llm:
        for salt in (None, "another", SALT):
            assert cached(llm, prompt, cache_salt=salt) >= 384


def test_saved_prefixes_are_kept_under_the_salt_that_is_given(tiny: Path, tmp_path: Path) -> None:
    prompt, path = words(150), tmp_path / "prefix"
    with LLM(tiny, **LOAD) as llm:
        assert llm.save_prefix(prompt, path, cache_salt=SALT) == 150
        assert SALT.encode() not in path.read_bytes()
        assert cached(llm, prompt + words(9, 1)) == 0
        assert cached(llm, prompt + words(9, 1), cache_salt=SALT) == 150
    with LLM(tiny, **LOAD) as llm:
        assert llm.load_prefix(path, cache_salt="another") == 150
        for salt in (SALT, None):
            assert cached(llm, prompt + words(9, 2), cache_salt=salt) == 0
        assert cached(llm, prompt + words(9, 2), cache_salt="another") == 150


@pytest.mark.parametrize(
    ("salt", "said"),
    [
        (5, "cache_salt = 5: must be a str"),
        (b"x", "cache_salt = a value of type bytes: must be a str"),
        ("x" * 1025, "cache_salt = a text of 1025 bytes: at most 1024 are allowed"),
        ("é" * 513, "cache_salt = a text of 1026 bytes"),
        ("\ud800", "cache_salt = a str of 1 characters: .* half of a surrogate pair"),
    ],
)
def test_a_salt_is_a_text_of_bounded_length(salt: Any, said: str, llm: LLM) -> None:
    with pytest.raises(ArgumentError, match=said):
        llm.generate("tea", cache_salt=salt)
    with pytest.raises(ArgumentError, match=said):
        Sampling(cache_salt=salt)
