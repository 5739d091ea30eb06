"""Names in ollama's spelling, each of an `hf:` reference: the table `names.txt`."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

__all__ = ["Named", "names"]


class Named(NamedTuple):
    """What a name stands for."""

    #: Of Hugging Face.
    reference: str
    #: The model, for people.
    model: str
    #: GiB that one conversation of 8,192 tokens takes, weights included.
    memory: float


def names() -> dict[str, Named]:
    """The table, by name."""
    rows = Path(__file__).with_name("names.txt").read_text(encoding="utf-8").splitlines()
    split = [row.split(maxsplit=3) for row in rows if not row.startswith("#")]
    found = {
        name: Named(reference, "".join(model), float(memory))
        for name, memory, reference, *model in split
        if memory != "="
    }
    # In the order of the file.
    same = {name: other for name, equal, other, *_ in split if equal == "="}
    return {row[0]: found[same.get(row[0], row[0])] for row in split}
