"""Tokens a second on the CPU: onegraph against llama.cpp, same file, same threads, same run.

    python benches/cpu_decode.py                          # smollm2, 2 threads
    python benches/cpu_decode.py model.gguf --threads 4 -n 256 --rounds 9

Rounds alternate between the two engines, so that a busy machine is busy for both; what counts is
the median, and the ratio of medians. llama.cpp is the Python package `xllamacpp`, asked through its
own server. One convention for both: the decode rate is the tokens after the first by the time from
the first to the last, the prefill rate the prompt's tokens by the time to the first token.

Before a speed is printed, the output is checked: llama.cpp's own greedy text is fed to onegraph,
and at least 90% of its tokens must be onegraph's first choice too. (It rounds activations to 8
bits; 95% to 98% is usual.)
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onegraph
from onegraph import hub

TEXT = Path(__file__).resolve().parents[1] / "python" / "onegraph" / "check.txt"

#: Serves argv[1] with argv[2] threads until its standard input ends.
SERVE = """
import sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(sys.argv[2])
params.n_ctx = int(sys.argv[3])
params.n_parallel = 1
params.port = 0
server = xllamacpp.Server(params)
print("ADDRESS", server.listening_address, flush=True)
sys.stdin.read()
"""


@dataclass
class Rates:
    """Tokens a second, a number for each round."""

    prefill: list[float] = field(default_factory=list)
    decode: list[float] = field(default_factory=list)


@contextmanager
def llama_cpp(model: Path, threads: int, n_ctx: int) -> Iterator[str]:
    """The address of a llama.cpp server."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(model), str(threads), str(n_ctx)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        words = (line.split() for line in process.stdout)
        address = next((w[1] for w in words if w[:1] == ["ADDRESS"]), None)
        if address is None:
            raise SystemExit("xllamacpp did not start: pip install xllamacpp")
        yield address
    finally:
        process.kill()
        process.wait()


def ask(address: str, prompt: list[int], n: int) -> dict[str, Any]:
    """A greedy completion of `n` tokens, from an empty cache."""
    body = {
        "prompt": prompt,
        "n_predict": n,
        "temperature": 0.0,
        "ignore_eos": True,
        "cache_prompt": False,
        "return_tokens": True,
    }
    request = urllib.request.Request(
        f"{address}/completion",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=600) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


def run_llama_cpp(address: str, prompt: list[int], n: int, rates: Rates) -> list[int]:
    answer = ask(address, prompt, n)
    timings = answer["timings"]
    if (timings["prompt_n"], timings["predicted_n"]) != (len(prompt), n):
        raise SystemExit(f"llama.cpp did other work than asked: {timings}")
    rates.prefill.append(1e3 * len(prompt) / timings["prompt_ms"])
    # Its clock starts at the first token, which it counts.
    rates.decode.append(1e3 * (n - 1) / timings["predicted_ms"])
    return [int(token) for token in answer["tokens"]]


def run_onegraph(llm: onegraph.LLM, prompt: list[int], n: int, rates: Rates) -> None:
    result = llm.generate(prompt, max_tokens=n, temperature=0.0, ignore_eos=True)
    if result.usage.completion_tokens != n:
        raise SystemExit(f"onegraph did other work than asked: {result.usage}")
    rates.prefill.append(result.timings.prefill_tokens_per_second)
    rates.decode.append(result.timings.decode_tokens_per_second)


def agreement(llm: onegraph.LLM, prompt: list[int], answer: list[int]) -> float:
    """The part of `answer` that is onegraph's first choice, each token after the ones before."""
    logits = llm.logits(prompt + answer)[len(prompt) - 1 : -1]
    return float((logits.argmax(axis=1) == np.array(answer)).mean())


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):8.1f}  ({min(values):.1f} to {max(values):.1f})"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("-p", "--prompt", type=int, default=128, help="tokens of the prompt")
    parser.add_argument("-n", "--tokens", type=int, default=128, help="tokens to generate")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kv-type", default="f16")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()

    path = Path(hub.resolve(args.model))
    n_ctx = -(-(args.prompt + args.tokens + 1) // 256) * 256
    ours, theirs = Rates(), Rates()
    with (
        onegraph.LLM(
            path,
            device="cpu",
            threads=args.threads,
            n_ctx=n_ctx,
            max_batch=1,
            kv_type=args.kv_type,
        ) as llm,
        llama_cpp(path, args.threads, n_ctx) as address,
    ):
        prompt = llm.tokenize(TEXT.read_text())[: args.prompt]
        answer = run_llama_cpp(address, prompt, args.tokens, Rates())  # warms up
        run_onegraph(llm, prompt, args.tokens, Rates())
        agrees = agreement(llm, prompt, answer)
        if agrees < 0.9:
            print(f"only {agrees:.1%} of llama.cpp's tokens are onegraph's too", file=sys.stderr)
            return 1
        for _ in range(args.rounds):
            run_llama_cpp(address, prompt, args.tokens, theirs)
            run_onegraph(llm, prompt, args.tokens, ours)

    def ratio(part: str) -> float:
        return statistics.median(getattr(ours, part)) / statistics.median(getattr(theirs, part))

    if args.json:
        record = {
            **{"model": str(args.model), "threads": args.threads, "top_1_agreement": agrees},
            **{"prompt": args.prompt, "tokens": args.tokens, "onegraph": vars(ours)},
            **{"llama.cpp": vars(theirs), "decode_ratio": ratio("decode")},
            **{"prefill_ratio": ratio("prefill"), "version": onegraph.__version__},
        }
        print(json.dumps(record))
        return 0
    print(f"{path.name}, {args.threads} threads, {args.prompt} + {args.tokens} tokens,", end=" ")
    print(f"median of {args.rounds} rounds (least to most), tokens a second")
    print(f"output: {agrees:.1%} of llama.cpp's greedy tokens are onegraph's first choice")
    for part in ("prefill", "decode"):
        print(f"{part:8} onegraph  {spread(getattr(ours, part))}")
        print(f"{part:8} llama.cpp {spread(getattr(theirs, part))}")
        print(f"{part:8} ratio     {ratio(part):8.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
