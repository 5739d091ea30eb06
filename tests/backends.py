"""The one list of backends that the op-level suites run on. A new backend joins by one line."""

from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Backend:
    """Where plans run, and how near to the float64 definition of an op it must come."""

    #: What `PlanRunner` calls it.
    device: str
    #: Most normalized mean square error of one op.
    nmse: float


BACKENDS = [
    # Sums of float32 products in 32 lanes: relative errors near 1e-7, their squares near 1e-14.
    Backend("cpu", nmse=1e-12),
]

over_backends = pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: b.device)
