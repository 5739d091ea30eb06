"""`onegraph list`: the models that are here."""

from __future__ import annotations

import dataclasses
import json

import click

from onegraph import hub
from onegraph.cli.local import Local, known
from onegraph.cli.terminal import debug_option, json_option, say, show_table, size
from onegraph.hub.names import Named
from onegraph.printable import printable


@click.command()
@click.option("--names", is_flag=True, help="List names of models to download, and their memory.")
@json_option
@debug_option
def command(names: bool, as_json: bool) -> None:
    """List the models on this machine by the names that run them: onegraph's own, ollama's, and
    those of Hugging Face that onegraph has used. Nothing is downloaded.

    --names lists the names that `onegraph run` and `onegraph pull` can download, what each stands
    for, and the memory it needs for one conversation of 8,192 tokens.
    """
    if names:
        _show_names(as_json)
        return
    found = list(known())
    if as_json:
        rows = [dataclasses.asdict(m) | {"path": m.path and str(m.path)} for m in found]
        say(json.dumps({"models": rows}))
        return
    if not found:
        say("no models on this machine: `onegraph pull smollm2` downloads a small one", err=True)
        return
    _show(found)
    say(f"\nonegraph's own: {hub.cache_dir()}; all paths: onegraph list --json")


def _show_names(as_json: bool) -> None:
    known = {
        each.name: Named(each.requirement, each.description, each.memory)
        for each in hub.known_models().values()
    } | hub.names()
    if as_json:
        rows = [{"name": name, **named._asdict()} for name, named in known.items()]
        say(json.dumps({"names": rows}))
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("name", no_wrap=True)
    table.add_column("model")
    table.add_column("memory", justify="right", no_wrap=True)
    table.add_column("reference", overflow="fold")
    for name, named in known.items():
        table.add_row(name, named.model, f"{named.memory} GiB", named.reference)
    show_table(table)


def _show(models: list[Local]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("name", overflow="fold")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("type", no_wrap=True)
    table.add_column("kept by", no_wrap=True)
    for model in models:
        kind = " ".join(filter(None, [model.architecture, model.type]))
        cells = [model.name, "" if model.size is None else size(model.size)]
        cells += [f"{kind}, cannot run".removeprefix(", ") if model.error else kind, model.store]
        # Text, not a string: brackets in a name are no markup.
        table.add_row(*(Text(printable(cell)) for cell in cells))
    show_table(table)
