"""bench and compare at a terminal: a bar while they measure, nothing beside the results."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import shapes
import synth
from onegraph.bench.formats import FORMATS
from support.terminal import Terminal, drained

pytestmark = pytest.mark.thorough

SMALL = ["-p", "8", "-n", "4", "-r", "2", "--threads", "1"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    synth.write(path, shapes.find("tiny-llama"), "Q4_K_M")
    return path


def screen(said: str) -> list[str]:
    """The lines that a terminal shows in the end, of text with carriage returns, cursor movements
    upwards and erased lines."""
    lines, at, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[?\d;]*[a-zA-Z]|\r|\n|[^\x1b\r\n]+", said):
        if part == "\r":
            column = 0
        elif part == "\n":
            at += 1
            lines += [""] * (at + 1 - len(lines))
        elif part.startswith("\x1b["):
            number = int(re.sub(r"\D", "", part) or 1)
            if part.endswith("A"):
                at = max(0, at - number)
            elif part.endswith("K"):
                assert number == 2, part  # the whole line
                lines[at] = ""
        else:
            lines[at] = lines[at][:column].ljust(column) + part + lines[at][column + len(part) :]
            column += len(part)
    return [line.rstrip() for line in lines]


def at_terminal(
    command: list[str], *args: object, output: Path | None = None, kind: str = "xterm"
) -> tuple[int, str]:
    """Exit code and all that a terminal of 80 columns gets, as it is; standard output goes to
    `output` where that is given."""
    words = [*command, *map(str, args)]
    if output:
        words = ["bash", "-c", 'to=$0; exec "$@" > "$to"', str(output), *words]
    leader, follower = pty.openpty()
    subprocess.run(["stty", "cols", "80", "rows", "50"], stdin=follower, check=True)
    env = {k: v for k, v in os.environ.items() if k != "COLUMNS"}
    env |= {"TERM": kind, "NO_COLOR": "1"}
    with subprocess.Popen(words, stdin=follower, stdout=follower, stderr=follower, env=env) as done:
        os.close(follower)
        said = drained(leader)
    return done.returncode, said.decode()


@pytest.mark.parametrize("form", FORMATS)
def test_the_bar_is_gone_before_anything_is_printed(form, command, tiny: Path) -> None:
    code, said = at_terminal(command, "bench", tiny, *SMALL, "-o", form)
    assert code == 0, said
    assert "━" in said  # there was one
    shown = screen(said)
    assert not any("━" in line for line in shown), shown
    text = "\n".join(shown)
    # The word about the CPU has a line of its own, too.
    if not Path("/dev/nvidia0").exists():
        assert any(line.startswith("running on the CPU") for line in shown), shown
    if form == "md":
        rows = [line for line in shown if line.startswith("|")]
        assert len(rows) == 4 and "| pp8 " in rows[2] and "| tg4 " in rows[3]
        assert max(map(len, rows)) <= 80
    elif form == "json":
        records = json.loads(text[text.index("[") : text.rindex("]") + 1])
        assert [r["n_prompt"] for r in records] == [8, 0]
    elif form in ("csv", "sql"):
        assert ("build_commit,build_number" if form == "csv" else "INSERT INTO") in text


def test_results_go_to_their_file_and_the_bar_to_the_terminal(command, tiny, tmp_path) -> None:
    kept = tmp_path / "bench.jsonl"
    code, said = at_terminal(command, "bench", tiny, *SMALL, "-o", "jsonl", output=kept)
    assert code == 0, said
    assert [json.loads(line)["n_gen"] for line in kept.read_text().splitlines()] == [0, 4]
    assert "━" in said and not any("━" in line for line in screen(said))


def test_a_terminal_that_cannot_erase_has_no_bar(command, tiny: Path) -> None:
    code, said = at_terminal(command, "bench", tiny, *SMALL, "--device", "cpu", kind="dumb")
    assert code == 0 and "━" not in said and "\x1b" not in said
    assert said.startswith("llama 1M Q4_K, ")


def test_a_race_at_a_terminal_has_no_bar_beside_its_table(command, smollm2: Path) -> None:
    pytest.importorskip("xllamacpp")
    options = ["-p", "16", "-n", "4", "-r", "1", "-t", "1", "--no-chart"]
    code, said = at_terminal(command, "compare", smollm2, "--against", "xllamacpp", *options)
    assert code == 0, said
    shown = screen(said)
    assert "━" in said and not any("━" in line for line in shown)
    rows = [line for line in shown if line.startswith("|")]
    assert rows[0].startswith("| pp16+tg4 ") and max(map(len, rows)) <= 80
    assert any(line.startswith("| onegraph is ") and " no ratio |" in line for line in rows)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_erases_the_bar(terminal: Callable[..., Terminal], tiny: Path) -> None:
    one = terminal("bench", tiny, "-p", 8, "-n", 400, "-r", 1000, "--threads", 1)
    one.read_until("pp8 (cpu)")
    one.type("\x03")
    one.wait(60)
    assert one.status is not None and one.status < 0
    assert "Traceback" not in one.seen


@pytest.mark.parametrize("name", ["/proc/chart.png", "folder.png"])
def test_a_chart_that_cannot_be_written_is_said_at_once(name: str, cli, tiny, tmp_path) -> None:
    (tmp_path / "folder.png").mkdir()
    for args in (["bench", tiny], ["compare", tiny, "--against", "ollama"]):
        done = cli(*args, "--plot", name, cwd=tmp_path)
        assert done.returncode in (1, 2) and done.stdout == ""
        assert name in done.stderr and "Traceback" not in done.stderr
        assert "is missing" not in done.stderr


def test_a_chart_that_can_be_written_is_no_file_until_it_is_drawn(cli, tiny, tmp_path) -> None:
    pytest.importorskip("matplotlib")
    done = cli("bench", tiny, "-p", "many", "--plot", "chart.png", cwd=tmp_path)
    assert done.returncode == 2 and list(tmp_path.iterdir()) == []
    (tmp_path / "chart.png").write_bytes(b"an older one")
    done = cli("bench", "no such model", "--plot", "chart.png", cwd=tmp_path)
    assert done.returncode == 2
    assert (tmp_path / "chart.png").read_bytes() == b"an older one"
