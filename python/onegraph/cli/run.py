"""`onegraph run`: text from a prompt, or a chat."""

from __future__ import annotations

import dataclasses
import json
import logging
import sys
from pathlib import Path
from typing import Any

import click

from onegraph import LLM, _native, hub
from onegraph.cli import piped
from onegraph.cli.answer import note_cut, report, show
from onegraph.cli.asking import Asking, Thinking, functions_of
from onegraph.cli.conversation import Conversation
from onegraph.cli.files import before
from onegraph.cli.options import (
    MODEL,
    SAMPLING,
    flag,
    given,
    model_options,
    sampling_options,
)
from onegraph.cli.terminal import debug_option, json_option, progress
from onegraph.hub import modelfile
from onegraph.hub.modelfile import Modelfile
from onegraph.sampling import DEFAULTS
from onegraph.streams import Stream


@click.command()
@click.argument("model")
@click.argument("prompt", required=False)
@click.option("--system", metavar="TEXT", help="System message of the conversation.")
@click.option(
    "--file",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Put this text file before PROMPT. May be repeated.",
)
@click.option(
    "--tools",
    type=click.Path(path_type=Path),
    metavar="FILE.py",
    help="Let the model call the functions of this file.",
)
@click.option(
    "--think",
    # `--think` by itself, before another option or at the end.
    is_flag=False,
    flag_value="on",
    metavar="[on|off|low|medium|high|N]",
    help="Turn reasoning on or off, set its effort, or limit it to N tokens.",
)
@click.option("--raw", is_flag=True, help="Continue PROMPT as it is, without the chat template.")
@sampling_options
@model_options
@json_option
@click.option(
    "--verbose", "-v", is_flag=True, help="Print speed, timings and logs to standard error."
)
@debug_option
def command(
    model: str,
    prompt: str | None,
    system: str | None,
    file: tuple[Path, ...],
    tools: Path | None,
    think: str | None,
    raw: bool,
    as_json: bool,
    verbose: bool,
    **options: Any,
) -> None:
    """Generate text from PROMPT with MODEL; without PROMPT, chat.

    MODEL is a name such as smollm2, llama3.2 or qwen3.5:4b (`onegraph list --names` lists them with
    the memory each needs), the path of a .gguf file, hf:user/repo:Q4_K_M or ollama:model:tag. A
    model that is not on this machine is downloaded.

    PROMPT goes through the model's chat template, if it has one. Piped input is the PROMPT if none
    is given or it is '-'; otherwise it goes before PROMPT, with an empty line between, as in
    `onegraph run MODEL "Sum this up." < report.txt`. In a loop that reads standard input itself,
    add `< /dev/null`. Standard output has only the text, followed by a line feed.

    For a model in ollama's store, SYSTEM and PARAMETER of its Modelfile apply unless an option
    overrides them; --raw ignores them.

    Each --file goes before PROMPT and after piped input, as its name, a colon and its text between
    ``` fences.

    --tools offers the public functions of a Python file that have a docstring; the model sees their
    annotations and docstrings. The file and the model's calls run with your permissions; standard
    error shows calls and results. After 16 answers with calls, the model must answer without tools.

    In a chat, /help lists the commands. Conversations saved by /save NAME, and the history of input
    lines, are in $ONEGRAPH_STATE_DIR, otherwise $XDG_STATE_HOME/onegraph, otherwise
    ~/.local/state/onegraph.
    """
    for option, value in (("--system", system), ("--tools", tools), ("--think", think)):
        if raw and value is not None:
            raise click.UsageError(f"{option} needs the chat template, which --raw turns off")
    chatting = prompt is None and sys.stdin is not None and sys.stdin.isatty()
    if chatting and (raw or as_json):
        raise click.UsageError("--raw and --json need a PROMPT")
    if chatting and file:
        raise click.UsageError("--file needs a PROMPT, such as 'Sum this up.'")
    switch = Thinking.of(think)
    if switch.budget is not None and options["thinking_token_budget"] is not None:
        raise click.UsageError(
            f"--think {think} and --thinking-token-budget set the same limit: give one of them"
        )
    functions = [] if tools is None else functions_of(tools)
    if not as_json and options["logprobs"] is not None:
        raise click.UsageError("--logprobs is only printed with --json: add it")
    if not chatting:
        if prompt in (None, "-"):
            prompt = before(piped.needed(), file)
        else:
            prompt = piped.joined(before(prompt, file))
    for said in [prompt, system, *options["stop"]]:
        piped.check_utf8(said)
    if verbose:
        logging.getLogger("onegraph").setLevel(logging.INFO)
    model = hub.meant(model)
    kept = Modelfile() if raw else modelfile.read(model)
    loaded = given(MODEL, options)
    if kept.n_ctx is not None and "n_ctx" not in loaded:
        loaded["n_ctx"] = min(kept.n_ctx, _trained(model))
    with LLM(model, max_batch=1, progress=progress(), **loaded) as llm:
        sampling = {**kept.sampling, **given(SAMPLING, options)}
        _say_without_effect(llm, sampling, options)
        needs_template = chatting or any(v is not None for v in (system, tools, think))
        if not raw and llm.chat_template is None and needs_template:
            raise click.UsageError(
                f"{llm.path.name} has no chat template: give a PROMPT, and no --system, --tools or "
                "--think"
            )
        if system is None and llm.chat_template is not None:
            system = kept.system
        asking = Asking(functions, switch.variables)
        switch.check(llm)
        if switch.budget is not None:
            sampling["thinking_token_budget"] = switch.budget
        if prompt is None:
            from onegraph.cli.chat import chat

            chat(llm, system, sampling, verbose, asking)
        else:
            _answer(llm, prompt, system, raw, sampling, as_json, verbose, asking)


def _trained(model: str) -> int:
    """The longest context that a model was trained for."""
    n: int = json.loads(_native.model_info(hub.resolve(model)))["shape"]["n_ctx_train"]
    return n


def _answer(
    llm: LLM,
    prompt: str,
    system: str | None,
    raw: bool,
    sampling: dict[str, Any],
    as_json: bool,
    verbose: bool,
    asking: Asking,
) -> None:
    def shown(stream: Stream) -> None:
        if as_json:
            for _ in stream:
                pass
        else:
            show(stream)

    if raw or llm.chat_template is None:
        with llm.generate(prompt, stream=True, **sampling) as stream:
            shown(stream)
        result = stream.result
    else:
        result = asking.ask(llm, Conversation(system, [prompt]).messages(), sampling, shown)
    assert result is not None
    if as_json:
        made = dataclasses.asdict(result)
        click.echo(json.dumps({"model": str(llm.path), "device": llm.device, **made}))
    else:
        note_cut(result, sampling.get("max_tokens"))
    if verbose:
        report(result)


def _say_without_effect(llm: LLM, sampling: dict[str, Any], options: dict[str, Any]) -> None:
    """Options that were given and change nothing: not an error, as scripts give all of them."""
    if sampling.get("temperature", DEFAULTS["temperature"]) == 0:
        idle = [flag(name) for name in ("top_k", "top_p", "min_p", "seed") if name in sampling]
        if idle:
            said = "which always picks the most probable token"
            click.echo(f"no effect with --temperature 0, {said}: {', '.join(idle)}", err=True)
    penalties = ("repeat_penalty", "presence_penalty", "frequency_penalty")
    off = all(sampling.get(name, DEFAULTS[name]) == DEFAULTS[name] for name in penalties)
    if off and "repeat_last_n" in sampling:
        names = ", ".join(map(flag, penalties))
        click.echo(f"no effect without one of {names}: --repeat-last-n", err=True)
    if options["threads"] is not None and llm.device != "cpu":
        click.echo(f"no effect on {llm.device}: --threads", err=True)
