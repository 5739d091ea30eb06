"""`onegraph batch`: requests of a file, and results that survive a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onegraph
import pytest
from onegraph.server import asgi
from support import calls, scripted
from support.serving import serving
from support.terminal import Terminal

Cli = Callable[..., subprocess.CompletedProcess[str]]

CHAT = "/v1/chat/completions"
USER = [{"role": "user", "content": "Name a fruit."}]
SCHEMA = {"type": "object", "properties": {"fruit": {"type": "string"}}, "required": ["fruit"]}
BODIES: dict[str, dict[str, Any]] = {
    "plain": {"messages": USER, "max_tokens": 6},
    "schema": {
        "messages": USER,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "fruit", "schema": SCHEMA},
        },
        "max_tokens": 30,
    },
}


def written(path: Path, *lines: Any) -> Path:
    """A file of these lines, those that are no text as JSON."""
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("".join(f"{text}\n" for text in texts))
    return path


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def request(name: str, body: dict[str, Any], url: str = CHAT) -> dict[str, Any]:
    return {"custom_id": name, "method": "POST", "url": url, "body": body}


@pytest.fixture
def batch(cli: Cli, tmp_path: Path, smollm2: Path) -> Cli:
    """Runs the file `in.jsonl` into `out.jsonl`."""

    def run(*more: str, model: tuple[str, ...] = ("-m", str(smollm2))) -> Any:
        files = [str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out.jsonl")]
        options = ["--device", "cpu", "--n-ctx", "512", "--body", '{"temperature": 0}']
        return cli("batch", *files, *model, *options, *more)

    return run


def test_a_body_gives_the_answer_that_the_server_gives(
    batch: Cli, tmp_path: Path, smollm2: Path
) -> None:
    written(tmp_path / "in.jsonl", *(request(name, body) for name, body in BODIES.items()))
    done = batch()
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "tokens read" in done.stderr
    found = {each["custom_id"]: each for each in read(tmp_path / "out.jsonl")}
    assert found.keys() == BODIES.keys()
    with (
        onegraph.LLM(smollm2, device="cpu", n_ctx=512) as llm,
        serving(asgi(llm)) as served,
    ):
        for name, body in BODIES.items():
            response = found[name]["response"]
            assert (response["status_code"], found[name]["error"]) == (200, None)
            choices = served.post(CHAT, {**body, "temperature": 0})[1]["choices"]
            assert response["body"]["choices"] == choices


def test_a_model_calls_tools(batch: Cli, tmp_path: Path) -> None:
    model = tmp_path / "adder.gguf"
    scripted.write(model, calls.ANSWERS, template=calls.TEMPLATE)
    body = {"messages": calls.ASKED, "tools": [calls.ADD]}
    written(tmp_path / "in.jsonl", request("a", body), body)
    done = batch(model=("-m", str(model)))
    assert done.returncode == 0, done.stderr
    found = {each.get("custom_id"): each for each in read(tmp_path / "out.jsonl")}
    (choice,) = found["a"]["response"]["body"]["choices"]
    assert choice["finish_reason"] == found[None]["finish_reason"] == "tool_calls"
    for each, key in ((choice["message"], "reasoning_content"), (found[None], "reasoning")):
        (call,) = each["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == {"a": 31, "b": 8}
        assert each[key] == "so"


def test_plain_lines_are_answered_as_plain_lines(batch: Cli, tmp_path: Path, smollm2: Path) -> None:
    prompt = "Name a fruit."
    written(
        tmp_path / "in.jsonl",
        {"prompt": prompt, "max_tokens": 6},
        "",
        {"messages": USER, "max_tokens": 6},
        {"custom_id": "own", "prompt": prompt, "temperature": 0.0, "max_tokens": 2, "id": 7},
    )
    assert batch().returncode == 0
    found = {each.get("custom_id", each.get("line")): each for each in read(tmp_path / "out.jsonl")}
    with onegraph.LLM(smollm2, device="cpu", n_ctx=512) as llm:
        text = llm.chat(prompt, max_tokens=6, temperature=0.0).text
    assert found.keys() == {1, 3, "own"}
    assert found[1]["text"] == found[3]["text"] == text
    assert found["own"]["usage"]["completion_tokens"] == 2
    assert {each["finish_reason"] for each in found.values()} == {"length"}
    assert {each["error"] for each in found.values()} == {None}


def test_a_bad_line_is_a_line_of_the_results(batch: Cli, tmp_path: Path) -> None:
    good = {"messages": USER, "max_tokens": 1}
    written(
        tmp_path / "in.jsonl",
        "{",
        "[]",
        {"text": "Hi"},
        request("a", good),
        request("a", good),
        request("url", good, "/v1/files"),
        request("streamed", {**good, "stream": True}),
        request("refused", {"messages": USER, "temperature": "hot"}),
        {"messages": USER, "max_tokens": "many"},
        request("long", {"messages": [{"role": "user", "content": "word " * 1000}]}),
        {"custom_id": 5, "messages": USER},
    )
    done = batch()
    assert done.returncode == 1
    assert f"10 of 11 lines have an error in {tmp_path / 'out.jsonl'}" in done.stderr
    found = {each.get("custom_id") or each["line"]: each for each in read(tmp_path / "out.jsonl")}
    said = {key: each["error"] and each["error"]["message"] for key, each in found.items()}
    assert said.pop("a") is None and said.pop("refused") is None and said.pop("long") is None
    assert "line 1 is not JSON" in said[1] and said[2] == "line 2 is JSON, but not an object"
    assert said[3] == 'line 3 has no "body", "messages" or "prompt"'
    assert said[5] == "custom_id = 'a': already used by line 4"
    assert said["url"].startswith("url = '/v1/files': must be one of /v1/chat/completions")
    assert said["streamed"].startswith("stream: a batch does not stream")
    assert said[9].startswith("max_tokens = 'many'")
    assert said[11] == "line 11: custom_id = 5: must be a string"
    for name, words in {"refused": "temperature = 'hot'", "long": "n_ctx"}.items():
        response = found[name]["response"]
        assert response["status_code"] == 400
        assert words in response["body"]["error"]["message"]
    # All of it has a result: the model is not loaded again.
    again = batch(model=("-m", "no-such-model"))
    assert again.returncode == 1
    assert "11 of 11 lines already have a result" in again.stderr


@pytest.mark.thorough
def test_a_run_that_was_killed_goes_on(
    batch: Cli, command: list[str], tmp_path: Path, smollm2: Path
) -> None:
    out, lines = tmp_path / "out.jsonl", 12
    bodies = [
        {"messages": USER, "max_tokens": 8, "seed": i, "temperature": 1} for i in range(lines)
    ]
    written(tmp_path / "in.jsonl", *(request(f"{i}", body) for i, body in enumerate(bodies)))
    files = [str(tmp_path / "in.jsonl"), "-o", str(out)]
    options = ["-m", str(smollm2), "--device", "cpu", "--n-ctx", "512", "--max-batch", "1"]
    process = subprocess.Popen([*command, "batch", *files, *options], stderr=subprocess.PIPE)
    while not out.exists() or out.read_bytes().count(b"\n") < 2:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    # What such an end may leave behind.
    kept = out.read_bytes().rpartition(b"\n")[0] + b"\n"
    out.write_bytes(kept + b'{"id": "batch_req_0", "custom_id": "11", "respon')
    there = kept.count(b"\n")
    assert 2 <= there < lines
    done = batch()
    assert done.returncode == 0, done.stderr
    assert f"{there} of {lines} lines already have a result in {out}" in done.stderr
    assert out.read_bytes().startswith(kept)

    def texts() -> dict[str, Any]:
        found = read(out)
        assert len(found) == lines
        return {each["custom_id"]: each["response"]["body"]["choices"] for each in found}

    resumed = texts()
    out.unlink()
    assert batch().returncode == 0
    assert texts() == resumed


def test_the_model_is_what_the_lines_name(batch: Cli, tmp_path: Path, smollm2: Path) -> None:
    good = {"messages": USER, "max_tokens": 1}
    path = written(
        tmp_path / "in.jsonl",
        request("a", {**good, "model": str(smollm2)}),
        request("b", {**good, "model": "gpt-4o"}),
        request("c", good),
    )
    done = batch(model=())
    assert done.returncode == 1
    found = {each["custom_id"]: each["response"] for each in read(tmp_path / "out.jsonl")}
    assert {name: each["status_code"] for name, each in found.items()} == {
        "a": 200,
        "b": 404,
        "c": 200,
    }
    (tmp_path / "out.jsonl").unlink()
    assert batch().returncode == 0
    written(path, request("a", good))
    assert "no line of" in batch(model=()).stderr


def test_wrong_use_is_refused(batch: Cli, cli: Cli, tmp_path: Path) -> None:
    path, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    missing = batch()
    assert (missing.returncode, f"cannot read {path}" in missing.stderr) == (1, True)
    path.touch()
    assert f"{path} is empty" in batch().stderr
    written(path, {"prompt": "Hi"})
    own = cli("batch", str(path), "-o", str(path), "-m", "smollm2")
    assert (own.returncode, "--output and FILE are the same file" in own.stderr) == (2, True)
    assert "--body is not JSON" in batch("--body", "{").stderr
    written(out, {"text": "a poem"})
    other = batch()
    assert (other.returncode, "line 1 is not a batch result" in other.stderr) == (2, True)
    assert read(out) == [{"text": "a poem"}]


def test_two_runs_do_not_write_one_file(batch: Cli, tmp_path: Path) -> None:
    import fcntl

    written(tmp_path / "in.jsonl", {"prompt": "Hi"})
    with (tmp_path / "out.jsonl").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert "another run is writing to" in batch().stderr


@pytest.mark.thorough
def test_a_terminal_shows_how_far_it_is(command: list[str], tmp_path: Path, smollm2: Path) -> None:
    lines = [{"prompt": "Count.", "max_tokens": 60, "ignore_eos": True}] * 8
    written(tmp_path / "in.jsonl", *lines)
    files = [str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out.jsonl"), "-m", str(smollm2)]
    typed = [*command, "batch", *files, "--device", "cpu", "--n-ctx", "512", "--max-batch", "2"]
    opened = Terminal(typed, dict(os.environ), columns=120)
    opened.read_until("read, ")
    opened.read_until("generated, ")
    opened.read_until("8/8")
    opened.read_until("tokens read, 480 generated in")
    opened.close()
