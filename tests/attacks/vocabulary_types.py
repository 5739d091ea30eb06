"""Vocabularies of the wrong type, length or content.

Seen in llama.cpp (CVE-2025-49847: a token's length cast to a signed 32-bit number, past the
buffer) and wherever an array was read as the type it should have had.
"""

from collections.abc import Iterator

import hostile_gguf
from hostile_gguf import ARRAY, F32, I32, STRING, U8, U32, Attack, array, model


def attacks() -> Iterator[Attack]:
    def with_value(key: str, kind: int, x: object) -> bytes:
        return model(lambda file: file.metadata.update({f"tokenizer.ggml.{key}": (kind, x)}))

    strings = array(STRING, ["a"] * 6)
    for key in ("tokens", "merges", "token_type"):
        wrong = {"numbers": array(U32, [1] * 6), "bytes": array(U8, [1] * 6)}
        wrong["floats"] = array(F32, [1.0] * 6)
        wrong["arrays"] = array(ARRAY, [strings])
        if key == "token_type":
            wrong["strings"] = strings
        for what, data in wrong.items():
            expect = f"tokenizer.ggml.{key} is .*; expected"
            yield Attack(f"{key}-{what}", with_value(key, ARRAY, data), "tokenizer", expect)
        expect = f"tokenizer.ggml.{key} is .*; expected"
        yield Attack(f"{key}-string", with_value(key, STRING, "a"), "tokenizer", expect)
    empty = array(STRING, [])
    yield Attack("no-tokens", with_value("tokens", ARRAY, empty), "tokenizer", "tokens")
    short = array(I32, [1])
    yield Attack("short-types", with_value("token_type", ARRAY, short), "tokenizer", "token_type")
    types = array(I32, [1, 1, 1, 1, 1, -7])
    yield Attack("unknown-type", with_value("token_type", ARRAY, types), "tokenizer", "-7")
    twice = array(STRING, ["a", "a", "b", "c", "d", "e"])
    yield Attack("token-twice", with_value("tokens", ARRAY, twice), "tokenizer", "tokens")
    long = array(STRING, ["a" * 5000, "b", "c", "d", "e", "f"])
    yield Attack("long-token", with_value("tokens", ARRAY, long), "tokenizer", "5000")
    # A length that is negative as a signed 32-bit or 64-bit number.
    for n in (2**31, 2**32 - 1, 2**63, 2**64 - 1):
        raw = with_value("model", STRING, "gpt2")
        at = raw.index(b"tokenizer.ggml.model") + 20 + 4
        raw = raw[:at] + n.to_bytes(8, "little") + raw[at + 8 :]
        yield Attack(f"length-{n:x}", raw, "tokenizer", f"{n}, but at most")
    yield Attack("not-utf-8", with_value("model", STRING, b"\xff\xfe"), "tokenizer", "not UTF-8")
    for key in ("eos_token_id", "bos_token_id", "unknown_token_id"):
        for n in (6, 2**31, 2**32 - 1):
            yield Attack(f"{key}-{n}", with_value(key, U32, n), "tokenizer", f"{key} is {n}")
        yield Attack(f"{key}-string", with_value(key, STRING, "5"), "tokenizer", key)
    for merge in ("ab", " ", "a  ", "", "x\ny z"):
        data = with_value("merges", ARRAY, array(STRING, [merge]))
        yield Attack(f"merge-{merge.encode().hex()}", data, "tokenizer", r"merges\[0\]")
    # Fewer token texts than rows of the embedding: ids that no text has.
    fewer = array(STRING, ["a", "b", "ab"])
    yield Attack("fewer-tokens", with_value("tokens", ARRAY, fewer), "plan", "6, the rows")


if __name__ == "__main__":
    hostile_gguf.main(attacks)
