"""Many requests of every kind, some wrong and some left: nothing is lost, and nothing stays.

ONEGRAPH_EXHAUSTIVE=1 sends 50,000."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from onegraph import LLM
from onegraph.server import asgi
from support.backends import EXHAUSTIVE
from support.serving import Served, http, prompt, serving, until

pytestmark = pytest.mark.thorough

REQUESTS = 50_000 if EXHAUSTIVE else 2_000

SAID = [{"role": "user", "content": "tea and toast"}]

#: Path and body by the number of tokens, and the status that the answer has; 0: its client leaves.
MIX: list[tuple[str, Callable[[int], dict[str, Any]], int]] = [
    ("/v1/completions", lambda n: {"prompt": "tea", "max_tokens": n}, 200),
    ("/v1/completions", lambda n: {"prompt": "tea", "max_tokens": n, "stream": True}, 200),
    ("/v1/chat/completions", lambda n: {"messages": SAID, "max_tokens": n}, 200),
    (
        "/v1/chat/completions",
        lambda n: {"messages": SAID, "max_tokens": n, "stream": True, "logprobs": True},
        200,
    ),
    ("/v1/chat/completions", lambda n: {"messages": SAID, "temperature": "x"}, 400),
    ("/v1/responses", lambda n: {"input": "tea", "max_output_tokens": n, "stream": True}, 200),
    ("/v1/messages", lambda n: {"messages": SAID, "max_tokens": n, "stream": True}, 200),
    ("/v1/messages", lambda n: {"messages": SAID, "max_tokens": n}, 200),
    ("/api/chat", lambda n: {"messages": SAID, "options": {"num_predict": n}}, 200),
    ("/api/generate", lambda n: {"prompt": "tea", "options": {"num_predict": n}}, 200),
    ("/tokenize", lambda n: {"content": "tea " * n}, 200),
    ("/nothing", lambda n: {}, 404),
    (
        "/v1/completions",
        lambda n: {"prompt": "tea", "max_tokens": 400, "stream": True, "ignore_eos": True},
        0,
    ),
]


async def send(served: Served, count: int, rng: random.Random) -> None:
    """So many requests, some at once."""
    numbers = iter(range(count))

    async def one(i: int) -> None:
        path, body, status = MIX[i % len(MIX)]
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(http(path, body(rng.randint(1, 20)), connection="close"))
        if status == 0:
            await reader.read(1024)
            writer.close()
            return
        answer = await asyncio.wait_for(reader.read(), 120)
        writer.close()
        assert answer.startswith(b"HTTP/1.1 %d" % status), answer[:500]

    # Not a task for each: they would be of this process's memory too.
    async def client() -> None:
        for i in numbers:
            await one(i)

    await asyncio.gather(*(client() for _ in range(24)))


def test_many_requests_leave_nothing_behind(tiny: Path) -> None:
    rng = random.Random(1)
    process = psutil.Process()
    # Prefixes that are kept for later are memory that was asked for: none is here.
    with (
        LLM(tiny, device="cpu", max_batch=8, prefix_host_bytes=0) as llm,
        serving(asgi({"tiny": llm})) as served,
    ):
        asyncio.run(send(served, 500, rng))
        before, files = process.memory_info().rss, process.num_fds()
        asyncio.run(send(served, REQUESTS, rng))
        until(lambda: llm.stats().running == 0)
        grown = process.memory_info().rss - before
        assert grown < 12 << 20, f"{grown / 2**20:.1f} MiB"
        until(lambda: process.num_fds() <= files + 2)
        # An answer's last byte may be read before its request has left the line.
        line = served.app.state.service.models.find(None).line
        until(lambda: line.inside == 0)
        prompt(served)
