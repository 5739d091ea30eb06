"""Records what real servers answer, with the time at which each line came.

    python tests/bench/record.py ollama /path/to/ollama smollm2.gguf tests/bench/recorded
    python tests/bench/record.py xllamacpp - smollm2.gguf tests/bench/recorded

Starts a server of its own on a free port, with a store of its own, and ends it. A recording is a
JSON list a line: seconds from the request, and the line as it came. The tests read these files;
`recorded/README.md` says what each shows. What is there stays: delete a file
to make it again.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from onegraph import Tokenizer
from onegraph.bench import stream
from onegraph.bench.engines import Prompt, Setup
from onegraph.bench.engines.llama_server import free_port
from onegraph.bench.engines.ollama import create
from onegraph.bench.engines.xllamacpp import XLlamaCpp
from onegraph.bench.measurement import EngineError

PROMPT = "The harbour lay quiet under a thin layer of fog, and"
OTHER = "Every morning the baker carries two heavy sacks of flour"
QUESTION = "<|im_start|>user\nSay hello.<|im_end|>\n<|im_start|>assistant\n"
#: An answer that is complete: what follows is the token that ends it.
COMPLETE = QUESTION + "Hello! How can I help you today?"
#: One that soon will be.
NEARLY = QUESTION + "Hello! How can I help"


@contextmanager
def ollama(program: str, store: Path, **more: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A server of its own, and its process."""
    address = f"http://127.0.0.1:{free_port()}"
    env = os.environ | {"OLLAMA_HOST": address, "OLLAMA_MODELS": str(store), "HOME": str(store)}
    env |= more
    with (store / "log").open("wb") as log:
        process = subprocess.Popen([program, "serve"], env=env, stdout=log, stderr=log)
        try:
            for _ in range(600):
                try:
                    stream.request_json(address, "GET", "/api/version", None, "ollama")
                    break
                except EngineError:
                    time.sleep(0.1)
            yield address, process
        finally:
            process.terminate()
            process.wait(30)


def record(
    into: Path, lines: Iterator[stream.Line], at_fifth: Callable[[], None] | None = None
) -> None:
    """Writes the lines, unless they are there; `at_fifth` is called when five have come."""
    if into.exists():
        return
    kept: list[stream.Line] = []
    try:
        for line in lines:
            kept.append(line)
            if len(kept) == 5 and at_fifth:
                at_fifth()
    except EngineError as e:
        print(f"{into.name}: {e}")
    into.write_text("".join(json.dumps([round(k.at, 6), k.text]) + "\n" for k in kept))
    print(f"{into.name}: {len(kept)} lines, the last: {kept[-1].text[:300] if kept else 'none'}")


def record_ollama(program: str, model: Path, folder: Path) -> None:
    with (
        tempfile.TemporaryDirectory() as store,
        ollama(program, Path(store)) as (address, process),
    ):
        name = create(address, model)
        options = {"temperature": 0, "seed": 1, "num_ctx": 1024, "repeat_penalty": 1.0}

        def ask(prompt: str, n: int, **more: object) -> Iterator[stream.Line]:
            body = more | {
                **{"model": name, "prompt": prompt, "raw": True, "stream": True},
                "options": options | {"num_predict": n, "num_gpu": 0, "num_thread": 2},
            }
            return stream.lines(address, "/api/generate", body, "ollama")

        def save(file: str, method: str, path: str) -> None:
            _, answer = stream.request_json(address, method, path, None, "ollama")
            (folder / file).write_text(json.dumps(answer, indent=1) + "\n")

        record(folder / "ollama_plain.jsonl", ask(PROMPT, 16))
        record(folder / "ollama_cached.jsonl", ask(PROMPT, 16))
        record(folder / "ollama_one_token.jsonl", ask(OTHER, 1))
        record(folder / "ollama_early_stop.jsonl", ask(NEARLY, 64))
        record(folder / "ollama_no_tokens.jsonl", ask(COMPLETE, 16))
        record(folder / "ollama_tokens.jsonl", ask(PROMPT, 16, logprobs=True))
        record(folder / "ollama_empty_prompt.jsonl", ask("", 16))
        save("ollama_ps.json", "GET", "/api/ps")
        save("ollama_version.json", "GET", "/api/version")

        def kill_runner() -> None:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()

        record(folder / "ollama_runner_died.jsonl", ask(PROMPT + " so", 400), kill_runner)

        def kill_server() -> None:
            kill_runner_later = psutil.Process(process.pid).children(recursive=True)
            os.kill(process.pid, signal.SIGKILL)
            for child in kill_runner_later:
                child.kill()

        record(folder / "ollama_server_died.jsonl", ask(PROMPT + " yet", 400), kill_server)


def record_new_engine(program: str, model: Path, folder: Path) -> None:
    """The server's other engine, which not every architecture uses."""
    with (
        tempfile.TemporaryDirectory() as store,
        ollama(program, Path(store), OLLAMA_NEW_ENGINE="1") as (address, _),
    ):
        name = create(address, model)
        for file, prompt in [
            ("plain", PROMPT),
            ("early_stop", NEARLY),
            ("no_tokens", COMPLETE),
        ]:
            body = {
                **{"model": name, "prompt": prompt, "raw": True, "stream": True},
                "options": {"temperature": 0, "num_predict": 12, "num_gpu": 0, "num_thread": 2},
            }
            lines = stream.lines(address, "/api/generate", body, "ollama")
            record(folder / f"ollama_new_engine_{file}.jsonl", lines)


def record_xllamacpp(model: Path, folder: Path) -> None:
    tokenizer = Tokenizer(model)

    def prompt(text: str) -> Prompt:
        return Prompt(text, tuple(tokenizer.encode(text, True, True)))

    setup = Setup(model, str(model), "cpu", 1024, 2)
    with XLlamaCpp().start(setup) as running:

        def ask(text: str, n: int, **more: object) -> Iterator[stream.Line]:
            body = running.body(prompt(text), n) | more
            return stream.lines(running.address, "/completion", body, "xllamacpp")

        record(folder / "llama_server_plain.jsonl", ask(PROMPT, 16))
        for _ in ask(PROMPT + " so", 4, cache_prompt=True):
            pass  # fills the cache
        record(folder / "llama_server_kept.jsonl", ask(PROMPT + " so it", 4, cache_prompt=True))
        record(folder / "llama_server_one_token.jsonl", ask(OTHER, 1))
        record(folder / "llama_server_early_stop.jsonl", ask(NEARLY, 64, ignore_eos=False))
        record(folder / "llama_server_no_tokens.jsonl", ask(COMPLETE, 16, ignore_eos=False))
        dies = lambda: os.kill(running.process_id, signal.SIGKILL)  # noqa: E731
        record(folder / "llama_server_died.jsonl", ask(PROMPT, 400), dies)


if __name__ == "__main__":
    which, program, model, folder = sys.argv[1:]
    Path(folder).mkdir(parents=True, exist_ok=True)
    if which == "ollama":
        record_ollama(program, Path(model), Path(folder))
        record_new_engine(program, Path(model), Path(folder))
    else:
        record_xllamacpp(Path(model), Path(folder))
