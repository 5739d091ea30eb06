"""`onegraph run`: text from a prompt, or a chat."""

from __future__ import annotations

import dataclasses
import json
import logging
import sys
from typing import Any

import click

from onegraph import LLM
from onegraph.cli.answer import messages, note_cut, report, show
from onegraph.cli.options import MODEL, SAMPLING, given, model_options, sampling_options
from onegraph.cli.terminal import debug_option, json_option, progress
from onegraph.printable import printable


@click.command()
@click.argument("model")
@click.argument("prompt", required=False)
@click.option("--system", metavar="TEXT", help="Instructions that precede the conversation.")
@click.option("--raw", is_flag=True, help="Continue PROMPT as it is, without the chat template.")
@sampling_options
@model_options
@json_option
@click.option("--verbose", "-v", is_flag=True, help="Say on standard error how it went, and log.")
@debug_option
def command(
    model: str,
    prompt: str | None,
    system: str | None,
    raw: bool,
    as_json: bool,
    verbose: bool,
    **options: Any,
) -> None:
    """Generate text from PROMPT with MODEL; without PROMPT, chat.

    PROMPT is wrapped in the model's chat template where it has one. A PROMPT of '-', or none where
    standard input is no terminal, reads it from there. Standard output carries the text alone.
    """
    if raw and system is not None:
        raise click.UsageError("--system is part of the chat template, and --raw leaves that out")
    chatting = prompt is None and sys.stdin is not None and sys.stdin.isatty()
    if chatting and (raw or as_json):
        raise click.UsageError("--raw and --json need a PROMPT")
    if not chatting and prompt in (None, "-"):
        prompt = _standard_input()
    for said in [prompt, system, *options["stop"]]:
        _check_utf8(said)
    if verbose:
        logging.getLogger("onegraph").setLevel(logging.INFO)
    with LLM(model, max_batch=1, progress=progress(), **given(MODEL, options)) as llm:
        sampling = given(SAMPLING, options)
        if not raw and llm.chat_template is None and (chatting or system is not None):
            raise click.UsageError(
                f"{llm.path.name} has no chat template: give a PROMPT, and no --system"
            )
        if prompt is None:
            from onegraph.cli.chat import chat

            chat(llm, system, sampling, verbose)
        else:
            _answer(llm, prompt, system, raw, sampling, as_json, verbose)


def _answer(
    llm: LLM,
    prompt: str,
    system: str | None,
    raw: bool,
    sampling: dict[str, Any],
    as_json: bool,
    verbose: bool,
) -> None:
    if raw or llm.chat_template is None:
        stream = llm.generate(prompt, stream=True, **sampling)
    else:
        stream = llm.chat(messages(system, prompt), stream=True, **sampling)
    with stream:
        if as_json:
            for _ in stream:
                pass
        else:
            show(stream)
    assert stream.result is not None
    if as_json:
        made = dataclasses.asdict(stream.result)
        click.echo(json.dumps({"model": str(llm.path), "device": llm.device, **made}))
    else:
        note_cut(stream.result, sampling.get("max_tokens"))
    if verbose:
        report(stream.result)


def _standard_input() -> str:
    if sys.stdin is None:
        raise click.UsageError("standard input is closed: give a PROMPT")
    raw = sys.stdin.buffer.read()
    try:
        text = raw.decode()
    except UnicodeDecodeError as e:
        raise click.UsageError(
            f"standard input is not UTF-8: byte {raw[e.start]:#04x} at offset {e.start}"
        ) from e
    # The line feed that ends a line is not part of the question.
    text = text.removesuffix("\n")
    if not text:
        raise click.UsageError("standard input is empty: give a PROMPT, or pipe one in")
    return text


def _check_utf8(text: str | None) -> None:
    try:
        (text or "").encode()
    except UnicodeEncodeError as e:
        raise click.UsageError(f"{printable(ascii(text))} is not UTF-8: {e.reason}") from e
