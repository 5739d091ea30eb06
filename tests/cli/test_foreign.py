"""What people type who come from llama.cpp or ollama, or who mistype."""

from __future__ import annotations

import importlib
from typing import Any

import click
import pytest
from onegraph.cli import COMMANDS, foreign

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["run", "-ngl", "99", "smollm2", "Hi"], "-ngl is not an option here: a model runs on one"),
        (["run", "smollm2", "-ngl=99"], "--device cuda"),
        (["run", "smollm2", "Hi", "-ngl"], "-ngl is not an option here"),
        (["run", "smollm2", "-c", "4096"], "-c is not an option here: use --n-ctx INTEGER"),
        (["run", "smollm2", "-t8"], "-t is not an option here: use --threads INTEGER"),
        (
            ["run", "smollm2", "--temp", "0"],
            "--temp is not an option here: use --temperature FLOAT",
        ),
        (["run", "smollm2", "-n", "99"], "-n is not an option here: use --max-tokens INTEGER"),
        (["run", "smollm2", "-fa"], "-fa is not an option here: flash attention is always on"),
        (["run", "smollm2", "-ctk", "q8_0"], "-ctk is not an option here: use --kv-type"),
        (
            ["run", "-m", "x.gguf", "-p", "Hi"],
            "-m is not an option here: use MODEL without",
        ),
        (["run", "smollm2", "--format", "json"], "--format is not an option here: use --schema"),
        (["run", "smollm2", "--keepalive", "5m"], "--keepalive is not an option here"),
        (["info", "smollm2", "--ctx-size", "9"], "--ctx-size is not an option here: use --n-ctx"),
        (
            ["run", "smollm2", "Hi", "--image", "cat.png"],
            "--image is not an option here: onegraph only supports text",
        ),
        (
            ["serve", "smollm2", "--mmproj=a.gguf"],
            "--mmproj is not an option here: onegraph only supports",
        ),
        (["pull", "smollm2", "--insecure"], "--insecure is not an option here"),
    ],
)
def test_an_option_from_elsewhere_is_refused_by_name(args: list[str], said: str, cli: Any) -> None:
    done = cli(*args)
    assert (done.returncode, done.stdout) == (2, "")
    # Nothing else that is wrong is said in its place, and it stays out of the help.
    assert said in " ".join(done.stderr.split()), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_each_spelling_is_refused_once_and_never_listed(name: str) -> None:
    command: click.Command = importlib.import_module(COMMANDS[name].module).command
    own = {spelling for param in command.params for spelling in param.opts}
    foreign.refuse(command)
    foreign.refuse(command)
    spellings = [spelling for param in command.params for spelling in param.opts]
    assert len(spellings) == len(set(spellings))
    added = {spelling for row in foreign.OPTIONS for spelling in row.spellings} - own
    assert added < set(spellings)
    with click.Context(command) as ctx:
        shown = command.get_help(ctx)
    assert "Not an option here" not in shown


def test_an_option_that_follows_two_dashes_is_text(cli: Any) -> None:
    done = cli("run", "no-such-model", "--", "-ngl")
    assert "unknown model 'no-such-model'" in done.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["rnu", "smollm2"], "No such command 'rnu': did you mean `onegraph run`?"),
        (["Info"], "No such command 'Info': did you mean `onegraph info`?"),
        (["ls"], "No such command 'ls': use `onegraph list`"),
        (["ps"], "No such command 'ps': `onegraph serve` serves the models it was started with"),
        (["help", "spede"], "No page or command 'spede': did you mean `onegraph help speed`?"),
        (["smollm2", "Hi"], "`onegraph run MODEL` runs a model"),
        (["run", "--max-token", "3"], "Did you mean '--max-tokens'?"),
        (["run", "--max_tokens", "3"], "Did you mean '--max-tokens'?"),
        (["run", "--n-ctxx", "3"], "Did you mean '--n-ctx'?"),
    ],
)
def test_a_mistyped_word_is_told_what_is_near(args: list[str], said: str, cli: Any) -> None:
    done = cli(*args)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in " ".join(done.stderr.split()), done.stderr
