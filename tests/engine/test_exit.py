"""A program that ends while requests are in the engine: nothing aborts and nothing is printed."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import onegraph
import pytest
from support.backends import EXHAUSTIVE

pytestmark = pytest.mark.thorough

#: Times that each scenario runs: it meets the end of the program at another moment each time.
TIMES = 40 if EXHAUSTIVE else 2

#: The interpreters to run on: `ONEGRAPH_TEST_PYTHONS` names more, joined by colons. They need
#: nothing but Python: the package is taken from here, and NumPy is not touched.
PYTHONS = [sys.executable, *filter(None, os.environ.get("ONEGRAPH_TEST_PYTHONS", "").split(":"))]

BEGIN = """
import asyncio, os, signal, sys, threading, time
import onegraph
from onegraph import LLM

LONG = dict(max_tokens=500, ignore_eos=True)
llm = LLM(sys.argv[1], device="cpu", max_batch=2)
"""

#: What a task of an event loop does last.
TASKS = {
    "break": """
        async for piece in llm.agenerate("tea", **LONG):
            break
        """,
    "exception": """
        async for piece in llm.agenerate("tea", **LONG):
            raise SystemExit
        """,
    "cancelled task": """
        task = asyncio.create_task(whole())
        await asyncio.sleep(0.01)
        task.cancel()
        """,
    "cancelled and awaited": """
        task = asyncio.create_task(whole())
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
        """,
    "timeout": """
        try:
            await asyncio.wait_for(whole(), 0.01)
        except TimeoutError:
            pass
        """,
    "forgotten tasks": """
        tasks = [asyncio.create_task(whole()) for _ in range(9)]
        await asyncio.sleep(0.01)
        """,
    "forgotten generator": """
        pieces = llm.agenerate("tea", **LONG)
        await anext(pieces)
        """,
    "never begun": """
        pieces = llm.agenerate("tea", **LONG)
        """,
    "long prompt": """
        task = asyncio.create_task(whole("tea and toast " * 5000))
        await asyncio.sleep(0.001)  # its tokens are made in a thread
        task.cancel()
        """,
    "in a thread": """
        await asyncio.to_thread(llm.generate, "tea", **LONG)
        async for piece in llm.agenerate("tea", **LONG):
            break
        """,
}

ASYNCIO = """
async def whole(prompt="tea"):
    async for piece in llm.agenerate(prompt, **LONG):
        pass

async def main():
{body}

{run}
"""

RUN = "asyncio.run(main())"
#: A loop that is stopped and neither emptied nor closed. asyncio itself complains then of tasks and
#: generators that are left in it.
LEAVE = "asyncio.new_event_loop().run_until_complete(main())"
EMPTY = ["cancelled and awaited", "timeout", "never begun"]

#: What daemon threads of the user's own do again and again until the program ends.
THREADS = {
    "generate": 'llm.generate("tea", **LONG)',
    "stream": 'list(llm.generate("tea", stream=True, **LONG))',
    "logits": "logits()",
    "tokenize": 'llm.tokenize("tea and toast " * 500)',
    "detokenize": "llm.detokenize(list(range(300)) * 50)",
    "render": "llm.chat_template.render([{'role': 'user', 'content': 'tea'}] * 50)",
    "load": 'LLM(sys.argv[1], device="cpu").close()',
    "told load": 'LLM(sys.argv[1], device="cpu", progress=told)',
    "refused": "refused()",
    "full queue": "submit()",
}

CALLS = """
def logits():
    # Not `llm.logits`: whether NumPy survives the end is not the question.
    ids = [5] * 300
    llm._engine.logits(ids, "prefill", memoryview(bytearray(4 * len(ids) * llm.n_vocab)).cast("f"))

def told(what, done, total):
    sum(range(1000))

def refused():
    try:
        llm.detokenize([10**6])
    except onegraph.ArgumentError:
        pass

kept = []

def submit():
    kept.append(llm.generate("tea", stream=True, **LONG))
"""

BUSY = """
def work():
    begun.wait()
    while True:
        {call}

begun = threading.Barrier(5)
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
begun.wait()
time.sleep(0.001 * int(sys.argv[2]))
"""

#: Many threads that call for the first time when the program ends: what is made at its first use is
#: being made then.
FIRST = """
def work():
    begun.wait()
    {call}

begun = threading.Event()
for _ in range(100):
    threading.Thread(target=work, daemon=True).start()
begun.set()
time.sleep(0.001 * int(sys.argv[2]))
"""

#: Children of a busy program: threads that were on their way back in it are not there in them.
FORK = """
import warnings
warnings.simplefilter("ignore")
for _ in range(10):
    child = os.fork()
    if child == 0:
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""

#: Ends that are not the end of the script.
ENDS = {
    "exit": ("sys.exit(3)", 3),
    "exception": ('sys.excepthook = lambda *_: None; raise ValueError("on purpose")', 1),
    "interrupt": (
        "sys.excepthook = lambda *_: None; signal.raise_signal(signal.SIGINT)",
        -signal.SIGINT,
    ),
    "fork": (FORK, 0),
}

#: Name -> script, exit code.
SCRIPTS: dict[str, tuple[str, int]] = {}
for name, task in TASKS.items():
    body = textwrap.indent(textwrap.dedent(task), "    ")
    SCRIPTS[f"loop, {name}"] = (ASYNCIO.format(body=body, run=RUN), 0)
    if name in EMPTY:
        SCRIPTS[f"loop left open, {name}"] = (ASYNCIO.format(body=body, run=LEAVE), 0)
for name, call in THREADS.items():
    SCRIPTS[f"threads, {name}"] = (CALLS + BUSY.format(call=call), 0)
    SCRIPTS[f"first calls, {name}"] = (CALLS + FIRST.format(call=call), 0)
for name, (line, code) in ENDS.items():
    SCRIPTS[f"threads, {name}"] = (CALLS + BUSY.format(call=THREADS["stream"]) + line, code)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: Path(path).parts[-3])
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_program_may_end_at_any_time(tiny: Path, python: str, name: str) -> None:
    script, code = SCRIPTS[name]
    env = os.environ | {"PYTHONPATH": str(Path(onegraph.__file__).parents[1])}
    ends = []
    for turn in range(TIMES):
        args = [python, "-c", BEGIN + script, str(tiny), str(turn)]
        done = subprocess.run(args, env=env, capture_output=True, text=True, timeout=120)
        ends.append((done.returncode, done.stdout + done.stderr))
    assert ends == [(code, "")] * TIMES
