"""`onegraph rm`: remove models that onegraph fetched."""

from __future__ import annotations

import sys

import click

from onegraph.cli.local import removable
from onegraph.cli.terminal import debug_option, say, size
from onegraph.errors import FileError
from onegraph.printable import printable


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@debug_option
def command(names: tuple[str, ...], yes: bool) -> None:
    """Remove models from onegraph's own cache, after asking for each; `onegraph pull` downloads
    them again. Models of ollama, Hugging Face and others are not touched.
    """
    found = [removable(name) for name in dict.fromkeys(names)]
    if not yes and (sys.stdin is None or not sys.stdin.isatty()):
        raise click.UsageError("standard input is not a terminal, so rm cannot ask: add --yes")
    kept = False
    for model in found:
        path = model.path
        assert path is not None
        what = f"{model.name} ({size(path.stat().st_size)}, {path})"
        if not yes and not click.confirm(printable(f"remove {what}?"), err=True):
            kept = True
            continue
        try:
            path.unlink()
        except OSError as e:
            raise FileError(
                f"cannot remove {path}: {e.strerror}; check the permissions of its folder"
            ) from e
        say(f"removed {what}", err=True)
    if kept:
        raise click.exceptions.Exit(1)
