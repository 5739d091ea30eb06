"""Options and commands of other programs that onegraph spells otherwise or does not have.

Each is refused by name, with what to use instead: none is guessed at, or read as another option."""

from __future__ import annotations

from typing import NamedTuple

import click

__all__ = ["COMMANDS", "OPTIONS", "Foreign", "refuse"]


class Foreign(NamedTuple):
    """Spellings of one option elsewhere."""

    spellings: tuple[str, ...]
    #: Python names of options or arguments here that mean the same; of these the ones that the
    #: command has are named.
    ours: tuple[str, ...]
    #: What to do where the command has none of them.
    instead: str


_ONE_BATCH = "onegraph chooses the chunks of a prompt, which change no bit of the output"
_WHOLE = "a model runs on one device: choose it with --device cuda or --device cpu"
_SAMPLED = "nothing is sampled here"

#: What people type who come from there.
OPTIONS = [
    Foreign(("-m", "--model"), ("model", "name"), "no model is needed here"),
    Foreign(("-mu", "--model-url"), (), "download the file and pass its path as MODEL"),
    Foreign(
        ("-hf", "-hfr", "--hf-repo", "-hff", "--hf-file"), (), "pass hf:user/repo:Q4_K_M as MODEL"
    ),
    Foreign(("-p", "--prompt"), ("prompt", "n_prompt", "texts"), "no prompt is needed here"),
    Foreign(("-f", "--file"), ("file",), "no text is needed here"),
    Foreign(
        ("-n", "--n-predict", "--predict", "--num-predict"),
        ("max_tokens", "n_gen", "tokens"),
        "nothing is generated here",
    ),
    Foreign(
        ("-c", "--ctx-size", "--num-ctx"),
        ("n_ctx",),
        "the context is as long as needed",
    ),
    Foreign(("-t", "--num-thread"), ("threads",), "threads have no effect here"),
    Foreign(
        ("-tb", "--threads-batch"), ("threads",), "one number of threads applies to everything"
    ),
    Foreign(("-b", "--batch-size", "--num-batch"), (), _ONE_BATCH),
    Foreign(("-ub", "--ubatch-size"), (), _ONE_BATCH),
    Foreign(("-ngl", "--n-gpu-layers", "--gpu-layers", "--num-gpu"), (), _WHOLE),
    Foreign(("-ncmoe", "--n-cpu-moe", "-ot", "--override-tensor"), (), _WHOLE),
    Foreign(("-nkvo", "--no-kv-offload"), (), _WHOLE),
    Foreign(
        ("-sm", "--split-mode", "-ts", "--tensor-split"),
        (),
        "cards share evenly, by rows: name them, as --device cuda:0,1",
    ),
    Foreign(("-mg", "--main-gpu"), (), "choose the card with --device cuda:1"),
    Foreign(("-dev",), ("device",), "no device is used here"),
    Foreign(("-fa", "--flash-attn"), (), "flash attention is always on: leave it out"),
    Foreign(
        ("-ctk", "--cache-type-k", "-ctv", "--cache-type-v"),
        ("kv_type",),
        "the type of keys and values cannot be chosen here",
    ),
    Foreign(("-mmp", "--mmap", "--no-mmap"), (), "the CPU always maps the file: leave it out"),
    Foreign(("--mlock", "--numa", "-dio", "--direct-io"), (), "leave it out"),
    Foreign(
        ("-C", "--cpu-mask", "--cpu-strict", "--prio", "--poll"),
        (),
        "bind the whole command with taskset, or rank it with nice",
    ),
    Foreign(("-nopo", "--no-op-offload", "--no-host"), (), _WHOLE),
    Foreign(("-embd", "--embeddings"), (), "use `onegraph embed MODEL TEXT`"),
    Foreign(("-rpc", "--rpc"), (), "a model runs on one machine"),
    Foreign(("--list-devices",), (), "nvidia-smi -L lists the GPUs"),
    Foreign(("-oe", "--output-err"), (), "standard error has no format: redirect it"),
    Foreign(("--progress",), (), "terminals always show it: leave it out"),
    Foreign(("--delay",), (), "leave it out"),
    Foreign(("-s",), ("seed",), _SAMPLED),
    Foreign(("--temp",), ("temperature",), _SAMPLED),
    Foreign(("-sys", "--system-prompt"), ("system",), "there is no conversation here"),
    Foreign(("-r", "--reverse-prompt"), ("stop",), "nothing is generated here"),
    Foreign(
        ("-cnv", "--conversation", "-i", "--interactive"), (), "a run without PROMPT is a chat"
    ),
    Foreign(("-no-cnv", "--no-conversation"), ("raw",), "there is no conversation here"),
    Foreign(
        ("-e", "--escape", "--no-display-prompt", "--nowordwrap", "--color", "--jinja"),
        (),
        "leave it out: standard output has only the text, from the model's own chat template",
    ),
    Foreign(("--warmup", "--no-warmup"), (), "leave it out"),
    Foreign(("-np", "--parallel"), ("n_seq", "max_batch"), "one sequence runs at a time here"),
    Foreign(("--format",), ("schema", "as_json"), "the output has only one format"),
    Foreign(
        ("--keepalive",), (), "there is no server: the model is unloaded when the command ends"
    ),
    Foreign(("--json-schema",), ("schema",), "nothing is generated here"),
    Foreign(("-md", "--model-draft"), ("draft",), "nothing is drafted here"),
    Foreign(("--lora",), (), "onegraph does not support it"),
    Foreign(("--image", "--mmproj", "-mm", "--audio"), (), "onegraph only supports text"),
    Foreign(("--think", "--hidethinking"), (), "the model's chat template decides"),
    Foreign(("--insecure",), (), "downloads are always checked against their hash"),
    Foreign(("--max-model-len",), ("n_ctx",), "the context is as long as needed"),
    Foreign(("--max-num-seqs",), ("n_seq", "max_batch"), "one sequence runs at a time here"),
    Foreign(("-a", "--served-model-name"), ("alias",), "there is no server here"),
    Foreign(
        ("--kv-cache-dtype",),
        ("kv_type",),
        "the type of keys and values cannot be chosen here",
    ),
    Foreign(("--gpu-memory-utilization",), ("kv_tokens",), "onegraph takes what it needs"),
    Foreign(("--dtype", "--quantization"), (), "the file determines it"),
    Foreign(("-tp", "--tensor-parallel-size"), (), "name the cards, as --device cuda:0,1"),
    Foreign(
        ("--enforce-eager",), ("cuda_graph",), "in Python, use LLM(graph=GraphOptions(mode='none'))"
    ),
    Foreign(
        (
            *("-cb", "--cont-batching", "--cache-reuse", "--slots", "--metrics"),
            *("--enable-prefix-caching", "--enable-auto-tool-choice"),
            *("--tool-call-parser", "--reasoning-parser", "--reasoning-format"),
        ),
        (),
        "it is always on: leave it out",
    ),
    Foreign(("--slot-save-path",), (), "onegraph does not support it"),
]

#: Commands of ollama and what to do here.
COMMANDS = {
    "ls": "use `onegraph list`",
    "remove": "use `onegraph rm`",
    "chat": "use `onegraph run MODEL`",
    "generate": "use `onegraph run MODEL PROMPT`",
    "ps": "`onegraph serve` serves the models it was started with; its /api/ps lists them",
    "stop": "a model is unloaded when its command ends; end `onegraph serve` by Ctrl-C or SIGTERM",
    "create": "pass the path of a .gguf file as MODEL, and options where you run it",
    "cp": "models have no names to copy: name a file by its path",
    "push": "onegraph publishes nothing",
    "version": "use `onegraph --version`",
}


def refuse(command: click.Command) -> None:
    """Adds hidden options to a command: one for each spelling of `OPTIONS` that it does not have
    itself, which ends with a `click.UsageError` (exit code 2) that says what to use instead.

    A command that takes such a spelling declares it as its own (`click.option("-t", "--threads")`)
    and that one stays. `onegraph.cli` calls this for every command; calling it again adds nothing.
    """
    own = {
        spelling for param in command.params for spelling in (*param.opts, *param.secondary_opts)
    }
    for row in OPTIONS:
        for spelling in row.spellings:
            if spelling not in own:
                command.params.append(_Refused(spelling, row))


class _Refused(click.Option):
    """An option that is known in order to be refused. It comes before whatever else is wrong."""

    def __init__(self, spelling: str, row: Foreign) -> None:
        super().__init__(
            [spelling, f"foreign{spelling.replace('-', '_')}"],
            # With a value, in whatever form that comes, or without one.
            is_flag=False,
            flag_value="",
            hidden=True,
            is_eager=True,
            expose_value=False,
            callback=self._refuse,
            help=f"Not an option here: {row.instead}.",
        )
        self._row = row

    def _refuse(self, ctx: click.Context, param: click.Parameter, value: str | None) -> None:
        if value is None or ctx.resilient_parsing:
            return
        same = [p for p in ctx.command.params if p.name in self._row.ours]
        instead = f"use {_named(same[0])}" if same else self._row.instead
        raise click.UsageError(f"{self.opts[0]} is not an option here: {instead}", ctx)


def _named(param: click.Parameter) -> str:
    """A parameter as it is typed: `--n-ctx INTEGER`, or `MODEL` by itself."""
    if isinstance(param, click.Argument):
        return f"{param.human_readable_name.upper()} without an option"
    longest = max(param.opts, key=len)
    return longest if getattr(param, "is_flag", False) else f"{longest} {_metavar(param)}"


def _metavar(param: click.Parameter) -> str:
    return param.metavar or param.type.name.upper()
