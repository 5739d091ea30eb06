"""What is known of the number of a text's tokens before they are made: never more than they are."""

import random
from pathlib import Path
from typing import Any

import onegraph
import pytest
from onegraph import _native
from support import oracles
from support.oracles import BYTE, byte_level, characters, sentencepiece, unigram
from support.strings import CATEGORIES, strings


def without_bytes() -> oracles.Metadata:
    """A run of what it does not know is one token, however long."""
    data = sentencepiece()
    kept = [i for i, kind in enumerate(data["token_type"]) if kind != BYTE]
    for key in ("tokens", "scores", "token_type"):
        data[key] = [data[key][i] for i in kept]
    return data


MADE: dict[str, Any] = {
    "sentencepiece": sentencepiece,
    "sentencepiece without bytes": without_bytes,
    "phi-3, whose tokens take white space along": sentencepiece,
    "characters": characters,
    "unigram": unigram,
    "bytes": lambda: byte_level([(b"a" * 2**i, b"a" * 2**i) for i in range(8)], "gpt-2"),
}


@pytest.fixture(scope="module", params=["smollm2", *MADE])
def tokenizer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> onegraph.Tokenizer:
    kind: str = request.param
    if kind == "smollm2":
        return onegraph.Tokenizer(request.getfixturevalue("smollm2"))
    path = tmp_path_factory.mktemp("vocabulary") / "model.gguf"
    name = "Phi-3" if kind.startswith("phi-3") else "test"
    return onegraph.Tokenizer(oracles.write(path, MADE[kind](), name=name))


@pytest.mark.parametrize("category", CATEGORIES)
def test_no_text_has_fewer_tokens_than_are_foreseen(
    tokenizer: onegraph.Tokenizer, category: str
) -> None:
    rng = random.Random(category)
    for text in strings(category, 100):
        # Spaces, and what a vocabulary may drop or swallow, in long runs too.
        for given in (text, rng.choice(["\x00", " ", "▁", "中", "<s>  "]) * 200 + text):
            for special in (False, True):
                ids = tokenizer.encode(given, add_special=False, parse_special=special)
                assert tokenizer._fewest(given) <= len(ids), (given, special)


def test_a_long_text_is_foreseen_to_be_long(smollm2: Path) -> None:
    tokenizer = onegraph.Tokenizer(smollm2)
    longest = max(len(tokenizer.token_bytes(i)) for i in range(tokenizer.n_vocab))
    assert tokenizer._fewest("") == 0
    assert tokenizer._fewest("a" * 100 * longest) == 100
    # Bytes that no token spells make none.
    missing = tokenizer.missing_bytes[:1].decode()
    assert tokenizer._fewest(missing * 10_000) == 0


def test_what_cannot_fit_is_refused_before_it_is_tokens(llm: onegraph.LLM) -> None:
    text = "tea " * 500_000
    template = onegraph.ChatTemplate("{{ messages[0]['content'] }}")
    rendering = template.rendering([{"role": "user", "content": text}])
    stopped = _native.Stop()
    stopped.tell()
    for prompt in (text, rendering):
        # Work on it would end at once, by another error.
        with stopped, pytest.raises(onegraph.ContextError, match=r"has at least \d+ tokens, but"):
            llm._engine.encode(prompt)
        with stopped, pytest.raises(onegraph.CancelledError):
            llm._engine.encode(prompt, most=1 << 40)
    with stopped, pytest.raises(onegraph.ContextError, match="at least"):
        llm._engine.encode_text(text, False)
    for call in (llm.generate, llm.embed):
        with pytest.raises(onegraph.ContextError, match="at least"):
            call(text)
    # One that might have fitted is counted.
    n = len(llm.tokenize("tea " * 600))
    with pytest.raises(onegraph.ContextError, match=rf"has {n} tokens, but the context holds 512"):
        llm.generate("tea " * 600)
    assert llm.n_ctx <= n < llm.n_ctx * 10


def test_a_text_that_is_cut_keeps_its_first_tokens_and_its_end(llm: onegraph.LLM) -> None:
    text = "tea and more tea " * 400
    ids = llm.tokenize(text)
    assert len(ids) > llm.n_ctx
    cut = llm._engine.encode_text(text, True)
    ends = llm.tokenizer.add_eos
    assert cut == (ids[: llm.n_ctx - 1] + ids[-1:] if ends else ids[: llm.n_ctx])
