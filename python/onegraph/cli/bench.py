"""`onegraph bench`: how fast a model runs here, by llama-bench's tests."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from onegraph import _native, hub
from onegraph.bench import formats, machine, tables
from onegraph.bench.cases import cases, numbers, pairs
from onegraph.bench.suite import run
from onegraph.cli import llama_bench
from onegraph.cli.measuring import (
    Bar,
    Output,
    device,
    output_options,
    test_options,
    warnings,
    watched,
)
from onegraph.cli.options import MODEL, given, model_options
from onegraph.cli.terminal import debug_option, say
from onegraph.graphs import GraphMode


@click.command()
@llama_bench.model_argument
@test_options
@click.option(
    "-pg", "combined", multiple=True, metavar="P,N", help="A prompt followed by generation."
)
@click.option(
    "-npl",
    "--n-seq",
    multiple=True,
    metavar="N,...",
    help="Sequences that generate at once.  [default: 1]",
)
@click.option("--graph", is_flag=True, help="Replay a captured graph (the default on a GPU).")
@click.option("--eager", is_flag=True, help="Launch each kernel; with --graph, measure both.")
@model_options
@llama_bench.cache_options
@llama_bench.run_options
@output_options
@debug_option
def command(
    model: str | None,
    models: tuple[str, ...],
    n_prompt: tuple[str, ...],
    n_gen: tuple[str, ...],
    n_depth: tuple[str, ...],
    repetitions: int,
    combined: tuple[str, ...],
    n_seq: tuple[str, ...],
    graph: bool,
    eager: bool,
    type_k: str | None,
    type_v: str | None,
    layers: int | None,
    no_warmup: bool,
    output: str,
    plot: Path | None,
    **options: Any,
) -> None:
    """Measure the speed of MODEL like llama-bench: prompts and generation separately, from an empty
    cache, one repetition to warm up, then mean and sample standard deviation of the rates.

    A list is 128,256 or the option repeated; a range is 1-4, 0-4096+1024 or 1-64*2; 0 skips a kind.
    The output is checked: KL is the mean divergence from exact logits, in nats. Other load on the
    machine is reported as a warning, as far as it can be detected.
    """
    todo = cases(
        numbers("-p", n_prompt, [512]),
        numbers("-n", n_gen, [128]),
        pairs("-pg", combined),
        numbers("-d", n_depth, [0]),
        numbers("-npl", n_seq, [1], least=1),
    )
    model = llama_bench.model_of(model, models)
    options["kv_type"] = llama_bench.kv_type(options["kv_type"], type_k, type_v)
    # What is drafted of a made-up text says nothing; llama-bench drafts nothing either.
    idle = {} if options["draft"] else {"speculate": "off"}
    chosen = idle | given(MODEL, {"n_ctx": None, **options})
    both: dict[GraphMode, bool] = {"full": graph or not eager, "none": eager}
    modes = [mode for mode, on in both.items() if on]
    out = Output(output, plot)
    where = device(options["device"])
    if graph and eager and where == "cpu":
        say("--graph --eager: both are the same on the CPU, which is measured once", err=True)
    with watched() as bar:
        path = hub.resolve(model, progress=bar)
        info = json.loads(_native.model_info(path))
        llama_bench.check_layers(layers, info["shape"]["n_layer"], options["device"])
        records = _records(path, info, todo, repetitions, modes, chosen, where, not no_warmup, bar)
        title = Path(model).name if path.name in model else model
        kept = out.write(records, tables.bench_table, _notes(output), title, bar)
    if wrong := [r for r in kept if not r["check_ok"]]:
        raise click.ClickException(
            f"the output is wrong: {wrong[0]['check']}, mean KL {wrong[0]['check_mean_kl']:.1e} "
            "nats; do not use these speeds"
        )


# The tests say what context they need.
command.params = [option for option in command.params if option.name != "n_ctx"]
for option in command.params:
    if option.name == "threads":
        option.opts.append("-t")


def _notes(form: str) -> Any:
    """What is said beside the records: below a table all of it, of other forms what warns."""

    def notes(records: list[dict[str, Any]]) -> list[str]:
        said = [*tables.bench_doubts(records), *warnings(records)]
        return [*tables.bench_foot(records), *said] if form == "md" else said

    return notes


def _records(
    path: Path,
    model: dict[str, Any],
    todo: Sequence[Any],
    repetitions: int,
    modes: Sequence[GraphMode],
    options: dict[str, Any],
    where: str,
    warm_up: bool,
    told: Bar | None,
) -> Iterator[dict[str, Any]]:
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
        watch=machine.watch(where),
        warm_up=warm_up,
        told=told,
    )
    here: machine.Machine | None = None
    for outcome in outcomes:
        if here is None:
            here = machine.describe(outcome.settings["device"])
        yield formats.bench_record(outcome, model, here, shown)
