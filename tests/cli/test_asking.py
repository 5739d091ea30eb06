"""`onegraph run` with files, with tools of a file, and with the switch of reasoning."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from onegraph.cli import asking, files
from onegraph.errors import ArgumentError, FileError
from support import scripted
from support.terminal import Terminal

CALL = '<tool_call>\n{"name": "add", "arguments": {"left": 31, "right": 8}}\n</tool_call>'

TOOLS = '''\
"""Sums."""

from beside import PLUS


def add(left: int, right: int) -> int:
    """Adds two numbers."""
    if PLUS is None:
        raise RuntimeError("no plus")
    return PLUS(left, right)


def plain(x): return x


def _private() -> None:
    """Nobody's."""
'''


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    (tmp_path / "beside.py").write_text("from operator import add as PLUS\n")
    path = tmp_path / "sums.py"
    path.write_text(TOOLS)
    return path


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Calls, and then answers."""
    path = tmp_path_factory.mktemp("caller") / "caller.gguf"
    return scripted.write(path, [CALL, "It is 39."])


def test_a_call_is_run_and_shown_and_the_answer_goes_to_standard_output(
    cli: Any, caller: Path, tools: Path
) -> None:
    ask = ["run", caller, "31 + 8?", "--device", "cpu", "--tools", tools]
    done = cli(*ask)
    assert (done.returncode, done.stdout) == (0, "It is 39.\n"), done.stderr
    assert done.stderr == (
        f"{tools}: not offered, for lack of a docstring: plain\nadd(left=31, right=8)\n-> 39\n"
    )
    made = json.loads(cli(*ask, "--json").stdout)
    assert (made["text"], made["finish_reason"]) == ("It is 39.", "stop")


def test_an_error_of_a_tool_is_shown_with_its_line_and_told_to_the_model(
    cli: Any, caller: Path, tools: Path
) -> None:
    tools.with_name("beside.py").write_text("PLUS = None\n")
    done = cli("run", caller, "31 + 8?", "--device", "cpu", "--tools", tools)
    assert (done.returncode, done.stdout) == (0, "It is 39.\n"), done.stderr
    assert f"{tools}:9: RuntimeError: no plus\n-> error: RuntimeError: no plus\n" in done.stderr
    tools.write_text('async def add(left: str) -> str:\n    """Adds."""\n    return left\n')
    done = cli("run", caller, "31 + 8?", "--device", "cpu", "--tools", tools)
    assert "-> error: add: has no parameter 'right'" in done.stderr
    tools.write_text(
        'async def add(left: int, right: int) -> str:\n    """Adds."""\n    return "x"\n'
    )
    done = cli("run", caller, "31 + 8?", "--device", "cpu", "--tools", tools)
    assert done.stderr.endswith("-> x\n")


def test_calls_without_end_are_ended(
    cli: Any, tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = re.sub(r"<\|turn.*?\|>", "<|turn0|>", scripted.HERMES)
    path = scripted.write(tmp_path / "loop.gguf", [CALL], template=template)
    done = cli("run", path, "31 + 8?", "--device", "cpu", "--tools", tools)
    assert done.stderr.count("add(left=31, right=8)\n-> 39\n") == asking.MOST_ROUNDS == 16
    assert "16 answers called tools: the next must answer without\n" in done.stderr
    assert done.returncode == 0


def test_a_chat_runs_calls_too(
    terminal: Callable[..., Terminal], caller: Path, tools: Path
) -> None:
    opened = terminal("run", caller, "--device", "cpu", "--tools", tools)
    opened.read_until(">>> ")
    opened.type("31 + 8?\r")
    said = opened.read_until("It is 39.\r\n")
    assert "add(left=31, right=8)" in said and "-> 39" in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def add(:\n", r"sums\.py:1: SyntaxError: "),
        ("x = 1\n\ny = x / 0\n", r"sums\.py:3: ZeroDivisionError: division by zero"),
        ("import sys\nsys.exit(3)\n", r"sums\.py:2: SystemExit: 3"),
        ("x = 1\n", "has no public function with a docstring"),
        (
            '\n\ndef add(left):\n    """Adds."""\n',
            r"sums\.py:3 add\(left\): needs a type annotation",
        ),
    ],
)
def test_what_is_wrong_in_the_file_is_said_with_its_line(
    tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "sums.py"
    path.write_text(text)
    with pytest.raises(ArgumentError, match=said):
        asking.functions_of(path)


def test_a_file_of_tools_is_a_python_file_that_is_there(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"cannot read --tools .*absent\.py: No such file"):
        asking.functions_of(tmp_path / "absent.py")
    with pytest.raises(ArgumentError, match=r"sums\.txt: must be a Python file"):
        asking.functions_of(tmp_path / "sums.txt")


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Reasons unless it is switched off."""
    off = "{% if enable_thinking is false %}<think>\n\n</think>\n\n<|turn1|>"
    switch = off + "{% else %}<think>{% endif %}"
    template = re.sub(r"<\|turn.*?\|>", lambda _: switch, scripted.HERMES)
    answers = ["let me see\n</think>\n\nIt is 39.\n", "At once 40."]
    path = tmp_path_factory.mktemp("thinker") / "thinker.gguf"
    return scripted.write(path, answers, template=template, begins=["<think>", "<|turn1|>"])


@pytest.mark.parametrize(
    ("think", "text", "reasoning"),
    [
        (None, "It is 39.\n", "let me see"),
        ("on", "It is 39.\n", "let me see"),
        ("high", "It is 39.\n", "let me see"),
        ("40", "It is 39.\n", "let me see"),
        ("off", "At once 40.", None),
        ("false", "At once 40.", None),
    ],
)
def test_think_is_the_switch_of_the_template(
    cli: Any, thinker: Path, think: str | None, text: str, reasoning: str | None
) -> None:
    switch = ["--think"] if think is None else ["--think", think]
    done = cli("run", thinker, "31 + 8?", *switch, "--device", "cpu", "--json")
    made = json.loads(done.stdout)
    assert (made["text"], made["reasoning"]) == (text, reasoning)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (
            ["--think", "maybe"],
            "must be on, off, low, medium, high, or a number of tokens; --think by",
        ),
        (["--think", "9", "--thinking-token-budget", "9"], "set the same limit: give one"),
        (["--think", "on", "--raw"], "--think needs the chat template"),
        (["--think", "on"], "has no reasoning; leave it out"),
        (["--image", "cat.png"], "onegraph only supports text"),
    ],
)
def test_what_is_no_switch_is_refused(cli: Any, caller: Path, args: list[str], said: str) -> None:
    done = cli("run", caller, "31 + 8?", "--device", "cpu", *args)
    assert (done.returncode, done.stdout) == (2, "") and said in done.stderr, done.stderr


def test_a_template_without_a_switch_says_so(cli: Any, tmp_path: Path) -> None:
    template = re.sub(r"<\|turn.*?\|>", "<think>", scripted.HERMES)
    answer = "let me see\n</think>\n\nIt is 39.\n"
    path = tmp_path / "always.gguf"
    scripted.write(path, [answer], template=template, begins=["<think>"])
    done = cli("run", path, "31 + 8?", "--device", "cpu", "--think", "off")
    assert done.returncode == 2 and "has no switch for it; --think 0 ends" in done.stderr


def test_files_stand_before_the_prompt(cli: Any, caller: Path, tmp_path: Path) -> None:
    note, code = tmp_path / "note.txt", tmp_path / "code.md"
    note.write_text("The harvest is in March.\n")
    code.write_text("```\nx\n```\n")
    said = files.before("When?", [note, code])
    assert said == (
        "note.txt:\n```\nThe harvest is in March.\n```\n\n"
        "code.md:\n````\n```\nx\n```\n````\n\nWhen?"
    )
    ask = ["run", caller, "--device", "cpu", "--json"]
    counts = {
        json.loads(cli(*ask, *more, input=piped).stdout)["usage"]["prompt_tokens"]
        for more, piped in (
            ([f"Mind.\n\n{said}"], ""),
            (["When?", "--file", note, "--file", code], "Mind."),
        )
    }
    assert len(counts) == 1


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"%PDF-1.7\n\0", "is a PDF: convert it to text, as with `pdftotext FILE FILE.txt`"),
        (b"\x89PNG\r\n", "is an image: onegraph only supports text"),
        (b"ab\0cd", "is binary: byte 0x00 at offset 2"),
        (b"caf\xe9", "is not UTF-8: byte 0xe9 at offset 3"),
        (b"\xff\xfea\0", "is UTF-16, by its byte order mark"),
        (b"a" * (files.MOST_BYTES + 1), "has 8,388,609 bytes; the limit is 8,388,608"),
    ],
)
def test_a_file_that_is_no_text_is_refused(
    cli: Any, caller: Path, tmp_path: Path, raw: bytes, said: str
) -> None:
    path = tmp_path / "file"
    path.write_bytes(raw)
    done = cli("run", caller, "Hi", "--file", path, "--device", "cpu")
    assert (done.returncode, done.stdout) == (2, "") and said in done.stderr, done.stderr
