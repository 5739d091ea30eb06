"""Vocabularies whose merges make a careless tokenizer quadratic or exhaust its stack.

Seen as a regular expression's stack overflow at 26,000 characters, and as minutes for a megabyte
of one letter. The files are valid: the attack is the prompt, so each comes with one.
"""

from collections.abc import Iterator

import hostile_gguf
from hostile_gguf import ARRAY, F32, I32, STRING, U32, Attack, File, array

#: Each is repeated to a megabyte.
PROMPTS = ["a", "ab", "ba", " ", "\n", "\t ", "9", "'", "é", "🦙", "\u0301", "</s>", "<", "\x00"]


def doubling() -> File:
    """a a, aa aa, aaaa aaaa, ...: every merge feeds the next."""
    file = File()
    powers = ["a" * 2**i for i in range(12)]
    tokens = [*powers, "b", "c", "</s>"]
    merges = [f"{x} {x}" for x in powers[:-1]]
    vocabulary(file, tokens)
    file.metadata["tokenizer.ggml.merges"] = (ARRAY, array(STRING, merges))
    return file


def ladder() -> File:
    """a a, aa a, aaa a, ...: the front grows by one letter a merge."""
    file = File()
    steps = ["a" * i for i in range(1, 1000)]
    vocabulary(file, [*steps, "</s>"])
    merges = [f"{x} a" for x in steps[:-1]]
    file.metadata["tokenizer.ggml.merges"] = (ARRAY, array(STRING, merges))
    return file


def sentencepiece() -> File:
    """Every run of one letter is a token, the longer the better."""
    file = File()
    runs = ["a" * i for i in range(1, 1000)]
    tokens = ["<unk>", "<s>", "</s>", *runs]
    vocabulary(file, tokens)
    types = [2, 3, 3] + [1] * len(runs)
    scores = [0.0] * 3 + [float(i) for i in range(len(runs))]
    file.metadata |= {
        "tokenizer.ggml.model": (STRING, "llama"),
        "tokenizer.ggml.token_type": (ARRAY, array(I32, types)),
        "tokenizer.ggml.scores": (ARRAY, array(F32, scores)),
        "tokenizer.ggml.unknown_token_id": (U32, 0),
        "tokenizer.ggml.bos_token_id": (U32, 1),
        "tokenizer.ggml.eos_token_id": (U32, 2),
    }
    del file.metadata["tokenizer.ggml.merges"]
    return file


def unigram() -> File:
    """Every run of one letter is a piece: every place starts as many as there may be."""
    file = sentencepiece()
    runs = ["a" * i for i in range(1, 513)]
    vocabulary(file, ["<unk>", "<s>", "</s>", *runs])
    file.metadata |= {
        "tokenizer.ggml.model": (STRING, "t5"),
        "tokenizer.ggml.token_type": (ARRAY, array(I32, [2, 3, 3] + [1] * len(runs))),
        "tokenizer.ggml.scores": (ARRAY, array(F32, [0.0] * 3 + [-1.0] * len(runs))),
        "tokenizer.ggml.eos_token_id": (U32, 2),
    }
    return file


def characters() -> File:
    """Gemma 4's kind: the front grows by one letter a merge, in lines that nothing cuts."""
    file = File()
    runs = ["a" * i for i in range(1, 1000)]
    tokens = [*(f"<0x{b:02X}>" for b in range(256)), *runs, "</s>"]
    vocabulary(file, tokens)
    types = [6] * 256 + [1] * len(runs) + [3]
    file.metadata |= {
        "tokenizer.ggml.model": (STRING, "gemma4"),
        "tokenizer.ggml.token_type": (ARRAY, array(I32, types)),
        "tokenizer.ggml.merges": (ARRAY, array(STRING, [f"{x} a" for x in runs[:-1]])),
    }
    return file


def vocabulary(file: File, tokens: list[str]) -> None:
    types = [1] * (len(tokens) - 1) + [3]
    file.metadata |= {
        "tokenizer.ggml.tokens": (ARRAY, array(STRING, tokens)),
        "tokenizer.ggml.token_type": (ARRAY, array(I32, types)),
        "tokenizer.ggml.eos_token_id": (U32, len(tokens) - 1),
    }
    file.tensors["token_embd.weight"].dims[1] = len(tokens)


def attacks() -> Iterator[Attack]:
    makes = {"doubling": doubling, "ladder": ladder, "spm": sentencepiece, "unigram": unigram}
    makes["gemma4"] = characters
    for name, make in makes.items():
        file = make()
        for i, prompt in enumerate(PROMPTS):
            yield Attack(f"{name}-{i}", file.bytes(), "encode", prompt)


if __name__ == "__main__":
    hostile_gguf.main(attacks)
