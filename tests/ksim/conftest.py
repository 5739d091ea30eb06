"""A card for the tests of one process, and a way to run a few lines in another."""

import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ksim.card import Card


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


Script = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def script(ksim_library_dir: Path, ksim_env: dict[str, str]) -> Script:
    """Runs Python lines in a process of their own, with `card` open and `environment` set."""

    def run(
        body: str, *, opened: bool = True, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        prelude = (
            f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
            "from pathlib import Path\nfrom ksim.card import *\n"
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
