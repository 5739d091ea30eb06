"""What sequences that decode wait for when a long prompt arrives, and what that prompt waits for.

    python benches/joining.py MODEL --shape llama-3.1-8b --device cuda --record out.json

`--sequences` decode; then a prompt of `--prompt` tokens arrives. Printed are the median and the
longest time between two tokens of theirs before it came and while it was read, and its time to the
first token, with them and alone, medians of the rounds. Prompts are new each time. MODEL is what
`onegraph run` takes, or a file that is made from `--shape` (models/shapes.toml) where there is
none.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import itertools
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import onegraph
from onegraph import hub
from onegraph.bench import machine

REPOSITORY = Path(__file__).resolve().parents[1]

#: Ids that every vocabulary has and that no tokenizer gives a meaning of its own.
WORDS = range(300, 500)

#: Tokens that there is room for beside the prompt: those that decode take as many at least.
ROOM = 256

Record = dict[str, Any]


async def first_token(llm: onegraph.LLM, prompt: list[int]) -> float:
    """Seconds to a prompt's first token."""
    begun = time.perf_counter()
    async for _ in llm.agenerate(prompt, max_tokens=1, temperature=0.0, ignore_eos=True):
        break
    return time.perf_counter() - begun


async def decode(llm: onegraph.LLM, prompt: list[int], times: list[float]) -> None:
    """Decodes until it is cancelled; when each token came."""
    options: Record = {"max_tokens": 100_000, "temperature": 0.0, "ignore_eos": True}
    options["max_tokens"] = llm.n_ctx - len(prompt)
    async for piece in llm.agenerate(prompt, **options):
        times += [time.perf_counter()] * len(piece.token_ids)


def gaps(times: list[float], since: float, until: float) -> list[float]:
    """Seconds between two tokens, of those that ended in that time."""
    pairs = itertools.pairwise(times)
    return [b - a for a, b in pairs if since < b and a < until]


async def joined(llm: onegraph.LLM, rng: random.Random, args: argparse.Namespace) -> Record:
    """A round: alone, then with the others."""

    def new(n: int) -> list[int]:
        return [rng.choice(WORDS) for _ in range(n)]

    alone = await first_token(llm, new(args.prompt))
    times: list[list[float]] = [[] for _ in range(args.sequences)]
    tasks = [asyncio.create_task(decode(llm, new(16), own)) for own in times]
    while not all(len(own) >= args.before for own in times):
        await asyncio.sleep(0.005)
    begun = time.perf_counter()
    first = await first_token(llm, new(args.prompt))
    ended = time.perf_counter()
    for task in tasks:
        task.cancel()
    for task in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(task, Exception):
            raise task
    # The first tokens came while others' prompts were still read.
    before = [gap for own in times for gap in gaps(own[args.before // 2 :], 0.0, begun)]
    while_read = [gap for own in times for gap in gaps(own, begun, ended)]
    if not while_read:
        raise SystemExit("the sequences ended before the prompt came; give a longer --prompt")
    return {
        "alone": alone,
        "joined": first,
        "before": [median(before), max(before)],
        "while": [median(while_read), max(while_read)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--shape", help="of a file to write (models/shapes.toml)")
    parser.add_argument("--mix", default="Q4_K_M")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=8192, help="tokens")
    parser.add_argument("--before", type=int, default=64, help="tokens of each before it arrives")
    parser.add_argument("-r", "--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", type=Path, help="write the figures as JSON")
    args = parser.parse_args()
    if args.shape and not Path(args.model).exists():
        command = [sys.executable, str(REPOSITORY / "models" / "synth.py"), args.shape]
        subprocess.run([*command, "--mix", args.mix, "-o", args.model], check=True)
    path, rng = hub.resolve(args.model), random.Random(args.seed)
    load: Record = {"n_ctx": args.prompt + ROOM, "max_batch": args.sequences + 1, "warmup": True}
    with onegraph.LLM(path, device=args.device, progress=False, **load) as llm:
        asyncio.run(joined(llm, rng, args))  # warms up
        rounds = [asyncio.run(joined(llm, rng, args)) for _ in range(args.rounds)]
        on = machine.describe(llm.device)
    alone, first = (median(each[name] for each in rounds) for name in ("alone", "joined"))
    print("| | between two tokens, median, ms | longest, ms |\n|---|---|---|")
    for name, title in (("before", "before"), ("while", f"while {args.prompt:,} are read")):
        middle = median(each[name][0] for each in rounds)
        longest = max(each[name][1] for each in rounds)
        print(f"| {title} | {middle * 1e3:.2f} | {longest * 1e3:.1f} |")
    ratio = f"{first / alone:.2f}"
    print(f"\nfirst token: {first * 1e3:,.0f} ms, alone {alone * 1e3:,.0f} ms: {ratio} times")
    if args.record:
        asked = {name: value for name, value in vars(args).items() if name != "record"}
        told = {"machine": dataclasses.asdict(on), "options": asked, "rounds": rounds}
        args.record.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
