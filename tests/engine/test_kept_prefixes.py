"""Prefixes in the host's memory, in a folder and in files: they serve as if they had just been
read, and whatever is damaged is found out."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onegraph
import pytest
import shapes
import synth
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onegraph import LLM, ArgumentError, ContextError, FileError
from support.prompts import words

pytestmark = pytest.mark.thorough

#: Of every load here.
LOAD: dict[str, Any] = {"device": "cpu", "n_ctx": 448, "max_batch": 2, "progress": False}
OPTIONS: dict[str, Any] = {"max_tokens": 6, "temperature": 1.0, "seed": 5, "ignore_eos": True}


def ask(llm: LLM, prompt: list[int]) -> tuple[int, list[int], list[float]]:
    found = llm.generate(prompt, logprobs=1, **OPTIONS)
    assert found.logprobs is not None
    return (
        found.usage.cached_tokens,
        list(found.token_ids),
        [token.logprob for token in found.logprobs],
    )


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose layers keep a state."""
    path = tmp_path_factory.mktemp("models") / "hybrid.gguf"
    synth.write(path, shapes.find("tiny-qwen35"), "Q8_0", seed=1)
    return path


@pytest.fixture(params=["tiny", "hybrid"])
def model(request: pytest.FixtureRequest) -> Path:
    path: Path = request.getfixturevalue(request.param)
    return path


def test_a_prompt_survives_the_process(model: Path, tmp_path: Path) -> None:
    prompt = words(400)
    with LLM(model, prefix_cache=False, **LOAD) as plain:
        fresh = ask(plain, prompt)
    with LLM(model, cache_dir=tmp_path, **LOAD) as llm:
        assert ask(llm, prompt) == fresh
        assert ask(llm, prompt)[0] >= 384
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} <= {".page", ".state"}
    for path in files:
        assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
    with LLM(model, cache_dir=tmp_path, **LOAD) as llm:
        assert llm.prefix_bytes["files"] == sum(path.stat().st_size for path in files)
        assert ask(llm, prompt) == (384, *fresh[1:])
    # Other weights, another type, or no cache at all: nothing of it.
    other = tmp_path / "other.gguf"
    shape = "tiny-llama" if "tiny" in model.name else "tiny-qwen35"
    synth.write(other, shapes.find(shape), "Q8_0", seed=2)
    for path, options in [
        (other, {}),
        (model, {"kv_type": "f32"}),
        (model, {"prefix_cache": False}),
    ]:
        with LLM(path, cache_dir=tmp_path, **options, **LOAD) as llm:
            assert ask(llm, prompt)[0] == 0


#: Reads prompts for ever.
READER = """
import sys
sys.path.insert(0, sys.argv[3])
import onegraph, random
load = {"device": "cpu", "n_ctx": 448, "progress": False}
with onegraph.LLM(sys.argv[1], cache_dir=sys.argv[2], **load) as llm:
    print("loaded", flush=True)
    for seed in range(10_000):
        rng = random.Random(seed)
        llm.generate([rng.randrange(3, 250) for _ in range(400)], max_tokens=1)
        print(seed, flush=True)
"""


def test_a_kill_at_any_moment_leaves_no_wrong_bit(model: Path, tmp_path: Path) -> None:
    source = str(Path(onegraph.__file__).parents[1])
    delays = random.Random(3)
    found = 0
    with LLM(model, prefix_cache=False, **LOAD) as plain:
        fresh = [ask(plain, words(400, seed))[1:] for seed in range(3)]
    for _ in range(5):
        command = [sys.executable, "-c", READER, str(model), str(tmp_path), source]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"loaded\n"
            time.sleep(delays.random() / 4)
            os.kill(process.pid, signal.SIGKILL)
        with LLM(model, cache_dir=tmp_path, **LOAD) as llm:
            for seed, expected in enumerate(fresh):
                cached, *rest = ask(llm, words(400, seed))
                assert tuple(rest) == expected
                found += cached
    assert found > 0


def cut(data: bytes, at: int) -> bytes:
    return data[:at]


def flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]


def lengthen(data: bytes, at: int) -> bytes:
    return data + bytes(at % 4096 + 1)


def exchange(data: bytes, at: int) -> bytes:
    return bytes(len(data))


Damage = Callable[[bytes, int], bytes]


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    damages=st.lists(
        st.tuples(
            st.integers(0, 10**9),
            st.integers(0, 10**9),
            st.sampled_from([cut, flip, lengthen, exchange]),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_damaged_files_are_read_anew(
    hybrid: Path, tmp_path_factory: pytest.TempPathFactory, damages: list[tuple[int, int, Damage]]
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    prompt = words(300)
    with LLM(hybrid, cache_dir=folder, **LOAD) as llm:
        fresh = ask(llm, prompt)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for which, at, damage in damages:
        path = files[which % len(files)]
        data = path.read_bytes()
        path.write_bytes(damage(data, at % max(len(data), 1)) if data else b"")
    with LLM(hybrid, cache_dir=folder, **LOAD) as llm:
        assert ask(llm, prompt)[1:] == fresh[1:]
    # What was found damaged has been written anew; it may have hidden others.
    for _ in range(len(damages) + 1):
        with LLM(hybrid, cache_dir=folder, **LOAD) as llm:
            found = ask(llm, prompt)
    assert found == (256, *fresh[1:])


def test_a_folder_of_other_files_is_harmless(tiny: Path, tmp_path: Path) -> None:
    prompt = words(300)
    with LLM(tiny, cache_dir=tmp_path, **LOAD) as llm:
        fresh = ask(llm, prompt)
    page = next(tmp_path.rglob("*.page"))
    for path in tmp_path.rglob("*.page"):
        path.unlink()
    page.mkdir()
    os.mkfifo(page.with_name("0" * 64 + ".page"))
    page.with_name("link.page").symlink_to("/dev/zero")
    (tmp_path / "prefixes" / "file").write_text("x")
    with LLM(tiny, cache_dir=tmp_path, **LOAD) as llm:
        assert ask(llm, prompt) == fresh
    with pytest.raises(FileError, match=r"cannot create the folder .*use a writable cache_dir"):
        LLM(tiny, cache_dir=tmp_path / "prefixes" / "file", **LOAD)


def test_files_have_a_budget(tiny: Path, tmp_path: Path) -> None:
    budget = 1 << 20
    with LLM(tiny, cache_dir=tmp_path, cache_dir_bytes=budget, **LOAD) as llm:
        for seed in range(12):
            ask(llm, words(300, seed))
    sizes = [path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()]
    assert budget // 2 < sum(sizes) <= budget
    with LLM(tiny, cache_dir=tmp_path, **LOAD) as llm:
        assert ask(llm, words(300, 11))[0] == 256
        assert ask(llm, words(300, 0))[0] == 0


def test_the_hosts_memory_has_a_budget(model: Path) -> None:
    with LLM(model, prefix_host_bytes=0, **LOAD) as llm:
        prompt = words(300)
        ask(llm, prompt)
        for seed in range(1, 5):
            ask(llm, words(400, seed))
        assert ask(llm, prompt)[0] == 0
        assert llm.prefix_bytes == {"host": 0, "host_limit": 0, "files": 0}
    with LLM(model, prefix_host_bytes=1 << 24, **LOAD) as llm:
        for seed in range(60):
            ask(llm, words(400, seed))
            assert 0 < llm.prefix_bytes["host"] <= 1 << 24 or seed < 2
        assert ask(llm, words(400, 58))[0] >= 384


def test_a_saved_prefix_serves_another_process(model: Path, tmp_path: Path) -> None:
    prompt, path = words(150), tmp_path / "prefix"
    with LLM(model, prefix_cache=False, **LOAD) as plain:
        fresh = ask(plain, prompt + words(9, 1))
    with LLM(model, **LOAD) as llm:
        assert llm.save_prefix(prompt, path) == 150
        # It was read, and is kept here too.
        assert ask(llm, prompt + words(9, 1)) == (150, *fresh[1:])
    with LLM(model, **LOAD) as llm:
        assert llm.load_prefix(str(path)) == 150
        assert ask(llm, prompt + words(9, 1)) == (150, *fresh[1:])
        assert ask(llm, prompt[:149] + words(9, 2))[0] in (128, 149)
        # Again, of what is there.
        assert llm.load_prefix(path) == 150
        text = "a text of which nobody has thought before"
        assert llm.save_prefix(text, path) == len(llm.tokenize(text))


def test_what_does_not_fit_is_said(tiny: Path, hybrid: Path, tmp_path: Path) -> None:
    path = tmp_path / "prefix"
    with LLM(tiny, **LOAD) as llm:
        llm.save_prefix(words(150), path)
        data = path.read_bytes()
        for damage, reason in [
            (data[:-1], rf"it has {len(data) - 1} bytes, but its header says {len(data)}"),
            (flip(data, len(data) // 2), "its checksum does not match"),
            (data[:20], "it has 20 bytes, but its header alone needs"),
            (b"GGUF" + data[4:], "it is not a saved prefix"),
            (flip(data, 8), "it has version"),
            (flip(data, 12), r"it has arithmetic \d+, but this onegraph uses \d+"),
            (b"", "it has 0 bytes"),
        ]:
            broken = tmp_path / "broken"
            broken.write_bytes(damage)
            with pytest.raises(FileError, match=f"cannot load the prefix from .*{reason}.*; "):
                llm.load_prefix(broken)
        with pytest.raises(FileError, match="No such file"):
            llm.load_prefix(tmp_path / "none")
        with pytest.raises(FileError, match="it is not a file"):
            llm.load_prefix(tmp_path)
        with pytest.raises(FileError, match=r"cannot save the prefix to .*use a writable folder"):
            llm.save_prefix(words(3), tmp_path / "no" / "folder")
        with pytest.raises(ContextError):
            llm.save_prefix(words(448), path)
        with pytest.raises(ArgumentError, match="prompt"):
            llm.save_prefix([], path)
        with pytest.raises(ArgumentError, match="token 5000"):
            llm.save_prefix([5000], path)
        assert llm.load_prefix(path) == 150
    for other, options, reason in [
        (hybrid, {}, "it belongs to another model file"),
        (tiny, {"kv_type": "f32"}, "its keys and values are i16, but those of the loaded model"),
        (tiny, {"n_ctx": 150}, "it has 150 tokens, but the context has room for 149"),
        (tiny, {"prefix_cache": False}, "the model was loaded without a prefix cache"),
    ]:
        with (
            LLM(other, **(LOAD | options)) as llm,
            pytest.raises(FileError, match=f"cannot load the prefix from .*{reason}.*; "),
        ):
            llm.load_prefix(path)


def test_a_model_file_that_was_changed_is_not_taken_for_what_was_loaded(
    tiny: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(tiny.read_bytes())
    with LLM(copy, **LOAD) as llm:
        os.utime(copy, (1, 1))
        with pytest.raises(FileError, match="has changed since; load the model again"):
            llm.save_prefix(words(70), tmp_path / "prefix")


def test_numbers_of_bytes_are_checked(tiny: Path) -> None:
    for name in ["prefix_host_bytes", "cache_dir_bytes"]:
        with pytest.raises(ArgumentError, match=f"{name} = -1: must not be negative"):
            LLM(tiny, **{name: -1}, **LOAD)
