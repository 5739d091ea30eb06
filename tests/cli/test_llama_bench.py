"""llama-bench's command lines: what means something here is taken, the rest is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import shapes
import synth

pytestmark = pytest.mark.thorough

SMALL = ["-p", "8", "-n", "0", "-r", "1"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    synth.write(path, shapes.find("tiny-llama"), "Q4_K_M")
    return path


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        (["-t", "1", "-ngl", "99", "-fa", "1", "--no-warmup"], {"n_threads": 1}),
        (["-t1", "-ngl", "-1", "-fa", "on"], {"n_threads": 1}),
        (["-ctk", "f16", "-ctv", "f16"], {"type_k": "f16", "type_v": "f16"}),
        (["--cache-type-k", "f32", "--cache-type-v", "f32"], {"type_k": "f32", "type_v": "f32"}),
        (["-ctk", "f16", "--kv-type", "f16"], {"type_k": "f16", "type_v": "f16"}),
    ],
)
def test_what_means_something_here_is_taken(options, fields, cli: Any, tiny: Path) -> None:
    done = cli("bench", "-m", tiny, *SMALL, *options, "-o", "jsonl")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert {name: record[name] for name in fields} == fields and record["n_prompt"] == 8


@pytest.mark.parametrize("name", ["bench", "compare"])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["-ngl", "0"], "for no layers on a GPU, use --device cpu"),
        (["-ngl", "2"], "of the model's 3 layers: a model runs on one device"),
        (["-ngl", "0,99"], "'0,99' is not a number of layers"),
        (["-ngl", "99", "--device", "cpu"], "-ngl 99 and --device cpu: give one of them"),
        (["-fa", "0"], "flash attention cannot be turned off: leave it out"),
        (["-fa", "0,1"], "'0,1' is not 1 or on"),
        (["-b", "2048"], "-b is not an option here: onegraph chooses the chunks"),
        (["-ub", "512"], "-ub is not an option here: onegraph chooses the chunks"),
        (["-t", "1,2"], "'1,2' is not a valid integer"),
        (["-embd", "1"], "-embd is not an option here"),
        (["-dio", "1"], "-dio is not an option here"),
        (["-nopo", "1"], "-nopo is not an option here"),
        (["-rpc", "host:1"], "-rpc is not an option here"),
        (["-oe", "md"], "-oe is not an option here"),
        (["-mmp", "0"], "-mmp is not an option here"),
        (["-sm", "none"], "-sm is not an option here"),
        (["--prio", "2"], "--prio is not an option here"),
        (["--poll", "50"], "--poll is not an option here"),
        (["-C", "0xff"], "-C is not an option here: bind the whole command with taskset"),
        (["--progress"], "--progress is not an option here"),
        (["--list-devices"], "nvidia-smi -L lists the GPUs"),
    ],
)
def test_the_rest_is_refused_by_name(name, options, said: str, cli: Any, tiny: Path) -> None:
    pytest.importorskip("xllamacpp")
    against = ["--against", "xllamacpp"] if name == "compare" else []
    done = cli(name, tiny, *SMALL[:2], *options, *against)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in " ".join(done.stderr.split()), done.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["bench", "-ctk", "q8_0"], "-ctk q8_0 -ctv f16 (one that is not given is f16"),
        (["bench", "-ctk", "q8_0"], "keys and values must have the same type; give --kv-type q8_0"),
        (["bench", "-ctk", "f16", "-ctv", "q8_0"], "-ctk f16 -ctv q8_0: keys and values must have"),
        (["bench", "-ctk", "f32", "-ctv", "f32", "--kv-type", "f16"], "give one of them"),
        (["bench", "-p", "8", "-ctk", "iq3_s", "-ctv", "iq3_s"], "--kv-type iq3_s"),
        (["bench", "-m", "other.gguf"], "give one MODEL, not "),
        (["compare", "--against", "ollama", "-m", "other.gguf"], "give one MODEL"),
        (["compare", "--against", "ollama", "-ctk", "f16"], "-ctk is not an option here"),
    ],
)
def test_what_does_not_fit_together_is_refused(args, said: str, cli: Any, tiny: Path) -> None:
    done = cli(args[0], tiny, *args[1:])
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert said in " ".join(done.stderr.split()), done.stderr


@pytest.mark.parametrize("args", [["bench"], ["compare", "--against", "ollama"]])
def test_a_model_is_asked_for(args: list[str], cli: Any) -> None:
    done = cli(*args)
    assert done.returncode == 2 and "Missing argument 'MODEL'" in done.stderr


def test_without_a_warm_up_the_first_repetition_counts(tiny: Path) -> None:
    """By what is told: every piece of work is a repetition that counts."""
    from onegraph.bench import machine, suite
    from onegraph.bench.cases import Case

    def measured(warm_up: bool) -> int:
        served = []
        run = suite._run_once

        def counted(llm: Any, case: Case, seed: int) -> Any:
            served.append(seed)
            return run(llm, case, seed)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(suite, "_run_once", counted)
            (outcome,) = suite.run(
                tiny,
                [Case(8, 0)],
                repetitions=2,
                modes=["full"],
                options={"device": "cpu", "threads": 1},
                started=machine.now,
                watch=machine.watch("cpu"),
                warm_up=warm_up,
            )
        assert len(outcome.repetitions) == 2
        return len(served)

    assert (measured(True), measured(False)) == (3, 2)
