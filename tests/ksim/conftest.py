"""A card for the tests of one process, and a way to run a few lines in another."""

import ctypes
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.backends import ON_CARD
from support.card import Card, real_nvrtc
from support.card_process import Script


@pytest.fixture
def card(
    ksim_library_dir: Path, ksim_env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Card]:
    """A context of its own; a test that leaves things allocated loses them with it."""
    monkeypatch.setenv("KSIM_CACHE", ksim_env["KSIM_CACHE"])
    opened = Card(ksim_library_dir).open()
    yield opened
    opened.close()
    assert "contexts" not in opened.live()


@pytest.fixture(params=["simulated", *ON_CARD])
def any_card(request: pytest.FixtureRequest) -> Iterator[Card]:
    """The simulated card, and the real one where there is one: what holds for both."""
    if request.param == "simulated":
        yield request.getfixturevalue("card")
        return
    if hasattr(ctypes.CDLL("libcuda.so.1"), "ksimStats"):
        pytest.skip("this process has the simulated driver; `pytest -m gpu` runs this")
    nvrtc = real_nvrtc()
    if nvrtc is None:
        pytest.skip("pip install 'nvidia-cuda-nvrtc-cu12>=12.9', or set ONEGRAPH_TEST_NVRTC")
    opened = Card(Path("libcuda.so.1"), nvrtc).open()
    yield opened
    opened.close()


@pytest.fixture
def script(ksim_library_dir: Path, ksim_env: dict[str, str]) -> Script:
    """Runs Python lines in a process of their own, with `card` open and `environment` set."""

    def run(
        body: str, *, opened: bool = True, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        prelude = (
            f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
            "from pathlib import Path\nfrom support.card import *\n"
            f"card = Card(Path({str(ksim_library_dir)!r}))" + (".open()" if opened else "") + "\n"
        )
        return subprocess.run(
            [sys.executable, "-c", prelude + textwrap.dedent(body)],
            env=ksim_env | environment,
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run
