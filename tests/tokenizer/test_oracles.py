"""Ids equal those of llama.cpp and of HF tokenizers, on 500 strings of each kind."""

from collections.abc import Sequence
from pathlib import Path

import onegraph
import pytest
from support import oracles, published, strings
from support.oracles import HuggingFace, LlamaCpp, Metadata

pytestmark = pytest.mark.thorough

#: The real model's vocabulary as it is, and split as other families split theirs.
PRE = [
    *("smollm", "gpt-2", "llama-bpe", "qwen2", "gpt-4o", "tekken", "default", "seed-coder"),
    *("deepseek-v3", "laguna"),
]
PUBLISHED = [
    *("gpt-2", "falcon", "llama-bpe", "llama-spm", "qwen2", "qwen35", "deepseek-llm"),
    *("deepseek-coder", "gemma-4"),
]


class Case:
    """One vocabulary and its three readers."""

    def __init__(self, path: Path, data: Metadata) -> None:
        self.data = data
        # Of those that have none, SentencePiece says "default".
        self.pre = data["model"] if data["model"] != "gpt2" else data["pre"]
        self.ours = onegraph.Tokenizer(oracles.write(path, data, model=True))
        self.llama_cpp = LlamaCpp(path)
        # No published model has the default pre-tokenizer: only llama.cpp defines it.
        self.hugging_face = None if self.pre == "default" else HuggingFace(data)

    def spelled(self, texts: Sequence[str]) -> list[str]:
        """Without characters that the vocabulary has no bytes for.

        The published tokenizer of SmolLM2 drops such a byte and merges its neighbours, as
        onegraph does; llama.cpp drops it and keeps them apart.
        """
        missing = self.ours.missing_bytes
        return ["".join(c for c in t if not set(c.encode()) & set(missing)) for t in texts]

    def known(self, text: str) -> str:
        """Without characters that llama.cpp cuts at otherwise than published."""
        return "".join(c for c in text if oracles.known_to_llama_cpp(self.pre, c))


@pytest.fixture(scope="module", params=[f"smollm2 as {pre}" for pre in PRE] + PUBLISHED)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    name: str = request.param
    if name.startswith("smollm2"):
        data = oracles.metadata(request.getfixturevalue("smollm2"))
        data["pre"] = name.split()[-1]
    else:
        vectors: Path = request.getfixturevalue("vectors")
        data = oracles.metadata(published.vocabulary(vectors, name))
        data.setdefault("pre", "default")
    return Case(tmp_path_factory.mktemp("vocabulary") / "model.gguf", data)


def differences(
    texts: Sequence[str], ours: Sequence[list[int]], theirs: Sequence[list[int]]
) -> list[tuple[str, list[int], list[int]]]:
    return [x for x in zip(texts, ours, theirs, strict=True) if x[1] != x[2]]


@pytest.mark.parametrize("category", strings.CATEGORIES)
def test_as_llama_cpp(case: Case, category: str) -> None:
    texts = [case.known(text) for text in case.spelled(strings.strings(category))]
    ours = [case.ours.encode(text, add_special=False) for text in texts]
    assert not differences(texts, ours, case.llama_cpp.encode(texts))


@pytest.mark.parametrize("category", strings.CATEGORIES)
def test_as_hugging_face(case: Case, category: str) -> None:
    if case.hugging_face is None:
        pytest.skip("no published model has this pre-tokenizer")
    texts = strings.strings(category)
    ours = [case.ours.encode(text, add_special=False) for text in texts]
    assert not differences(texts, ours, case.hugging_face.encode(texts))


def test_special_tokens_as_both(case: Case) -> None:
    tokens = [case.ours.token_text(i) for i in range(case.ours.n_vocab) if case.ours.is_special(i)]
    texts = [case.known(text) for text in strings.strings("look-alikes")]
    texts += [f" x {a} {b}{a}\n{b} y" for a, b in zip(tokens, reversed(tokens), strict=True)][:100]
    # llama.cpp takes `</s>` for an end of text even where the vocabulary has it as a plain token:
    # Qwen's has, for it closes an HTML element.
    plain = case.ours.token_id("</s>")
    if plain is not None and not case.ours.is_special(plain):
        texts = [text.replace("</s>", "") for text in texts]
    ours = [case.ours.encode(text, add_special=False, parse_special=True) for text in texts]
    assert any(set(map(case.ours.is_special, ids)) == {True, False} for ids in ours)
    assert not differences(texts, ours, case.llama_cpp.encode(texts, parse_special=True))
    if case.hugging_face is not None:
        theirs = case.hugging_face.encode(texts, parse_special=True)
        assert not differences(texts, ours, theirs)


def test_added_tokens_as_llama_cpp(case: Case) -> None:
    texts = ["", " ", "a", " a", "Hello world", "\n"]
    ours = [case.ours.encode(text) for text in texts]
    assert ours == case.llama_cpp.encode(texts, add_special=True)


@pytest.mark.parametrize("category", strings.CATEGORIES)
def test_comes_back(case: Case, category: str) -> None:
    for text in case.spelled(strings.strings(category)):
        ids = case.ours.encode(text)
        # SentencePiece and Gemma 4 write a space as U+2581: it comes back as a space.
        mark = " " if case.data["model"] == "gpt2" else "▁"
        assert case.ours.decode(ids) == text.replace(mark, " ")
        if category == "look-alikes":
            # Plain text spells no control token, whatever it looks like.
            added = set(case.ours.encode(""))
            assert not [i for i in ids if case.ours.is_special(i) and i not in added]
