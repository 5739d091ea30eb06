"""Commands that are about a card."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from onegraph.errors import DeviceError, Error

__all__ = ["card_only"]


@contextmanager
def card_only(device: str, cpu: str, about: str) -> Iterator[str]:
    """Gives the device to load on, "cuda" where it is left open; `cpu` says why the CPU is none,
    `about` what the command is for and what there is without a card.

    Elsewhere an error about a card may propose the CPU as a way out. Here it is not one, and the
    error says so.
    """
    if device == "cpu":
        raise DeviceError(
            f'device "cpu": {cpu}; use --device cuda on a machine with an NVIDIA card. {about}'
        )
    try:
        yield "cuda" if device == "auto" else device
    except Error as e:
        said = str(e)
        if 'device="cpu"' not in said:
            raise
        said = re.sub(r'(?:,|;)? ?(?:or )?(?:use )?device="cpu"', "", said)
        raise type(e)(f"{said}; the CPU cannot replace it: {cpu}. {about}") from e
