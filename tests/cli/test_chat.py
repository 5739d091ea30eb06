"""A conversation at a real (pseudo) terminal."""

import re
from pathlib import Path

import onegraph
import pytest

PROMPT = ">>> "


def prompt_tokens(said: str) -> int:
    (number,) = re.findall(r"prompt: (\d+) tokens", said)
    return int(number)


def test_a_chat_remembers_what_was_said(terminal, smollm2: Path) -> None:
    chat = terminal("run", smollm2, "--temperature", 0, "--max-tokens", 8, "--verbose")
    assert "Ctrl-D exits" in chat.read_until(PROMPT)
    chat.type("My name is Ada.\r")
    first = chat.read_until(PROMPT)
    assert len(first.split("\r\n")[1]) > 3  # after the echo of the line
    chat.type("What is my name?\r")
    second = chat.read_until(PROMPT)
    assert prompt_tokens(second) > prompt_tokens(first) + 8
    chat.type("/clear\r")
    chat.read_until(PROMPT)
    chat.type("My name is Ada.\r")
    assert prompt_tokens(chat.read_until(PROMPT)) == prompt_tokens(first)
    chat.type("\x04")
    assert chat.wait() == 0


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_stops_the_answer_and_not_the_chat(terminal, smollm2: Path) -> None:
    chat = terminal("run", smollm2, "--ignore-eos", "--max-tokens", 8000)
    chat.read_until(PROMPT)
    chat.type("Count to one million.\r")
    chat.read_until("\r\n")
    begun = ""
    while not begun.strip():  # it may count without a space
        begun += chat.read_for(60)
    chat.type("\x03")
    answer = chat.read_until(PROMPT)
    assert len(onegraph.Tokenizer(smollm2).encode(answer)) < 8000
    # At the prompt it only says how to leave. Python misses a signal between showing the prompt and
    # waiting for a key: the next one wakes it.
    said = ""
    for _ in range(60):
        chat.type("\x03")
        if "Ctrl-D exits" in (said := said + chat.read_for(1)):
            break
    assert "Ctrl-D exits" in said
    # A key that comes while a prompt is being set up is lost too.
    for _ in range(60):
        if chat.ended():
            break
        chat.type("\x04")
        chat.read_for(1)
    assert chat.wait() == 0


def test_a_chat_that_is_too_long_says_so_and_goes_on(terminal, smollm2: Path) -> None:
    chat = terminal("run", smollm2, "--n-ctx", 64, "--max-tokens", 4, "--temperature", 0)
    chat.read_until(PROMPT)
    chat.type("word " * 80 + "\r")
    said = chat.read_until(PROMPT)
    assert "64" in said and "/clear makes room" in said
    chat.type("Hi\r")
    assert "/clear makes room" not in chat.read_until(PROMPT)
    chat.type("\x04")
    assert chat.wait() == 0


def test_the_text_goes_to_a_file_and_the_prompt_to_the_terminal(
    terminal, smollm2: Path, tmp_path: Path
) -> None:
    args = ["--temperature", 0, "--max-tokens", 8]
    chat = terminal("run", smollm2, *args, output=tmp_path / "text")
    chat.read_until(PROMPT)
    chat.type("Hi\n")
    chat.read_until(PROMPT)
    chat.type("\x04")
    assert chat.wait() == 0
    with onegraph.LLM(smollm2, max_batch=1) as llm:
        answer = llm.chat([{"role": "user", "content": "Hi"}], temperature=0.0, max_tokens=8)
    assert (tmp_path / "text").read_text() == f"{answer.text}\n"


def test_the_model_cannot_steer_the_terminal(terminal, cli, smollm2: Path) -> None:
    tokenizer = onegraph.Tokenizer(smollm2)
    (escape,) = (t for t in range(tokenizer.n_vocab) if tokenizer.token_bytes(t) == b"\x1b")
    args = ["run", smollm2, "Hi", "--max-tokens", 3, "--logit-bias", f"{escape}=inf"]
    shown = terminal(*args)
    assert shown.wait() == 0
    assert "␛␛␛" in shown.seen
    assert cli(*args).stdout == "\x1b\x1b\x1b\n"  # a file gets the text as it is


def test_a_chat_needs_no_other_options(terminal, smollm2: Path) -> None:
    for option in ["--raw", "--json"]:
        refused = terminal("run", smollm2, option)
        assert refused.wait() == 2
        assert "--raw and --json need a PROMPT" in refused.seen
