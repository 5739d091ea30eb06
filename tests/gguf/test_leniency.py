"""What the format allows is accepted, as llama.cpp accepts it, and runs as if it were usual."""

from pathlib import Path

import gguf
import numpy as np
import onegraph
import pytest
from onegraph import _native
from support import tiny_gguf as tiny

IDS = [0, 3, 8, 1, 9]
UINT32, STRING = gguf.GGUFValueType.UINT32, gguf.GGUFValueType.STRING


def logits(path: Path) -> bytes:
    with onegraph.LLM(path, device="cpu", threads=1, max_batch=1, progress=False) as llm:
        return np.asarray(llm.logits(IDS)).tobytes()


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write(tmp_path_factory.mktemp("usual") / "tiny.gguf")


@pytest.mark.parametrize("alignment", [1, 2, 4, 8, 64])
def test_any_alignment_gives_the_same_bits(usual: Path, tmp_path: Path, alignment: int) -> None:
    path = tmp_path / "tiny.gguf"
    # A name of odd length shifts all that follows to odd addresses where nothing aligns it.
    for name in ("x", "xy", "xyz", "wxyz"):
        tiny.write(path, extra={f"test.{name}": (alignment, UINT32)}, alignment=alignment)
        assert logits(path) == logits(usual)


def test_what_follows_the_last_tensor_is_nobodys(usual: Path, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    for tail in (b"\0", b"appendix" * 99):
        path.write_bytes(usual.read_bytes() + tail)
        assert logits(path) == logits(usual)


def test_text_that_is_not_utf_8_fails_where_it_is_read(usual: Path, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    extra = {"general.author": ("Ren_ of somewhere", STRING)}
    data = tiny.write(path, extra=extra).read_bytes()
    path.write_bytes(data.replace(b"Ren_", b"Ren\xe9"))
    assert logits(path) == logits(usual)
    path.write_bytes(data.replace(b"second line", b"second lin\xe9"))
    with pytest.raises(onegraph.ModelError, match=r"chat_template.*not UTF-8 at byte"):
        logits(path)


def test_a_tensor_of_zero_that_nobody_uses(usual: Path, tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "tiny.gguf", empty="leftover.weight")
    assert logits(path) == logits(usual)
    assert "leftover.weight" in _native.model_info(path)


def test_a_header_alone_says_all_but_the_numbers(usual: Path, tmp_path: Path) -> None:
    path = tmp_path / "header.gguf"
    path.write_bytes(usual.read_bytes()[: tiny.header_bytes(usual)])
    assert _native.model_plan(path) == _native.model_plan(usual)
    tokenizer = onegraph.Tokenizer(path)
    assert tokenizer.encode("abcd") == onegraph.Tokenizer(usual).encode("abcd")
    with pytest.raises(onegraph.ModelError, match=r"ends with its header.*fetch it again"):
        logits(path)
