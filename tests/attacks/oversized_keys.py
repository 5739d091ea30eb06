"""A model whose keys, or whose values, no float16 holds.

Stored as infinities, they make every later token of the sequence NaN, for good: seen here before
they were kept below the largest float16, and said to have been.
"""

from collections.abc import Iterator

import hostile_gguf
from hostile_gguf import Attack, File, model


def attacks() -> Iterator[Attack]:
    for part in ("k", "v"):

        def change(file: File, part: str = part) -> None:
            for name, tensor in file.tensors.items():
                tensor.fill = 1e6 if name == f"blk.0.attn_{part}.weight" else 1.0

        yield Attack(f"{part}-of-8e6", model(change), "finite", "abc")


if __name__ == "__main__":
    hostile_gguf.main(attacks)
