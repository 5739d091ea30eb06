"""An open loop: requests arrive at a server at random, by a Poisson process, whether or not earlier
ones were answered, with prompts and answers of mixed lengths.

What a request waits for is counted from the moment it was due: where the server is behind, that is
part of its answer. The client is a process of its own (`python -m onegraph.bench.arrivals`), so
that it and a server in this process do not share an interpreter.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from onegraph.bench.measurement import EngineError

__all__ = [
    "DIALECTS",
    "MIX",
    "Answer",
    "Due",
    "Report",
    "Target",
    "arrivals",
    "play",
    "prompt",
    "quantile",
    "report",
]

Record = dict[str, Any]

WORDS = ["tea", "and", "toast", "with", "jam", "every", "day", "in", "the", "rain"]

#: Words of a prompt and tokens of an answer, each pair as likely.
MIX = ((16, 32), (16, 128), (128, 64), (512, 32), (512, 128))

#: Bytes of an answer's end, in which a server says how many tokens it has.
TAIL = 4096


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a server is asked, and what of its stream is counted."""

    path: str
    #: Stands in each part of an answer but the last.
    part: bytes
    #: What the number of an answer's tokens stands behind, in the last part.
    count: bytes
    body: Callable[[Target, str, int, int], Record]


@dataclass(frozen=True, slots=True)
class Target:
    """A server."""

    address: str
    #: A name of `DIALECTS`.
    dialect: str = "openai"
    #: What the server calls the model, where it has to be told.
    model: str | None = None
    #: Options that ollama takes.
    options: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True, slots=True)
class Due:
    """A request."""

    #: Seconds from the beginning.
    at: float
    text: str
    tokens: int
    seed: int


@dataclass(frozen=True, slots=True)
class Answer:
    """How a request was answered; times in seconds."""

    #: When it was due, by the client's clock.
    due: float
    #: When each part came, and all of it, from then on.
    parts: tuple[float, ...]
    ended: float
    #: Of the answer, as the server counts them.
    tokens: int
    #: Why there is none; the server's last words.
    failed: str | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What an open loop gave; times in seconds."""

    requests: int
    failed: int
    #: From when a request was due to its first token.
    first_p50: float
    first_p99: float
    #: For each further token, the mean of a request.
    each_p50: float
    each_p99: float
    tokens_per_second: float
    #: Part of the requests that were answered in time, and such requests a second.
    good: float
    goodput: float


def _openai(target: Target, text: str, tokens: int, seed: int) -> Record:
    asked: Record = {
        "prompt": text,
        "max_tokens": tokens,
        "temperature": 0.8,
        "seed": seed,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return asked if target.model is None else {"model": target.model, **asked}


def _ollama(target: Target, text: str, tokens: int, seed: int) -> Record:
    options = {**dict(target.options), "num_predict": tokens, "temperature": 0.8, "seed": seed}
    asked: Record = {"model": target.model, "prompt": text, "raw": True, "stream": True}
    return {**asked, "options": options}


#: How servers are spoken to: completions of OpenAI's API, which llama.cpp has too, and ollama's own
#: API, which alone takes a prompt as it is.
DIALECTS = {
    "openai": Dialect("/v1/completions", b'"finish_reason":null', b'"completion_tokens":', _openai),
    "ollama": Dialect("/api/generate", b'"done":false', b'"eval_count":', _ollama),
}


def prompt(rng: random.Random, words: int) -> str:
    """A text of which no other has the beginning, so that nothing is kept for it."""
    return " ".join([f"{rng.getrandbits(64):x}", *rng.choices(WORDS, k=words)])


def arrivals(rate: float, requests: int, *, seed: int, most_words: int | None = None) -> list[Due]:
    """Requests of the mix, `rate` a second on average. The same for the same arguments."""
    rng = random.Random(seed)
    at, made = 0.0, []
    for i in range(requests):
        at += rng.expovariate(rate)
        words, tokens = rng.choice(MIX)
        words = words if most_words is None else min(words, most_words)
        made.append(Due(at, prompt(rng, words), tokens, i))
    return made


def play(target: Target, asked: Sequence[Due]) -> list[Answer]:
    """Sends the requests at their times, from a process of its own; waits for all answers.

    Raises `EngineError` where the client itself fails.
    """
    dialect = DIALECTS[target.dialect]
    to = urlsplit(target.address)
    job = {
        "host": to.hostname,
        "port": to.port or 80,
        "dialect": target.dialect,
        "requests": [
            (due.at, dialect.body(target, due.text, due.tokens, due.seed)) for due in asked
        ],
    }
    command = [sys.executable, "-m", "onegraph.bench.arrivals"]
    done = subprocess.run(command, input=json.dumps(job), capture_output=True, text=True)
    if done.returncode:
        raise EngineError(f"the client of {target.address} failed: {done.stderr[-2000:]}")
    return [Answer(**{**each, "parts": tuple(each["parts"])}) for each in json.loads(done.stdout)]


def quantile(values: Sequence[float], q: float) -> float:
    """The value that so large a part of them does not exceed; infinite where there is none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else float("inf")


def report(answers: Sequence[Answer], *, first: float, each: float) -> Report:
    """What the answers amount to. In time is one whose first token came within `first` seconds and
    each further one within `each`, on average; one that failed is not."""
    made = [answer for answer in answers if answer.failed is None and answer.parts]
    firsts = [answer.parts[0] for answer in made]
    more = [(a.parts[-1] - a.parts[0]) / max(1, a.tokens - 1) for a in made]
    in_time = sum(f <= first and m <= each for f, m in zip(firsts, more, strict=True))
    # From the first request to the end of the last answer.
    began = min((answer.due for answer in answers), default=0.0)
    seconds = max((answer.due + answer.ended for answer in answers), default=0.0) - began
    return Report(
        requests=len(answers),
        failed=len(answers) - len(made),
        first_p50=quantile(firsts, 0.5),
        first_p99=quantile(firsts, 0.99),
        each_p50=quantile(more, 0.5),
        each_p99=quantile(more, 0.99),
        tokens_per_second=sum(answer.tokens for answer in made) / max(seconds, 1e-9),
        good=in_time / max(1, len(answers)),
        goodput=in_time / max(seconds, 1e-9),
    )


# --- the client -----------------------------------------------------------------------------------


async def _ask(job: Record, dialect: Dialect, due: float, body: Record) -> Record:
    """One stream."""
    await asyncio.sleep(max(0.0, due - time.perf_counter()))
    raw = json.dumps(body).encode()
    head = f"POST {dialect.path} HTTP/1.1\r\nhost: {job['host']}\r\nconnection: close\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(raw)}\r\n\r\n"
    parts: list[float] = []
    tail, edge = b"", b""
    failed = None
    try:
        reader, writer = await asyncio.open_connection(job["host"], job["port"])
        writer.write(head.encode() + raw)
        while got := await reader.read(1 << 16):
            now = time.perf_counter() - due
            # What marks a part may come in two reads.
            parts += [now] * (edge + got).count(dialect.part)
            edge = (edge + got)[1 - len(dialect.part) :]
            tail = (tail + got)[-TAIL:]
        writer.close()
    except OSError as e:
        failed = f"{type(e).__name__}: {e}"
    _, counted, told = tail.rpartition(dialect.count)
    if failed is None and not counted:
        failed = tail[-300:].decode(errors="replace")
    number = re.match(rb"\s*\d+", told)
    return {
        "due": due,
        "parts": parts,
        "ended": time.perf_counter() - due,
        "tokens": int(number[0]) if number else 0,
        "failed": failed,
    }


async def _client(job: Record) -> list[Record]:
    dialect = DIALECTS[job["dialect"]]
    began = time.perf_counter()
    return await asyncio.gather(
        *(_ask(job, dialect, began + at, body) for at, body in job["requests"])
    )


if __name__ == "__main__":
    json.dump(asyncio.run(_client(json.load(sys.stdin))), sys.stdout)
