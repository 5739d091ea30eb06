"""What is lost between the engine and a client of the server, and what a server does under load.

    python benches/serving.py MODEL --device cuda --streams 1,8,64 -n 256 -r 5
    python benches/serving.py MODEL --rate 4 --requests 200 --device cuda
    python benches/serving.py MODEL --rate 1 --against llama-server=PATH --against ollama --create
    python benches/serving.py --url http://127.0.0.1:8080 --rate 4 --requests 200

Without `--rate`: so many streams at once against `LLM.generate` of as many prompts, in turn, by
wall clock from the first request to the last token; the ratio is the median of the rounds' ratios,
whose spread is printed. The first token is that over HTTP less the engine's own, the median.
Between two frames of a stream is what a client sees, over all, as a multiple of the mean step.

With `--rate`: requests arrive at random (a Poisson process, so many a second on average) whether or
not earlier ones were answered, with prompts and answers of mixed lengths (onegraph.bench.arrivals):
time from when a request was due to its first token, time for each further one, tokens a second, and
how many requests met `--first` and `--each`, seconds: a part of all, and such requests a second
(goodput). `--rate 1,2,4` goes through several.

`--against` names engines of `onegraph compare` that serve (llama-server, also with the path of the
program, xllamacpp, ollama, which needs a running server and `--create` for a file): each gets the
same file, requests at the same times, the same context and `--slots` sequences, one engine after
the other. How many run together in ollama its OLLAMA_NUM_PARALLEL says, and its answers may end
before their last token, for it cannot be told otherwise. `--url` takes any server of OpenAI's
completions that streams; its `usage` counts tokens.

The client is a process of its own. MODEL is what `onegraph run` takes, or a file that is made from
`--shape` (models/shapes.toml) where there is none. Prompts are words, no two alike, so that nothing
is kept.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import onegraph
from onegraph import hub
from onegraph.bench import engines
from onegraph.bench.arrivals import Answer, Due, Target, arrivals, play, prompt, quantile, report
from onegraph.bench.engines import llama_server, ollama
from runs import write_record

REPOSITORY = Path(__file__).resolve().parents[1]

Record = dict[str, Any]


def answered(answers: list[Answer]) -> list[Answer]:
    """All of them, where none failed."""
    if failed := [each.failed for each in answers if each.failed is not None]:
        raise SystemExit(f"{len(failed)} requests failed, the first with: {failed[0]}")
    return answers


def between(answers: list[Answer]) -> list[float]:
    """Seconds between each two parts of a stream."""
    return [b - a for each in answers for a, b in zip(each.parts, each.parts[1:], strict=False)]


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
        due = [Due(0.0, text, args.tokens, 1) for text in texts]
        answers = answered(play(Target(url), due))
        tokens = sum(each.tokens for each in answers)
        took = max(each.ended for each in answers)
        step = took / args.tokens
        engine = median(r.timings.queue_seconds + r.timings.prefill_seconds for r in plain)
        gaps = between(answers)
        rounds.append(
            {
                "generate": tokens / seconds,
                "served": tokens / took,
                "first_more": median(each.parts[0] for each in answers) - engine,
                "between_p50": quantile(gaps, 0.5) / step,
                "between_p99": quantile(gaps, 0.99) / step,
            }
        )
        if turn == 0:
            rounds.clear()  # the one that warms up
    ratios = [each["served"] / each["generate"] for each in rounds]
    found = {name: median(each[name] for each in rounds) for name in rounds[0]}
    return {"streams": streams, **found, "ratio": median(ratios), "ratios": ratios}


def opened(target: Target, args: argparse.Namespace) -> list[Record]:
    """Arrivals at random, for each rate."""
    play(target, [Due(0.0, prompt(random.Random(0), 8), 4, 0)])  # warms up
    rows = []
    for i, rate in enumerate(args.rates):
        # No rate has the prompts of another: they would be known.
        seed = args.seed + 1000 * i
        due = arrivals(rate, args.requests, seed=seed, most_words=args.words)
        answers = play(target, due)
        found = report(answers, first=args.first, each=args.each)
        if found.failed == found.requests:
            answered(answers)
        rows.append({"rate": rate, **dataclasses.asdict(found)})
    return rows


@contextlib.contextmanager
def peer(name: str, setup: engines.Setup) -> Iterator[tuple[Target, engines.Settings]]:
    """Another engine's server with the model."""
    with llama_server.find_server(name).start(setup) as running:
        if isinstance(running, ollama.Running):
            options = tuple(running.options.items())
            yield Target(running.address, "ollama", running.model, options), running.settings
        elif isinstance(running, llama_server.Running):
            yield Target(running.address), running.settings
        else:
            raise SystemExit(f"--against {name}: it is no server that requests can be sent to")


def serve(llm: onegraph.LLM) -> tuple[Any, threading.Thread, str]:
    from onegraph.server.running import Server, bind

    listener = bind("127.0.0.1", 0)
    server = Server(onegraph.asgi({"model": llm}, max_queue=10_000))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    while not server.started:
        time.sleep(0.01)
    return server, thread, f"http://127.0.0.1:{listener.getsockname()[1]}"


def show_open(rows: list[Record]) -> None:
    print("| | a second | first p50 | p99 | each p50 | p99 | tokens/s | in time | goodput |")
    print("|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        ms = [row[name] * 1e3 for name in ("first_p50", "first_p99", "each_p50", "each_p99")]
        cells = " | ".join(f"{each:,.1f} ms" for each in ms)
        failed = f" ({row['failed']} failed)" if row["failed"] else ""
        print(
            f"| {row['engine']} | {row['rate']:g} | {cells} | {row['tokens_per_second']:,.0f} | "
            f"{row['good']:.0%}{failed} | {row['goodput']:.2f} |"
        )


def show(rows: list[Record]) -> None:
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
    parser.add_argument("--rate", help="requests a second, on average; several by commas")
    parser.add_argument("--slots", type=int, help="sequences that run together")
    parser.add_argument("--n-ctx", type=int, help="tokens of a sequence")
    parser.add_argument("--against", action="append", default=[], metavar="ENGINE")
    parser.add_argument("--create", action="store_true", help="let ollama have a copy of MODEL")
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
    if args.against and not (args.rate and args.model):
        parser.error("--against needs MODEL and --rate")
    args.rates = [float(rate) for rate in args.rate.split(",")] if args.rate else []
    return args


def found(args: argparse.Namespace) -> Path:
    """The file of the model, which is made where there is none."""
    if not args.model.endswith(".gguf"):
        return hub.resolve(args.model)
    path = Path(args.model)
    if not path.exists():
        sys.path.insert(0, str(REPOSITORY / "models"))
        import shapes
        import synth

        synth.write(path, shapes.find(args.shape), args.mix, seed=args.seed)
    return path


def measured(args: argparse.Namespace) -> tuple[str, list[Record]]:
    """Where it ran, and the rows of the table."""
    if args.url:
        return "cpu", [{"engine": args.url, **row} for row in opened(Target(args.url), args)]
    streams = [int(n) for n in args.streams.split(",")]
    slots = args.slots or (8 if args.rates else max(streams))
    threads = args.threads or len(os.sched_getaffinity(0))
    path = found(args)
    rows: list[Record] = []
    options: Record = {"threads": args.threads, "n_ctx": args.n_ctx, "max_batch": slots}
    with onegraph.LLM(path, device=args.device, **options) as llm:
        device, n_ctx = llm.device, llm.n_ctx
        server, thread, url = serve(llm)
        try:
            if not args.rates:
                return device, [closed(llm, url, n, args) for n in streams]
            ours = {"engine": f"onegraph {onegraph.__version__}", "device": device}
            rows += [{**ours, **row} for row in opened(Target(url), args)]
        finally:
            server.should_exit = True
            thread.join()
    setup = engines.Setup(path, args.model, device, n_ctx, threads, copy=args.create, slots=slots)
    for name in args.against:
        with peer(name, setup) as (target, settings):
            for warning in settings.warnings:
                print(f"WARNING: {warning}", file=sys.stderr)
            theirs = {"engine": f"{settings.name} {settings.version}", "device": settings.device}
            rows += [{**theirs, **row} for row in opened(target, args)]
    return device, rows


def main() -> None:
    args = parse()
    try:
        device, rows = measured(args)
    except (onegraph.Error, OSError) as e:
        raise SystemExit(f"error: {e}") from e
    (show_open if args.rates else show)(rows)
    write_record(args, device, rows=rows)


if __name__ == "__main__":
    main()
