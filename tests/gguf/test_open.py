"""Files the `gguf` package writes, opened through the module; and paths that lead to none."""

import json
import os
import shutil
import socket
from pathlib import Path

import gguf
import numpy as np
import onegraph
import pytest
from onegraph import _native
from support import tiny_gguf as tiny


@pytest.mark.parametrize("arch", tiny.ARCHITECTURES)
def test_versions_2_and_3(tmp_path: Path, arch: str) -> None:
    path = tiny.write(tmp_path / "tiny.gguf", arch)
    plan = _native.model_plan(path)
    tiny.as_version_2(path)
    assert _native.model_plan(path) == plan
    assert json.loads(_native.model_info(path))["gguf_version"] == 2


def test_every_metadata_type_is_read(tmp_path: Path) -> None:
    kinds = gguf.GGUFValueType
    numbers = [k for k in kinds if k not in (kinds.STRING, kinds.ARRAY, kinds.BOOL)]
    extra = {f"test.{k.name}": (1, k) for k in numbers}
    extra |= {"test.bool": (True, kinds.BOOL), "test.string": ("ünï", kinds.STRING)}
    arrays = {"ints": [1, 2], "floats": [0.5], "bools": [True, False], "strings": ["", "a"]}
    arrays["nested"] = [[1, 2], [3]]
    path = tmp_path / "tiny.gguf"
    extra |= {f"test.array.{k}": (v, kinds.ARRAY) for k, v in arrays.items()}
    tiny.write(path, extra=extra)
    assert json.loads(_native.model_info(path))["error"] is None


def test_files_split_by_the_gguf_package(tmp_path: Path) -> None:
    (tmp_path / "split").mkdir()
    whole = tiny.write(tmp_path / "tiny.gguf")
    first = tiny.write(tmp_path / "split" / "tiny.gguf", split_max_tensors=5)
    n = len(list(tiny.tensors("llama")))
    shards = sorted(first.parent.iterdir())
    assert first == shards[0] and len(shards) == -(-n // 5)
    assert _native.model_plan(first) == _native.model_plan(whole)
    a, b = (json.loads(_native.model_info(p)) for p in (first, whole))
    for key in ("n_params", "quant_mix", "shape", "tokenizer", "memory", "decode"):
        assert a[key] == b[key]
    assert [f["path"] for f in a["files"]] == [str(p) for p in shards]
    assert a["file_bytes"] == sum(p.stat().st_size for p in shards)

    with pytest.raises(onegraph.FileError, match=rf"shard 2 of {len(shards)}, not the first.*open"):
        _native.model_plan(shards[1])
    shards[2].unlink()
    with pytest.raises(onegraph.FileError, match=f"{shards[2].name}.*must be next to the first"):
        _native.model_plan(first)


def test_a_link_to_the_first_shard_leads_to_the_others(tmp_path: Path) -> None:
    (tmp_path / "split").mkdir()
    first = tiny.write(tmp_path / "split" / "tiny.gguf", split_max_tensors=5)
    plan = _native.model_plan(first)
    shards = sorted(first.parent.iterdir())
    (links := tmp_path / "links").mkdir()

    def link(name: str, target: Path | str) -> Path:
        (links / name).symlink_to(target)
        return links / name

    # Its name may say what it likes, and it may lead there by another, or from beside itself.
    named = link("model.gguf", first)
    assert _native.model_plan(named) == plan
    assert _native.model_plan(link("again.gguf", "model.gguf")) == plan
    assert _native.model_plan(link(first.name, Path("..") / "split" / first.name)) == plan
    assert _native.model_plan(link("folder", first.parent) / first.name) == plan
    files = json.loads(_native.model_info(named))["files"]
    assert [Path(f["path"]).name for f in files[1:]] == [shard.name for shard in shards[1:]]
    # As a cache lays them out: links with the names of shards to files with none.
    (blobs := tmp_path / "blobs").mkdir()
    (snapshot := tmp_path / "snapshot").mkdir()
    for i, shard in enumerate(shards):
        shard.rename(blobs / str(i))
        (snapshot / shard.name).symlink_to(blobs / str(i))
    assert _native.model_plan(snapshot / first.name) == plan
    assert _native.model_plan(link("cached.gguf", snapshot / first.name)) == plan
    # Beside the link they come first.
    for shard in shards[1:]:
        link(shard.name, blobs / "0")
    (links / first.name).unlink()
    with pytest.raises(onegraph.ModelError, match=r"split.no"):
        _native.model_plan(link(first.name, snapshot / first.name))
    with pytest.raises(onegraph.FileError, match="its name does not identify the others"):
        _native.model_plan(blobs / "0")
    with pytest.raises(onegraph.FileError, match=r"shard 2 of .*, not the first; open .*00001-of"):
        _native.model_plan(link("second.gguf", snapshot / shards[1].name))


def test_missing_tensors_and_wrong_shapes(tmp_path: Path) -> None:
    def with_tensors(tensors: list[tuple[str, tuple[int, ...]]]) -> Path:
        path = tmp_path / "model.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_block_count(1)
        writer.add_context_length(16)
        writer.add_embedding_length(8)
        writer.add_feed_forward_length(8)
        writer.add_head_count(2)
        writer.add_layer_norm_rms_eps(1e-5)
        for name, shape in tensors:
            writer.add_tensor(name, np.ones(shape, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    with pytest.raises(onegraph.ModelError, match=r"token_embd\.weight: found nothing"):
        _native.model_plan(with_tensors([("output_norm.weight", (8,))]))
    embedding = ("token_embd.weight", (5, 8))
    with pytest.raises(onegraph.ModelError, match=r"blk\.0\.attn_norm\.weight: found nothing"):
        _native.model_plan(with_tensors([embedding]))
    wrong = r"blk\.0\.attn_norm\.weight: found the shape \[9\], expected \[8\]"
    with pytest.raises(onegraph.ModelError, match=wrong):
        _native.model_plan(with_tensors([embedding, ("blk.0.attn_norm.weight", (9,))]))
    with pytest.raises(onegraph.ModelError, match=r"attn_q\.weight: found the shape \[8, 4\]"):
        norm = ("blk.0.attn_norm.weight", (8,))
        _native.model_plan(with_tensors([embedding, norm, ("blk.0.attn_q.weight", (4, 8))]))


def test_paths_that_lead_to_no_model(tmp_path: Path) -> None:
    doors = (_native.model_info, _native.model_plan, onegraph.Tokenizer)
    text, empty = tmp_path / "text.txt", tmp_path / "empty.gguf"
    text.write_text("It was a dark and stormy night.")
    empty.touch()
    pipe, loop, listener = tmp_path / "pipe", tmp_path / "loop", tmp_path / "socket"
    os.mkfifo(pipe)
    loop.symlink_to(loop)
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(listener))
        for door in doors:
            with pytest.raises(onegraph.ModelError, match=r'"It w"; this is not a GGUF file'):
                door(text)
            for path, reason in [
                (tmp_path, "it is a directory; name the .gguf file inside it"),
                (empty, "the file is empty .0 bytes.; fetch it again"),
                (tmp_path / "absent.gguf", "No such file.*; check the path"),
                (tmp_path / ("x" * 300), "name too long"),
                (pipe, "pipe, socket or device"),
                (listener, "pipe, socket or device"),
                (loop, "symbolic links.*; check the path and what it leads to"),
            ]:
                with pytest.raises(onegraph.FileError, match=f"cannot open {path}: .*{reason}"):
                    door(path)
                with pytest.raises(OSError):
                    door(path)


def test_a_file_that_changes_between_open_and_load(smollm2: Path, tmp_path: Path) -> None:
    # A file that takes a while: progress is told while the load goes on.
    path = Path(shutil.copy(smollm2, tmp_path / "model.gguf"))
    before = path.stat().st_size

    def resize(size: int) -> None:
        def at(stage: str, done: int, total: int | None) -> None:
            # The file is open by the time its vocabulary is read.
            if stage == "tokenizer":
                os.truncate(path, size)

        with pytest.raises(
            onegraph.FileError,
            match=rf"cannot load .*length went from {before} to {size} bytes.*open it again",
        ):
            onegraph.LLM(path, device="cpu", progress=at)
        os.truncate(path, before)

    resize(before + 1)
    # Within the last page: beyond it the system ends the process that reads.
    resize(before - 1)

    def touch(stage: str, done: int, total: int | None) -> None:
        if stage == "tokenizer":
            os.utime(path, (0, 0))

    with pytest.raises(onegraph.FileError, match="written to since it was opened"):
        onegraph.LLM(path, device="cpu", progress=touch)
    onegraph.LLM(path, device="cpu", progress=False).close()
