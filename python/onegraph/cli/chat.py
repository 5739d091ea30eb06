"""A conversation at a terminal."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import click

from onegraph import LLM
from onegraph.cli.answer import messages, note_cut, report, show
from onegraph.cli.terminal import say
from onegraph.errors import ContextError

HINT = "Ctrl-C stops an answer, Ctrl-D leaves, /clear forgets what was said."


def chat(llm: LLM, system: str | None, sampling: dict[str, Any], verbose: bool) -> None:
    """Asks for lines and answers them, each with all that was said before, until Ctrl-D."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  # gives `input` line editing and its history

    click.echo(HINT, err=True)
    said: list[str] = []
    while (line := _ask()) is not None:
        if line.strip() == "/clear":
            said.clear()
        elif line.strip():
            said.append(line)
            answer = _answer(llm, messages(system, *said), sampling, verbose)
            if answer is None:
                said.pop()
            else:
                said.append(answer)


def _ask() -> str | None:
    """The next line; None where there will be none."""
    while True:
        try:
            if sys.stdout.isatty():
                return input(">>> ")
            # `input` would write its prompt into the text.
            sys.stderr.write(">>> ")
            sys.stderr.flush()
            line = sys.stdin.readline()
            return line.removesuffix("\n") if line else None
        except EOFError:
            click.echo(err=True)
            return None
        except KeyboardInterrupt:
            click.echo(f"\n{HINT}", err=True)


def _answer(
    llm: LLM, conversation: list[dict[str, str]], sampling: dict[str, Any], verbose: bool
) -> str | None:
    """Streams an answer. One that Ctrl-C stopped counts as far as it went; None where the
    conversation does not fit."""
    heard: list[str] = []
    try:
        with llm.chat(conversation, stream=True, **sampling) as stream:
            show(stream, heard)
        assert stream.result is not None
        note_cut(stream.result, sampling.get("max_tokens"))
        if verbose:
            report(stream.result)
    except KeyboardInterrupt:
        pass
    except ContextError as e:
        say(f"{e}; /clear makes room", err=True)
        return None
    return "".join(heard)
