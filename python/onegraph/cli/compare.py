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
from onegraph.bench import formats, machine, race
from onegraph.bench.cases import Case, cases, numbers
from onegraph.bench.engines import Setup, names
from onegraph.bench.measurement import CONVENTION
from onegraph.cli.measuring import Output, Told, output_options, test_options, watched
from onegraph.cli.measuring import device as device_of
from onegraph.cli.terminal import debug_option


@click.command()
@click.argument("model")
@click.option(
    "--against",
    multiple=True,
    required=True,
    type=click.Choice(names()),
    metavar="ENGINE",
    help="An engine to race; may be repeated. " + ", ".join(names()) + ".",
)
@test_options
@click.option("--device", default="auto", show_default=True, help="cpu, cuda, cuda:1 or auto.")
@click.option("--threads", type=click.IntRange(1, 4096), help="CPU threads of every engine.")
@click.option(
    "--create", is_flag=True, help="Copy MODEL into ollama's store for the time of the race."
)
@click.option("--chart/--no-chart", default=None, help="Draw a chart in the terminal.")
@output_options
@debug_option
def command(
    model: str,
    against: tuple[str, ...],
    n_prompt: tuple[str, ...],
    n_gen: tuple[str, ...],
    n_depth: tuple[str, ...],
    repetitions: int,
    device: str,
    threads: int | None,
    create: bool,
    chart: bool | None,
    output: str,
    plot: Path | None,
) -> None:
    """Race onegraph against other engines on MODEL: the same file, the same prompt tokens, greedy,
    the same context, in turn, round by round, after one round to warm up.

    One convention holds for every clock: decode is the tokens after the first by the time from the
    first to the last. The output column says how far an engine's own greedy tokens are onegraph's
    first choice; onegraph's own says how far it is from its exact interpreter. An engine that is
    missing is reported with how to get it, and the others run.
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
    with watched() as told:
        path = hub.resolve(model, progress=told)
        setup = Setup(
            model=path,
            reference=model,
            device=device_of(device),
            n_ctx=-(-max(case.n_ctx for case in todo) // 256) * 256,
            threads=machine.n_threads(threads),
            copy=create,
        )
        out = Output(output, plot, title=setup.name)
        results: list[race.Result] = []
        records = _records(setup, todo, against, repetitions, told, results)
        out.write(
            records, formats.compare_table, lambda _: "\n".join(_notes(results, setup, output))
        )
    _end(results, chart if chart is not None else output == "md" and sys.stdout.isatty())


def _records(
    setup: Setup,
    todo: list[Case],
    against: tuple[str, ...],
    rounds: int,
    told: Told | None,
    results: list[race.Result],
) -> Iterator[dict[str, Any]]:
    model = json.loads(_native.model_info(setup.model))
    here = machine.describe(setup.device)
    for result in race.run(setup, todo, against, rounds=rounds, version=__version__, told=told):
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
        raise click.ClickException("no other engine ran: see above for how to get one")
    wrong = [e.name for r in results for e in r.others if e.failure is None and not e.ok]
    if not all(r.check.ok for r in results):
        wrong.insert(0, race.OURS)
    if wrong:
        raise click.ClickException(
            f"the output of {', '.join(dict.fromkeys(wrong))} differs: these speeds are not of the "
            "same work"
        )


def _notes(results: list[race.Result], setup: Setup, output: str) -> list[str]:
    """What belongs beside the numbers; of a table, as a list to paste with it."""
    if not results:
        return []
    first = results[0]
    here = machine.describe(setup.device)
    lines = [
        f"onegraph {here.version} ({here.commit or 'commit not known'}); "
        + formats.machine_line(here.gpu or here.cpu, here.driver, here.nvrtc),
        f"{setup.name} on {setup.device}, {setup.n_ctx} tokens of context, {setup.threads} threads",
        CONVENTION + "; wall: by the caller's clock, HTTP included",
        f"onegraph: {first.check}",
    ]
    plain = [m.rate_without_sampling for m in first.ours.rounds if m.rate_without_sampling]
    if plain:
        lines.append(f"onegraph without sampling and text: {formats.plus_minus(plain)} tokens/s")
    for entrant in first.others:
        if entrant.failure:
            lines.append(f"{entrant.name}: not raced: {entrant.failure}")
            continue
        assert entrant.settings is not None
        for result in results:
            for other in result.others:
                ratio = result.decode_ratio(other) if other.name == entrant.name else None
                if ratio and ratio.doubt:
                    lines.append(f"{entrant.name}, {result.case.name}: no ratio: {ratio.doubt}")
        lines.append(f"{entrant.name}: its clock: {entrant.settings.clock}")
        lines += [f"{entrant.name}: WARNING: {warning}" for warning in entrant.settings.warnings]
    return [f"- {line}" for line in lines] if output == "md" else lines
