"""Sums of sub-blocks on tensor cores, against sums of integers."""

from __future__ import annotations

import onegraph
import pytest
from onegraph import check
from support.card_process import OnCard

pytestmark = pytest.mark.thorough

TYPES = {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"}
TYPES |= {"IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ3_S", "IQ2_S", "IQ1_M"}
TYPES |= {"IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4"}
#: Those with a scale for every 16 columns.
OF_16 = {"Q2_K", "Q3_K", "Q6_K", "IQ2_XS", "IQ2_S", "IQ1_M", "NVFP4"}

BODY = """
import time
from onegraph import check
check.check_sums("cuda", 1)
begun = time.perf_counter()
found = check.check_sums("cuda", given["sums"])
out["seconds"] = time.perf_counter() - begun
out["found"] = [[f.type, f.sums, f.wrong] for f in found]
"""


def test_every_type_is_exact(on_card: OnCard) -> None:
    # Sixteen units a type have all the extremes; a real card has as many as `onegraph check` takes.
    out = on_card(BODY, sums=16 * 1024 * len(TYPES))
    assert {name for name, _, _ in out["found"]} == TYPES
    for name, sums, wrong in out["found"]:
        assert (sums, wrong) == (16 * 1024 * (2 if name in OF_16 else 1), 0), name


@pytest.mark.gpu
def test_what_check_takes_is_done_in_a_second(real_card: OnCard) -> None:
    out = real_card(BODY, sums=check.SUMS)
    assert sum(sums for _, sums, _ in out["found"]) >= 10_000_000
    assert all(wrong == 0 for _, _, wrong in out["found"])
    assert out["seconds"] < 1


def test_the_cpu_has_none(simulated: OnCard) -> None:
    with pytest.raises(onegraph.DeviceError, match="its sums are of integers"):
        check.check_sums("cpu")
    out = simulated(
        """
        from onegraph import check
        for sums in (0, -1, 2**40):
            try:
                check.check_sums("cuda", sums)
            except onegraph.ArgumentError as error:
                out[str(sums)] = str(error)
        """
    )
    assert len(out) == 3 and all("sums = " in said for said in out.values()), out
