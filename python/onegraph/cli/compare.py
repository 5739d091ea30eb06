"""`onegraph compare`: a race against other engines on the same file and prompts."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from onegraph import __version__, _native, hub
from onegraph.bench import formats, machine, race, tables
from onegraph.bench.cases import cases, context, numbers
from onegraph.bench.engines import Setup, names
from onegraph.bench.measurement import CONVENTION
from onegraph.cli import llama_bench
from onegraph.cli.measuring import Output, output_options, test_options, warnings, watched
from onegraph.cli.measuring import device as device_of
from onegraph.cli.terminal import debug_option, say


@click.command()
@llama_bench.model_argument
@click.option(
    "--against",
    multiple=True,
    required=True,
    type=click.Choice(names()),
    metavar="ENGINE",
    help="An engine to compare with; may be repeated: " + ", ".join(names()) + ".",
)
@test_options
@click.option("--device", default="auto", show_default=True, help="cpu, cuda, cuda:1 or auto.")
@click.option("-t", "--threads", type=click.IntRange(1, 1024), help="CPU threads of every engine.")
@llama_bench.run_options
@click.option(
    "--create", is_flag=True, help="Copy MODEL into ollama's store during the comparison."
)
@click.option("--chart/--no-chart", default=None, help="Draw a chart in the terminal.")
@output_options
@debug_option
def command(
    model: str | None,
    models: tuple[str, ...],
    against: tuple[str, ...],
    n_prompt: tuple[str, ...],
    n_gen: tuple[str, ...],
    n_depth: tuple[str, ...],
    repetitions: int,
    device: str,
    threads: int | None,
    layers: int | None,
    no_warmup: bool,
    create: bool,
    chart: bool | None,
    output: str,
    plot: Path | None,
) -> None:
    """Compare the speed of onegraph and other engines on MODEL: the same file, prompt tokens and
    context, greedy sampling, alternating round by round, after one round to warm up.

    All clocks follow one convention: decode is the tokens after the first, divided by the time from
    the first to the last. The output row says how far an engine's own greedy tokens are onegraph's
    first choice; onegraph's own says how far it is from its exact interpreter. A missing engine is
    reported at once with how to get it, and the others run. Other load on the machine is reported
    as a warning, as far as it can be detected.
    """
    # Ended by another program, too, it ends the servers it started and takes its copy back.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if chart:
        from onegraph.bench import charts

        charts.check_terminal()
    prompts = numbers("-p", n_prompt, [512], least=1)
    lengths = numbers("-n", n_gen, [128], least=2)
    depths = numbers("-d", n_depth, [0])
    todo = cases([], [], [(p, n) for p in prompts for n in lengths], depths)
    model = llama_bench.model_of(model, models)
    out = Output(output, plot)
    where = device_of(device)
    # Before anything is fetched, loaded or measured.
    absent = race.missing(against)
    for name, why in absent.items():
        say(f"{name} is missing: {why}", err=True)
    if len(absent) == len(set(against)):
        raise click.ClickException("no other engine was found: see above for how to get one")
    results: list[race.Result] = []
    with watched() as bar:
        path = hub.resolve(model, progress=bar)
        info = json.loads(_native.model_info(path))
        llama_bench.check_layers(layers, info["shape"]["n_layer"], device)
        setup = Setup(
            model=path,
            reference=model,
            device=where,
            n_ctx=context(todo, info["shape"]["n_ctx_train"], 256),
            threads=machine.n_threads(threads),
            copy=create,
        )
        races = race.run(
            setup,
            todo,
            against,
            rounds=repetitions,
            version=__version__,
            warm_up=not no_warmup,
            told=bar,
        )

        def notes(records: list[dict[str, Any]]) -> list[str]:
            said = [*_notes(results, setup), *warnings(records)]
            return [f"- {line}" for line in said] if output == "md" else said

        records = _records(races, setup, info, results)
        out.write(records, tables.compare_table, notes, setup.name, bar)
    _end(results, chart if chart is not None else output == "md" and sys.stdout.isatty())


def _records(
    races: Iterator[race.Result], setup: Setup, model: dict[str, Any], results: list[race.Result]
) -> Iterator[dict[str, Any]]:
    here = machine.describe(setup.device)
    for result in races:
        results.append(result)
        for entrant in (result.ours, *result.others):
            yield formats.compare_record(result, entrant, here, model)


def _end(results: list[race.Result], chart: bool) -> None:
    """A chart where it is wanted, and how it ended."""
    if chart:
        from onegraph.bench import charts

        if drawn := charts.terminal(results):
            click.echo(f"\n{drawn}")
    ran = [e for result in results for e in result.others if e.failure is None]
    if not ran:
        raise click.ClickException("no other engine ran: see above for why")
    wrong = [e.name for r in results for e in r.others if e.failure is None and not e.ok]
    if not all(r.check.ok for r in results):
        wrong.insert(0, race.OURS)
    if wrong:
        raise click.ClickException(
            f"the output of {', '.join(dict.fromkeys(wrong))} differs: these speeds are not "
            "comparable"
        )


def _notes(results: list[race.Result], setup: Setup) -> list[str]:
    """What belongs beside the numbers, line by line."""
    if not results:
        return []
    first = results[0]
    here = machine.describe(setup.device)
    lines = [
        f"onegraph {here.version} ({here.commit or 'commit not known'}); "
        + tables.machine_line(here.gpu or here.cpu, here.driver, here.nvrtc),
        f"{setup.name} on {setup.device}, {setup.n_ctx} tokens of context, {setup.threads} threads",
        CONVENTION + "; wall: by the caller's clock, HTTP included",
        f"onegraph: {first.check}",
    ]
    plain = [m.rate_without_sampling for m in first.ours.rounds if m.rate_without_sampling]
    if plain:
        lines.append(f"onegraph without sampling and text: {tables.plus_minus(plain)} tokens/s")
    for entrant in first.others:
        if entrant.failure:
            lines.append(f"{entrant.name}: not measured: {entrant.failure}")
            continue
        assert entrant.settings is not None
        for result in results:
            for other in result.others:
                ratio = result.decode_ratio(other) if other.name == entrant.name else None
                if ratio and ratio.doubt:
                    lines.append(f"{entrant.name}, {result.case.name}: no ratio: {ratio.doubt}")
        version, on = entrant.settings.version, entrant.settings.device
        lines.append(f"{entrant.name} {version} on {on}; its clock: {entrant.settings.clock}")
        lines += [f"{entrant.name}: WARNING: {warning}" for warning in entrant.settings.warnings]
    return lines
