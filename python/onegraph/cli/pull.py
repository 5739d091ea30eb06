"""`onegraph pull`: fetch a model before it is needed."""

from __future__ import annotations

import click

from onegraph import hub
from onegraph.cli.terminal import debug_option, progress
from onegraph.progress import shown


@click.command()
@click.argument("name")
@debug_option
def command(name: str) -> None:
    """Fetch the model NAME, check it, and print the path of its file.

    NAME is a name like smollm2, hf:user/repo/file.gguf or hf:user/repo:Q4_K_M. A file that is
    there already is read once and fetched again where it is damaged.
    """
    with shown(progress()) as told:
        path = hub.resolve(name, progress=told, verify=True)
    click.echo(path)
