"""Sizes and offsets that overflow, reach past the file or into each other.

Seen in llama.cpp (CVE-2025-53630, CVE-2026-27940, CVE-2026-33298: sums that wrap past the check)
and ollama (CVE-2026-7482: a tensor larger than the file, and process memory in the answer).
"""

from collections.abc import Iterator

import hostile_gguf
from hostile_gguf import ARRAY, STRING, U32, U64, Attack, File, Tensor, array, model

Q = "blk.0.attn_q.weight"
LAST = "output_norm.weight"


def tensor(name: str, t: Tensor) -> bytes:
    return model(lambda file: file.tensors.__setitem__(name, t))


def attacks() -> Iterator[Attack]:
    for n in (2**61, 2**62, 2**63, 2**64 - 1):
        yield Attack(f"product-{n:x}", tensor(Q, Tensor([8, n])), "plan", Q)
    yield Attack("product-wraps-to-0", tensor(Q, Tensor([2**32, 2**32])), "plan", "below 2\\^63")
    wraps = tensor(Q, Tensor([2**31, 2**31, 4, 2**62]))
    yield Attack("product-of-four", wraps, "plan", "dimension")
    # The end, offset + size, wraps to a small number.
    for offset in (2**64 - 32, 2**64 - 256, 2**63, 2**63 - 32):
        data = tensor(LAST, Tensor([8], offset=offset))
        yield Attack(f"offset-{offset:x}", data, "plan", "past the file")
    # The padded size of all tensors wraps, each alone is fine.
    many = File()
    for i in range(8):
        many.tensors[f"extra.{i}"] = Tensor([2**58])
    yield Attack("sum-wraps", many.bytes(), "plan", "past the file")
    # A tensor larger than what the file holds of it: a copy would send the process's own memory.
    yield Attack("larger-than-file", tensor(LAST, Tensor([2**20])), "plan", "past the file")
    yield Attack("one-byte-short", File().bytes()[:-1], "plan", "fetch it again")
    yield Attack("overlap", tensor(LAST, Tensor([8], offset=0)), "plan", "gaps or overlaps")
    yield Attack("gap", tensor(LAST, Tensor([8], offset=4096)), "plan", "past the file|apart")
    yield Attack("unaligned", tensor(LAST, Tensor([8], offset=12)), "plan", "alignment")
    for n in (2**32, 2**61, 2**64 - 1):
        claims = {"n_tensors": n}, {"n_keys": n}
        for claim in claims:
            (what,) = claim
            yield Attack(f"{what}-{n:x}", File(**claim).bytes(), "plan", f"{n}, but at most")
        tokens = array(STRING, ["a"], length=n)
        data = model(lambda f, t=tokens: f.metadata.update({"tokenizer.ggml.tokens": (ARRAY, t)}))
        yield Attack(f"n_tokens-{n:x}", data, "plan", f"{n}, but at most")
        numbers = array(U64, [1], length=n)
        data = model(lambda f, a=numbers: f.metadata.update({"x": (ARRAY, a)}))
        yield Attack(f"n_numbers-{n:x}", data, "plan", f"{n}, but at most")
    for n in (0, 3, 2**31):
        data = model(lambda f, n=n: f.metadata.update({"general.alignment": (U32, n)}))
        yield Attack(f"alignment-{n}", data, "plan", "power of two")
    deep = array(U32, [1])
    for _ in range(20_000):
        deep = array(ARRAY, [deep])
    data = model(lambda f: f.metadata.update({"x": (ARRAY, deep)}))
    yield Attack("arrays-in-arrays", data, "plan", "nested more than")


if __name__ == "__main__":
    hostile_gguf.main(attacks)
