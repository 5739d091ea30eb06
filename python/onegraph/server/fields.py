"""Fields of a request's body. Each look names the field, the value and what was expected; a field
that is `null` is one that is not there, and one that nobody looks at is ignored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from onegraph import arguments
from onegraph.errors import ArgumentError
from onegraph.server.refusals import Refused

__all__ = ["Fields", "wrong"]


def wrong(field: str, value: object, expected: str, status: int = 400) -> Refused:
    """The refusal of a field whose value is not what was expected."""
    return Refused(status, str(arguments.refused(field, value, expected)), field=field)


class Fields:
    """An object of a body; `within` is where in the body it stands. `owner` names whose prefixes
    the body may find, where not all share them."""

    def __init__(self, values: Mapping[str, Any], within: str = "", owner: str = "") -> None:
        self.values = values
        self.within = within
        self.owner = owner

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def path(self, name: str) -> str:
        """What the field is called in a message."""
        return f"{self.within}.{name}" if self.within else name

    def get(self, name: str) -> Any:
        """Its value whatever that is; None where it is not there."""
        return self.values.get(name)

    def _found(self, name: str, kind: type | tuple[type, ...], expected: str) -> Any:
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise wrong(self.path(name), value, expected)
        return value

    def text(self, name: str) -> str | None:
        """A text that UTF-8 can spell."""
        found: str | None = self._found(name, str, "must be a string")
        self._check(name, found, arguments.text)
        return found

    def _check(self, name: str, found: Any, check: Callable[[str, Any], object]) -> None:
        if found is not None:
            try:
                check(self.path(name), found)
            except ArgumentError as e:
                raise Refused(400, str(e), field=self.path(name)) from e

    def flag(self, name: str, default: bool = False) -> bool:
        """true or false."""
        found = self._found(name, bool, "must be true or false")
        return default if found is None else bool(found)

    def integer(self, name: str, least: int | None = None, most: int | None = None) -> int | None:
        """A whole number within bounds."""
        found: int | None = self._found(name, int, "must be an integer")
        self._bound(name, found, least, most)
        return found

    def number(
        self, name: str, least: float | None = None, most: float | None = None
    ) -> float | None:
        """A number within bounds, which a float can be."""
        found: float | None = self._found(name, (int, float), "must be a number")
        self._check(name, found, arguments.number)
        self._bound(name, found, least, most)
        return found

    def _bound(
        self, name: str, found: float | None, least: float | None, most: float | None
    ) -> None:
        if found is None:
            return
        if least is not None and found < least:
            raise wrong(self.path(name), found, f"must be at least {least:g}")
        if most is not None and found > most:
            raise wrong(self.path(name), found, f"must be at most {most:g}")

    def items(self, name: str) -> list[Any] | None:
        """A list."""
        found: list[Any] | None = self._found(name, list, "must be a list")
        return found

    def integers(self, name: str, expected: str) -> list[int] | None:
        """A list of whole numbers."""
        found = self.items(name)
        # A truth value is a number to Python. Long lists are of plain ones: one look for all.
        if found and set(map(type, found)) != {int}:
            at = next(i for i, each in enumerate(found) if type(each) is not int)
            raise wrong(f"{self.path(name)}[{at}]", found[at], expected)
        return found

    def texts(self, name: str) -> list[str] | None:
        """A string or a list of them."""
        found = self._found(name, (str, list), "must be a string or a list of strings")
        if found is None:
            return None
        several = [found] if isinstance(found, str) else found
        for i, each in enumerate(several):
            if not isinstance(each, str):
                raise wrong(f"{self.path(name)}[{i}]", each, "must be a string")
        return list(several)

    def object(self, name: str) -> Fields | None:
        """An object, to be looked into."""
        found = self._found(name, dict, "must be an object")
        return None if found is None else Fields(found, self.path(name))

    def objects(self, name: str) -> list[Fields]:
        """A list of objects, which must be there."""
        found = self.items(name)
        if found is None:
            raise Refused(400, f"{self.path(name)}: missing", field=self.path(name))
        several = []
        for i, each in enumerate(found):
            here = f"{self.path(name)}[{i}]"
            if not isinstance(each, dict):
                raise wrong(here, each, "must be an object")
            several.append(Fields(each, here))
        return several

    def needed(self, name: str) -> None:
        """Raises where the field is not there."""
        if name not in self:
            raise Refused(400, f"{self.path(name)}: missing", field=self.path(name))

    def absent(self, name: str, why: str, status: int = 400) -> None:
        """Raises where the field asks for something: it is there, and not empty."""
        value = self.values.get(name)
        if value is None or value is False or value in ("", [], {}):
            return
        raise Refused(status, f"{self.path(name)}: {why}", field=self.path(name))
