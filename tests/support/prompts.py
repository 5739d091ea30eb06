"""Prompts of random tokens."""

from __future__ import annotations

import random


def words(n: int, seed: int = 0) -> list[int]:
    """So many tokens that every vocabulary here has, none of which is special."""
    rng = random.Random(seed)
    return [rng.randrange(3, 250) for _ in range(n)]
