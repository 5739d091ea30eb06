"""`ollama:` references, against a store laid out as ollama lays out its own."""

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onegraph
import pytest
from onegraph import hub
from support import fake_ollama

LIBRARY = "registry.ollama.ai/library"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "ollama"
    monkeypatch.setenv("OLLAMA_MODELS", str(root))
    return root


@pytest.mark.parametrize(
    ("ref", "manifest"),
    [
        ("ollama:qwen2.5:1.5b", f"{LIBRARY}/qwen2.5/1.5b"),
        ("ollama:qwen2.5", f"{LIBRARY}/qwen2.5/latest"),
        ("ollama:someone/tune:v2", "registry.ollama.ai/someone/tune/v2"),
        ("ollama:hf.co/user/Tiny-GGUF:Q4_K_M", "hf.co/user/Tiny-GGUF/Q4_K_M"),
        ("ollama:localhost:5000/team/model:a", "localhost:5000/team/model/a"),
        ("ollama:localhost:5000/team/model", "localhost:5000/team/model/latest"),
    ],
)
def test_a_pulled_model_is_used_in_place(ref: str, manifest: str, store: Path) -> None:
    blob = fake_ollama.add_model(store, manifest, b"GGUF of " + ref.encode())
    assert hub.resolve(ref) == blob


def test_the_store_is_found_where_ollama_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OLLAMA_MODELS", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    blob = fake_ollama.add_model(tmp_path / ".ollama" / "models", f"{LIBRARY}/tiny/latest", b"GGUF")
    assert hub.resolve("ollama:tiny") == blob


def test_without_a_store_every_place_looked_at_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OLLAMA_MODELS", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(onegraph.FileError) as e:
        hub.resolve("ollama:no-such-model-here")
    message = str(e.value)
    assert f"{tmp_path}/.ollama/models or /usr/share/ollama/.ollama/models" in message
    assert "ollama pull no-such-model-here:latest" in message
    assert "OLLAMA_MODELS" in message


def test_a_missing_tag_lists_the_tags(store: Path) -> None:
    fake_ollama.add_model(store, f"{LIBRARY}/qwen2.5/1.5b", b"GGUF a")
    fake_ollama.add_model(store, f"{LIBRARY}/qwen2.5/7b", b"GGUF b")
    with pytest.raises(onegraph.FileError) as e:
        hub.resolve("ollama:qwen2.5")
    assert "ollama has no qwen2.5:latest" in str(e.value)
    assert "tags of qwen2.5 there: 1.5b, 7b; run `ollama pull qwen2.5:latest`" in str(e.value)


def test_a_missing_model_lists_the_models(store: Path) -> None:
    fake_ollama.add_model(store, f"{LIBRARY}/qwen2.5/1.5b", b"GGUF")
    fake_ollama.add_model(store, f"{LIBRARY}/llama3.2/1b", b"GGUF")
    with pytest.raises(onegraph.FileError) as e:
        hub.resolve("ollama:command-r")
    assert f"no model command-r in {store}; models there: llama3.2, qwen2.5" in str(e.value)
    assert "ollama pull command-r:latest" in str(e.value)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ":tag",
        "model:",
        "../secret",
        "../../etc/passwd",
        "a/../../b:c",
        "model:../../x",
        "model:..",
        "/etc/passwd",
        "host/space/model/more:tag",
        ".hidden",
        "a b",
        "mo\0del",
        "model:tag:tag",
        "x" * 81,
    ],
)
def test_a_name_that_could_leave_the_store_is_refused(name: str, store: Path) -> None:
    store.mkdir()
    (store.parent / "secret").write_text("{}")
    with pytest.raises(onegraph.ArgumentError, match="write ollama:model, ollama:model:tag or"):
        hub.resolve(f"ollama:{name}")


def test_a_digest_that_could_leave_the_store_is_refused(store: Path) -> None:
    fake_ollama.add_model(store, f"{LIBRARY}/bad/latest", b"GGUF")
    path = store / "manifests" / LIBRARY / "bad" / "latest"
    manifest = json.loads(path.read_text())
    for digest in ["sha256:../../../etc/passwd", "md5:00", "", None, 7, "sha256:" + "A" * 64]:
        manifest["layers"][0]["digest"] = digest
        path.write_text(json.dumps(manifest))
        with pytest.raises(onegraph.ModelError, match="not sha256: and 64 hexadecimal digits"):
            hub.resolve("ollama:bad")


def test_a_partial_blob_is_named_with_both_sizes(store: Path) -> None:
    fake_ollama.add_model(store, f"{LIBRARY}/cut/latest", b"GGUF half", size=1000)
    with pytest.raises(onegraph.ModelError) as e:
        hub.resolve("ollama:cut")
    assert "has 9 bytes, its manifest says 1000" in str(e.value)
    assert "run `ollama pull` again" in str(e.value)


def test_a_missing_blob_is_named(store: Path) -> None:
    blob = fake_ollama.add_model(store, f"{LIBRARY}/gone/latest", b"GGUF gone")
    blob.rename(blob.with_name(blob.name + "-partial"))
    with pytest.raises(onegraph.FileError) as e:
        hub.resolve("ollama:gone")
    assert f"{blob} is missing; run `ollama pull` again" in str(e.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not a manifest of ollama"),
        ("not json", "is not a manifest of ollama"),
        ("[" * 100_000, "is not a manifest of ollama"),
        ("[]", "lists no layers"),
        ('{"layers": 3}', "lists no layers"),
        ('{"layers": []}', "lists 0 layers of type"),
        (" " * (2 << 20), "it is over 1048576 bytes"),
    ],
)
def test_a_damaged_manifest_is_refused(text: str, said: str, store: Path) -> None:
    path = store / "manifests" / LIBRARY / "odd" / "latest"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(onegraph.ModelError, match=said) as e:
        hub.resolve("ollama:odd")
    assert "pull" in str(e.value)


def test_a_model_that_is_no_gguf_is_refused(store: Path) -> None:
    fake_ollama.add_model(
        store, f"{LIBRARY}/other/latest", b"{}", media="application/vnd.ollama.image.tensor"
    )
    with pytest.raises(onegraph.ModelError, match=r"lists 0 layers of type .*\.model, not one"):
        hub.resolve("ollama:other")


@pytest.mark.parametrize("place", ["manifest", "blob"])
@pytest.mark.parametrize("kind", ["a FIFO", "a folder", "a device"])
def test_what_is_no_file_in_the_store_is_refused_at_once(
    place: str, kind: str, store: Path
) -> None:
    blob = fake_ollama.add_model(store, f"{LIBRARY}/odd/latest", b"GGUF odd")
    path = store / "manifests" / LIBRARY / "odd" / "latest" if place == "manifest" else blob
    path.unlink()
    if kind == "a FIFO":
        os.mkfifo(path)
    elif kind == "a folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(onegraph.FileError) as e:
        hub.resolve("ollama:odd")
    assert f"{path} is {kind} where a file should be; remove it" in str(e.value)


def test_verify_reads_the_blob(store: Path) -> None:
    blob = fake_ollama.add_model(store, f"{LIBRARY}/tiny/latest", b"GGUF tiny")
    assert hub.resolve("ollama:tiny", verify=True) == blob
    blob.write_bytes(b"GGUF tinY")
    assert hub.resolve("ollama:tiny") == blob
    with pytest.raises(onegraph.ModelError, match="is damaged: its sha256 does not match its"):
        hub.resolve("ollama:tiny", verify=True)


#: Lets others into a folder.
PASS = stat.S_IXGRP | stat.S_IXOTH


@contextmanager
def as_a_stranger() -> Iterator[None]:
    """File access without root's rights, which no permission stops."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("closed", ["manifest", "blob"])
def test_an_unreadable_store_says_how_to_read_it(closed: str, store: Path) -> None:
    blob = fake_ollama.add_model(store, f"{LIBRARY}/own/latest", b"GGUF own")
    manifest = store / "manifests" / LIBRARY / "own" / "latest"
    path = manifest if closed == "manifest" else blob
    assert hub.resolve("ollama:own") == blob
    modes = {folder: folder.stat().st_mode for folder in [path.parent, *store.parents]}
    try:
        for folder in store.parents:
            if modes[folder] & PASS != PASS:
                folder.chmod(modes[folder] | PASS)
        path.parent.chmod(0)
        with as_a_stranger(), pytest.raises(onegraph.FileError) as e:
            hub.resolve("ollama:own")
    finally:
        for folder, mode in modes.items():
            if folder.stat().st_mode != mode:
                folder.chmod(mode)
    assert f"ollama:own: cannot read {path}: Permission denied" in str(e.value)
    assert "usermod -aG ollama" in str(e.value)
