"""The command line. A command is one file, with a `command` in it, and one row of `COMMANDS`."""

from __future__ import annotations

import difflib
import importlib
import io
import logging
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import NamedTuple, TextIO

import click

from onegraph.cli import foreign
from onegraph.cli.spelling import spelled
from onegraph.cli.terminal import Printable, debug_option
from onegraph.printable import printable

__all__ = ["COMMANDS", "main"]


class Row(NamedTuple):
    """Where a command is, and what the list of commands says of it; neither is imported for it."""

    module: str
    summary: str


COMMANDS = {
    "run": Row("onegraph.cli.run", "Generate text, or chat."),
    "embed": Row("onegraph.cli.embed", "Compute embeddings of texts."),
    "batch": Row("onegraph.cli.batch", "Answer a file of requests."),
    "serve": Row("onegraph.cli.serve", "Serve models to OpenAI, Anthropic and ollama clients."),
    "list": Row("onegraph.cli.list", "List the models on this machine."),
    "pull": Row("onegraph.cli.pull", "Download a model and print its path."),
    "rm": Row("onegraph.cli.rm", "Remove a downloaded model."),
    "info": Row("onegraph.cli.info", "Describe a model and the memory that it needs."),
    "show": Row("onegraph.cli.info", "Same as info."),
    "bench": Row("onegraph.cli.bench", "Measure speed, as llama-bench does."),
    "compare": Row("onegraph.cli.compare", "Compare speed with ollama, llama.cpp and others."),
    "graph": Row("onegraph.cli.graph", "Profile the captured decode step."),
    "check": Row(
        "onegraph.cli.check", "Test a GPU: graphs against eager mode, logits against the CPU."
    ),
    "help": Row("onegraph.cli.help", "Show the documentation."),
}


class Table(click.Group):
    """The commands of `COMMANDS`, each imported when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS]  # `list` is a module here, once that command was imported

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        row = COMMANDS.get(cmd_name)
        if row is None:
            return None
        command: click.Command = importlib.import_module(row.module).command
        foreign.refuse(command)
        if ctx.resilient_parsing:  # a shell asks how a word goes on
            from onegraph.cli import completion

            completion.prepare(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name in COMMANDS or name.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        near = difflib.get_close_matches(name.lower(), COMMANDS, n=1)
        if name in foreign.COMMANDS:
            remedy = foreign.COMMANDS[name]
        elif near:
            remedy = f"did you mean `onegraph {near[0]}`?"
        else:
            remedy = f"commands are {', '.join(COMMANDS)}; `onegraph run MODEL` runs a model"
        raise click.UsageError(f"No such command {name!r}: {remedy}", ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, row.summary) for name, row in COMMANDS.items()])


def _version(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    if wanted:
        from onegraph import __version__

        click.echo(f"onegraph {__version__}")
        ctx.exit()


@click.group(
    cls=Table,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog='Completion: eval "$(_ONEGRAPH_COMPLETE=bash_source onegraph)" in ~/.bashrc; zsh_source '
    "and fish_source work alike.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Print the version.",
)
@debug_option
def cli() -> None:
    """Run quantized GGUF language models.

    MODEL is a name like smollm2, llama3.2 or qwen3.5:4b (`onegraph list --names` lists them), the
    path of a .gguf file, hf:user/repo/file.gguf, hf:user/repo:Q4_K_M, one revision of it as
    hf:user/repo@REVISION:Q4_K_M, or ollama:model:tag.
    """


def main(args: Sequence[str] | None = None) -> int:
    """Runs the command line; the exit code: 0, 1 for a failed run, 2 for wrong use.

    `--debug` anywhere shows the traceback of an error.
    """
    args = [*(sys.argv[1:] if args is None else args)]
    for name in ["stdout", "stderr"]:
        stream = getattr(sys, name)
        if stream is None:  # the caller closed it
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif stream.isatty():
            stream.reconfigure(errors="replace")  # what the terminal's encoding lacks
        else:
            # The path of a file need not be UTF-8: its bytes go out as they are.
            stream.reconfigure(encoding="utf-8", errors="surrogateescape")
    _log()
    ctx = None
    try:
        if wish := os.environ.get("_ONEGRAPH_COMPLETE"):
            from onegraph.cli import completion

            return completion.complete(cli, wish)
        with cli.make_context("onegraph", [*args]) as ctx:
            cli.invoke(ctx)
        sys.stdout.flush()
    except click.exceptions.Exit as e:
        return e.exit_code
    except click.ClickException as e:
        said = io.StringIO()
        (_near(e) if isinstance(e, click.NoSuchOption) else e).show(said)
        click.echo(printable(said.getvalue()), err=True, nl=False)
        return e.exit_code
    except BrokenPipeError:
        # The reader of the output has closed it. Python flushes once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        # Ends as an uncaught Ctrl-C does, so that a shell's loop ends too.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except Exception as e:
        return _failed(e, ctx, "--debug" in args)
    return 0


def _near(e: click.NoSuchOption) -> click.NoSuchOption:
    """The same error, and of the options that are near only those that the command has."""
    params = e.ctx.command.get_params(e.ctx) if e.ctx is not None else []
    own = [s for p in params if not getattr(p, "hidden", False) for s in p.opts if s[:2] == "--"]
    near = difflib.get_close_matches(e.option_name.replace("_", "-"), own)
    return click.NoSuchOption(e.option_name, possibilities=near, ctx=e.ctx)


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes to what standard error is at the time: a bar puts itself before it, so that lines are
    printed above it."""

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, stream: TextIO) -> None:
        """The base class sets it once; it stays what `sys` has."""


def _log() -> None:
    """Warnings of the package, and what a command asks for beyond them, on standard error."""
    logger = logging.getLogger("onegraph")
    if not logger.handlers:
        handler = _Stderr()
        handler.setFormatter(Printable("%(message)s"))
        logger.addHandler(handler)
    logger.setLevel(logging.WARNING)


def _failed(e: Exception, ctx: click.Context | None, debug: bool) -> int:
    from onegraph.errors import ArgumentError, Error, FileError, InternalError, ModelError

    if debug:
        click.echo(printable(traceback.format_exc()), err=True, nl=False)
    if isinstance(e, Error | InternalError):
        said = str(e)
        name = ctx and ctx.invoked_subcommand
        if ctx and name and not isinstance(e, FileError | ModelError):  # these quote files
            said = spelled(said, cli.get_command(ctx, name))
    elif isinstance(e, OSError):
        said = f"{e}; check the disk and the terminal or file the output goes to"
    else:
        said = f"{type(e).__name__}: {e}; this is a bug: report it with what --debug shows"
    click.echo(f"{click.style('error:', fg='red')} {printable(said)}", err=True)
    return 2 if isinstance(e, ArgumentError) else 1
