"""`onegraph serve`: a server of models."""

from __future__ import annotations

import functools
import ipaddress
import logging
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from onegraph import LLM
from onegraph.cli.options import MODEL, given, model_options
from onegraph.cli.terminal import debug_option, progress, say
from onegraph.server import MISSING

#: The name of a file of a split model, and of its first.
_SHARD = re.compile(r"(.*)-(\d{5})-of-\d{5}")


@click.command()
@click.argument("models", metavar="[MODEL]...", nargs=-1)
@click.option(
    "--models-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Also serve each .gguf file of this folder, loaded on first request.",
)
@click.option("--allow-pull", is_flag=True, help="Let requests to /api/pull download models.")
@click.option("--alias", multiple=True, help="Another name for the first MODEL. May be repeated.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Port to listen on; 0: any.  [default: 11434 if it is free, otherwise 8080]",
)
@click.option(
    "--api-key",
    multiple=True,
    envvar="ONEGRAPH_API_KEY",
    help="Key that requests must send. May be repeated, or set by $ONEGRAPH_API_KEY.",
)
@click.option(
    "--share-prefixes",
    is_flag=True,
    help="Share cached prefixes among API keys; their owners can then find out what others sent.",
)
@click.option("--no-auth", is_flag=True, help="Accept requests from other machines without a key.")
@click.option(
    "--cors-origin",
    multiple=True,
    metavar="ORIGIN",
    help="Allow requests from web pages of this origin. May be repeated; *: all.",
)
@click.option(
    "--max-batch",
    type=int,
    help="Sequences per model that run at once; further requests wait.  [default: 8]",
)
@click.option(
    "--kv-tokens",
    type=int,
    help="Tokens that all sequences of a model share.  [default: a full context for each]",
)
@click.option(
    "--max-queue",
    type=click.IntRange(0),
    default=128,
    show_default=True,
    help="Requests per model that may wait; further ones are refused.",
)
@click.option(
    "--max-tokens-limit",
    type=click.IntRange(1),
    help="Maximum tokens per answer, whatever a request asks for.  [default: the context]",
)
@click.option(
    "--max-body",
    type=click.IntRange(1),
    default=16 << 20,
    show_default=True,
    help="Maximum size of a request, in bytes.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=600.0,
    show_default=True,
    help="Maximum seconds per request.",
)
@click.option(
    "--drain",
    type=click.FloatRange(0),
    default=30.0,
    show_default=True,
    help="Seconds for running requests to finish after SIGTERM.",
)
@click.option(
    "--warmup", is_flag=True, help="On a GPU, compile and capture everything before serving."
)
@model_options
@click.option("--quiet", "-q", is_flag=True, help="Do not log requests.")
@debug_option
def command(
    models: tuple[str, ...],
    models_dir: Path | None,
    allow_pull: bool,
    alias: tuple[str, ...],
    host: str,
    port: int | None,
    api_key: tuple[str, ...],
    share_prefixes: bool,
    no_auth: bool,
    cors_origin: tuple[str, ...],
    max_batch: int | None,
    kv_tokens: int | None,
    drain: float,
    warmup: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Serve models to OpenAI, Anthropic and ollama clients.

    Requests use these names: smollm2, a file's name without .gguf, or what follows ollama:. A
    request without a name goes to the first model.

    Each request is logged as a line of JSON on standard error, without its text. On SIGTERM or
    Ctrl-C, running requests finish first; a second signal stops them at once.

    `onegraph help serving` lists the endpoints and explains how to connect clients.
    """
    try:
        from onegraph.server.app import build
        from onegraph.server.limits import Limits
        from onegraph.server.models import Models
        from onegraph.server.running import bind, run
        from onegraph.server.service import Service
    except ImportError as e:
        raise click.ClickException(f"{MISSING} ({e})") from e
    if not models and models_dir is None:
        raise click.UsageError("give a MODEL, or a folder of models with --models-dir")
    here = _is_loopback(host)
    if not here and not api_key and not no_auth:
        raise click.UsageError(
            f"--host {host} accepts requests from other machines: give --api-key, or --no-auth "
            "to let in anyone who can reach it"
        )
    limits = Limits(
        max_queue=options["max_queue"],
        max_tokens=options["max_tokens_limit"],
        seconds=options["timeout"],
        body_bytes=options["max_body"],
    )
    listener = bind(host, port)
    _log(quiet)
    chosen = given(MODEL, options) | ({} if max_batch is None else {"max_batch": max_batch})
    chosen |= {} if kv_tokens is None else {"kv_tokens": kv_tokens}
    chosen["warmup"] = warmup
    loaded: dict[str, LLM] = {}
    try:
        for ref in models:
            name = name_of(ref)
            if name in loaded:
                raise click.UsageError(f"two models have the name {name}; give only one of them")
            loaded[name] = LLM(ref, progress=progress(), **chosen)
        folder = {} if models_dir is None else _folder(models_dir, chosen)
        if not loaded and not folder:
            raise click.UsageError(f"--models-dir {models_dir} contains no .gguf file")
        service = Service(
            Models(loaded, max_queue=limits.max_queue, folder=folder, aliases=alias),
            limits,
            load=functools.partial(LLM, **chosen) if allow_pull else None,
        )
        app = build(
            service,
            keys=api_key,
            origins=cors_origin,
            # A page whose name was pointed at this machine is not of this machine.
            hosts=["localhost", "127.0.0.1", "[::1]", host] if here and not api_key else None,
            shares_prefixes=share_prefixes,
        )
        run(app, listener, drain=drain, started=lambda: _say_where(listener, service.models.all()))
    finally:
        listener.close()
        for llm in loaded.values():
            llm.close()


def name_of(ref: str) -> str:
    """The name by which requests name a model: that of its file, or as it was typed."""
    if ref.startswith("ollama:"):
        return ref.removeprefix("ollama:")
    if ref.startswith("hf:") or not ref.endswith(".gguf"):
        return ref
    stem = Path(ref).stem
    shard = _SHARD.fullmatch(stem)
    return shard[1] if shard else stem


def _folder(folder: Path, chosen: dict[str, Any]) -> dict[str, tuple[Path, Callable[[], LLM]]]:
    found: dict[str, tuple[Path, Callable[[], LLM]]] = {}
    for path in sorted(folder.glob("*.gguf")):
        shard = _SHARD.fullmatch(path.stem)
        if shard is None or int(shard[2]) == 1:
            found[name_of(path.name)] = (path, functools.partial(LLM, path, **chosen))
    return found


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _say_where(listener: Any, models: list[Any]) -> None:
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    names = ", ".join(model.name for model in models)
    say(f"serving {names} on http://{shown}:{port}", err=True)


def _log(quiet: bool) -> None:
    """Lines of JSON on standard error; what uvicorn warns of is what clients send."""
    logger = logging.getLogger("onegraph.server")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(handler)
    logger.propagate = False
    logger.setLevel(logging.WARNING if quiet else logging.INFO)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
