"""`onegraph batch`: a file of requests, answered into a file."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from onegraph import LLM
from onegraph.cli.options import MODEL, given, model_options
from onegraph.cli.terminal import debug_option, progress, say
from onegraph.errors import ArgumentError, Error, FileError
from onegraph.hub.cache import kind, open_regular
from onegraph.sampling import DEFAULTS
from onegraph.server import asgi
from onegraph.stats import so_far

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"

#: Where a request may go.
URLS = (CHAT, COMPLETIONS, "/v1/responses", "/v1/embeddings")

#: Seconds between two states of the bar.
PAUSE = 0.25

#: Seconds that a request may take: none is waited for by anybody.
FOREVER = 1e9


@dataclass
class Line:
    """A line of the file of requests."""

    number: int
    #: What its result is found by again: its `custom_id`, else its number.
    key: str | int
    url: str = ""
    body: dict[str, Any] = field(default_factory=dict)
    #: Whether it is in OpenAI's form, and so its result.
    is_openai: bool = False
    #: What is wrong with it, by a word for programs and in a sentence.
    wrong: dict[str, str] | None = None


@click.command()
@click.argument("requests", metavar="FILE", type=click.Path(path_type=Path))
@click.option(
    "--output",
    "-o",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="File for the results, in JSON lines.",
)
@click.option("--model", "-m", help="Model for all lines.  [default: the one they name]")
@click.option(
    "--body",
    metavar="JSON",
    help="Default fields for requests, such as '{\"temperature\": 0}'.",
)
@click.option(
    "--max-batch",
    type=click.IntRange(1, 1024),
    default=8,
    show_default=True,
    help="Requests that run at once; 64 is faster on a GPU.",
)
@model_options
@debug_option
def command(
    requests: Path,
    output: Path,
    model: str | None,
    body: str | None,
    max_batch: int,
    **options: Any,
) -> None:
    """Answer each line of FILE, and write each result as soon as it is ready.

    A line is a request in OpenAI's batch format: {"custom_id": "a", "method": "POST", "url":
    "/v1/chat/completions", "body": {...}}. Its result has that format too: custom_id, response with
    status_code and body, and error. Or a line is {"prompt": "..."} or {"messages": [...]}, with any
    request fields, such as "max_tokens", next to it. Its result is {"line": 1, "text": "...", ...}.
    A prompt goes through the model's chat template, if it has one.

    A body gives the same answer as with `onegraph serve`. Without "seed" or "temperature": 0, each
    run gives different texts.

    To continue a run that was stopped or killed, run the same command again: lines with a result
    are skipped. A line that cannot be answered gets an error as its result, and the exit code is
    then 1.
    """
    further = _further(body)
    if output.exists() and requests.exists() and output.samefile(requests):
        raise click.UsageError("--output and FILE are the same file: give another path")
    total = _count(requests)
    named = model or _named(requests)
    with _opened(output) as results:
        left = (line for line in _lines(requests) if line.key not in results.done)
        there = min(len(results.done), total)
        if there:
            say(f"{there} of {total} lines already have a result in {output}", err=True)
        if there < total:
            chosen = given(MODEL, options)
            with LLM(named, max_batch=max_batch, progress=progress(), **chosen) as llm:
                run = _Run(llm, named, further, results, replaces_model=model is not None)
                with _bar(llm, total) as draw:
                    asyncio.run(run.all(left, draw))
                say(run.report(), err=True)
        if results.failed:
            say(f"{results.failed} of {total} lines have an error in {output}", err=True)
            raise click.exceptions.Exit(1)


# --- requests -------------------------------------------------------------------------------------


def _further(body: str | None) -> dict[str, Any]:
    try:
        found = json.loads(body or "{}")
    except ValueError as e:
        raise click.UsageError(f"--body is not JSON: {e}") from e
    if not isinstance(found, dict):
        raise click.UsageError('--body must be a JSON object, such as {"temperature": 0}')
    return found


def _raw(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file that are not empty, by number."""
    try:
        with open_regular(path) as file:
            yield from ((i, line) for i, line in enumerate(file, 1) if line.strip())
    except OSError as e:
        raise FileError(f"cannot read {path}: {e.strerror}; give another path") from e


def _count(path: Path) -> int:
    found = sum(1 for _ in _raw(path))
    if not found:
        raise ArgumentError(f"{path} is empty: give a file with one request per line, as JSON")
    return found


def _named(path: Path) -> str:
    """The model that the first request names that names one."""
    for line in _lines(path):
        if isinstance(named := line.body.get("model"), str):
            return named
    raise click.UsageError(f"no line of {path} names a model: give --model")


def _lines(path: Path) -> Iterator[Line]:
    seen: dict[str, int] = {}
    for number, raw in _raw(path):
        line = _line(number, raw)
        if isinstance(line.key, str) and (before := seen.setdefault(line.key, number)) != number:
            said = f"custom_id = {line.key!r}: already used by line {before}"
            line = _refused(Line(number, number, is_openai=line.is_openai), said)
        yield line


def _line(number: int, raw: bytes) -> Line:
    line = Line(number, number)
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as e:
        return _refused(line, f"line {number} is not JSON: {e}")
    if not isinstance(value, dict):
        return _refused(line, f"line {number} is JSON, but not an object")
    custom_id = value.pop("custom_id", None)
    line.is_openai = "body" in value or "url" in value
    if custom_id is not None and not isinstance(custom_id, str):
        return _refused(line, f"line {number}: custom_id = {custom_id!r}: must be a string")
    line.key = number if custom_id is None else custom_id
    if line.is_openai:
        url, body = value.get("url"), value.get("body")
        if url not in URLS:
            return _refused(line, f"url = {url!r}: must be one of {', '.join(URLS)}")
        if value.get("method", "POST") != "POST":
            return _refused(line, f"method = {value['method']!r}: must be POST")
        if not isinstance(body, dict):
            return _refused(line, "body: must be an object")
        line.url, line.body = url, body
    elif "messages" in value or "prompt" in value:
        line.url, line.body = CHAT if "messages" in value else COMPLETIONS, value
        if value.get("n") not in (None, 1):
            return _refused(line, "n: several answers need OpenAI's form of a line")
    else:
        return _refused(line, f'line {number} has no "body", "messages" or "prompt"')
    if line.body.get("stream"):
        return _refused(line, "stream: a batch does not stream; leave it out")
    return line


def _refused(line: Line, said: str) -> Line:
    line.body, line.wrong = {}, {"code": "invalid_line", "message": said}
    return line


# --- results --------------------------------------------------------------------------------------


class _Results:
    """The file of the results, open to append to."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        #: Of each line that has a result, its key.
        self.done: set[str | int] = set()
        self.failed = 0
        self._read()

    def _read(self) -> None:
        """What an earlier run wrote. One that was killed may have left the last line unfinished."""
        whole = 0
        with open(self._descriptor, "rb", closefd=False) as file:
            for number, raw in enumerate(file, 1):
                if not raw.endswith(b"\n"):
                    break
                whole += len(raw)
                try:
                    found = json.loads(raw)
                    custom_id = found.get("custom_id")
                    key = found["line"] if custom_id is None else custom_id
                except (ValueError, KeyError, AttributeError) as e:
                    raise ArgumentError(
                        f"--output {self._path}: line {number} is not a batch result; give "
                        "the path of a new file"
                    ) from e
                self._count(key, found)
        os.ftruncate(self._descriptor, whole)
        os.lseek(self._descriptor, whole, os.SEEK_SET)

    def _count(self, key: str | int, result: dict[str, Any]) -> None:
        self.done.add(key)
        response = result.get("response")
        self.failed += bool(result["error"] or (response and response["status_code"] != 200))

    def add(self, line: Line, status: int = 0, body: dict[str, Any] | None = None) -> None:
        """Writes the result of a line: a response, or else what is wrong with it."""
        key = {"line" if isinstance(line.key, int) else "custom_id": line.key}
        result: dict[str, Any]
        if line.is_openai:
            name = f"batch_req_{secrets.token_hex(12)}"
            response = body and {"status_code": status, "request_id": name, "body": body}
            result = {"id": name, "custom_id": None, **key}
            result |= {"response": response, "error": line.wrong}
        else:
            result = {**key, **_plain(status, body), "error": line.wrong or _error(body)}
        left = memoryview(json.dumps(result, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
        try:
            while left:
                left = left[os.write(self._descriptor, left) :]
        except OSError as e:
            raise FileError(
                f"cannot write {self._path}: {e.strerror}; free some space "
                "and run the same command again"
            ) from e
        self._count(line.key, result)


def _error(body: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if body is None else body.get("error")


def _plain(status: int, body: dict[str, Any] | None) -> dict[str, Any]:
    """What a plain line's result says of the answer."""
    if body is None or status != 200:
        return {"text": None}
    (choice,) = body["choices"]
    message = choice.get("message", {})
    found = {"text": choice["text"] if "text" in choice else message["content"] or ""}
    for theirs, ours in (("reasoning_content", "reasoning"), ("tool_calls", "tool_calls")):
        if theirs in message:
            found[ours] = message[theirs]
    return {**found, "finish_reason": choice["finish_reason"], "usage": body["usage"]}


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[_Results]:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as e:
        raise FileError(f"cannot write {path}: {e.strerror}; give another path") from e
    try:
        if other := kind(os.fstat(descriptor).st_mode):
            raise FileError(f"{path} is {other}; give the path of a file")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            raise FileError(f"another run is writing to {path}: wait for it, or stop it") from e
        except OSError:  # a file system without locks
            pass
        yield _Results(path, descriptor)
    finally:
        os.close(descriptor)


# --- answers --------------------------------------------------------------------------------------

Draw = Callable[[int], None]


class _Run:
    """A model that answers lines."""

    def __init__(
        self,
        llm: LLM,
        name: str,
        further: dict[str, Any],
        results: _Results,
        *,
        replaces_model: bool,
    ) -> None:
        self._llm = llm
        self._name = name
        self._further = further
        self._results = results
        self._replaces_model = replaces_model
        # Half of what is under way runs; the other half is ready when a place is free.
        self._most = 2 * llm.max_batch
        # The server's own app, so that a body means here what it means there.
        self._app = asgi({name: llm}, max_queue=self._most, timeout=FOREVER)
        self._began = time.monotonic()

    async def all(self, lines: Iterable[Line], draw: Draw) -> None:
        """Answers them, a few at a time."""
        running: set[asyncio.Task[None]] = set()
        drawing = asyncio.create_task(self._draw(draw))
        try:
            for line in lines:
                if line.wrong:
                    self._results.add(line)
                    continue
                running.add(asyncio.create_task(self._answer(line)))
                if len(running) == self._most:
                    running = await _some_end(running)
            while running:
                running = await _some_end(running)
            draw(len(self._results.done))
        finally:
            for task in (drawing, *running):
                task.cancel()
            await asyncio.gather(drawing, *running, return_exceptions=True)

    async def _draw(self, draw: Draw) -> None:
        while True:
            draw(len(self._results.done))
            await asyncio.sleep(PAUSE)

    async def _answer(self, line: Line) -> None:
        body = {**self._further, **line.body}
        if self._replaces_model or "model" not in body:
            body["model"] = self._name
        url = line.url
        if not line.is_openai and url == COMPLETIONS:
            if self._llm.chat_template is not None and isinstance(body["prompt"], str):
                url = CHAT
                body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
            else:
                body.setdefault("max_tokens", DEFAULTS["max_tokens"])
        status, raw = await _posted(self._app, url, json.dumps(body).encode())
        found = json.loads(raw)
        if status >= 500:
            said = found.get("error", {}).get("message", raw.decode())
            raise Error(f"line {line.number}: {said}; run the same command to continue from here")
        self._results.add(line, status, found)

    def report(self) -> str:
        """How it went."""
        stats, seconds = self._llm.stats(), time.monotonic() - self._began
        made, read = stats.generated_tokens, stats.prompt_tokens
        rate = made / seconds if seconds else 0.0
        return f"{read:,} tokens read, {made:,} generated in {seconds:.1f} s, {rate:,.0f} tokens/s"


async def _some_end(running: set[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
    ended, left = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    for task in ended:
        task.result()
    return left


async def _posted(app: Any, path: str, body: bytes) -> tuple[int, bytes]:
    """Status and body of a POST to an app in this process."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"localhost"), (b"content-length", str(len(body)).encode())],
        "client": ("127.0.0.1", 0),
        "server": ("127.0.0.1", 80),
    }
    parts = iter([{"type": "http.request", "body": body, "more_body": False}])
    status, found = 0, bytearray()

    async def receive() -> Any:
        for part in parts:
            return part
        await asyncio.Event().wait()  # nobody leaves

    async def send(message: Any) -> None:
        nonlocal status
        status = message.get("status", status)
        found.extend(message.get("body", b""))

    await app(scope, receive, send)
    return status, bytes(found)


@contextlib.contextmanager
def _bar(llm: LLM, total: int) -> Iterator[Draw]:
    """A bar on a terminal: lines, tokens so far and a second, and the time that is left."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    bar = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True)
    task = bar.add_task("", total=total)

    def draw(done: int) -> None:
        bar.update(task, completed=done, description=so_far(llm.stats()))

    with bar:
        yield draw
