"""A conversation: what was said by turns, and its file."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onegraph.cli.state import state_dir, write_private
from onegraph.errors import ArgumentError, FileError
from onegraph.hub.cache import open_regular

__all__ = ["Conversation", "load", "place", "save"]

ROLES = ("user", "assistant")
#: A file past this is not a conversation: the longest context is some megabytes of text.
MOST_BYTES = 64 << 20


@dataclass
class Conversation:
    """Instructions, if any, then turns of user and assistant, the user first."""

    system: str | None = None
    turns: list[str] = field(default_factory=list)

    def messages(self) -> list[dict[str, str]]:
        """As `LLM.chat` takes it."""
        first = [] if self.system is None else [{"role": "system", "content": self.system}]
        turns = enumerate(self.turns)
        return first + [{"role": ROLES[i % 2], "content": text} for i, text in turns]


def place(name: str) -> Path:
    """The file of a conversation: the path that `name` is, where it has a slash or ends in .json;
    else NAME.json in the folder `chats` of `onegraph.cli.state`."""
    if "/" in name or name.endswith(".json"):
        try:
            return Path(name).expanduser()
        except RuntimeError as e:
            raise ArgumentError(f"{name}: {e}; give the whole path") from e
    if name in {"", ".", ".."} or "\0" in name:
        raise ArgumentError(f"{name!r} is not a file name: give a name, or a path")
    return state_dir() / "chats" / f"{name}.json"


def save(conversation: Conversation, model: Path, path: Path) -> None:
    """Writes it as JSON: `{"model": FILE, "messages": [{"role": ..., "content": ...}, ...]}`."""
    whole = {"model": str(model), "messages": conversation.messages()}
    text = json.dumps(whole, indent=1)  # ASCII: a path may be no UTF-8
    try:
        write_private(path, f"{text}\n")
    except (OSError, ValueError) as e:
        reason = getattr(e, "strerror", None) or e
        raise FileError(f"cannot write {path}: {reason}; give another path") from e


def load(path: Path) -> Conversation:
    """Reads what `save` wrote, or another program in its form. Raises `FileError` where there is no
    such file, `ArgumentError` where it holds something else."""
    try:
        with open_regular(path) as file:
            raw = file.read(MOST_BYTES + 1)
    except FileError:
        raise
    except (OSError, ValueError) as e:
        kept = ", ".join(_saved()) or "none"
        reason = getattr(e, "strerror", None) or e
        raise FileError(f"cannot read {path}: {reason}; saved conversations: {kept}") from e
    if len(raw) > MOST_BYTES:
        raise ArgumentError(f"{path} is not a conversation: it has over {MOST_BYTES} bytes")
    try:
        whole = json.loads(raw)
    except (ValueError, RecursionError) as e:
        raise ArgumentError(f"{path} is not a conversation: it is not JSON: {e}") from e
    messages = whole.get("messages") if isinstance(whole, dict) else whole
    if not isinstance(messages, list):
        raise ArgumentError(f'{path} is not a conversation: it has no list of "messages"')
    return _conversation(path, messages)


def _conversation(path: Path, messages: list[Any]) -> Conversation:
    found = Conversation()
    for number, message in enumerate(messages, 1):
        role = message.get("role") if isinstance(message, dict) else None
        text = message.get("content") if isinstance(message, dict) else None
        place = f"{path}: message {number}"
        if not isinstance(text, str) or not _spelled_by_utf8(text):
            raise ArgumentError(f'{place} has no text as "content"')
        if number == 1 and role == "system":
            found.system = text
        elif role == ROLES[len(found.turns) % 2]:
            found.turns.append(text)
        else:
            raise ArgumentError(
                f'{place} has "role" {role!r}: user and assistant must alternate, after an '
                "optional system message"
            )
    if len(found.turns) % 2:
        raise ArgumentError(f"{path} ends with a user message: an assistant message must follow")
    return found


def _spelled_by_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _saved() -> list[str]:
    try:
        return sorted(p.stem for p in (state_dir() / "chats").glob("*.json"))
    except (OSError, FileError):
        return []
