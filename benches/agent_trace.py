"""What is read of an agent's prompts, and how long its first tokens take.

    python benches/agent_trace.py MODEL --write trace.json
    python benches/agent_trace.py MODEL --trace trace.json --device cuda --record out.json
    python benches/agent_trace.py MODEL --shape qwen3.5-35b-a3b --mix Q4_K_M --restart-at 20
    python benches/agent_trace.py MODEL --against llama-server=PATH --against ollama

A trace is two agents in turn that share a system prompt of 15,000 tokens: thirty turns, each of
which adds a message or a tool's result and asks for an answer; one turn that branches off from an
earlier one, and one that changes a word of an earlier message. Answers are the engine's own, of a
fixed length. The file of a trace has all tokens but these.

Of each turn, new are the tokens behind the longest beginning that its prompt shares with what was
read or answered before; no engine can read fewer. Printed are tokens read over new ones, and the
median and 99th percentile of the time to the first token, without the first turn, which has a
column of its own. With `--restart-at N` the model is closed before turn N and loaded anew with the
same `cache_dir`. MODEL is a file, made from `--shape` (models/shapes.toml) where there is none.

`--against` plays the same trace on another engine's server, with its cache of prompts as it is by
default: llama-server, also with the path of the program; xllamacpp; ollama, which runs already and
is given a copy of the file for that time. Its prompts are texts, of which it does not say how much
it read, and its answers may end early.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onegraph
from onegraph.bench import engines, stream
from onegraph.bench.engines import llama_server, ollama
from onegraph.bench.measurement import EngineError
from runs import make_model, write_record

REPOSITORY = Path(__file__).resolve().parents[1]

#: Ids that every vocabulary has and that no tokenizer gives a meaning of its own.
WORDS = range(300, 500)

Record = dict[str, Any]

#: Answers a prompt: tokens, how many of the prompt were not read again, where that is said, and
#: seconds to the first token.
Ask = Callable[[list[int]], tuple[list[int], int | None, float]]


def trace(args: argparse.Namespace) -> Record:
    """The turns, by a seed: whose each is, what it goes on from, and what it adds."""
    rng = random.Random(args.seed)

    def words(n: int) -> list[int]:
        return [rng.choice(WORDS) for _ in range(n)]

    turns: list[Record] = []
    for turn in range(args.turns):
        # A tool's result is long, a user's message short.
        n = rng.randint(args.message // 4, args.message) if turn % 3 else args.message * 2
        turns.append({"agent": turn % 2, "add": words(max(n, 1))})
    if args.turns > 4:
        turns[args.turns * 2 // 3]["branch"] = 1  # behind the first message and answer of its agent
        turns[args.turns * 5 // 6]["edit"] = [1, 3, rng.choice(WORDS)]  # a word of its second one
    return {"system": words(args.system), "answer": args.answer, "turns": turns}


class Conversation:
    """Messages and answers by turns, behind a system prompt."""

    def __init__(self, system: list[int]) -> None:
        self.system = system
        self.messages: list[list[int]] = []

    def take(self, turn: Record) -> list[int]:
        """The prompt of a turn."""
        if (kept := turn.get("branch")) is not None:
            del self.messages[2 * kept :]
        if edit := turn.get("edit"):
            which, at, word = edit
            message = self.messages[min(2 * which, len(self.messages) - 2)]
            message[at % len(message)] = word
        self.messages.append(list(turn["add"]))
        return self.system + [token for message in self.messages for token in message]

    def answered(self, tokens: list[int]) -> None:
        self.messages.append(list(tokens))


def common(a: list[int], b: list[int]) -> int:
    """Tokens that both begin with."""
    pairs = zip(a, b, strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))


def play(given: Record, ask: Ask, between: Callable[[int], None]) -> list[Record]:
    """Plays a trace; what each turn was and took."""
    agents = [Conversation(given["system"]) for _ in range(2)]
    seen: list[list[int]] = []
    played = []
    for number, turn in enumerate(given["turns"]):
        between(number)
        agent = agents[turn["agent"]]
        prompt = agent.take(turn)
        answer, cached, seconds = ask(prompt)
        shared = max((common(prompt, other) for other in seen), default=0)
        agent.answered(answer)
        seen.append(prompt + answer)
        played.append(
            {
                "prompt": len(prompt),
                "new": len(prompt) - shared,
                "read": None if cached is None else len(prompt) - cached,
                "first_token_seconds": seconds,
            }
        )
    return played


def ours(args: argparse.Namespace, given: Record, n_ctx: int) -> tuple[str, list[Record]]:
    """The trace on onegraph, and the device."""
    with tempfile.TemporaryDirectory() as folder:
        load: dict[str, Any] = {"device": args.device, "n_ctx": n_ctx, "max_batch": 2}
        load |= {"kv_type": args.kv_type, "progress": False}
        if args.restart_at is not None:
            load["cache_dir"] = args.cache_dir or folder
        models = [onegraph.LLM(args.model, **load)]

        def between(turn: int) -> None:
            if turn == args.restart_at:
                models.pop().close()
                models.append(onegraph.LLM(args.model, **load))

        def ask(prompt: list[int]) -> tuple[list[int], int, float]:
            begun = time.perf_counter()
            first, tokens = 0.0, []
            options = {"max_tokens": given["answer"], "temperature": 0.0, "ignore_eos": True}
            answer = models[0].generate(prompt, stream=True, **options)
            for piece in answer:
                first = first or time.perf_counter() - begun
                tokens += piece.token_ids
            return tokens, answer.result.usage.cached_tokens, first

        try:
            return models[0].device, play(given, ask, between)
        finally:
            models.pop().close()


def theirs(args: argparse.Namespace, name: str, given: Record, n_ctx: int) -> list[Record]:
    """The trace on another engine's server."""
    path, threads = Path(args.model), os.cpu_count() or 1
    setup = engines.Setup(path, str(path), args.device, n_ctx, threads, copy=True)
    with llama_server.find_server(name).start(setup) as running:
        if isinstance(running, ollama.Running):
            # For its tokens alone.
            with onegraph.LLM(path, device="cpu", n_ctx=64, progress=False) as llm:
                return play(given, ollamas(running, llm, given["answer"]), lambda _: None)
        if isinstance(running, llama_server.Running):
            return play(given, llamas(running, given["answer"]), lambda _: None)
    raise SystemExit(f"--against {name}: it is no server that requests can be sent to")


def llamas(server: llama_server.Running, n: int) -> Ask:
    """Asks llama.cpp's server for answers of `n` tokens."""

    def ask(prompt: list[int]) -> tuple[list[int], int | None, float]:
        body = {"prompt": prompt, "n_predict": n, "temperature": 0.0, "top_k": 1, "stream": True}
        body |= {"cache_prompt": True, "ignore_eos": True, "return_tokens": True}
        timed = list(stream.lines(server.address, "/completion", body, llama_server.NAME))
        found = llama_server.measurement(timed)
        first = next(line.at for line in timed if line.text.startswith("data:"))
        return list(found.tokens or prompt[:n]), found.n_cached, first

    return ask


def ollamas(server: ollama.Running, llm: onegraph.LLM, n: int) -> Ask:
    """Asks ollama for answers of up to `n` tokens."""

    def ask(prompt: list[int]) -> tuple[list[int], int | None, float]:
        body = {"model": server.model, "prompt": llm.detokenize(prompt), "raw": True}
        body |= {"stream": True, "options": server.options | {"num_predict": n}}
        lines = stream.lines(server.address, "/api/generate", body, "ollama")
        said = [(line.at, stream.json_object(line.text, "ollama")) for line in lines]
        if error := next((each["error"] for _, each in said if "error" in each), None):
            raise SystemExit(f"ollama: {error}")
        text = "".join(each.get("response", "") for _, each in said)
        return llm.tokenize(text, add_special=False), None, said[0][0]

    return ask


def percentile(values: list[float], part: float) -> float:
    """The value that so large a part of all do not exceed."""
    ordered = sorted(values)
    return ordered[min(int(part * len(ordered)), len(ordered) - 1)]


def row(name: str, played: list[Record]) -> str:
    """A line of the table."""
    later = [turn["first_token_seconds"] for turn in played[1:]] or [0.0]
    new = sum(turn["new"] for turn in played)
    read, ratio = "", ""
    if all(turn["read"] is not None for turn in played):
        n = sum(turn["read"] for turn in played)
        read, ratio = f"{n:,}", f"{n / max(new, 1):.3f}"
    return (
        f"| {name} | {read} | {new:,} | {ratio} "
        f"| {percentile(later, 0.5) * 1e3:.0f} | {percentile(later, 0.99) * 1e3:.0f} "
        f"| {played[0]['first_token_seconds'] * 1e3:.0f} |"
    )


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="a GGUF file; written where there is none")
    parser.add_argument("--shape", help="of a file to write (models/shapes.toml)")
    parser.add_argument("--mix", default="Q4_K_M")
    parser.add_argument("--write", metavar="FILE", help="write the trace, run nothing")
    parser.add_argument("--trace", metavar="FILE", help="the trace to run, in place of a new one")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--kv-type", default="i16")
    parser.add_argument("--system", type=int, default=15_000)
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--message", type=int, default=400)
    parser.add_argument("--answer", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--restart-at", type=int, metavar="TURN")
    parser.add_argument("--cache-dir", metavar="FOLDER", help="for --restart-at")
    parser.add_argument("--against", action="append", default=[], metavar="ENGINE")
    parser.add_argument("--record", metavar="FILE")
    return parser.parse_args()


def main() -> int:
    args = options()
    given = json.loads(Path(args.trace).read_text()) if args.trace else trace(args)
    if args.write:
        Path(args.write).write_text(json.dumps(given))
        return 0
    make_model(args)
    added = sum(len(turn["add"]) for turn in given["turns"])
    longest = len(given["system"]) + added + len(given["turns"]) * given["answer"]
    n_ctx = -(-longest // 64) * 64
    device, turns = ours(args, given, n_ctx)
    found = {"onegraph": turns}
    for name in args.against:
        try:
            found[name.partition("=")[0]] = theirs(args, name, given, n_ctx)
        except EngineError as e:
            # What the others did is kept.
            print(f"WARNING: {name}: {e}", file=sys.stderr)
    write_record(args, device, turns=found)
    print("| | read | new | read / new | first token p50, ms | p99, ms | first turn, ms |")
    print("|---|---|---|---|---|---|---|")
    for name, played in found.items():
        print(row(name, played))
    return 0


if __name__ == "__main__":
    sys.exit(main())
