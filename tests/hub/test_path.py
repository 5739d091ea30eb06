"""References that are paths, and those that are nothing."""

import os
from pathlib import Path

import onegraph
import pytest
from onegraph import hub


def test_a_path_is_itself(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    assert hub.resolve(str(file)) == file
    assert hub.resolve(file) == file


def test_a_file_in_the_current_folder_needs_no_suffix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weights").write_bytes(b"GGUF")
    monkeypatch.chdir(tmp_path)
    assert hub.resolve("weights") == Path("weights")


def test_the_home_folder_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert hub.resolve("~/model.gguf") == tmp_path / "model.gguf"


@pytest.mark.parametrize("name", ["missing.gguf", "folder/missing", "./missing"])
def test_a_missing_file_is_named_with_the_other_forms(name: str) -> None:
    with pytest.raises(onegraph.FileError) as e:
        hub.resolve(name)
    assert f"there is no file {Path(name)}" in str(e.value)
    assert "hf:user/repo:Q4_K_M" in str(e.value)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(onegraph.FileError, match=r"is a folder; onegraph reads GGUF .* -GGUF"):
        hub.resolve(tmp_path)
    (tmp_path / "model.gguf").touch()
    with pytest.raises(
        onegraph.FileError, match=r"name the \.gguf file inside it, such as .*model\.gguf"
    ):
        hub.resolve(tmp_path)


def test_other_formats_are_told_from_models(tmp_path: Path) -> None:
    for name in ("model.safetensors", "pytorch_model.bin"):
        with pytest.raises(onegraph.FileError, match=r"no file .*convert_hf_to_gguf\.py"):
            hub.resolve(name)
        (tmp_path / name).write_bytes(b"another")
        with pytest.raises(onegraph.FileError, match=r"another format; .*convert_hf_to_gguf\.py"):
            hub.resolve(tmp_path / name)
    (tmp_path / "model.bin").write_bytes(b"GGUF")
    assert hub.resolve(tmp_path / "model.bin") == tmp_path / "model.bin"


def test_what_could_be_waited_for_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(onegraph.FileError, match="is a FIFO; save the model to a file first"):
        hub.resolve(tmp_path / "fifo")
    with pytest.raises(onegraph.FileError, match="is a device; save"):
        hub.resolve("/dev/null")


def test_a_path_can_be_neither_verified_nor_updated(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(onegraph.ArgumentError, match=r".* has no known hash"):
        hub.resolve(tmp_path / "model.gguf", verify=True)
    for ref in [tmp_path / "model.gguf", "smollm2", "ollama:tiny"]:
        with pytest.raises(onegraph.ArgumentError, match="only hf: references can be updated"):
            hub.resolve(ref, update=True)


def test_a_file_where_a_folder_should_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(onegraph.FileError, match=r"cannot read .*: Not a directory"):
        hub.resolve(tmp_path / "file" / "model.gguf")


def test_a_mistyped_name_lists_the_names_and_the_forms() -> None:
    with pytest.raises(onegraph.ArgumentError) as e:
        hub.resolve("smolm2")
    message = str(e.value)
    assert "unknown model 'smolm2' (did you mean 'smollm2'?)" in message
    assert ", ".join(sorted(hub.known_models())) in message
    for form in ["model.gguf", "NAME", "hf:user/repo/file.gguf", "hf:user/repo:Q4_K_M", "ollama:"]:
        assert form in message


@pytest.mark.parametrize("ref", ["", "no-such-model", "no\0such", "https://example.org/model.gguf"])
def test_what_is_no_reference_is_refused(ref: str) -> None:
    with pytest.raises((onegraph.ArgumentError, onegraph.FileError)) as e:
        hub.resolve(ref)
    assert hub.FORMS in str(e.value)
