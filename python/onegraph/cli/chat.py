"""A conversation at a terminal."""

from __future__ import annotations

from typing import Any

import click

from onegraph import LLM
from onegraph.cli.answer import cut_by, report, show
from onegraph.cli.asking import Asking
from onegraph.cli.conversation import Conversation
from onegraph.cli.lines import Lines
from onegraph.cli.slash import Session, obey
from onegraph.cli.spelling import spelled
from onegraph.cli.terminal import say
from onegraph.errors import ClosedError, ContextError, Error
from onegraph.results import Result

HINT = "Ctrl-C stops an answer, Ctrl-D exits, /help lists the commands."


def chat(
    llm: LLM, system: str | None, sampling: dict[str, Any], verbose: bool, asking: Asking
) -> None:
    """Asks for lines and answers them, each with all that was said before, until Ctrl-D."""
    session = Session(llm, Conversation(system), sampling, verbose, asking)
    click.echo(HINT, err=True)
    lines = Lines(HINT)
    while not session.over and (entry := lines.next()) is not None:
        if entry.command is not None:
            obey(session, entry.command, entry.text)
        elif entry.text.strip():
            turns = session.conversation.turns
            turns.append(entry.text)
            answer = _answer(session)
            if answer is None:
                turns.pop()
            else:
                turns.append(answer)


def _answer(session: Session) -> str | None:
    """Streams an answer. One that Ctrl-C stopped counts as far as it went; None where there is
    none: the conversation does not fit, or the model's template refuses it."""
    heard: list[str] = []
    conversation = session.conversation.messages()
    try:
        result = session.asking.ask(
            session.llm, conversation, session.sampling, lambda stream: show(stream, heard)
        )
        _say_cut(result, session)
        if session.verbose:
            report(result)
    except KeyboardInterrupt:
        pass
    except ClosedError:
        raise
    except Error as e:
        room = (
            "; /clear makes room" if isinstance(e, ContextError) else "; your message was dropped"
        )
        say(f"{spelled(str(e))}{room}", err=True)
        return None
    return "".join(heard)


def _say_cut(result: Result, session: Session) -> None:
    """In a conversation a cut is always said: what comes next builds on it."""
    limit = cut_by(result)
    made = result.usage.completion_tokens
    if limit == "max_tokens":
        click.echo(f"cut after {made} tokens; /set max-tokens N allows more", err=True)
    elif limit == "n_ctx":
        full = f"the context of {session.llm.n_ctx} tokens is full"
        click.echo(f"cut after {made} tokens: {full}; /clear makes room", err=True)
