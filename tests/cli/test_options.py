"""Options that change nothing are said, and what is said names options as they are typed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import onegraph
import pytest
from onegraph.cli import cli as commands
from onegraph.cli.spelling import spelled


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["run", "smollm2", "Hi", "--logprobs", "2"], "--logprobs is only printed with --json"),
        (["info", "smollm2", "--plan", "--n-ctx", "64"], "--n-ctx: has no effect on --plan"),
        (["info", "--devices", "--kv-type", "f32"], "--kv-type: has no effect on --devices"),
        (["pull", "smollm2", "--max-batch", "8"], "--max-batch: only applies with --compile"),
        (["graph", "smollm2", "--each", "--json"], "--each is for the table"),
    ],
)
def test_an_option_without_effect_is_wrong_use(args: list[str], said: str, cli: Any) -> None:
    done = cli(*args)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in " ".join(done.stderr.split())


def test_filters_that_a_greedy_choice_leaves_idle_are_said(cli: Any, smollm2: Path) -> None:
    ask = ["run", smollm2, "Hi", "--device", "cpu", "--max-tokens", 1, "--temperature"]
    done = cli(*ask, 0, "--top-k", 3, "--seed", 1, "--repeat-penalty", 1.1)
    assert done.returncode == 0
    assert done.stderr.startswith("no effect with --temperature 0")
    assert done.stderr.endswith(": --top-k, --seed\n")
    assert cli(*ask, 0.5, "--top-k", 3, "--seed", 1).stderr == ""


def test_a_window_without_a_penalty_is_said(cli: Any, smollm2: Path) -> None:
    ask = ["run", smollm2, "Hi", "--device", "cpu", "--max-tokens", 1, "--repeat-last-n", -1]
    done = cli(*ask)
    assert done.returncode == 0
    assert done.stderr.startswith("no effect without one of --repeat-penalty, ")
    assert done.stderr.endswith(": --repeat-last-n\n")
    assert cli(*ask, "--frequency-penalty", 0.5).stderr == ""


def test_graph_and_check_propose_no_device_that_they_refuse(cli: Any, smollm2: Path) -> None:
    instead = {
        "graph": "graph MODEL --plan` prints the operations",
        "check": "MODEL` runs on the CPU",
    }
    for name, said in instead.items():
        for more in [[], ["--device", "auto"], ["--device", "cuda:7"]]:
            done = cli(name, smollm2, *more)
            if done.returncode == 0:
                pytest.skip("this machine has a card; the machines of CI have none")
            assert (done.returncode, done.stdout) == (1, "")
            assert "install the NVIDIA driver; the CPU cannot replace it" in done.stderr
            assert "cpu" not in done.stderr
            assert f". `onegraph {name}` is for machines with an NVIDIA GPU, and" in done.stderr
            assert said in done.stderr


def test_a_prompt_that_does_not_fit_names_the_option(cli: Any, smollm2: Path) -> None:
    done = cli("run", smollm2, "word " * 200, "--n-ctx", 64)
    assert done.returncode == 1 and "load with --n-ctx " in done.stderr
    done = cli("run", smollm2, "Hi", "--n-ctx", 9002)
    assert done.returncode == 2 and done.stderr.startswith("error: --n-ctx 9002: ")


@pytest.fixture(scope="module")
def run() -> click.Command:
    with commands.make_context("onegraph", ["run", "m"]) as ctx:
        command = commands.get_command(ctx, "run")
    assert command is not None
    return command


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("n_ctx = 9002: trained for 8192", "--n-ctx 9002: trained for 8192"),
        ("shorten it or load with n_ctx >= 630", "shorten it or load with --n-ctx 630"),
        ('kv_type = "q9": must be one of f16', "--kv-type q9: must be one of f16"),
        ('stop = "": an empty string', '--stop "": an empty string'),
        ("threads = 0: must be from 1", "--threads 0: must be from 1"),
        ("seed = an integer of 300 bits: too large", "--seed an integer of 300 bits: too large"),
        ('install the driver, or use device="cpu"', "install the driver, or use --device cpu"),
        ('device "cuda:7": no such card', "--device cuda:7: no such card"),
        ("load with a larger n_ctx.", "load with a larger --n-ctx."),
        ("use a smaller n_ctx or max_batch", "use a smaller --n-ctx"),
        (
            "use a smaller n_ctx, max_batch or number of threads",
            "use a smaller --n-ctx or number of threads",
        ),
        ("n_ctx=4096 with max_batch=1 would fit", "--n-ctx 4096 would fit"),
        # What is no argument stays.
        ("there is no file /tmp/n_ctx/m.gguf", "there is no file /tmp/n_ctx/m.gguf"),
        ("unknown model 'n_ctx'", "unknown model 'n_ctx'"),
        ("n_ctx.gguf is damaged", "n_ctx.gguf is damaged"),
        ("my_n_ctx and n_ctx_train", "my_n_ctx and n_ctx_train"),
        ("no device was found, so stop", "no device was found, so stop"),
        ("the seed = 3 of the file", "the seed = 3 of the file"),
        ("graph.batch_sizes that include it", "graph.batch_sizes that include it"),
    ],
)
def test_arguments_are_named_as_they_are_typed(said: str, shown: str, run: click.Command) -> None:
    assert spelled(said, run) == shown


def test_the_librarys_own_errors_keep_the_names_of_python(smollm2: Path) -> None:
    with pytest.raises(onegraph.ArgumentError, match=r"^n_ctx = 9002: "):
        onegraph.LLM(smollm2, n_ctx=9002)
    assert spelled("n_ctx = 9002") == "n_ctx = 9002"  # no command runs
