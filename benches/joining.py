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
import itertools
import random
import time
from pathlib import Path
from statistics import median
from typing import Any

import onegraph
from onegraph import hub
from runs import make_model, write_record

REPOSITORY = Path(__file__).resolve().parents[1]

#: Ids that every vocabulary has and that no tokenizer gives a meaning of its own.
WORDS = range(300, 500)

#: Tokens that there is room for beside the prompt.
ROOM = 64

Record = dict[str, Any]


async def first_token(llm: onegraph.LLM, prompt: list[int]) -> float:
    """Seconds to a prompt's first token."""
    begun = time.perf_counter()
    async for _ in llm.agenerate(prompt, max_tokens=1, temperature=0.0, ignore_eos=True):
        break
    return time.perf_counter() - begun


async def decode(llm: onegraph.LLM, prompt: list[int], runs: list[list[float]]) -> None:
    """Decodes until it is cancelled, anew where there is no more room; when each token came."""
    options: Record = {"temperature": 0.0, "ignore_eos": True}
    options["max_tokens"] = llm.n_ctx - len(prompt)
    while True:
        times: list[float] = []
        runs.append(times)
        async for piece in llm.agenerate(prompt, **options):
            times += [time.perf_counter()] * len(piece.token_ids)


async def made(runs: list[list[list[float]]], n: int) -> float:
    """Waits until each sequence has made so many tokens; when that was."""
    while min(sum(map(len, own)) for own in runs) < n:
        await asyncio.sleep(0.001)
    return time.perf_counter()


def gaps(runs: list[list[list[float]]], since: float, until: float) -> list[float]:
    """Seconds between two tokens of a sequence, of those that were under way in that time."""
    pairs = (pair for own in runs for times in own for pair in itertools.pairwise(times))
    return [b - a for a, b in pairs if since < b and a < until]


async def joined(llm: onegraph.LLM, rng: random.Random, args: argparse.Namespace) -> Record:
    """A round: alone, then with the others."""

    def new(n: int) -> list[int]:
        return [rng.choice(WORDS) for _ in range(n)]

    alone = await first_token(llm, new(args.prompt))
    runs: list[list[list[float]]] = [[] for _ in range(args.sequences)]
    # Of several lengths, so that they are not all at their end at once.
    prompts = [new(16 + i) for i in range(args.sequences)]
    begin = zip(prompts, runs, strict=True)
    tasks = [asyncio.create_task(decode(llm, prompt, own)) for prompt, own in begin]
    # The first tokens came while others' prompts were still read.
    settled = await made(runs, args.before // 2)
    begun = await made(runs, args.before)
    first = await first_token(llm, new(args.prompt))
    ended = time.perf_counter()
    # What was waited for then is known with the next tokens.
    await made(runs, max(sum(map(len, own)) for own in runs) + 2)
    for task in tasks:
        task.cancel()
    for task in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(task, Exception):
            raise task
    before, while_read = gaps(runs, settled, begun), gaps(runs, begun, ended)
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
    make_model(args)
    path, rng = hub.resolve(args.model), random.Random(args.seed)
    load: Record = {"n_ctx": args.prompt + ROOM, "max_batch": args.sequences + 1, "warmup": True}
    with onegraph.LLM(path, device=args.device, progress=False, **load) as llm:
        asyncio.run(joined(llm, rng, args))  # warms up
        rounds = [asyncio.run(joined(llm, rng, args)) for _ in range(args.rounds)]
        device = llm.device
    alone, first = (median(each[name] for each in rounds) for name in ("alone", "joined"))
    print("| | between two tokens, median, ms | longest, ms |\n|---|---|---|")
    for name, title in (("before", "before"), ("while", f"while {args.prompt:,} are read")):
        middle = median(each[name][0] for each in rounds)
        longest = max(each[name][1] for each in rounds)
        print(f"| {title} | {middle * 1e3:.2f} | {longest * 1e3:.1f} |")
    ratio = f"{first / alone:.2f}"
    print(f"\nfirst token: {first * 1e3:,.0f} ms, alone {alone * 1e3:,.0f} ms: {ratio} times")
    write_record(args, device, rounds=rounds)


if __name__ == "__main__":
    main()
