"""What is lost between the engine and a client of the server.

    python benches/serving.py MODEL --device cuda --streams 1,8,64 -n 256 -r 5
    python benches/serving.py MODEL --rate 4 --requests 200 --device cuda
    python benches/serving.py --url http://127.0.0.1:8080 --rate 4 --requests 200

Without `--rate`: so many streams at once against `LLM.generate` of as many prompts, in turn, by
wall clock from the first request to the last token; the ratio is the median of the rounds' ratios,
whose spread is printed. The first token is that over HTTP less the engine's own, the median.
Between two frames of a stream is what a client sees, over all, as a multiple of the mean step.

With `--rate`: requests arrive at random (a Poisson process, so many a second on average) whether or
not earlier ones were answered, with prompts and answers of mixed lengths: time to the first token,
time for each further one, tokens a second, and how many requests met `--first` and `--each`,
seconds. `--url` takes any server of OpenAI's completions that streams; its `usage` counts tokens.

The client is a process of its own. MODEL is a file, made from `--shape` (models/shapes.toml) where
there is none. Prompts are words, no two alike, so that nothing is kept.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import onegraph
from onegraph.bench import machine

REPOSITORY = Path(__file__).resolve().parents[1]

WORDS = ["tea", "and", "toast", "with", "jam", "every", "day", "in", "the", "rain"]

#: Words of a prompt and tokens of an answer, of the mix of an open loop, each as likely.
MIX = [(16, 32), (16, 128), (128, 64), (512, 32), (512, 128)]

Record = dict[str, Any]


def prompt(rng: random.Random, words: int) -> str:
    return " ".join([f"{rng.getrandbits(64):x}", *rng.choices(WORDS, k=words)])


async def ask(host: str, port: int, body: Record) -> Record:
    """One stream: its tokens, and when each came, in seconds from the request."""
    raw = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
    head += f"connection: close\r\ncontent-length: {len(raw)}\r\n\r\n"
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(head.encode() + raw)
    times: list[float] = []
    tail = b""
    while part := await reader.read(1 << 16):
        now = time.perf_counter() - began
        times += [now] * part.count(b'"finish_reason":null')
        tail = (tail + part)[-4096:]
    writer.close()
    if b'"completion_tokens":' not in tail:
        return {"failed": tail[-300:].decode(errors="replace")}
    told = tail.rpartition(b'"completion_tokens":')[2]
    tokens = int(told[: told.index(b",")])
    return {"tokens": tokens, "times": times, "ended": time.perf_counter() - began, "at": began}


async def client(job: Record) -> Record:
    """What the process of the client does: the requests at their times."""
    began = time.perf_counter()

    async def one(at: float, body: Record) -> Record:
        await asyncio.sleep(max(0.0, at - (time.perf_counter() - began)))
        return await ask(job["host"], job["port"], body)

    made = await asyncio.gather(*(one(*each) for each in job["requests"]))
    return {"answers": made, "seconds": time.perf_counter() - began}


def requests(url: str, asked: Sequence[tuple[float, Record]]) -> Record:
    """Runs the client."""
    to = urlsplit(url)
    job = {"host": to.hostname, "port": to.port, "requests": asked}
    done = subprocess.run(
        [sys.executable, __file__, "--client"],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        check=True,
    )
    found: Record = json.loads(done.stdout)
    if failed := [each["failed"] for each in found["answers"] if "failed" in each]:
        raise SystemExit(f"{len(failed)} requests failed, the first with: {failed[0]}")
    return found


def body(text: str, tokens: int, seed: int) -> Record:
    options = {"max_tokens": tokens, "temperature": 0.8, "seed": seed, "ignore_eos": True}
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    return {"prompt": text, **options, **streamed}


def quantile(values: Sequence[float], q: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def between(answers: list[Record]) -> list[float]:
    """Seconds between each two tokens of a stream."""
    return [
        b - a for each in answers for a, b in zip(each["times"], each["times"][1:], strict=False)
    ]


def closed(llm: onegraph.LLM, url: str, streams: int, args: argparse.Namespace) -> Record:
    """So many at once, served and not, in turn."""
    rng = random.Random(args.seed)
    rounds: list[Record] = []
    for turn in range(args.rounds + 1):
        texts = [prompt(rng, 8) for _ in range(streams)]
        began = time.perf_counter()
        plain = llm.generate(
            texts, max_tokens=args.tokens, seed=1, temperature=0.8, ignore_eos=True
        )
        seconds = time.perf_counter() - began
        texts = [prompt(rng, 8) for _ in range(streams)]
        served = requests(url, [(0.0, body(text, args.tokens, 1)) for text in texts])
        answers = served["answers"]
        tokens = sum(each["tokens"] for each in answers)
        first_at = min(each["at"] for each in answers)
        took = max(each["at"] + each["ended"] for each in answers) - first_at
        step = took / args.tokens
        engine = median(r.timings.queue_seconds + r.timings.prefill_seconds for r in plain)
        gaps = between(answers)
        rounds.append(
            {
                "generate": tokens / seconds,
                "served": tokens / took,
                "first_more": median(each["times"][0] for each in answers) - engine,
                "between_p50": quantile(gaps, 0.5) / step,
                "between_p99": quantile(gaps, 0.99) / step,
            }
        )
        if turn == 0:
            rounds.clear()  # the one that warms up
    ratios = [each["served"] / each["generate"] for each in rounds]
    found = {name: median(each[name] for each in rounds) for name in rounds[0]}
    return {"streams": streams, **found, "ratio": median(ratios), "ratios": ratios}


def opened(url: str, args: argparse.Namespace) -> Record:
    """Arrivals at random."""
    rng = random.Random(args.seed)
    at, asked = 0.0, []
    for i in range(args.requests):
        at += rng.expovariate(args.rate)
        words, tokens = rng.choice(MIX)
        words = min(words, args.words)
        asked.append((at, body(prompt(rng, words), tokens, i)))
    served = requests(url, asked)
    answers = served["answers"]
    firsts = [each["times"][0] for each in answers]
    each_more = [
        (each["times"][-1] - each["times"][0]) / max(1, each["tokens"] - 1) for each in answers
    ]
    good = sum(
        first <= args.first and more <= args.each
        for first, more in zip(firsts, each_more, strict=True)
    )
    return {
        "rate": args.rate,
        "requests": args.requests,
        "first_p50": quantile(firsts, 0.5),
        "first_p99": quantile(firsts, 0.99),
        "each_p50": quantile(each_more, 0.5),
        "each_p99": quantile(each_more, 0.99),
        "tokens_per_second": sum(each["tokens"] for each in answers) / served["seconds"],
        "good": good / len(answers),
    }


def serve(llm: onegraph.LLM) -> tuple[Any, threading.Thread, str]:
    from onegraph.server.running import Server, bind

    listener = bind("127.0.0.1", 0)
    server = Server(onegraph.asgi({"model": llm}, max_queue=10_000))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    while not server.started:
        time.sleep(0.01)
    return server, thread, f"http://127.0.0.1:{listener.getsockname()[1]}"


def show(rows: list[Record]) -> None:
    if "streams" not in rows[0]:
        print("| a second | first token p50 | p99 | each further p50 | p99 | tokens/s | in time |")
        print("|---|---|---|---|---|---|---|")
        for row in rows:
            ms = [row[name] * 1e3 for name in ("first_p50", "first_p99", "each_p50", "each_p99")]
            cells = " | ".join(f"{each:.1f} ms" for each in ms)
            print(
                f"| {row['rate']:g} | {cells} | {row['tokens_per_second']:,.0f} | "
                f"{row['good']:.0%} |"
            )
        return
    print("| streams | generate | served | ratio | first token | between p50 | p99 |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['streams']} | {row['generate']:,.0f} | {row['served']:,.0f} | "
            f"{row['ratio']:.3f} ({min(row['ratios']):.3f} to {max(row['ratios']):.3f}) | "
            f"+{row['first_more'] * 1e3:.1f} ms | {row['between_p50']:.2f} steps | "
            f"{row['between_p99']:.2f} |"
        )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("--url", help="a server that runs, in place of MODEL")
    parser.add_argument("--shape", default="llama-3.2-1b", help="of a MODEL that is not there")
    parser.add_argument("--mix", default="Q4_K_M", help="tensor types of it")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--streams", default="1,8,64")
    parser.add_argument("-n", "--tokens", type=int, default=256, help="of each answer")
    parser.add_argument("-r", "--rounds", type=int, default=5)
    parser.add_argument("--rate", type=float, help="requests a second, on average")
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--words", type=int, default=512, help="most of a prompt")
    parser.add_argument("--first", type=float, default=0.5, help="seconds")
    parser.add_argument("--each", type=float, default=0.05, help="seconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", type=Path, help="file to write the figures to, as JSON")
    args = parser.parse_args()
    if (args.model is None) == (args.url is None):
        parser.error("give MODEL or --url")
    if args.url and not args.rate:
        parser.error("--url needs --rate: there is no engine to compare with")
    return args


def main() -> None:
    if sys.argv[1:] == ["--client"]:
        print(json.dumps(asyncio.run(client(json.load(sys.stdin)))))
        return
    args = parse()
    device = args.device
    if args.url:
        rows = [opened(args.url, args)]
    else:
        streams = [int(n) for n in args.streams.split(",")]
        if not Path(args.model).exists():
            sys.path.insert(0, str(REPOSITORY / "models"))
            import shapes
            import synth

            synth.write(Path(args.model), shapes.find(args.shape), args.mix, seed=args.seed)
        options: Record = {} if args.threads is None else {"threads": args.threads}
        with onegraph.LLM(args.model, device=args.device, max_batch=max(streams), **options) as llm:
            device = llm.device
            server, thread, url = serve(llm)
            try:
                rows = [opened(url, args)] if args.rate else []
                rows = rows or [closed(llm, url, n, args) for n in streams]
            finally:
                server.should_exit = True
                thread.join()
    show(rows)
    if args.record:
        on = machine.describe("cpu" if args.url else device)
        told = {"machine": dataclasses.asdict(on), "options": vars(args), "rows": rows}
        args.record.write_text(json.dumps(told, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
