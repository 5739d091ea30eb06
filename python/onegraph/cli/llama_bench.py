"""llama-bench's spellings that mean something to `bench` and `compare`.

Those that name the same thing set the same thing; those that ask for what cannot be chosen here are
taken where they ask for what is done anyway, and refused by name elsewhere. What none of it fits is
refused by `onegraph.cli.foreign`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

__all__ = ["cache_options", "check_layers", "kv_type", "model_argument", "model_of", "run_options"]

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

#: Values of -fa that ask for what is done.
ON, OFF = ("1", "on", "auto", "true"), ("0", "off", "false")


def model_argument(command: Decorated) -> Decorated:
    """MODEL by itself, or by -m: pass both to `model_of`."""
    command = click.option(
        "-m", "--model", "models", multiple=True, metavar="MODEL", help="Same as MODEL."
    )(command)
    return click.argument("model", required=False)(command)


def model_of(model: str | None, models: tuple[str, ...]) -> str:
    """The one model that was named. Raises `click.UsageError` for none and for several."""
    named = [*([] if model is None else [model]), *models]
    if not named:
        raise click.MissingParameter(param_type="argument", param_hint="'MODEL'")
    if len(named) > 1:
        raise click.UsageError(f"give one MODEL, not {', '.join(named)}")
    return named[0]


def run_options(command: Decorated) -> Decorated:
    """`-ngl`, `-fa` and `--no-warmup`: pass `layers` to `check_layers` once the model is known."""
    for option in (
        click.option(
            "--no-warmup", is_flag=True, help="Skip the untimed repetition before each test."
        ),
        click.option(
            "-fa",
            "--flash-attn",
            "attention",
            metavar="1",
            expose_value=False,
            callback=_attention,
            help="1 or on; accepted for llama-bench, always on here.",
        ),
        click.option(
            "-ngl",
            "--n-gpu-layers",
            "layers",
            metavar="N",
            callback=_layers,
            help="All layers, such as 99: a GPU runs the whole model.",
        ),
    ):
        command = option(command)
    return command


def cache_options(command: Decorated) -> Decorated:
    """`-ctk` and `-ctv`: pass both to `kv_type`."""
    for flags, name, of in (
        (("-ctv", "--cache-type-v"), "type_v", "values"),
        (("-ctk", "--cache-type-k"), "type_k", "keys"),
    ):
        said = f"Type of {of}; must be the same for keys and values."
        command = click.option(*flags, name, metavar="TYPE", help=said)(command)
    return command


def kv_type(kv_type: str | None, type_k: str | None, type_v: str | None) -> str | None:
    """The one encoding of keys and values that --kv-type, -ctk and -ctv ask for; None for the
    default. Raises `click.UsageError` where they differ."""
    if type_k is None and type_v is None:
        return kv_type
    # llama-bench keeps the one that is not given in f16.
    keys, values = type_k or "f16", type_v or "f16"
    if keys != values:
        left = "" if type_k and type_v else " (one that is not given is f16, as in llama-bench)"
        wanted = type_k or type_v
        raise click.UsageError(
            f"-ctk {keys} -ctv {values}{left}: keys and values must have the same type; give "
            f"--kv-type {wanted}"
        )
    if kv_type not in (None, keys):
        raise click.UsageError(f"--kv-type {kv_type} and -ctk {keys}: give one of them")
    return keys


def _attention(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is None or value.lower() in ON:
        return
    if value.lower() in OFF:
        raise click.BadParameter("flash attention cannot be turned off: leave it out")
    raise click.BadParameter(f"{value!r} is not 1 or on; leave it out")


def _layers(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    if value is None:
        return None
    try:
        layers = int(value)
    except ValueError:
        raise click.BadParameter(
            f"{value!r} is not a number of layers; a model runs on one device: choose it "
            "with --device"
        ) from None
    if layers == 0:
        raise click.BadParameter("for no layers on a GPU, use --device cpu")
    return layers


def check_layers(layers: int | None, n_layer: int | None, device: str | None) -> None:
    """Raises `click.UsageError` where `-ngl` asks for a part of the model on a card, or for all of
    it there with `--device cpu`. Below zero are all layers, as in llama-bench; `n_layer` is None
    where the file does not say it."""
    if layers is None:
        return
    if device == "cpu":
        raise click.UsageError(f"-ngl {layers} and --device cpu: give one of them")
    # llama.cpp counts what is behind the last layer as one more.
    if n_layer is not None and 0 <= layers < n_layer + 1:
        raise click.UsageError(
            f"-ngl {layers} of the model's {n_layer + 1} layers: a model runs on one "
            "device; give -ngl 99, --device cuda or --device cpu"
        )
