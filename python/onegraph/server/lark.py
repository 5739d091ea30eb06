"""Grammars of Lark without recursion as regular expressions, to which a string in JSON can be held.

That of a patch, by which programs edit files, is one of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["Irregular", "regex_of"]

#: Characters of a grammar and of an expression, as each use of a rule repeats it; and parts that
#: stand in one another.
LONGEST, DEEPEST = 1 << 14, 64

#: What `%import common.NAME` brings.
COMMON = {
    "CNAME": "[_a-zA-Z][_a-zA-Z0-9]*",
    "CR": r"\r",
    "DIGIT": "[0-9]",
    "INT": "[0-9]+",
    "LETTER": "[a-zA-Z]",
    "LF": r"\n",
    "NEWLINE": r"(?:\r?\n)+",
    "NUMBER": r"[0-9]+(?:\.[0-9]+)?",
    "WORD": "[a-zA-Z]+",
    "WS": r"[ \t\f\r\n]+",
    "WS_INLINE": r"[ \t]+",
}

#: A token of a rule: a text, an expression, a name, a sign; what names a tree is left out.
_TOKEN = re.compile(
    r'\s*(?:(?P<text>"(?:[^"\\\n]|\\.)*")(?P<any_case>i?)|(?P<regex>/(?:[^/\\\n]|\\.)+/)(?P<flags>\w*)'
    r"|(?P<alias>->\s*\w+)|(?P<name>[?!]?\w+)|(?P<count>~\s*\d+(?:\s*\.\.\s*\d+)?)|(?P<sign>[()\[\]|?*+]))"
)
_HEAD = re.compile(r"[?!]?(\w+)(?:\.-?\d+)?\s*:")
_IMPORT = re.compile(r"%import\s+common\.(\w+)(?:\s*->\s*(\w+))?\s*$")


class Irregular(Exception):
    """A grammar that is no regular expression here, and why."""


def regex_of(grammar: str) -> str:
    """The expression that a text of the grammar matches, whole; raises `Irregular`."""
    return _Rules(grammar).rule("start", 0)


class _Rules:
    def __init__(self, grammar: str) -> None:
        if len(grammar) > LONGEST:
            raise Irregular(f"it has more than {LONGEST} characters")
        self._bodies: dict[str, str] = {}
        self._made: dict[str, str] = {}
        for line in _lines(grammar):
            if line.startswith("%"):
                found = _IMPORT.match(line)
                if found is None or found[1] not in COMMON:
                    raise Irregular(f"{line[:60]!r} is not known")
                self._made[found[2] or found[1]] = COMMON[found[1]]
            elif head := _HEAD.match(line):
                self._bodies[head[1]] = line[head.end() :]
            else:
                raise Irregular(f"{line[:60]!r} is no rule")

    def rule(self, name: str, depth: int) -> str:
        name = name.lstrip("?!")
        if name not in self._made:
            if name not in self._bodies:
                raise Irregular(f"{name[:60]!r} is not defined, or recursive")
            # It is taken out meanwhile: one that has itself as a part is not found.
            tokens = [*_tokens(self._bodies.pop(name))][::-1]
            made = self._either(tokens, depth)
            if tokens:
                raise Irregular(f"{name[:60]}: a sign too many: {tokens[-1][1]!r}")
            self._made[name] = made
        return self._made[name]

    def _either(self, tokens: list[tuple[str, str]], depth: int) -> str:
        if depth > DEEPEST:
            raise Irregular(f"its parts stand in one another more than {DEEPEST} deep")
        ways: list[list[str]] = [[]]
        size = 0
        while tokens and tokens[-1][1] not in (")", "]"):
            kind, said = tokens.pop()
            if (kind, said) == ("sign", "|"):
                ways.append([])
                continue
            if kind == "count" or (kind == "sign" and said in "?*+"):
                if not ways[-1]:
                    raise Irregular(f"{said!r} stands behind nothing")
                last = ways[-1].pop()
                size -= len(last)
                made = f"(?:{last}){_times(said)}"
            elif kind == "sign":
                within = self._either(tokens, depth + 1)
                if not tokens or tokens.pop()[1] != {"(": ")", "[": "]"}[said]:
                    raise Irregular(f"{said!r} is not closed")
                made = f"(?:{within})" + ("?" if said == "[" else "")
            else:
                made = f"(?:{said if kind == 'regex' else self.rule(said, depth + 1)})"
            ways[-1].append(made)
            size += len(made)
            if size > LONGEST:
                raise Irregular(f"it is an expression of more than {LONGEST} characters")
        return "|".join(map("".join, ways))


def _times(said: str) -> str:
    if said[0] != "~":
        return said
    least, _, most = said[1:].replace(" ", "").partition("..")
    return f"{{{least},{most}}}" if most else f"{{{least}}}"


def _lines(grammar: str) -> Iterator[str]:
    """Rules, each with the lines that go on with it."""
    found: list[str] = []
    for line in grammar.splitlines():
        bare = line.strip()
        if not bare or bare.startswith("//"):
            continue
        if found and bare.startswith("|"):
            found[-1] += f" {bare}"
        else:
            found.append(bare)
    yield from found


def _tokens(body: str) -> Iterator[tuple[str, str]]:
    at = 0
    body = body.rstrip()
    while at < len(body):
        found = _TOKEN.match(body, at)
        if found is None:
            raise Irregular(f"{body[at : at + 60]!r} is not known")
        at = found.end()
        kind = found.lastgroup or ""
        if found["any_case"] or found["flags"]:
            raise Irregular(f"{found[0].strip()!r} has flags")
        if found["text"]:
            yield "regex", _literal(found["text"][1:-1])
        elif found["regex"]:
            yield "regex", found["regex"][1:-1].replace("\\/", "/")
        elif kind != "alias":
            yield kind, found[kind]


def _literal(said: str) -> str:
    """A text as an expression; what it escapes is the same there."""
    parts = re.findall(r"\\.|[^\\]", said)
    known = {"\\n": r"\n", "\\r": r"\r", "\\t": r"\t", '\\"': '"', "\\\\": r"\\"}
    if odd := [part for part in parts if len(part) > 1 and part not in known]:
        raise Irregular(f"{odd[0]!r} is not known")
    return "".join(known[part] if len(part) > 1 else _escaped(part) for part in parts)


def _escaped(letter: str) -> str:
    return f"\\{letter}" if letter in r"\.+*?()|[]{}^$/-" and letter != "-" else letter
