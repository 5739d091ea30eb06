"""What a terminal is given of text that others wrote."""

import os
import subprocess
import sys
import unicodedata
from pathlib import Path

import onegraph
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onegraph.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ASCII, tab\tand\nline", "plain ASCII, tab\tand\nline"),
        ("Grüße, 你好, שלום, नमस्ते", "Grüße, 你好, שלום, नमस्ते"),
        ("no\u00a0break", "no\u00a0break"),
        ("\x1b[31m\x07\r\x00\x7f", "␛[31m␇␍␀␡"),
        ("\x85\x9b31m", "<U+0085><U+009B>31m"),
        *[(c, f"<U+{ord(c):04X}>") for c in map(chr, range(0x202A, 0x202F))],
        *[(c, f"<U+{ord(c):04X}>") for c in map(chr, range(0x2066, 0x206A))],
        ("\u200e\u200f\u061c", "<U+200E><U+200F><U+061C>"),
        ("\u200b\u2060\ufeff\u00ad", "<U+200B><U+2060><U+FEFF><U+00AD>"),
        ("\u2028\u2029", "<U+2028><U+2029>"),
        ("\U000e0041", "<U+E0041>"),
        ("\udcff", "<U+DCFF>"),
        ("👩\u200d💻", "👩\u200d💻"),
        ("می\u200cخواهم", "می\u200cخواهم"),  # noqa: RUF001
        ("\u0600\u0661\u0662", "\u0600\u0661\u0662"),
    ],
)
def test_what_is_seen_stays_and_what_steers_or_hides_is_shown(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text(st.characters(exclude_categories=())))
def test_no_control_is_left(text: str) -> None:
    shown = printable(text)
    assert printable(shown) == shown
    left = {c for c in shown if unicodedata.category(c) in {"Cc", "Cf", "Cs", "Zl", "Zp"}}
    assert left <= {"\t", "\n", "\u200c", "\u200d"} | set(
        "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd"
    )


def test_an_error_shows_a_safe_text_and_keeps_the_true_one() -> None:
    for kind in [onegraph.ModelError, onegraph.FileError, onegraph.OutOfMemoryError]:
        error = kind("a\x1b]0;b\x07\u202e")
        assert str(error) == "a␛]0;b␇<U+202E>"
        assert error.args == ("a\x1b]0;b\x07\u202e",)


def test_a_name_that_is_no_utf8_is_shown_and_piped_as_its_bytes(
    command: list[str], tmp_path: Path
) -> None:
    name = b"caf\xe9.gguf"
    missing = subprocess.run(
        [*map(os.fsencode, command), b"info", name], capture_output=True, cwd=tmp_path
    )
    assert missing.returncode == 1
    assert missing.stderr.decode().startswith("error: there is no file caf<U+DCE9>.gguf")
    path = os.path.join(os.fsencode(tmp_path), name)
    Path(os.fsdecode(path)).write_bytes(b"GGUF")
    pulled = subprocess.run([*map(os.fsencode, command), b"pull", path], capture_output=True)
    assert (pulled.returncode, pulled.stdout, pulled.stderr) == (0, path + b"\n", b"")


def test_a_bar_shows_no_markup_and_no_control(tmp_path: Path) -> None:
    code = """
import os, pty, sys
from onegraph.progress import shown
with shown(True) as tell:
    tell("[red]fetch \\x1b]0;x\\x07\\u202e[/nonsense]", 1, 2)
"""
    leader, follower = os.openpty()
    env = os.environ | {"TERM": "xterm", "COLUMNS": "200", "PYTHONUTF8": "1"}
    with subprocess.Popen([sys.executable, "-c", code], stderr=follower, env=env) as process:
        os.close(follower)
        said = b""
        try:
            while more := os.read(leader, 1 << 16):
                said += more
        except OSError:  # the other side is gone
            pass
        os.close(leader)
    assert process.returncode == 0, said
    assert "[red]fetch ␛]0;x␇<U+202E>[/nonsense]" in said.decode()
