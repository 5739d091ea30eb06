"""Zero, huge, negative and non-finite hyper-parameters.

Seen in ollama (CVE-2024-8063: block_count 0, division by zero; CVE-2025-0317: alignment and head
counts of 0) and candle.
"""

import math
from collections.abc import Iterator

import hostile_gguf
from hostile_gguf import F32, F64, I32, U32, U64, Attack, model

COUNTS = [
    "block_count",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "rope.dimension_count",
    "context_length",
]
FLOATS = ["attention.layer_norm_rms_epsilon", "rope.freq_base"]


def attacks() -> Iterator[Attack]:
    def with_value(key: str, kind: int, x: float) -> bytes:
        return model(lambda file: file.metadata.update({f"llama.{key}": (kind, x)}))

    for key in COUNTS:
        for kind, n in [(U32, 0), (U32, 2**31), (U64, 2**63), (U64, 2**64 - 1), (I32, -1)]:
            expect = f"llama.{key} is {n}; expected"
            yield Attack(f"{key}-{n}", with_value(key, kind, n), "plan", expect)
        for n in (3, 5, 7) if key != "context_length" else ():
            yield Attack(f"{key}-odd-{n}", with_value(key, U32, n), "plan", "expected")
    for key in FLOATS:
        for x in (math.nan, math.inf, -math.inf, -1.0, 0.0, 1e38):
            expect = f"llama.{key} is .*; expected"
            yield Attack(f"{key}-{x}", with_value(key, F32, x), "plan", expect)
        yield Attack(f"{key}-subnormal", with_value(key, F64, 5e-324), "plan", "expected")
    for x in (math.nan, -1.0, 1e-30, 1e30):
        data = with_value("rope.scaling.factor", F32, x)
        yield Attack(f"scaling-{x}", data, "plan", "rope.scaling.factor is .*; expected")


if __name__ == "__main__":
    hostile_gguf.main(attacks)
