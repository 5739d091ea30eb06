"""The one list of backends that the op-level suites run on. A new backend joins by one line."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from onegraph import _native

#: Whether cards, simulated or real, run every case, minutes, or of each test a few.
EXHAUSTIVE = bool(os.environ.get("ONEGRAPH_EXHAUSTIVE"))
CASES = 2

#: Whether there is a card here. Cases on one are made where there is.
HAS_CARD = Path("/dev/nvidia0").exists()
#: What a fixture of cards takes beside "simulated".
ON_CARD = [pytest.param("card", marks=pytest.mark.gpu)] if HAS_CARD else []


@dataclass(frozen=True)
class Backend:
    """Where plans run, and how near to the float64 definition of an op it must come."""

    #: What `PlanRunner` calls it.
    device: str
    #: Most normalized mean square error of one op.
    nmse: float
    #: What tests are called that run on it.
    name: str = "cpu"
    #: Rows of one pass up to which it is a step's. A longer one is a prompt's, of other kernels and
    #: the same bits; none: there is no other.
    step_rows: int | None = None
    #: Most rows of one pass.
    max_rows: int | None = None
    #: The types that keys and values may have; none: all that may anywhere.
    kv_types: tuple[str, ...] | None = None
    #: Heads have a multiple of so many values.
    head_dim_of: int = 1
    #: The slot of padding rows: they are passed over, not refused.
    padding_slot: int | None = None

    def stores(self, kv_type: str, head_dim: int) -> bool:
        """Whether a cache may hold such heads."""
        known = self.kv_types is None or kv_type in self.kv_types
        return known and head_dim % self.head_dim_of == 0

    @property
    def few(self) -> bool:
        """Whether each shape and type costs so much that some stand for all."""
        return self.device != "cpu" and not EXHAUSTIVE

    def examples(self, most: int) -> int:
        """How many examples of a property are worth it."""
        return -(-most // 5) if self.few else most

    def pieces(self, rows: int, most: int | None = None) -> list[range]:
        """`rows` rows cut for passes that all are steps."""
        most = most or self.step_rows or max(rows, 1)
        return [range(i, min(i + most, rows)) for i in range(0, rows, most)]


def on_card(name: str) -> Backend:
    """The CUDA backend; its kernels sum 32-bit floats in other orders than the interpreter."""
    return Backend(
        "cuda",
        nmse=1e-10,
        name=name,
        step_rows=64,
        max_rows=512,
        kv_types=tuple(_native.kv_types(on_card=True)),
        head_dim_of=16,
        padding_slot=2**32 - 1,
    )


BACKENDS = [
    # Sums of float32 products in 32 lanes: relative errors near 1e-7, their squares near 1e-14.
    Backend("cpu", nmse=1e-12),
    # The same kernels and the same host code, on the simulated driver and on a card.
    on_card("simulated"),
    on_card("card"),
]

PARAMS = [
    pytest.param(b, id=b.name, marks=[pytest.mark.gpu] if b.name == "card" else [])
    for b in BACKENDS
    if b.name != "card" or HAS_CARD
]
over_backends = pytest.mark.parametrize("backend", PARAMS, indirect=True)
#: Where the simulated card takes long: there it is thorough.
over_backends_slowly = pytest.mark.parametrize(
    "backend",
    [
        pytest.param(
            *p.values,
            id=p.id,
            marks=[*p.marks] if p.id == "cpu" else [*p.marks, pytest.mark.thorough],
        )
        for p in PARAMS
    ],
    indirect=True,
)
#: Whose bits the others are compared with, where an op's float32 operations are all stated.
INTERPRETER = BACKENDS[0]
over_cards = pytest.mark.parametrize("backend", PARAMS[1:], indirect=True)
#: For what only the simulated driver tells.
on_simulator = pytest.mark.parametrize("backend", [PARAMS[1]], indirect=True)
