"""`onegraph list`: the models that are here."""

from __future__ import annotations

import dataclasses
import json

import click

from onegraph import hub
from onegraph.cli.local import Local, known
from onegraph.cli.terminal import debug_option, json_option, say, show_table, size
from onegraph.printable import printable


@click.command()
@json_option
@debug_option
def command(as_json: bool) -> None:
    """List the models on this machine: onegraph's own, those of ollama, and those of Hugging Face
    that were used here, each by the name to run it by. Nothing is fetched.
    """
    found = list(known())
    if as_json:
        rows = [dataclasses.asdict(m) | {"path": m.path and str(m.path)} for m in found]
        say(json.dumps({"models": rows}))
        return
    if not found:
        say("no model is here: `onegraph pull smollm2` fetches a small one", err=True)
        return
    _show(found)
    say(f"\nonegraph's own: {hub.cache_dir()}; all paths: onegraph list --json")


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
