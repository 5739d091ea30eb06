"""The commands of a chat: `COMMANDS` has a row for each. What they say goes to standard error."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import click

from onegraph import LLM
from onegraph.cli.asking import Asking
from onegraph.cli.conversation import Conversation, load, place, save
from onegraph.cli.options import MODEL, SAMPLING, UNLIMITED, flag
from onegraph.cli.spelling import spelled
from onegraph.cli.terminal import say
from onegraph.errors import ArgumentError, Error
from onegraph.sampling import DEFAULTS

__all__ = ["COMMANDS", "Session", "obey"]

REPEATED = ("stop", "logit_bias")


@dataclass
class Session:
    """What a chat has at hand; commands change it."""

    llm: LLM
    conversation: Conversation
    #: Keyword arguments of `LLM.chat` that were given.
    sampling: dict[str, Any] = field(default_factory=dict)
    #: Whether to say how each answer went.
    verbose: bool = False
    #: What an answer is asked for with, beside sampling.
    asking: Asking = field(default_factory=Asking)
    over: bool = False


class Row(NamedTuple):
    """A command: what follows it, what it does for people, and what it does."""

    operands: str
    summary: str
    act: Callable[[Session, str], None]


def obey(session: Session, command: str, text: str) -> None:
    """Does what a command says, or says what is wrong with it."""
    row = COMMANDS.get(command)
    if row is None:
        near = difflib.get_close_matches(command.lower(), COMMANDS, n=1)
        meant = f", did you mean {near[0]}?" if near else ""
        _say(f"{command} is not a command{meant}; /help lists them; /{command} sends it as text")
        return
    try:
        row.act(session, text)
    except Error as e:
        _say(spelled(str(e)))


def _say(text: str) -> None:
    say(text, err=True)


def _help(session: Session, text: str) -> None:
    for name, row in COMMANDS.items():
        _say(f"{f'{name} {row.operands}':<22} {row.summary}")
    _say('""" starts a message of several lines, and """ at the end of a line ends it.')
    _say("// at the start of a line sends a message that starts with one slash.")
    _say("Ctrl-C stops an answer, Ctrl-D exits.")


def _leave(session: Session, text: str) -> None:
    session.over = True


def _clear(session: Session, text: str) -> None:
    session.conversation.turns.clear()


def _system(session: Session, text: str) -> None:
    if text == '""':
        session.conversation.system = None
    elif text:
        session.conversation.system = text
    system = session.conversation.system
    _say("no system message" if system is None else f"system message: {system}")


def _save(session: Session, text: str) -> None:
    if not text:
        raise ArgumentError("/save needs a NAME, or a path such as ./talk.json")
    path = place(text)
    there = os.path.lexists(path)
    save(session.conversation, session.llm.path, path)
    said = _counted(session.conversation)
    _say(f"saved {said} to {path}" + (", replacing the file" if there else ""))


def _load(session: Session, text: str) -> None:
    if not text:
        raise ArgumentError("/load needs the NAME of a saved conversation, or a path")
    path = place(text)
    session.conversation = load(path)
    _say(f"loaded {_counted(session.conversation)} from {path}")


def _counted(conversation: Conversation) -> str:
    n = len(conversation.messages())
    return "1 message" if n == 1 else f"{n} messages"


def _set(session: Session, text: str) -> None:
    if not text:
        for name, _, _ in SAMPLING:
            if name != "logprobs":
                _say(_shown(session, name))
        return
    option, _, value = text.partition(" ")
    if not value and "=" in option:
        option, _, value = option.partition("=")
    name = option.removeprefix("--").replace("-", "_")
    kind = _kind(name, option)
    changed = dict(session.sampling)
    if not value.strip():
        changed.pop(name, None)
    else:
        given = _converted(name, kind, value.strip())
        if name == "stop":
            given = [*changed.get(name, []), given]
        elif name == "logit_bias":
            given = {**changed.get(name, {}), given[0]: given[1]}
        elif given == UNLIMITED:
            given = None
        changed[name] = given
    # The engine knows the ranges: it looks at a request, which is taken back at once.
    session.llm.generate([0], stream=True, **changed).close()
    session.sampling = changed
    _say(_shown(session, name))


def _kind(name: str, option: str) -> Any:
    """The type of a sampling option."""
    kinds = {n: kind for n, kind, _ in SAMPLING if n != "logprobs"}
    if name in kinds:
        return kinds[name]
    if name == "logprobs":
        raise ArgumentError("--logprobs needs `onegraph run --json`: a chat only shows text")
    if name in {n for n, _, _ in MODEL}:
        raise ArgumentError(f"{flag(name)} applies at load: exit, and pass it to `onegraph run`")
    if f"/{name}" in COMMANDS:
        raise ArgumentError(f"{option} is not an option: use /{name}")
    near = difflib.get_close_matches(name, kinds, n=1)
    meant = f"; did you mean {flag(near[0])}?" if near else ""
    raise ArgumentError(f"{option} is not a sampling option{meant}: /set lists them")


def _converted(name: str, kind: Any, text: str) -> Any:
    if name == "stop" and len(text) > 1 and text[0] == text[-1] == '"':
        try:
            return json.loads(text)  # "\n" is a line feed
        except ValueError as e:
            raise ArgumentError(f"--stop {text}: not a valid quoted string: {e}") from e
    try:
        return click.types.convert_type(kind).convert(text, None, None)
    except click.BadParameter as e:
        raise ArgumentError(f"{flag(name)} {text}: {e.message}") from e


def _shown(session: Session, name: str) -> str:
    if name in session.sampling:
        value = session.sampling[name]
        if value is None:
            value = UNLIMITED
        if name == "stop":
            value = " ".join(json.dumps(text, ensure_ascii=False) for text in value)
        elif name == "logit_bias":
            value = " ".join(f"{token}={bias:g}" for token, bias in value.items())
        return f"{flag(name):<20} {value}"
    default = DEFAULTS[name]
    said = {"seed": "random for each answer"}.get(name, "none" if default is None else default)
    return f"{flag(name):<20} {said}  (default)"


#: Name and row of each command, in the order of /help.
COMMANDS = {
    "/help": Row("", "Show this help.", _help),
    "/clear": Row("", "Clear the conversation, but keep the system message.", _clear),
    "/system": Row(
        "TEXT", 'Set the system message; without TEXT, show it; "" removes it.', _system
    ),
    "/set": Row("OPTION VALUE", "Set a sampling option; alone, show all of them.", _set),
    "/save": Row("NAME", "Save the conversation; NAME may be a path.", _save),
    "/load": Row("NAME", "Load a saved conversation.", _load),
    "/exit": Row("", "Exit.", _leave),
    "/bye": Row("", "Exit.", _leave),
}
