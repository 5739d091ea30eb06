"""`onegraph bench`: how fast a model runs here, by llama-bench's tests."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from onegraph import _native, hub
from onegraph.bench import formats, machine
from onegraph.bench.cases import cases, numbers, pairs
from onegraph.bench.suite import run
from onegraph.cli.measuring import Output, device, output_options, test_options, watched
from onegraph.cli.options import MODEL, given, model_options
from onegraph.cli.terminal import debug_option, say


@click.command()
@click.argument("model")
@test_options
@click.option("-pg", "combined", multiple=True, metavar="P,N", help="A prompt, then generation.")
@click.option(
    "-npl",
    "--n-seq",
    multiple=True,
    metavar="N,...",
    help="Sequences that generate together.  [default: 1]",
)
@click.option("--graph", is_flag=True, help="Replay a captured graph (the default, on a GPU).")
@click.option("--eager", is_flag=True, help="Launch each kernel; with --graph, measure both.")
@model_options
@output_options
@debug_option
def command(
    model: str,
    n_prompt: tuple[str, ...],
    n_gen: tuple[str, ...],
    n_depth: tuple[str, ...],
    repetitions: int,
    combined: tuple[str, ...],
    n_seq: tuple[str, ...],
    graph: bool,
    eager: bool,
    output: str,
    plot: Path | None,
    **options: Any,
) -> None:
    """Measure the speed of MODEL, as llama-bench does: prompts and generation apart, from an empty
    cache, one repetition to warm up, then mean and sample standard deviation of the rates.

    A list is 128,256 or the option repeated; a range 1-4, 0-4096+1024 or 1-64*2; 0 leaves a kind
    out. The KL column checks the output: the mean divergence from exact logits, in nats.
    """
    todo = cases(
        numbers("-p", n_prompt, [512]),
        numbers("-n", n_gen, [128]),
        pairs("-pg", combined),
        numbers("-d", n_depth, [0]),
        numbers("-npl", n_seq, [1], least=1),
    )
    with watched() as told:
        path = hub.resolve(model, progress=told)
        chosen = given(MODEL, {"n_ctx": None, **options})
        modes = [name for name, on in (("full", graph or not eager), ("none", eager)) if on]
        if graph and eager and device(options.get("device")) == "cpu":
            say("--graph --eager: they are one on the CPU, which is measured once", err=True)
        out = Output(output, plot, title=Path(model).name if path.name in model else model)
        records = _records(path, todo, repetitions, modes, chosen, told)
        wrong = out.write(records, formats.bench_table, _foot if output == "md" else lambda _: "")
    if wrong:
        raise click.ClickException(
            f"the output is wrong: {wrong[0]['check']}, mean KL {wrong[0]['check_mean_kl']:.1e} "
            "nats; do not use these speeds"
        )


# The tests say what context they need.
command.params = [option for option in command.params if option.name != "n_ctx"]


def _foot(records: list[dict[str, Any]]) -> str:
    return formats.bench_foot(records[0]) if records else ""


def _records(
    path: Path,
    todo: Sequence[Any],
    repetitions: int,
    modes: Sequence[str],
    options: dict[str, Any],
    told: Any,
) -> Iterator[dict[str, Any]]:
    model = json.loads(_native.model_info(path))
    shown = {
        "threads": machine.n_threads(options.get("threads")),
        "kv_type": options.get("kv_type", _native.DEFAULT_KV_TYPE),
    }
    outcomes = run(
        path,
        todo,
        repetitions=repetitions,
        modes=modes,
        options=options,
        started=machine.now,
        told=told,
    )
    here: machine.Machine | None = None
    for outcome in outcomes:
        if here is None:
            here = machine.describe(outcome.settings["device"])
        yield formats.bench_record(outcome, model, here, shown)
