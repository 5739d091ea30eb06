"""What arguments must be. Each check names the argument, the value and what was expected.

What they let through the native module takes without an error of its own; ranges it checks itself.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from onegraph.errors import ArgumentError

__all__ = [
    "cards",
    "flag",
    "integer",
    "integers",
    "is_sequence",
    "items",
    "mapping",
    "number",
    "path",
    "refused",
    "several",
    "shown",
    "text",
    "texts",
    "unsigned",
    "variables",
    "word",
]


#: Bytes that a file's name and path may have on Linux; elsewhere it is less.
NAME_MAX, PATH_MAX = 255, 4095

#: Characters of a value that a message repeats.
SHOWN = 60


def refused(name: str, value: object, expected: str) -> ArgumentError:
    """The error for a value that is not what was expected."""
    return ArgumentError(f"{name} = {shown(value)}: {expected}")


def cards(device: str) -> list[int]:
    """Numbers of the GPUs that "cuda:0,1", "cuda:1", "cuda" or "auto" names; none of "cpu"."""
    if device == "cpu":
        return []
    numbers = (device.partition(":")[2] or "0").split(",")
    if not all(number.isdecimal() for number in numbers):
        known = "must be auto, cpu, cuda, cuda:N or cuda:N,M, N and M card numbers"
        raise refused("device", device, known)
    return [int(number) for number in numbers]


def shown(value: object) -> str:
    """A number or text as it is written, where that is short; else what it is."""
    if isinstance(value, int) and value.bit_length() > 200:
        return f"an integer of {value.bit_length()} bits"  # Python may refuse to write it
    is_short = not isinstance(value, str) or len(value) <= SHOWN
    if value is None or (isinstance(value, int | float | str) and is_short):
        written = repr(value)
        if len(written) <= SHOWN:
            return written
    return f"a value of type {type(value).__name__}"


def several(names: Iterable[str]) -> str:
    """The first of some names, and how many there are beside them."""
    rest = iter(names)
    found = [name if len(name) <= SHOWN else f"{name[:SHOWN]}..." for name in islice(rest, 8)]
    more = sum(1 for _ in rest)
    return ", ".join(found) + (f" and {more} more" if more else "")


def flag(name: str, value: object) -> bool:
    """True or False; no other value that Python would take for one of them."""
    if not isinstance(value, bool):
        raise refused(name, value, "must be True or False")
    return value


def integer(name: str, value: Any) -> int:
    """An int that fits 64 bits; the engine checks the range that makes sense."""
    found = _index(name, value)
    if not -(2**63) <= found < 2**63:
        raise refused(name, found, "is out of range")
    return found


def unsigned(name: str, value: Any) -> int:
    """An int from 0 to 2**64 - 1."""
    found = _index(name, value)
    if not 0 <= found < 2**64:
        raise refused(name, found, "must be from 0 to 2**64 - 1")
    return found


def _index(name: str, value: Any) -> int:
    if isinstance(value, bool):
        raise refused(name, value, "must be an integer")
    try:
        return operator.index(value)
    except TypeError as e:
        raise refused(name, value, "must be an integer") from e


def number(name: str, value: Any) -> float:
    """A float; infinities and NaN are for the engine to judge."""
    if isinstance(value, bool | str | bytes | bytearray):
        raise refused(name, value, "must be a number")
    try:
        return float(value)
    except OverflowError as e:
        raise refused(name, value, "is out of range") from e
    except (TypeError, ValueError) as e:
        raise refused(name, value, "must be a number") from e


def is_sequence(value: object) -> bool:
    """Whether it is a list, a tuple, an array or the like: no text, and nothing that is used up by
    a look at it."""
    if isinstance(value, str | bytes | bytearray | memoryview | Mapping):
        return False
    return hasattr(type(value), "__len__") and hasattr(type(value), "__getitem__")


def items(name: str, value: Any, of: str) -> list[Any]:
    """The items of a sequence."""
    if is_sequence(value):
        try:
            return list(value)
        except TypeError:  # such as an array without dimensions
            pass
    expected = f"must be a sequence of {of}"
    if isinstance(value, bytes | bytearray | memoryview):
        expected += "; bytes are neither: decode them to a str"
    raise refused(name, value, expected)


def integers(name: str, value: Any) -> list[int]:
    """Items of a sequence, each an int of 64 bits."""
    found = items(name, value, "integers")
    # Long prompts are many plain ones: looked at one by one they would take longer than their page
    # of the cache.
    if set(map(type, found)) == {int} and min(found) >= -(2**63) and max(found) < 2**63:
        return found
    return [integer(name, item) for item in found]


def text(name: str, value: object) -> str:
    """A text that UTF-8 can spell."""
    if not isinstance(value, str):
        raise refused(name, value, "must be a str")
    try:
        value.encode()
    except UnicodeEncodeError as e:
        raise ArgumentError(
            f"{name} = a str of {len(value)} characters: the character at index {e.start} is half "
            "of a surrogate pair, which UTF-8 cannot encode; decode its bytes with their "
            "own encoding"
        ) from e
    return value


def word(name: str, value: object) -> str:
    """A short text, which the engine looks up."""
    found = text(name, value)
    if len(found) > SHOWN:
        raise refused(name, found, "is too long to be a valid name")
    return found


def texts(name: str, value: Any) -> list[str]:
    """One text or several."""
    if isinstance(value, str):
        return [text(name, value)]
    if not isinstance(value, Collection) or isinstance(value, bytes | bytearray | Mapping):
        raise refused(name, value, "must be a str or a list of them")
    return [text(name, item) for item in value]


def mapping(name: str, value: Any) -> Mapping[Any, Any]:
    """A dict or another mapping; None is an empty one."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise refused(name, value, "must be a dict")
    return value


def variables(name: str, value: Any, taken: Collection[str]) -> dict[str, Any]:
    """Keyword arguments: a mapping with texts for keys, none of them taken."""
    found = {text(name, key): item for key, item in mapping(name, value).items()}
    for key in taken:
        if key in found:
            raise ArgumentError(f"{name} = {{{key!r}: ...}}: cannot be set by the caller")
    return found


def path(name: str, value: Any) -> str | os.PathLike[str]:
    """A str or an `os.PathLike` of one."""
    try:
        spelled = os.fspath(value)
    except TypeError as e:
        raise refused(name, value, "must be a path: a str or an os.PathLike") from e
    if not isinstance(spelled, str):
        raise refused(name, value, "must be a path: a str, not bytes")
    try:
        too_long = any(len(part) > NAME_MAX for part in os.fsencode(spelled).split(b"/"))
        Path(spelled).expanduser()
    except UnicodeEncodeError as e:
        raise refused(name, spelled, "not a valid file name") from e
    except RuntimeError as e:
        raise refused(name, spelled, f"{e}; give the whole path") from e
    if too_long or len(spelled) > PATH_MAX:
        raise refused(name, spelled, "too long for a file name")
    found: str | os.PathLike[str] = value
    return found
