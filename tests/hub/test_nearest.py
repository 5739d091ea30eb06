"""What an error suggests for a name that nothing is found under: it is then typed as it stands."""

import re
from pathlib import Path

import onegraph
import pytest
from onegraph import hub

LIBRARY = "registry.ollama.ai/library"


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty store of ollama's, and an empty current folder."""
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    monkeypatch.setenv("ONEGRAPH_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "ollama"


def pulled(store: Path, *names: str) -> None:
    for name in names:
        manifest = store / "manifests" / name
        manifest.parent.mkdir(parents=True, exist_ok=True)
        manifest.write_text("{}")


def said_of(ref: str) -> str:
    with pytest.raises((onegraph.ArgumentError, onegraph.FileError)) as e:
        hub.resolve(ref)
    return str(e.value)


def meant_by(ref: str) -> str | None:
    found = re.search(r"\(did you mean '(.+?)'\?\)", said_of(ref))
    return found and found[1]


@pytest.mark.parametrize("ref", ["SmolLM2", "smolm2", "smollm", "smol", "SMOLLM-2"])
def test_a_name_of_the_manifest_is_found_in_any_case_and_by_its_beginning(ref: str) -> None:
    assert meant_by(ref) == "smollm2"
    assert meant_by(f"ollama:{ref}") == "smollm2"


@pytest.mark.parametrize(
    ("ref", "meant"),
    [
        ("llama3.2:1B", "ollama:llama3.2:1b"),
        ("Qwen2.5", "ollama:qwen2.5"),
        ("ollama:Smol", "ollama:smollm:360m"),
        ("ollama:qwen2.5:latst", "ollama:qwen2.5"),
        ("ollama:Llama3.2:1b", "ollama:llama3.2:1b"),
        ("ollama:llama3.2", "ollama:llama3.2:1b"),
        ("tun", "ollama:tune"),
        ("ollama:somone/tune:v2", "ollama:someone/tune:v2"),
        ("OLLAMA:qwen2.5", "ollama:qwen2.5"),
    ],
)
def test_what_ollama_has_pulled_is_suggested(ref: str, meant: str, store: Path) -> None:
    pulled(store, f"{LIBRARY}/llama3.2/1b", f"{LIBRARY}/qwen2.5/latest", f"{LIBRARY}/tune/latest")
    pulled(store, f"{LIBRARY}/smollm/360m", "registry.ollama.ai/someone/tune/v2")
    assert meant_by(ref) == meant


def test_a_name_that_onegraph_fetches_is_said_where_ollama_has_none() -> None:
    message = said_of("ollama:qwen3:4b")
    assert message.startswith("ollama has no model qwen3 in ")
    assert " (without `ollama:`, qwen3:4b is a model that onegraph fetches); run `oll" in message


def test_a_name_that_nothing_is_like_says_how_ollama_would_get_it() -> None:
    message = said_of("command-r")
    assert "did you mean" not in message
    assert "`onegraph list --names` lists known names; name a model as" in message
    assert "if ollama has it, run `ollama pull command-r`" in message
    assert "ollama pull" not in said_of("not a name")


@pytest.mark.parametrize(
    ("ref", "meant"),
    [
        ("Qwen/Qwen2.5-1.5B-Instruct-GGUF", "hf:Qwen/Qwen2.5-1.5B-Instruct-GGUF:Q4_K_M"),
        ("user/repo:Q8_0", "hf:user/repo:Q8_0"),
        ("hf.co/user/repo:Q8_0", "hf:user/repo:Q8_0"),
        ("https://huggingface.co/user/repo-GGUF", "hf:user/repo-GGUF:Q4_K_M"),
        (
            "https://huggingface.co/user/repo/resolve/main/tiny.gguf?download=true",
            "hf:user/repo/tiny.gguf",
        ),
        ("https://huggingface.co/user/repo/blob/v1/half/t.gguf", "hf:user/repo@v1/half/t.gguf"),
        ("user/repo/tiny-q8_0.gguf", "hf:user/repo/tiny-q8_0.gguf"),
        ("HF:user/repo:Q8_0", "hf:user/repo:Q8_0"),
    ],
)
def test_a_model_as_hugging_face_spells_it_becomes_a_reference(ref: str, meant: str) -> None:
    assert meant_by(ref) == meant
    assert hub.hugging_face.parse(meant)


def test_an_address_elsewhere_suggests_nothing() -> None:
    assert meant_by("https://example.org/user/model.gguf") is None


def test_a_mistyped_path_suggests_a_file_beside_it(tmp_path: Path) -> None:
    (tmp_path / "Model-Q4_K_M.gguf").touch()
    assert meant_by(str(tmp_path / "modl-q4_k_m.gguf")) == str(tmp_path / "Model-Q4_K_M.gguf")
    assert meant_by("smollm2.gguf") == "smollm2"
    assert meant_by(str(tmp_path / "another.gguf")) is None
    # Like "smollm2.gguf" by its ending alone.
    assert meant_by("model.gguf") is None


def test_references_are_all_that_can_be_named(store: Path) -> None:
    pulled(store, f"{LIBRARY}/qwen2.5/1.5b", f"{LIBRARY}/tiny/latest", "hf.co/user/Tiny-GGUF/Q8_0")
    pulled(store, "registry.ollama.ai/someone/tune/v2", f"{LIBRARY}/.DS_Store/latest")
    assert hub.references() == [
        *sorted([*hub.known_models(), *hub.names()]),
        "ollama:hf.co/user/Tiny-GGUF:Q8_0",
        "ollama:qwen2.5:1.5b",
        "ollama:someone/tune:v2",
        "ollama:tiny",
    ]
