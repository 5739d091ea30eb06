"""Special tokens without measure.

Seen as an automaton of 62 times their bytes, and as a search that takes the length of the longest
for every byte of text: 4 s a megabyte, deaf to Ctrl-C.
"""

from collections.abc import Iterator

import hostile_gguf
from hostile_gguf import ARRAY, I32, STRING, U32, Attack, File, Tensor, array

CONTROL, USER_DEFINED = 3, 4

#: Each is repeated to a megabyte.
PROMPTS = ["a", "x", "a" * 1000 + "b", "a" * 1000 + "c", "b" + "a" * 1000, "aab"]


def with_specials(specials: list[str], kind: int = CONTROL) -> File:
    file = File()
    tokens = ["a", "b", "ab", "c", "d", "</s>"]
    tokens += [text for text in specials if text not in tokens]
    n = len(tokens)
    types = [1, 1, 1, 1, 1, CONTROL] + [kind] * (n - 6)
    file.metadata |= {
        "tokenizer.ggml.tokens": (ARRAY, array(STRING, tokens)),
        "tokenizer.ggml.token_type": (ARRAY, array(I32, types)),
        "tokenizer.ggml.eos_token_id": (U32, 5),
    }
    shape = [hostile_gguf.N_EMBD, n]
    file.tensors["token_embd.weight"] = Tensor(shape, held=4 * shape[0] * shape[1])
    return file


def attacks() -> Iterator[Attack]:
    # No two start alike, so that no table can share what they have in common.
    apart = [f"{i:04}" + "x" * 4092 for i in range(5000)]
    refused = "5001 special tokens of 19.5 MiB of text need an index of 332.0 MiB"
    for kind in (CONTROL, USER_DEFINED):
        data = with_specials(apart, kind).bytes()
        yield Attack(f"long-{kind}", data, "tokenizer", refused, "OutOfMemoryError")
    runs = ["a" * n for n in range(2, 1400)]
    ends = ["a" * n + "b" for n in range(2, 1400)]
    fronts = ["b" + "a" * n for n in range(1, 1400)]
    longest = ["a" * 4095 + letter for letter in "bcdefgh"]
    # A short one is found where a long one fails, which shows a token's length further on.
    nested = ["x", *("x" * 4095 + letter for letter in "bcdefgh")]
    kinds = {"runs": runs, "ends": ends, "fronts": fronts, "long": longest, "short": nested}
    for name, specials in kinds.items():
        data = with_specials(specials).bytes()
        for i, prompt in enumerate(PROMPTS):
            yield Attack(f"nested-{name}-{i}", data, "encode", prompt)


if __name__ == "__main__":
    hostile_gguf.main(attacks)
