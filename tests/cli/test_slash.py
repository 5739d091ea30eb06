"""The commands of a chat, typed at a terminal."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from onegraph.cli.conversation import Conversation, load, place, save
from onegraph.errors import ArgumentError, FileError
from support.terminal import Terminal

pytestmark = pytest.mark.thorough

PROMPT = ">>> "
QUICK = ["--device", "cpu", "--temperature", 0, "--max-tokens", 3, "--n-ctx", 512]


@pytest.fixture
def chat(terminal: Callable[..., Terminal], smollm2: Path) -> Callable[..., Terminal]:
    """A chat that waits for its first line."""

    def start(*more: object, **options: Any) -> Terminal:
        opened = terminal("run", smollm2, *QUICK, *more, **options)
        opened.read_until(PROMPT)
        return opened

    return start


def ask(chat: Terminal, line: str, prompt: str = PROMPT) -> str:
    """What is said after a line, in one line; the echo of it is left out."""
    chat.type(f"{line}\r")
    _, _, said = chat.read_until(prompt).partition("\r\n")
    return " ".join(said.split())


def leave(chat: Terminal) -> None:
    chat.type("\x04")
    assert chat.wait() == 0


def test_help_lists_the_commands_and_each_way_out_leaves(chat: Callable[..., Terminal]) -> None:
    talk = chat()
    said = ask(talk, "/help")
    for name in ["/help", "/clear", "/system", "/set", "/save", "/load", "/exit", "/bye", '"""']:
        assert name in said
    for way in ["/exit", "/bye"]:
        talk.type(f"{way}\r")
        assert talk.wait() == 0
        talk = chat()
    leave(talk)


def test_what_is_no_command_is_not_sent(chat: Callable[..., Terminal]) -> None:
    talk = chat()
    assert ask(talk, "/sytem be brief").startswith("/sytem is not a command, did you mean /system?")
    assert "/etc/passwd is not a command; /help lists them" in ask(talk, "/etc/passwd is what?")
    saved = ask(talk, "/save nothing")
    assert saved.startswith("saved 0 messages to ")
    leave(talk)


def test_a_second_slash_and_quotes_send_a_text_as_it_is(
    chat: Callable[..., Terminal], tmp_path: Path
) -> None:
    talk = chat()
    ask(talk, "//help")
    assert ask(talk, '"""/first', prompt="... ") == ""
    assert ask(talk, "", prompt="... ") == ""
    ask(talk, 'last line"""')
    ask(talk, '"""one"""')
    ask(talk, '/system """', prompt="... ")
    ask(talk, "Be brief.", prompt="... ")
    assert ask(talk, '"""') == "system message: Be brief."
    ask(talk, f"/save {tmp_path}/talk.json")
    messages = json.loads((tmp_path / "talk.json").read_text())["messages"]
    assert messages[0] == {"role": "system", "content": "Be brief."}
    sent = [m["content"] for m in messages if m["role"] == "user"]
    assert sent == ["/help", "/first\n\nlast line", "one"]
    leave(talk)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_leaves_the_quotes_and_a_paste_is_one_text(
    chat: Callable[..., Terminal], tmp_path: Path
) -> None:
    talk = chat()
    ask(talk, '"""never', prompt="... ")
    # Python misses a signal between showing the prompt and waiting for a key.
    said = ""
    for _ in range(60):
        talk.type("\x03")
        if "Ctrl-D exits" in (said := said + talk.read_for(1)):
            break
    assert "Ctrl-D exits" in said
    talk.type("/set top-k 7\r")
    talk.read_until("--top-k  ")
    talk.read_until(PROMPT)
    # As terminals paste where line editing asks them to: nothing is sent before the return key.
    ask(talk, "\x1b[200~one\ntwo\x1b[201~")
    ask(talk, f"/save {tmp_path}/talk.json")
    messages = json.loads((tmp_path / "talk.json").read_text())["messages"]
    assert [m["content"] for m in messages if m["role"] == "user"] == ["one\ntwo"]
    leave(talk)


def test_a_conversation_is_saved_and_taken_up(
    chat: Callable[..., Terminal], tmp_path: Path
) -> None:
    first = chat("--system", "Be brief.")
    ask(first, "My name is Ada.")
    path = tmp_path / "state" / "chats" / "ada.json"
    assert "".join(ask(first, "/save ada").split()) == f"saved3messagesto{path}"
    assert "replacing the file" in ask(first, "/save ada")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    leave(first)
    kept = json.loads(path.read_text())
    assert [m["role"] for m in kept["messages"]] == ["system", "user", "assistant"]

    second = chat("--verbose")
    assert "loaded 3 messages" in ask(second, "/load ada")
    assert ask(second, "/system") == "system message: Be brief."
    answered = ask(second, "What is my name?")
    ask(second, "/clear")
    alone = ask(second, "What is my name?")

    def prompt_tokens(said: str) -> int:
        return int(said.partition("prompt: ")[2].split()[0])

    assert prompt_tokens(answered) > prompt_tokens(alone) + 8
    assert "no system message" in ask(second, '/system ""')
    assert "saved conversations: ada" in ask(second, "/load eva")
    leave(second)


def test_sampling_is_set_and_checked_in_a_chat(chat: Callable[..., Terminal]) -> None:
    talk = chat()
    for line, said in [
        ("/set", "--temperature 0"),
        ("/set", "--top-k 40 (default)"),
        ("/set temperature 0.5", "--temperature 0.5"),
        ("/set --top-k 3", "--top-k 3"),
        ("/set min_p=0.2", "--min-p 0.2"),
        ("/set temperature warm", "--temperature warm: 'warm' is not a valid float"),
        ("/set temperature -1", "--temperature -1: must be from 0 to 100"),
        ("/set", "--temperature 0.5"),
        ("/set temprature 1", "did you mean --temperature?"),
        ("/set n-ctx 9", "--n-ctx applies at load"),
        ("/set logprobs 3", "--logprobs needs `onegraph run --json`"),
        ("/set system Hi", "system is not an option: use /system"),
        ("/set", "--repeat-last-n -1 (default)"),
        ("/set repeat-last-n 64", "--repeat-last-n 64"),
        ("/set repeat-last-n -2", "--repeat-last-n -2: must be a number of tokens"),
        ("/set repeat-last-n -1", "--repeat-last-n -1"),
        ("/set ignore-eos yes", "--ignore-eos True"),
        ("/set logit-bias 5=-2", "--logit-bias 5=-2"),
        ('/set stop "a\\nb"', '--stop "a\\nb"'),
        ("/set stop c", '--stop "a\\nb" "c"'),
        ("/set stop", "--stop none (default)"),
        ("/set max-tokens none", "--max-tokens none"),
        ("/set max-tokens 1", "--max-tokens 1"),
    ]:
        assert said in ask(talk, line), line
    assert "cut after 1 tokens; /set max-tokens N allows more" in ask(talk, "Hi")
    leave(talk)


def test_a_full_context_is_told_as_the_reason_of_a_cut(chat: Callable[..., Terminal]) -> None:
    talk = chat("--ignore-eos", "--n-ctx", 48, "--max-tokens", 100)
    assert "the context of 48 tokens is full; /clear makes room" in ask(talk, "Hi")
    leave(talk)


@pytest.mark.parametrize(
    ("typed", "byte", "to_file"),
    # Line editing, which a terminal has, leaves out what it can; of bytes alone it leaves them.
    [(b"\xff\xfe\n", "0xff", False), (b"caf\xe9 au lait\n", "0xe9", True)],
)
def test_a_byte_that_is_no_text_does_not_end_the_chat(
    chat: Callable[..., Terminal], typed: bytes, byte: str, to_file: bool, tmp_path: Path
) -> None:
    talk = chat(output=tmp_path / "text" if to_file else None)
    talk.type(typed)
    said = talk.read_until(PROMPT)
    assert f"that line is not text and was not sent: byte {byte} is not UTF-8" in said
    talk.type("Hi\n")
    assert "cut after 3 tokens" in talk.read_until(PROMPT)
    leave(talk)


def test_lines_are_remembered_for_their_owner_alone(
    chat: Callable[..., Terminal], tmp_path: Path
) -> None:
    first = chat()
    ask(first, "/set top-k 7")
    leave(first)
    history = tmp_path / "state" / "history"
    assert history.read_text().splitlines()[-1] == "/set top-k 7"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    second = chat()
    second.type("\x1b[A\r")  # the key up
    assert "--top-k 7" in " ".join(second.read_until(PROMPT).split())
    leave(second)


def test_without_a_place_for_it_there_is_no_history(
    chat: Callable[..., Terminal], tmp_path: Path
) -> None:
    (tmp_path / "state").write_text("a file where the folder would be")
    talk = chat()
    assert "--top-k 7" in ask(talk, "/set top-k 7")
    assert "cannot write" in ask(talk, "/save talk")
    leave(talk)
    (tmp_path / "state").unlink()
    (tmp_path / "state").mkdir()
    history = tmp_path / "state" / "history"
    os.symlink(tmp_path / "elsewhere", history)
    talk = chat()
    ask(talk, "/set top-k 7")
    leave(talk)
    assert not (tmp_path / "elsewhere").exists()
    history.unlink()
    os.mkfifo(history)
    talk = chat()
    assert "--top-k 7" in ask(talk, "/set top-k 7")
    leave(talk)


def test_a_saved_conversation_is_read_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    for talk in [
        Conversation(),
        Conversation("Sei höflich.", []),
        Conversation(None, ["a\nb", "\x1b[31m"]),
    ]:
        save(talk, Path("m.gguf"), path)
        assert load(path) == talk
    path.write_text('[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]')
    assert load(path) == Conversation(None, ["a", "b"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("{}", 'no list of "messages"'),
        ('{"messages": 3}', 'no list of "messages"'),
        ("[3]", 'message 1 has no text as "content"'),
        ('[{"role": "user"}]', 'message 1 has no text as "content"'),
        ('[{"role": "user", "content": "\\ud800"}]', 'message 1 has no text as "content"'),
        ('[{"role": "assistant", "content": "a"}]', "user and assistant must alternate"),
        ('[{"role": "tool", "content": "a"}]', "\"role\" 'tool'"),
        ('[{"role": "user", "content": "a"}]', "an assistant message must follow"),
    ],
)
def test_what_is_no_conversation_is_an_error(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    path.write_text(text)
    with pytest.raises(ArgumentError) as e:
        load(path)
    assert said in str(e.value) and str(path) in str(e.value)


def test_a_name_is_a_file_of_the_folder_and_a_path_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONEGRAPH_STATE_DIR", str(tmp_path))
    assert place("talk") == tmp_path / "chats" / "talk.json"
    assert place("./talk") == Path("talk") and place("t.json") == Path("t.json")
    for name, said in [
        ("..", "'..' is not a file name"),
        ("~nobody-here/t", "give the whole path"),
    ]:
        with pytest.raises(ArgumentError, match=re.escape(said)):
            place(name)
    for path in [Path("x" * 300), tmp_path / "\0.json"]:
        with pytest.raises(FileError, match="cannot read"):
            load(path)
        with pytest.raises(FileError, match="give another path"):
            save(Conversation(), Path("m.gguf"), path)
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(FileError, match="FIFO"):
        load(tmp_path / "pipe.json")
