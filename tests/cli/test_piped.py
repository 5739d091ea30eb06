"""What is piped beside a prompt, and what comes out of a pipe."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import onegraph
import pytest

pytestmark = pytest.mark.thorough

ASK = "Which fruit does the input name?"
GREEDY = ["--device", "cpu", "--temperature", "0", "--max-tokens", "4"]


@pytest.fixture(scope="module")
def line(command: list[str], smollm2: Path) -> str:
    """The start of a shell's command line."""
    return shlex.join([*command, "run", str(smollm2)])


def bash(script: str, **options: Any) -> subprocess.CompletedProcess[str]:
    run = ["bash", "-c", script]
    options = {"capture_output": True, "text": True, "timeout": 120} | options
    return subprocess.run(run, **options)


def prompt_tokens(done: subprocess.CompletedProcess[str]) -> int:
    assert done.returncode == 0, done.stderr
    return int(json.loads(done.stdout)["usage"]["prompt_tokens"])


@pytest.mark.parametrize("raw", [False, True])
def test_piped_text_goes_before_the_prompt(raw: bool, line: str, smollm2: Path) -> None:
    text = "file content: apples are red"
    options = shlex.join([*GREEDY, *(["--raw"] if raw else [])])
    done = bash(f"echo {text!r} | {line} {ASK!r} {options}")
    assert (done.returncode, done.stderr) == (0, "")
    with onegraph.LLM(smollm2, device="cpu", max_batch=1) as llm:
        prompt = f"{text}\n\n{ASK}"
        sampling: Any = {"temperature": 0.0, "max_tokens": 4}
        turn = [{"role": "user", "content": prompt}]
        told = llm.generate(prompt, **sampling) if raw else llm.chat(turn, **sampling)
    assert done.stdout == f"{told.text}\n"


def test_a_file_and_a_socket_are_read_as_a_pipe_is(cli: Any, smollm2: Path, tmp_path: Path) -> None:
    ask = ["run", smollm2, ASK, *GREEDY, "--json"]
    piped = prompt_tokens(cli(*ask, input="apples are red\n"))
    assert piped > prompt_tokens(cli(*ask)) + 4
    (tmp_path / "text").write_text("apples are red\n")
    with open(tmp_path / "text") as file:
        assert prompt_tokens(cli(*ask, stdin=file)) == piped
    near, far = socket.socketpair()
    near.sendall(b"apples are red\n")
    near.shutdown(socket.SHUT_WR)
    assert prompt_tokens(cli(*ask, stdin=far)) == piped


def test_a_byte_order_mark_is_no_part_of_the_text(cli: Any, smollm2: Path, tmp_path: Path) -> None:
    said = "apples are räd\n"
    marked = tmp_path / "marked"
    marked.write_text(said, encoding="utf-8-sig")
    for ask in (["Hi"], ["-"], []):
        run = ["run", smollm2, *ask, *GREEDY, "--json"]
        plain = prompt_tokens(cli(*run, input=said))
        assert prompt_tokens(cli(*run, input="\ufeff" + said)) == plain
        with marked.open() as file:
            assert prompt_tokens(cli(*run, stdin=file)) == plain
    # A second one is a character like any other.
    assert prompt_tokens(cli(*run, input="\ufeff\ufeff" + said)) > plain
    empty = cli("run", smollm2, "-", input="\ufeff")
    assert (empty.returncode, empty.stdout) == (2, "")
    assert "standard input is empty" in empty.stderr


@pytest.mark.parametrize("encoding", ["UTF-16", "UTF-16-BE", "UTF-32", "UTF-32-BE"])
def test_a_mark_of_another_encoding_is_said(encoding: str, cli: Any, tmp_path: Path) -> None:
    marked = tmp_path / "marked"
    marked.write_bytes(("\ufeff" * encoding.endswith("BE") + "apples").encode(encoding))
    with marked.open() as file:
        done = cli("run", "no-such-model", "Hi", stdin=file)
    assert (done.returncode, done.stdout) == (2, "")
    name = encoding[:6]
    said = " ".join(done.stderr.split())
    assert f"standard input is {name}" in said and f"iconv -f {name} -t UTF-8" in said


@pytest.mark.parametrize("redirection", ["</dev/null", "<&-", "</dev/zero", "0>/dev/null"])
def test_a_prompt_needs_no_standard_input(redirection: str, line: str) -> None:
    alone = prompt_tokens(bash(f"{line} Hi --device cpu --max-tokens 1 --json </dev/null"))
    done = bash(f"{line} Hi --device cpu --max-tokens 1 --json {redirection}")
    assert (prompt_tokens(done), done.stderr) == (alone, "")


@pytest.mark.parametrize("piped", ["", "\n"])
def test_an_empty_pipe_beside_a_prompt_is_none(piped: str, cli: Any, smollm2: Path) -> None:
    ask = ["run", smollm2, "Hi", *GREEDY, "--json"]
    assert prompt_tokens(cli(*ask, input=piped)) == prompt_tokens(cli(*ask))


def test_a_pipe_that_nobody_ends_is_said(command: list[str], smollm2: Path) -> None:
    read, write = os.pipe()
    run = [*command, "run", str(smollm2), "Hi", "--device", "cpu", "--max-tokens", "1"]
    pipe = subprocess.PIPE
    with subprocess.Popen(run, stdin=read, stdout=pipe, stderr=pipe, text=True) as process:
        os.close(read)
        assert process.stdout is not None and process.stderr is not None
        said = process.stderr.readline()
        assert said.startswith("waiting for the end of standard input")
        assert "`< /dev/null` skips it" in said
        os.close(write)
        assert process.stdout.read().strip()
        assert process.wait(60) == 0


def test_a_pipe_that_does_not_block_is_waited_for(command: list[str], smollm2: Path) -> None:
    read, write = os.pipe()
    os.set_blocking(read, False)
    run = [*command, "run", str(smollm2), "Hi", *GREEDY, "--json"]
    with subprocess.Popen(run, stdin=read, stdout=subprocess.PIPE, text=True) as process:
        os.close(read)
        assert process.stdout is not None
        with os.fdopen(write, "w") as pipe:
            time.sleep(0.5)  # it looks before there is anything
            pipe.write("apples " * 30)
        assert json.loads(process.stdout.read())["usage"]["prompt_tokens"] > 30
        assert process.wait(60) == 0


def test_a_loop_keeps_its_lines_where_the_run_is_told_to_leave_them(line: str) -> None:
    run = f"{line} Hi --device cpu --max-tokens 1 </dev/null"
    done = bash(f"printf 'a\\nb\\n' | while read -r x; do echo \"$x\" >&2; {run}; done")
    assert done.stderr.split() == ["a", "b"]


def test_a_shell_reads_every_line_of_the_output(line: str) -> None:
    run = f"{line} Hi --device cpu --temperature 0 --max-tokens 3 </dev/null"
    done = bash(f'{run} | while read -r text; do echo "[$text]"; done')
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.startswith("[") and len(done.stdout) > 4
    # What ends with a line feed gets no second one.
    tokenizer = onegraph.Tokenizer(shlex.split(line)[-1])
    (end,) = tokenizer.encode("\n", add_special=False)
    bias = f"--raw --max-tokens 1 --logit-bias {end}=inf"
    assert bash(f"{line} Hi --device cpu {bias} </dev/null").stdout == "\n"


def test_bytes_that_are_no_text_are_wrong_use_beside_a_prompt_too(cli: Any, smollm2: Path) -> None:
    done = cli("run", smollm2, "Hi", input=b"caf\xe9", text=False, encoding=None)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"standard input is not UTF-8: byte 0xe9 at offset 3" in done.stderr


def test_a_standard_input_that_cannot_be_read_is_wrong_use(line: str, tmp_path: Path) -> None:
    done = bash(f"{line} Hi 0>'{tmp_path}/file'")
    assert (done.returncode, done.stdout) == (2, "")
    assert "cannot read standard input" in done.stderr
