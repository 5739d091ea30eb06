"""A cache of more than 2^32 numbers: the simulator gives memory that costs nothing until it is
written, the same offsets on a card need 17 GB.

Two pages of one sequence lie where an offset of 32 bits would take one for the other.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.card_process import OnCard

pytestmark = pytest.mark.thorough

BODY = """
from dataclasses import replace
sys.path.insert(0, given["tests"])
from support.backends import on_card
from support.plans import bits
from support.plans_kv import Cache

backend = on_card("simulated" if not given["real"] else "card")
cache = Cache(n_layer=1, n_head=8, n_head_kv=8, head_dim=256, n_slots=1, n_ctx=128, n_pages=3)
page_values = 8 * 64 * 256
wraps = 2**32 // page_values + 1  # in 32 bits it begins where page 1 does
large = replace(cache, n_pages=wraps + 1)
run = large.run(backend)
run.map(0, [wraps, 1])
found = large.feed(run, range(100))
out["values"] = wraps * page_values
out["equal"] = bool(np.array_equal(bits(found), bits(cache.solo(backend, range(100)))))
"""


def test_offsets_have_64_bits(on_card: OnCard) -> None:
    out = on_card(BODY, tests=str(Path(__file__).parents[1]), env={"KSIM_MEMORY": str(40 << 30)})
    assert out["values"] >= 2**32
    assert out["equal"]
