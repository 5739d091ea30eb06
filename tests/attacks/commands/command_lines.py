"""Attacks on the command line: files in a folder, and commands that must come to no harm by them.

Each script beside this one is one kind. Run `python tests/attacks/commands/NAME.py FOLDER`: it
writes the files and prints the commands, to be tried by hand; the list is in `commands.json` too.
"""

import json
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

#: Where the kept file of the model `smollm2` goes, below $ONEGRAPH_CACHE_DIR, and its size.
KEPT = Path("models", "smollm2-b179c952.gguf")
KEPT_SIZE = 98_362_432


@dataclass
class Command:
    """A command, run by Python in the folder, and what must come of it."""

    name: str
    #: Behind `python`.
    argv: list[str]
    #: A pattern in what it prints.
    expect: str
    #: What it exits with.
    code: int = 1
    #: Variables beside the user's own; the folder is {folder}.
    env: dict[str, str] = field(default_factory=dict)
    #: Files that the attack makes where it works.
    absent: list[str] = field(default_factory=list)
    #: Files that must be as they were, and their text.
    kept: dict[str, str] = field(default_factory=dict)
    #: Text that must not reach a terminal; where it is given, the command runs at one.
    never: list[str] = field(default_factory=list)


def quoted(text: str) -> str:
    """An argument as bash reads it and a terminal may have it."""
    if text.isprintable():
        return shlex.quote(text)
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return "$'" + "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in escaped) + "'"


def main(write: Callable[[Path], Iterator[Command]]) -> None:
    """Writes files and list into the folder named on the command line."""
    if len(sys.argv) != 2:
        sys.exit(f"usage: python {sys.argv[0]} FOLDER")
    folder = Path(sys.argv[1]).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    commands = list(write(folder))
    for command in commands:
        command.env = {name: text.format(folder=folder) for name, text in command.env.items()}
        variables = " ".join(f"{name}={shlex.quote(text)}" for name, text in command.env.items())
        print(f"cd {folder}; {variables} python {' '.join(map(quoted, command.argv))}")
    (folder / "commands.json").write_text(json.dumps([asdict(c) for c in commands], indent=1))


if __name__ == "__main__":
    sys.exit("run one of the scripts beside this one")
