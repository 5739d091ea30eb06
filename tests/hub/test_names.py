"""The table of names in ollama's spelling, and the copies of ollama that go before it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import shapes
import synth
from onegraph import _native, hub
from onegraph.hub import hugging_face
from support import fake_hub, fake_ollama

LIBRARY = "registry.ollama.ai/library"

#: Names, and their models' shapes.
SHAPES = {
    "gemma3:4b": ("gemma-3-4b", "Q4_K_M"),
    "gemma4:e4b": ("gemma-4-e4b", "Q4_K_M"),
    "gpt-oss:20b": ("gpt-oss-20b", "MXFP4"),
    "llama3.2:1b": ("llama-3.2-1b", "Q4_K_M"),
    "qwen3:30b": ("qwen3-30b-a3b", "Q4_K_M"),
    "qwen3-embedding:0.6b": ("qwen3-embedding-0.6b", "Q8_0"),
    "qwen3.5:27b": ("qwen3.5-27b", "Q4_K_M"),
}


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty store of ollama's."""
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    monkeypatch.setenv("ONEGRAPH_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "ollama"


def test_each_name_stands_for_a_reference() -> None:
    names = hub.names()
    assert len(names) > 60
    assert not set(names) & set(hub.known_models())
    for name, named in names.items():
        assert hugging_face.parse(named.reference).tag
        assert hub.meant(name) == named.reference
        # A name without a size is one of those with it.
        assert ":" in name or named in [names[n] for n in names if n.startswith(f"{name}:")]


@pytest.mark.parametrize("name", SHAPES)
def test_the_memory_is_what_info_says_of_such_a_file(name: str, tmp_path: Path) -> None:
    shape, mix = SHAPES[name]
    synth.outline(tmp_path / "model.gguf", shapes.find(shape), mix)
    told = json.loads(_native.model_info(tmp_path / "model.gguf", 8192, 1, "i16", "cpu"))
    # Each thread has scratch of its own.
    assert told["memory"]["total_bytes"] / 2**30 == pytest.approx(
        hub.names()[name].memory, rel=0.03, abs=0.5
    )


def test_the_copy_of_ollama_goes_first(
    store: Path, tiny: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blob = fake_ollama.add_model(store, f"{LIBRARY}/llama3.2/1b", tiny.read_bytes())
    mine = fake_ollama.add_model(store, f"{LIBRARY}/mine/latest", tiny.read_bytes() + b"\0")
    assert hub.meant("llama3.2:1b") == "ollama:llama3.2:1b"
    assert hub.resolve("llama3.2:1b") == blob
    assert hub.resolve("mine") == mine
    assert hub.meant("llama3.2").startswith("hf:")
    assert not caplog.records


def test_a_copy_of_ollama_that_cannot_run_is_not_taken_where_the_hub_has_one(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fake_ollama.add_model(store, f"{LIBRARY}/gpt-oss/20b", b"GGUF of another engine")
    assert hub.meant("gpt-oss:20b") == hub.names()["gpt-oss:20b"].reference
    assert "ollama's copy of gpt-oss:20b cannot run here" in caplog.text


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("llama3.2:2b", "llama3.2:3b"), ("Qwen3.5", "qwen3.5"), ("gtp-oss", "gpt-oss")],
)
def test_a_wrong_name_is_met_by_a_near_one(typed: str, meant: str) -> None:
    with pytest.raises(ValueError, match=f"unknown model '{typed}' .did you mean '{meant}'"):
        hub.resolve(typed)


#: A pull of a name that stands for a file of the hub on the loopback.
PULL = f"""
import sys
from onegraph import cli, hub
from onegraph.hub import Named
known = hub.names() | {{"tiny:1b": Named("hf:{fake_hub.REPO}:Q4_K_M", "Tiny 1B", 1.5)}}
hub.names = lambda: known
sys.exit(cli.main(sys.argv[1:]))
"""


def run(env: dict[str, str], *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PULL, *args]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)


@pytest.mark.thorough
def test_a_name_is_pulled_from_the_hub_and_listed(tmp_path: Path, tiny: Path) -> None:
    with fake_hub.running() as server:
        # Of two mixes the plain one.
        server.commit(
            {"Tiny-UD-Q4_K_M.gguf": b"GGUF", "Tiny-Q4_K_M.gguf": tiny.read_bytes()}, "main"
        )
        env = server.environment(tmp_path) | {"HF_TOKEN": "hf_secret"}
        pulled = run(env, "pull", "tiny:1b")
        assert pulled.returncode == 0, pulled.stderr
        said = f"tiny:1b is hf:{fake_hub.REPO}:Q4_K_M: Tiny 1B, 1.5 GiB with a conversation"
        assert said in pulled.stderr
        assert Path(pulled.stdout.strip()).read_bytes() == tiny.read_bytes()
        assert server.tokens == {"Bearer hf_secret"}
        listed = json.loads(run(env, "list", "--json").stdout)["models"]
        assert [m["name"] for m in listed if m["store"] == "Hugging Face"] == ["tiny:1b"]


@pytest.mark.thorough
def test_a_proxy_is_asked(tmp_path: Path, tiny: Path) -> None:
    with fake_hub.running() as server:
        server.commit({"Tiny-Q4_K_M.gguf": tiny.read_bytes()}, "main")
        env = server.environment(tmp_path) | {"HF_ENDPOINT": "http://hub.invalid"}
        pulled = run(env | {"NO_PROXY": "", "HTTP_PROXY": server.endpoint}, "pull", "tiny:1b")
        assert pulled.returncode == 0, pulled.stderr
        assert server.asked


@pytest.mark.thorough
def test_a_hub_that_cannot_be_reached_says_what_to_do(tmp_path: Path) -> None:
    env = os.environ | {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_CACHE": str(tmp_path / "hf")}
    failed = run(env | {"NO_PROXY": "*"}, "pull", "tiny:1b")
    assert failed.returncode == 1
    where = "cannot download the list of files of user/Tiny-GGUF from http://127.0.0.1:9: "
    assert where in failed.stderr
    assert "HTTPS_PROXY names a proxy, HF_ENDPOINT a mirror" in failed.stderr
