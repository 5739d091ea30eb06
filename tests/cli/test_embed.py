"""`onegraph embed`, as processes and pipes see it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import onegraph
import pytest
import shapes
import synth

TEXTS = ["a cup of tea", "tea, please"]


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("embedder") / "embedder.gguf"
    shape = dataclasses.replace(shapes.find("tiny-qwen3-embedding"), pooling="last")
    synth.write(path, shape, "Q8_0", seed=1)
    return path


@pytest.fixture(scope="module")
def vectors(embedder: Path) -> Any:
    with onegraph.LLM(embedder, device="cpu") as llm:
        return llm.embed(TEXTS)


def test_lines_of_json_give_each_float_back(
    cli: Any, embedder: Path, vectors: Any, tmp_path: Path
) -> None:
    note = tmp_path / "note.txt"
    note.write_text(TEXTS[1] + "\n")
    done = cli("embed", embedder, TEXTS[0], "--file", note, "--device", "cpu")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    first, second = map(json.loads, done.stdout.splitlines())
    assert (first["text"], second["file"]) == (TEXTS[0], str(note))
    found = np.array([first["embedding"], second["embedding"]], dtype=np.float32)
    assert (found == vectors).all()


def test_each_line_of_a_pipe_is_a_text_and_npy_an_array(
    cli: Any, embedder: Path, vectors: Any, tmp_path: Path
) -> None:
    for name in ("out.npy", "out.jsonl"):
        ask = ["embed", embedder, "--device", "cpu", "--output", tmp_path / name]
        done = cli(*ask, input="\n".join(TEXTS) + "\n")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (np.load(tmp_path / "out.npy") == vectors).all()
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["text"] for line in lines] == TEXTS
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.jsonl", "out.npy"]


def test_options_are_those_of_llm_embed(cli: Any, embedder: Path) -> None:
    options = ["--pooling", "mean", "--dimensions", 8, "--no-normalize", "--truncate"]
    done = cli("embed", embedder, TEXTS[0], *options, "--device", "cpu")
    with onegraph.LLM(embedder, device="cpu") as llm:
        wanted = llm.embed(
            TEXTS[0], pooling="mean", dimensions=8, normalize=False, truncate=True
        ).tolist()
    assert np.float32(json.loads(done.stdout)["embedding"]).tolist() == wanted  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["tea", "--output", "vectors.csv"], 2, "must end in .jsonl or .npy"),
        (["tea", "--output", "absent/vectors.npy"], 1, "cannot write absent/vectors.npy"),
        (["--file", "absent.txt"], 1, "cannot read --file absent.txt: No such file"),
        (["tea", "--pooling", "cls"], 2, "--pooling cls"),
        (["tea", "--dimensions", "0"], 2, "--dimensions 0"),
        ([], 2, "standard input is empty: give a TEXT"),
    ],
)
def test_what_is_wrong_is_said(
    cli: Any, embedder: Path, args: list[str], code: int, said: str
) -> None:
    done = cli("embed", embedder, *args, "--device", "cpu", input="")
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr, done.stderr


def test_a_model_that_was_not_trained_for_it_warns(cli: Any, tiny: Path) -> None:
    done = cli("embed", tiny, "ab", "--device", "cpu")
    assert done.returncode == 0 and len(json.loads(done.stdout)["embedding"]) > 8
    assert "tiny.gguf was not trained for embeddings" in done.stderr
    assert "or pass --pooling last" in done.stderr
