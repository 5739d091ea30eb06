"""Tokenizer metadata for synthetic models: a made-up byte-level BPE, or another file's."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import gguf_io

#: Token types of `tokenizer.ggml.token_type`.
NORMAL, CONTROL, UNUSED = 1, 3, 5

#: The made-up vocabulary starts with these; the first is also the padding token.
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
BOS, EOS = 1, 2

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' "
    "+ message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def byte_characters() -> list[str]:
    """The character that stands for each byte in byte-level BPE, as GPT-2 has it: printable
    Latin-1 characters for themselves, the others from U+0100 on in order."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(b if b in own else next(others)) for b in range(256)]


def _merges() -> Iterator[tuple[str, str]]:
    """Pairs that merge to new, distinct tokens: words of letters, some after a space, the shorter
    first."""
    letters = "etaoinshrdlucmfwypvbgkqjxz"
    shorter = ["\u0120", *letters]  # U+0120 stands for the space
    while True:
        longer = []
        for word, letter in itertools.product(shorter, letters):
            yield word, letter
            longer.append(word + letter)
        shorter = longer


def ended(tokenizer: dict[str, bytes]) -> dict[str, bytes]:
    """The made-up tokenizer as models for embeddings have it: every text ends with
    `<|endoftext|>`, and there is no chat template."""
    kept = {k: v for k, v in tokenizer.items() if k != "tokenizer.chat_template"}
    return kept | {
        "tokenizer.ggml.eos_token_id": gguf_io.u32(0),
        "tokenizer.ggml.eot_token_id": gguf_io.u32(EOS),
        "tokenizer.ggml.add_eos_token": gguf_io.boolean(True),
    }


def ranking(tokenizer: dict[str, bytes]) -> dict[str, bytes]:
    """The same as a reranker has it, with what a query and a document are written into."""
    template = "<|im_start|>find\n{query}\nin\n{document}<|im_end|>"
    return tokenizer | {"tokenizer.chat_template.rerank": gguf_io.string(template)}


def made_up(n_vocab: int, pre: str) -> dict[str, bytes]:
    """A complete tokenizer of `n_vocab` tokens, at least 259."""
    least = len(SPECIAL) + 256
    if n_vocab < least:
        raise ValueError(f"n_vocab = {n_vocab}: a byte-level vocabulary has at least {least}")
    pairs = list(itertools.islice(_merges(), n_vocab - least))
    tokens = [*SPECIAL, *byte_characters(), *(a + b for a, b in pairs)]
    kinds = [CONTROL] * len(SPECIAL) + [NORMAL] * (n_vocab - len(SPECIAL))
    return {
        "tokenizer.ggml.model": gguf_io.string("gpt2"),
        "tokenizer.ggml.pre": gguf_io.string(pre),
        "tokenizer.ggml.tokens": gguf_io.strings(tokens),
        "tokenizer.ggml.token_type": gguf_io.i32s(kinds),
        "tokenizer.ggml.merges": gguf_io.strings(f"{a} {b}" for a, b in pairs),
        "tokenizer.ggml.bos_token_id": gguf_io.u32(BOS),
        "tokenizer.ggml.eos_token_id": gguf_io.u32(EOS),
        "tokenizer.ggml.padding_token_id": gguf_io.u32(0),
        "tokenizer.ggml.add_bos_token": gguf_io.boolean(False),
        "tokenizer.ggml.add_space_prefix": gguf_io.boolean(False),
        "tokenizer.chat_template": gguf_io.string(CHAT_TEMPLATE),
    }


def copied(path: str | os.PathLike[str], n_vocab: int) -> dict[str, bytes]:
    """The tokenizer of another GGUF, filled up to `n_vocab` with unused tokens."""
    source = gguf_io.Reader(path)
    out = {k: v for k, v in source.encoded.items() if k.startswith("tokenizer.")}
    tokens = source.metadata.get("tokenizer.ggml.tokens", [])
    missing = n_vocab - len(tokens)
    if not tokens or missing < 0:
        raise ValueError(f"{path} has {len(tokens)} tokens; the shape has room for {n_vocab}")
    if missing:
        names = (f"[PAD{i}]" for i in range(len(tokens), n_vocab))
        kinds = source.metadata.get("tokenizer.ggml.token_type", [NORMAL] * len(tokens))
        out["tokenizer.ggml.tokens"] = gguf_io.strings([*tokens, *names])
        out["tokenizer.ggml.token_type"] = gguf_io.i32s([*kinds, *[UNUSED] * missing])
        scores = source.metadata.get("tokenizer.ggml.scores")
        if scores:
            out["tokenizer.ggml.scores"] = gguf_io.f32s([*scores, *[-1e4] * missing])
    return out


def controls(metadata: dict[str, bytes]) -> list[int]:
    """Ids of the tokens that no text has: control and unused ones."""
    kinds = gguf_io.decode(metadata["tokenizer.ggml.token_type"])
    return [i for i, kind in enumerate(kinds) if kind in (CONTROL, UNUSED)]
