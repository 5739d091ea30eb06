"""What cannot be measured is refused, with the reason and what to do."""

import importlib.util
import json
import shutil
import subprocess
from pathlib import Path

import onegraph
import pytest
from onegraph.bench import charts, formats, machine, race, stream, tables
from onegraph.bench.cases import Case
from onegraph.bench.engines import Prompt, Setup, llama_bench, ollama
from onegraph.bench.engines.llama_server import free_port
from onegraph.bench.engines.xllamacpp import XLlamaCpp
from onegraph.bench.fidelity import BAR, Check, mean_kl
from onegraph.bench.measurement import EngineError


def test_a_race_without_a_prompt_or_steps_is_refused(tmp_path: Path) -> None:
    setup = Setup(tmp_path / "none.gguf", "none", "cpu", 256, 1)
    for case in [Case(0, 8), Case(8, 1), Case(8, 0)]:
        with pytest.raises(onegraph.ArgumentError, match=r"at least 2 generated tokens; set -p"):
            next(race.run(setup, [case], ["ollama"], rounds=1, version="0"))


def test_a_prompt_that_an_engine_refuses_is_said_with_its_words(smollm2: Path) -> None:
    pytest.importorskip("xllamacpp")
    with XLlamaCpp().start(Setup(smollm2, str(smollm2), "cpu", 256, 1)) as running:
        long = Prompt("", tuple(range(100, 900)))
        with pytest.raises(EngineError, match=r"xllamacpp refused /completion with status 400: .*"):
            running.generate(long, 4)
        with pytest.raises(EngineError, match="refused /completion with status 400"):
            running.answer(long, 4)


def test_one_part_of_a_split_model_is_no_model_for_ollama(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"big-0000{number}-of-00002.gguf").write_bytes(b"GGUF")
    with pytest.raises(EngineError, match=r"is one of 2 parts.*llama-gguf-split --merge"):
        ollama.create(f"http://127.0.0.1:{free_port()}", tmp_path / "big-00001-of-00002.gguf")


def test_a_server_that_is_not_there_is_told_from_one_that_fails() -> None:
    port = free_port()
    with pytest.raises(stream.Refused, match=rf"who does not answer at http://127.0.0.1:{port}"):
        stream.request_json(f"http://127.0.0.1:{port}", "GET", "/", None, "who")


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("false", r"llama-bench exited with code 1: "),
        ("echo", r"llama-bench printed '-m .*', which is not JSON: .*this version is not"),
    ],
)
def test_a_program_that_is_not_llama_bench_is_noticed(program: str, said: str) -> None:
    path = shutil.which(program)
    assert path
    with pytest.raises(EngineError, match=said):
        llama_bench.rows(path, Path("model.gguf"), ["-p", "8"])


def test_a_chart_without_matplotlib_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(onegraph.FileError, match="run `pip install matplotlib`"):
        charts.check(tmp_path / "chart.png")
    with pytest.raises(onegraph.FileError, match="--chart needs plotext"):
        charts.check_terminal()
    # In the terminal, where nobody asked for it, it is left out.
    assert charts.terminal([]) is None


def test_wrong_output_is_marked() -> None:
    import numpy as np

    rng = np.random.default_rng(1)
    exact = rng.standard_normal((4, 100)).astype(np.float32)
    assert mean_kl(exact, exact + np.float32(3)) == pytest.approx(0, abs=1e-12)
    # By hand, in float64.
    p = np.exp(exact.astype(float))
    p /= p.sum(axis=1, keepdims=True)
    q = np.full_like(p, 1 / 100)
    by_hand = float((p * np.log(p / q)).sum(axis=1).mean())
    assert mean_kl(exact, np.zeros_like(exact)) == pytest.approx(by_hand)
    wrong = Check(BAR * 2, 0.5, "one against another", 32)
    assert not wrong.ok and str(wrong).startswith("WRONG: KL 8.0e-06")


def test_a_table_cell_cannot_break_the_table() -> None:
    table = tables.markdown(["a", "b"], [["x|y", "1"], ["z", "20"]], 1).splitlines()
    assert table == ["| a    |   b |", "| ---- | --: |", "| x\\|y |   1 |", "| z    |  20 |"]
    assert list(formats.written("json", [])) == ["[]"]
    records = [{"a": 1, "b": [1, 2]}, {"a": None, "b": []}]
    assert json.loads("".join(formats.written("json", records))) == records
    assert list(formats.written("csv", records)) == ['a,b\n1,"[1, 2]"', ",[]"]


def test_the_commit_is_that_of_the_source_in_use() -> None:
    package = Path(onegraph.__file__).parent
    git = ["git", "-C", str(package)]
    tracked = subprocess.run([*git, "ls-files", "--error-unmatch", "llm.py"], capture_output=True)
    found = machine.commit()
    if tracked.returncode == 0:
        head = subprocess.check_output([*git, "rev-parse", "HEAD"], text=True).strip()
        assert found and head.startswith(found.removesuffix("-dirty"))
    else:
        assert found is None or len(found) == 12
