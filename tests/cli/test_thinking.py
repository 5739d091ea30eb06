"""Reasoning on the command line: at a terminal above the answer, elsewhere left out."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from support import scripted
from support.terminal import Terminal

TEMPLATE = re.sub(r"<\|turn.*?\|>", "<think>", scripted.HERMES)


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("thinker") / "thinker.gguf"
    answer = "let me see\n</think>\n\nIt is 39.\n"
    return scripted.write(path, [answer], template=TEMPLATE, begins=["<think>"])


def test_a_pipe_gets_the_answer_alone(cli, thinker: Path) -> None:  # type: ignore[no-untyped-def]
    done = cli("run", thinker, "31 + 8?", "--device", "cpu")
    assert (done.returncode, done.stdout) == (0, "It is 39.\n"), done.stderr
    made = json.loads(cli("run", thinker, "31 + 8?", "--device", "cpu", "--json").stdout)
    assert (made["text"], made["reasoning"]) == ("It is 39.\n", "let me see")
    assert (made["tool_calls"], made["finish_reason"]) == ([], "stop")


def test_a_terminal_shows_reasoning_above_the_answer(
    terminal: Callable[..., Terminal], thinker: Path
) -> None:
    opened = terminal("run", thinker, "31 + 8?", "--device", "cpu")
    said = opened.read_until("It is 39.\r\n")
    assert opened.wait() == 0
    assert said.endswith("let me see\r\n\r\n")
