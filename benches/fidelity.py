"""How far onegraph and llama.cpp are from the exact forward pass, on a real text.

    python benches/fidelity.py [MODEL] [--device cuda] [--tokens 560]

forces the tokens of a fixed text and prints, against an independent float64 pass over the file's
own weights (tests/support/reference.py): mean KL(exact || onegraph) in nats, the largest difference
of a logit, and how often both hold the same token for the best; for llama.cpp (the package
`xllamacpp`, on the CPU) the last, since its server gives no logits; and what the exact pass loses
where only activations are rounded, to bfloat16, before matrices (not those of experts), or only
keys and values, to float16. MODEL is `smollm2` or any other reference.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import numpy as np
import onegraph
from onegraph.bench import stream
from onegraph.bench.engines import MissingError, Setup, xllamacpp
from onegraph.graphs import check_text

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "tests"))

from support.reference import Array, Reference, mean_kl  # noqa: E402 (found through the line above)


class Bfloat16(Reference):
    """The exact pass, but matrices multiply bfloat16."""

    def linear(self, x: Array, name: str) -> Array:
        bits = x.astype(np.float32).view(np.uint32)
        # To the nearest, ties to even.
        bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
        return super().linear(bits.view(np.float32).astype(np.float64), name)


def llama_cpp(path: Path, ids: list[int], threads: int) -> list[int]:
    """llama.cpp's best token after each of `ids`, one step a token: what was read stays read."""
    setup = Setup(path, str(path), "cpu", len(ids) + 8, threads)
    running = xllamacpp.find().start(setup)
    best = []
    try:
        for n in range(1, len(ids) + 1):
            body = {
                "prompt": ids[:n],
                "n_predict": 1,
                "temperature": 0.0,
                "top_k": 1,
                "repeat_penalty": 1.0,
                "ignore_eos": False,
                "cache_prompt": True,
                "return_tokens": True,
            }
            status, said = stream.request_json(
                running.address, "POST", "/completion", body, "llama.cpp"
            )
            if status != 200 or not isinstance(said, dict) or len(said.get("tokens", [])) != 1:
                raise SystemExit(f"llama.cpp answered {status}: {said}")
            best.append(int(said["tokens"][0]))
    finally:
        running.close()
    return best


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tokens", type=int, default=560)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    given = parser.parse_args()
    found = {}
    for kv_type in ("f32", "f16", "i16"):
        options = {"device": given.device, "n_ctx": given.tokens, "max_batch": 1}
        with onegraph.LLM(given.model, kv_type=kv_type, **options) as llm:
            path, ids = Path(llm.path), llm.tokenize(check_text())[: given.tokens]
            for way in ("prefill", "decode"):
                found[f"onegraph, {llm.device}, {kv_type} cache, {way}"] = llm.logits(ids, path=way)
    exact = Reference(path, cache=False).logits(ids)
    found["exact, but activations bfloat16"] = Bfloat16(path, cache=False).logits(ids)
    halves = Reference(path, cache=False, kv_dtype=np.float16)
    found["exact, but keys and values float16"] = halves.logits(ids)
    best = exact.argmax(axis=1)
    print(f"{path.name}, {len(ids)} tokens\n")
    print("| | mean KL, nats | largest logit difference | same best token |\n|---|---|---|---|")
    for name, logits in found.items():
        difference = float(np.abs(logits - exact).max())
        same = float((logits.argmax(axis=1) == best).mean())
        print(f"| {name} | {mean_kl(exact, logits):.1e} | {difference:.1e} | {same:.2%} |")
    try:
        theirs = np.array(llama_cpp(path, ids, given.threads))
    except MissingError as e:
        print(f"\nllama.cpp: {e}")
        return
    print(f"| llama.cpp, cpu, its default | | | {float((theirs == best).mean()):.2%} |")


if __name__ == "__main__":
    main()
