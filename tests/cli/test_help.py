"""`onegraph help`: the pages of the documentation, at a terminal and in a pipe."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from onegraph.cli import COMMANDS
from onegraph.cli import help as opener

TOPICS = list(opener.pages())


def test_the_list_has_a_line_for_each_page(cli: Any) -> None:
    done = cli("help")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    for page in opener.pages().values():
        assert sum(re.fullmatch(rf" *{page.topic}  +\S.*", line) is not None for line in lines) == 1
        assert page.summary and any(line.endswith(f"  {page.summary}") for line in lines)
    assert "onegraph help TOPIC" in lines[-1]


def test_a_line_of_the_list_fits_a_terminal(terminal: Any) -> None:
    shell = terminal("help")
    shown = shell.read_until("--help`.").replace("\r", "").splitlines()
    assert max(map(len, shown)) <= 80
    listed = [line.split()[0] for line in shown if re.match(r"  \S", line)]
    assert [topic for topic in TOPICS if topic not in listed] == []
    assert [line for line in shown if line.startswith("   ")] == [], "a line goes on in the next"
    assert shell.wait() == 0


@pytest.mark.thorough
@pytest.mark.parametrize("topic", TOPICS)
def test_a_pipe_gets_the_page_byte_for_byte(topic: str, cli: Any) -> None:
    done = cli("help", topic, text=False, encoding=None)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == opener.pages()[topic].path.read_bytes()


def test_a_reader_that_stops_early_sees_no_error(command: list[str]) -> None:
    line = ["bash", "-c", 'set -o pipefail; "$@" | head -n 1', "bash", *command, "help", "api"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "# Python\n", "")


def test_a_wrong_topic_is_told_which_are_right(cli: Any) -> None:
    for typed, said in [
        ("Speed", "did you mean `onegraph help speed`?"),
        ("comand-line", "did you mean `onegraph help command-line`?"),
        ("bensh", "did you mean `onegraph help bench`?"),
        ("zzzzzz", f"`onegraph help` says what each page is about: {', '.join(TOPICS)}"),
    ]:
        done = cli("help", typed)
        assert (done.returncode, done.stdout) == (2, "")
        assert f"No page or command '{typed}': {said}" in " ".join(done.stderr.split())
    done = cli("help", "../../etc/passwd")
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_name_of_a_command_shows_its_help(name: str, cli: Any) -> None:
    done = cli("help", name)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == cli(name, "--help").stdout


def test_no_page_hides_a_command() -> None:
    assert set(TOPICS) & set(COMMANDS) == set()
    assert {"api", "command-line", "speed", "exactness", "models", "gpu", "extending"} <= set(
        TOPICS
    )


@pytest.mark.parametrize("topic", TOPICS)
def test_every_page_fits_80_columns(topic: str) -> None:
    shown = opener.rendered(opener.pages()[topic], 80)
    lines = re.sub(r"\x1b\[[\d;]*m", "", shown).splitlines()
    assert max(map(len, lines)) <= 80
    # A cell that is cut ends so.
    assert "…" not in shown
    assert len(lines) > 20


@pytest.mark.parametrize("topic", TOPICS)
def test_no_link_to_a_file_is_left_in_a_terminal(topic: str) -> None:
    shown = opener.rendered(opener.pages()[topic], 10_000)
    assert re.findall(r"\([\w./-]+\.md\b", shown) == []


PAGE = """\
<!-- Nobody reads this. -->
# A page

What `this` is, see [other](other.md). A second
sentence.

[Here](#there), [other](other.md#part) and [its `code`](other.md), [far](https://example.com/x.md),
[a program](programs/one.py), [the list](programs/README.md), [gone](gone.md).

```text
[other](other.md)
```
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "programs").mkdir()
    (tmp_path / "page.md").write_text(PAGE)
    (tmp_path / "other.md").write_text("# Other\n\nThe other.\n")
    (tmp_path / "programs" / "README.md").write_text("# Programs\n\nSome programs.\n")
    (tmp_path / "programs" / "one.py").write_text("print(1)\n")
    monkeypatch.setattr(opener, "PAGES", tmp_path)
    return tmp_path


def test_a_long_first_sentence_is_cut_at_a_word(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "wordy.md").write_text(f"# Wordy\n\n{'many words ' * 20}end.\n")
    opener._list(opener.pages())
    assert "many words end.\n" in capfd.readouterr().out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    opener._list(opener.pages())
    (line,) = [line for line in capfd.readouterr().out.splitlines() if "wordy" in line]
    assert 70 < len(line) <= 80 and re.search(r" (many|words) \.\.\.$", line)


def test_a_file_in_the_folder_is_a_topic(folder: Path) -> None:
    found = opener.pages()
    assert list(found) == ["other", "page", "programs"]
    page = found["page"]
    assert (page.title, page.summary) == ("A page", "What this is, see other.")
    assert found["programs"].path == folder / "programs" / "README.md"


def test_links_say_what_to_type(folder: Path) -> None:
    shown = re.sub(r"\x1b\[[\d;]*m", "", opener.rendered(opener.pages()["page"], 10_000))
    assert "see other (onegraph help other). A second sentence." in shown
    assert "Here, other (onegraph help other) and its code (onegraph help other)" in shown
    assert "far (https://example.com/x.md)" in shown
    assert f"a program ({folder / 'programs' / 'one.py'})" in shown
    assert "the list (onegraph help programs), gone." in shown
    assert "[other](other.md)" in shown  # what is code stays as it is
    assert "Nobody" not in shown


@pytest.fixture
def pager(tmp_path: Path) -> Path:
    """A pager that keeps what it is given."""
    script = tmp_path / "less"  # the one that shows colours
    script.write_text(f'#!/bin/sh\ncat > "{tmp_path}/paged"\necho paged\n')
    script.chmod(0o755)
    return script


def test_a_long_page_goes_through_the_pager(terminal: Any, pager: Path) -> None:
    opened = terminal("help", "exactness", env={"PAGER": str(pager)})
    opened.read_until("paged\r\n")
    assert opened.wait() == 0
    text = (pager.parent / "paged").read_text()
    assert max(map(len, re.sub(r"\x1b\[[\d;]*m", "", text).splitlines())) <= 80
    assert "Exactness" in text and "| what |" not in text


def test_colours_are_off_where_they_are_not_wanted(terminal: Any, pager: Path) -> None:
    coloured = re.compile(r"\x1b\[(?:\d+;)*(?:3\d|9\d|4\d)[;m]")
    for env, wanted in [({}, False), ({"NO_COLOR": ""}, True)]:
        opened = terminal("help", "speed", env={"PAGER": str(pager), **env})
        opened.read_until("paged\r\n")
        assert opened.wait() == 0
        found = coloured.search((pager.parent / "paged").read_text())
        assert (found is not None) is wanted


def test_a_page_that_fits_the_screen_needs_no_pager(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("PAGER", "false")
    monkeypatch.setenv("LINES", "40")
    opener._open(opener.pages()["page"])
    assert "A page" in capfd.readouterr().out
