"""Shell completion, by click's protocol: `eval "$(_ONEGRAPH_COMPLETE=bash_source onegraph)"`, and
likewise `zsh_source` and `fish_source`."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    shell_complete,
)

from onegraph import hub
from onegraph.cli.local import ours
from onegraph.cli.options import KV_TYPES
from onegraph.errors import Error

__all__ = ["VARIABLE", "complete", "prepare"]

#: The variable in which a shell says what it wants.
VARIABLE = "_ONEGRAPH_COMPLETE"
SHELLS = ("bash", "zsh", "fish")

Items = list[CompletionItem[str]]


def complete(cli: click.Group, wish: str) -> int:
    """Prints what a shell asks for by `wish`, such as "bash_source"; the exit code."""
    shell, _, what = wish.partition("_")
    if shell not in SHELLS or what not in ("source", "complete"):
        wishes = ", ".join(f"{shell}_source" for shell in SHELLS)
        raise click.UsageError(f"{VARIABLE}={wish}: must be one of {wishes}")
    return shell_complete(cli, {}, "onegraph", VARIABLE, wish)


def prepare(command: click.Command) -> None:
    """Gives the parameters of a command the words they complete to. Needed by shells alone."""
    for param in command.params:
        if isinstance(param, click.Argument) and param.name in ("model", "name", "names"):
            param.type = _Words(_removable if param.name == "names" else _models)
        elif param.name == "models":  # -m
            param.type = _Words(_models)
        elif param.name == "device":
            param.type = _Words(_starting(["auto", "cpu", "cuda", *_cards()]))
        elif param.name in ("kv_type", "type_k", "type_v"):
            param.type = _Words(_starting(KV_TYPES))
        elif param.name == "pooling":
            param.type = _Words(_starting(["last", "mean", "cls"]))
        elif param.name == "think":
            param.type = _Words(_starting(["on", "off", "low", "medium", "high"]))
        elif param.name == "cuda_graph":
            param.type = _Words(_starting(["full", "piecewise"]))


class _Words(click.ParamType[Any]):
    """Any text, which completes to the words that a function gives for its beginning."""

    name = "text"

    def __init__(self, words: Callable[[str], Items]) -> None:
        self._words = words

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
        return self._words(incomplete)


def _starting(words: Any) -> Callable[[str], Items]:
    return lambda begun: [CompletionItem(word) for word in words if word.startswith(begun)]


def _cards() -> list[str]:
    """cuda:N for each card; the driver is not asked, which takes a while."""
    found = Path("/dev").glob("nvidia[0-9]*")
    return sorted(f"cuda:{path.name.removeprefix('nvidia')}" for path in found)


def _models(begun: str) -> Items:
    """References that are known here, and .gguf files; folders where it may become a path."""
    if not begun.startswith((".", "~", "/")) and "/" not in begun.partition(":")[0]:
        known: list[str] = []
        with contextlib.suppress(Error, OSError):
            known = hub.references()
        named = [*_starting(known)(begun), *_files(begun)]
        if named:
            return named
    return [CompletionItem(begun, type="dir"), *_files(begun)]


def _removable(begun: str) -> Items:
    found: list[str] = []
    with contextlib.suppress(Error, OSError):
        found = [model.name for model in ours()]
    return _starting(found)(begun)


def _files(begun: str) -> Items:
    folder, slash, start = begun.rpartition("/")
    with contextlib.suppress(OSError, RuntimeError):
        names = sorted(os.listdir(Path(folder + slash or ".").expanduser()))
        files = [n for n in names if n.startswith(start) and n.lower().endswith(".gguf")]
        return [CompletionItem(folder + slash + n) for n in files if start or n[0] != "."]
    return []


@add_completion_class
class _Bash(BashComplete):
    """bash takes ':' and '=' for the ends of words, and replaces only what follows the last one."""

    source_template = """\
%(complete_func)s() {
    local line IFS=$'\\n'
    COMPREPLY=()
    while read -r line; do
        case $line in
            plain,*) COMPREPLY+=("${line#plain,}") ;;
            dir,*) compopt -o filenames -o plusdirs ;;
        esac
    done < <(COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD \
%(complete_var)s=bash_complete "$1")
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""

    #: What bash keeps of a word whose end it asks for: "ollama:" of "ollama:Sm".
    _kept = ""
    _paths = False

    def get_completion_args(self) -> tuple[list[str], str]:
        words = os.environ["COMP_WORDS"].split("\n")[: int(os.environ["COMP_CWORD"]) + 1]
        joined: list[str] = []
        for word in words:
            part = joined and (
                (word == ":" and joined[-1].partition(":")[0] in ("ollama", "hf", "cuda"))
                or (joined[-1].endswith(":") and joined[-1] != ":")
            )
            if part:
                joined[-1] += word
            elif word != "=":
                joined.append(word)
        # An '=' by itself is the begin of an empty word.
        args, begun = joined[:-1], joined[-1]
        if words[-1] == "=":
            args, begun = joined, ""
        self._kept = begun[: begun.rfind(":") + 1]
        return [_unquoted(word) for word in args[1:]], _unquoted(begun)

    def get_completions(self, args: list[str], incomplete: str) -> Items:
        found = super().get_completions(args, incomplete)
        self._paths = any(item.type == "dir" for item in found)
        return found

    def format_completion(self, item: CompletionItem[Any]) -> str:
        value = str(item.value).removeprefix(self._kept)
        if not self._paths:  # of paths bash itself quotes what must be
            value = re.sub(r"([^\w@%+=:,./~-])", r"\\\1", value)
        return f"{item.type},{value}"


def _unquoted(word: str) -> str:
    """A word as bash would pass it; one that is not finished, as far as it goes."""
    if word[:1] in ("'", '"'):
        return word.strip(word[0])
    return re.sub(r"\\(.)", r"\1", word)
