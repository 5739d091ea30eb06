"""The script that measures the server, on a model of a test's size."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from onegraph import LLM
from onegraph.server import asgi
from support.serving import serving

pytestmark = pytest.mark.thorough

SCRIPT = Path(__file__).resolve().parents[2] / "benches" / "serving.py"


def run(*args: object) -> tuple[str, list[dict[str, Any]]]:
    command = [sys.executable, str(SCRIPT), *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    record = Path(str(args[args.index("--record") + 1]))
    rows: list[dict[str, Any]] = json.loads(record.read_text())["rows"]
    return done.stdout, rows


def test_what_is_served_is_compared_with_what_is_generated(tmp_path: Path) -> None:
    model, record = tmp_path / "model.gguf", tmp_path / "record.json"
    asked = ["--shape", "tiny-llama", "--mix", "Q8_0", "--device", "cpu", "--streams", "1,4"]
    printed, rows = run(model, *asked, "-n", 20, "-r", 2, "--record", record)
    assert [row["streams"] for row in rows] == [1, 4]
    for row in rows:
        assert len(row["ratios"]) == 2 and min(row["ratios"]) <= row["ratio"] <= max(row["ratios"])
        assert row["generate"] > 0 and 0 < row["between_p50"] <= row["between_p99"]
    assert len(printed.splitlines()) == 4


def test_requests_that_arrive_at_random_are_all_answered(tmp_path: Path) -> None:
    model, record = tmp_path / "model.gguf", tmp_path / "record.json"
    asked = ["--shape", "tiny-llama", "--mix", "Q8_0", "--device", "cpu", "--rate", 20]
    # Texts of a tiny vocabulary have more tokens than words, and a context of 512 holds few.
    _, (row,) = run(model, *asked, "--words", 8, "--requests", 12, "--record", record)
    assert (row["requests"], row["failed"]) == (12, 0) and 0 <= row["good"] <= 1
    assert 0 < row["first_p50"] <= row["first_p99"] and row["each_p50"] <= row["each_p99"]


def test_engines_get_the_same_requests_in_one_run(tmp_path: Path) -> None:
    model, record = tmp_path / "model.gguf", tmp_path / "record.json"
    asked = ["--device", "cpu", "--threads", 1, "--rate", "20,40", "--slots", 2]
    more = ["--words", 4, "--requests", 6, "--against", "xllamacpp", "--record", record]
    shape = ["--shape", "tiny-llama", "--mix", "Q8_0"]
    printed, rows = run(model, *shape, *asked, *more)
    names = [str(row["engine"]).split()[0] for row in rows]
    assert names == ["onegraph", "onegraph", "xllamacpp", "xllamacpp"]
    assert [row["rate"] for row in rows] == [20, 40, 20, 40]
    assert all((row["requests"], row["failed"]) == (6, 0) for row in rows)
    assert all(row["tokens_per_second"] > 0 and row["first_p50"] > 0 for row in rows)
    assert len(printed.splitlines()) == 2 + 4


def test_an_ollama_server_is_asked_in_its_own_words(
    tmp_path: Path, tiny: Path, llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server here speaks as ollama does; the model lies as ollama keeps it."""
    layer = {
        "mediaType": "application/vnd.ollama.image.model",
        "digest": f"sha256:{hashlib.sha256(tiny.read_bytes()).hexdigest()}",
        "size": tiny.stat().st_size,
    }
    manifest = tmp_path / "manifests" / "registry.ollama.ai" / "library" / "tiny" / "latest"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": [layer]}))
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / layer["digest"].replace(":", "-")).symlink_to(tiny)
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    record = tmp_path / "record.json"
    with serving(asgi({"tiny": llm})) as served:
        monkeypatch.setenv("OLLAMA_HOST", served.url)
        asked = ["--device", "cpu", "--threads", 1, "--rate", 20, "--requests", 6, "--words", 4]
        printed, rows = run("ollama:tiny", *asked, "--against", "ollama", "--record", record)
    assert [str(row["engine"]).split()[0] for row in rows] == ["onegraph", "ollama"]
    assert [(row["requests"], row["failed"]) for row in rows] == [(6, 0), (6, 0)]
    assert rows[1]["tokens_per_second"] > 0 and "| ollama " in printed


def test_what_is_no_server_is_said(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    for against, said in [
        ("nobody", "unknown engine 'nobody'"),
        ("llama-server=/nowhere/llama-server", "/nowhere/llama-server"),
    ]:
        asked = ["--shape", "tiny-llama", "--mix", "Q8_0", "--device", "cpu", "--words", "4"]
        command = [sys.executable, str(SCRIPT), str(model), *asked, "--against", against]
        command += ["--rate", "50", "--requests", "2"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 1 and said in done.stderr
