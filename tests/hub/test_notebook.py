"""The bar in a notebook: in a real kernel, without ipywidgets, which draw none here."""

import hashlib
import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

#: Runs code in the kernel; gives the messages that a notebook's page would get, each its type and
#: its content.
Cell = Callable[[str], list[tuple[str, dict[str, Any]]]]


@pytest.fixture
def cell(tmp_path: Path) -> Iterator[Cell]:
    brings = "no ipykernel: `pip install .[thorough]` brings it"
    pytest.importorskip("ipykernel", reason=brings)
    from jupyter_client.manager import KernelManager

    if importlib.util.find_spec("ipywidgets"):
        pytest.skip("ipywidgets is installed: nothing would warn that it lacks")
    manager = KernelManager()
    env = os.environ | {
        "IPYTHONDIR": str(tmp_path / "ipython"),
        "ONEGRAPH_CACHE_DIR": str(tmp_path / "cache"),
        "HF_HUB_CACHE": str(tmp_path / "hub"),
        "HF_HUB_OFFLINE": "1",
    }
    manager.start_kernel(env=env, cwd=str(tmp_path))
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=60)

    def run(code: str) -> list[tuple[str, dict[str, Any]]]:
        said: list[tuple[str, dict[str, Any]]] = []
        reply = client.execute_interactive(
            code,
            timeout=120,
            output_hook=lambda message: said.append((message["msg_type"], message["content"])),
        )
        assert reply["content"]["status"] == "ok", reply["content"]
        return [
            (kind, content) for kind, content in said if kind not in ("status", "execute_input")
        ]

    yield run
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def drawn(said: list[tuple[str, dict[str, Any]]]) -> list[str]:
    """The states of the one bar that is all there is."""
    assert said and {kind for kind, _ in said} <= {"display_data", "update_display_data"}, said
    assert len({content["transient"]["display_id"] for _, content in said}) == 1
    return [content["data"]["text/plain"] for _, content in said]


def test_a_load_in_a_notebook_draws_a_plain_bar_and_no_warning(cell: Cell, smollm2: Path) -> None:
    first, *states, last = drawn(
        cell(f"import onegraph; llm = onegraph.LLM({str(smollm2)!r}, device='cpu', n_ctx=64)")
    )
    assert (first, last) == ("", "")
    assert not any("\x1b" in state for state in states)
    weights = [state for state in states if state.startswith("weights")]
    assert weights and weights[-1].endswith("/92.1 MiB"), states


def test_a_download_in_a_notebook_shows_its_size_and_no_warning(cell: Cell, tmp_path: Path) -> None:
    bar = """
from onegraph.progress import shown
with shown(None) as tell:
    for n in range(0, 93_000_000, 1_000_000):
        tell("downloading smollm2", n, 92_871_040)
"""
    _, state, *_, last = drawn(cell(bar))
    assert state.startswith("downloading smollm2") and state.endswith("0.0/88.6 MiB")
    assert last == ""
    # huggingface_hub imports tqdm, which asks for ipywidgets in a notebook.
    commit = "0123456789abcdef0123456789abcdef01234567"
    repo = tmp_path / "hub" / "models--user--Tiny-GGUF"
    blob = repo / "blobs" / hashlib.sha256(b"GGUF").hexdigest()
    link = repo / "snapshots" / commit / "Tiny-Q8_0.gguf"
    for path in [blob, link, repo / "refs" / "main"]:
        path.parent.mkdir(parents=True)
    (repo / "refs" / "main").write_text(commit)
    blob.write_bytes(b"GGUF")
    link.symlink_to(blob)
    assert cell("from onegraph import hub; path = hub.resolve('hf:user/Tiny-GGUF:Q8_0')") == []
    assert "progress" not in str(cell("print(path.read_text())"))


def test_no_bar_is_drawn_where_none_is_wished(cell: Cell) -> None:
    code = "from onegraph.progress import shown\nwith shown(False) as tell: print(tell)"
    assert cell(code) == [("stream", {"name": "stdout", "text": "None\n"})]
