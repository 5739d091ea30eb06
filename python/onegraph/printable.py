"""Text of a model, a file or the network as a terminal may have it."""

from __future__ import annotations

import unicodedata

__all__ = ["printable"]


class _Pictures(dict[int, int | str]):
    """What stands for each character, by its number; worked out where it is first needed."""

    def __missing__(self, number: int) -> int | str:
        self[number] = shown = number if _harmless(chr(number)) else f"<U+{number:04X}>"
        return shown


#: Format characters that stay. Joiners hold emoji together and spell Persian and Hindi; they move
#: nothing. The signs that Arabic and Kaithi numbers begin with are visible.
_STAY = {
    *("\u200c", "\u200d"),
    *map(chr, range(0x600, 0x606)),
    *("\u06dd", "\u070f", "\u0890", "\u0891", "\u08e2", "\U000110bd", "\U000110cd"),
}

#: Cc: controls. Cf: what is not seen and moves or hides others, as the bidirectional controls do.
#: Zl, Zp: line ends to some. Cs: no character, left of bytes that were no UTF-8. Letters that have
#: no glyph here, private and unassigned characters are the font's to show, and do nothing.
_PICTURED = {"Cc", "Cf", "Zl", "Zp", "Cs"}


def _harmless(character: str) -> bool:
    return character in _STAY or unicodedata.category(character) not in _PICTURED


_PICTURES = _Pictures({c: 0x2400 + c for c in range(32)})
_PICTURES |= {0x09: 0x09, 0x0A: 0x0A, 0x7F: 0x2421}


def printable(text: str) -> str:
    """`text` without characters that could steer a terminal or hide what is written.

    Control characters of ASCII become the characters that picture them; others, and those that
    are not seen but turn or hide text, their number, as in `<U+202E>`. Line feeds and tabs stay.
    """
    return text if text.isprintable() else text.translate(_PICTURES)
