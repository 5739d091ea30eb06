"""`onegraph info`: what a model is, what running it needs, and what would fit here."""

from __future__ import annotations

import json
import os
from typing import Any

import click

from onegraph import _native, arguments, hub, nvrtc
from onegraph.cli.options import refuse_given
from onegraph.cli.terminal import (
    count,
    debug_option,
    json_option,
    progress,
    say,
    show_table,
    size,
)
from onegraph.printable import printable
from onegraph.progress import shown

#: Options that say what memory is needed for.
MEMORY = ("n_ctx", "max_batch", "kv_type", "device")

Info = dict[str, Any]
#: A name and what is said of it.
Row = tuple[str, str]


@click.command()
@click.argument("model", required=False)
@click.option(
    "--n-ctx",
    type=int,
    help="Context length in tokens.  [default: the model's, at most 8192]",
)
@click.option(
    "--max-batch", type=int, default=8, show_default=True, help="Sequences that run at once."
)
@click.option(
    "--kv-type",
    default=_native.DEFAULT_KV_TYPE,
    show_default=True,
    help="Type of keys and values.",
)
@click.option(
    "--device", default="auto", show_default=True, help="cpu, cuda, cuda:1, cuda:0,1 or auto."
)
@click.option("--plan", is_flag=True, help="Print the plan: every operation of a forward pass.")
@click.option("--devices", is_flag=True, help="Print devices, and which tuning row each uses.")
@json_option
@debug_option
def command(
    model: str | None,
    n_ctx: int | None,
    max_batch: int,
    kv_type: str,
    device: str,
    plan: bool,
    devices: bool,
    as_json: bool,
) -> None:
    """Print architecture, sizes, quantization mix, context, tokenizer, chat template, and memory
    needed.

    A model that cannot run here is described too, with the reason.
    """
    if plan and devices:
        raise click.UsageError("--plan and --devices cannot be combined")
    if devices:
        if model is not None:
            raise click.UsageError("--devices takes no MODEL")
        refuse_given(MEMORY, "has no effect on --devices")
        _show_devices(as_json)
        return
    if model is None:
        raise click.UsageError("Missing argument 'MODEL'.")
    if plan:
        refuse_given(MEMORY, "has no effect on --plan")
    with shown(progress()) as told:
        path = hub.resolve(model, progress=told)
    if plan:
        say(_native.model_plan(path, as_json).rstrip("\n"))
        return
    text = _native.model_info(path, n_ctx, max_batch, kv_type, device)
    if as_json:
        say(text)
    else:
        _show_model(json.loads(text))


def _show_devices(as_json: bool) -> None:
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    free = _free_memory()
    cpu = {"device": "cpu", "threads": threads, "free_bytes": free}
    cuda: Info = json.loads(_native.cuda_devices(nvrtc.folders()))
    if as_json:
        say(json.dumps({"devices": [cpu, *cuda.pop("cards")], "cuda": cuda}))
        return
    rows = [("cpu", f"{threads} threads" + ("" if free is None else f", {size(free)} free"))]
    for card in cuda["cards"]:
        room = card["error"] or f"{size(card['free_bytes'])} of {size(card['total_bytes'])} free"
        pdl = "with" if card["programmatic_launch"] else "without"
        said = f"{card['name']}, {card['arch']}, {room}, {pdl} programmatic launches"
        rows += [(card["device"], said), ("shapes", _shapes(card["shapes"]))]
    compiler = cuda["nvrtc"]
    version = f"{compiler['version']}, {compiler['path']}"
    rows += [
        ("driver", cuda["error"] or f"CUDA {cuda['driver']}"),
        ("nvrtc", compiler["error"] or version),
        ("kernel cache", cuda["kernel_cache"] or "none: set ONEGRAPH_CACHE_DIR"),
    ]
    _print_rows(rows)


def _shapes(row: Info) -> str:
    """Whose kernels' shapes a card has, of those that were measured."""
    if row["error"]:
        return f"cannot be read: {row['error']}"
    whose = f"those of {row['card']} ({row['arch']}, {row['sm_count']} multiprocessors)"
    chosen = f"ONEGRAPH_SHAPES={row['file']}" if row["file"] else row["chosen"]
    return f"{whose}, {chosen}"


def _free_memory() -> int | None:
    """Bytes a program can have without swapping; None where the system does not say."""
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def _free_on(device: str) -> int | None:
    """Bytes free on "cpu" or "cuda:N", of several cards the least; None where nobody says."""
    if device == "cpu":
        return _free_memory()
    cards: list[Info] = json.loads(_native.cuda_devices(nvrtc.folders()))["cards"]
    free = {card["device"]: card["free_bytes"] for card in cards}
    wanted = [free.get(f"cuda:{number}") for number in arguments.cards(device)]
    return min((each for each in wanted if each is not None), default=None)


def _show_model(info: Info) -> None:
    if info["error"]:
        _print_rows([("cannot run", info["error"])], style="red")
    _print_rows(_model_rows(info))
    if info["quant_mix"]:
        _print_mix(info)
    if info["memory"]:
        _print_rows(_memory_rows(info))


def _model_rows(info: Info) -> list[Row]:
    files = info["files"]
    shards = f" and {len(files) - 1} more" if len(files) > 1 else ""
    rows = [
        ("file", f"{info['path']}{shards}"),
        ("size", f"{size(info['file_bytes'])}, GGUF version {info['gguf_version']}"),
        ("name", info["name"] or "none given"),
        ("architecture", ", ".join([info["architecture"] or "none given", *_shape(info["shape"])])),
    ]
    if said := _layers(info):
        rows.append(("layers", said))
    bits = info["bits_per_weight"]
    per_weight = f", {bits:.2f} bits per weight" if bits else ""
    tensors = f"{count(info['n_params'])} in {info['n_tensors']} tensors{per_weight}"
    rows.append(("parameters", tensors))
    if context := info["shape"]["n_ctx_train"]:
        rows.append(("context", f"{context:,} tokens in training"))
    if rope := info["rope"]:
        rows.append(("rope", _rope(rope)))
    if pooling := info["pooling"]:
        rows.append(("embeddings", _pooling(pooling)))
    rows.append(("tokenizer", _tokenizer(info["tokenizer"])))
    template = info["chat_template"]
    said = f"{template['bytes']} bytes: {template['first_line']}" if template else "none"
    rows.append(("chat template", said))
    if unused := info["unused_tensors"]:
        more = ", ..." if len(unused) > 4 else ""
        rows.append(("unused tensors", f"{len(unused)}: {', '.join(unused[:4])}{more}"))
    rows.append(("arithmetic", str(info["arithmetic"])))
    return rows


def _shape(shape: Info) -> list[str]:
    said = []
    if shape["n_layer"]:
        said.append(f"{shape['n_layer']} layers")
    if shape["n_embd"]:
        said.append(f"width {shape['n_embd']:,}")
    if shape["n_ff"]:
        said.append(f"feed-forward {shape['n_ff']:,}")
    if shape["n_expert"]:
        used, width = shape["n_expert_used"], shape["n_ff_exp"]
        chosen = f", {used} for each token" if used else ""
        said.append(f"{shape['n_expert']} experts{chosen}" + (f", {width:,} wide" if width else ""))
        if shape["n_ff_shared"]:
            said.append(f"one expert for every token, {shape['n_ff_shared']:,} wide")
    if shape["n_head"]:
        kv, dim = shape["n_head_kv"], shape["head_dim"]
        grouped = f" and {kv} of keys and values" if kv else ""
        said.append(f"{shape['n_head']} heads{grouped}" + (f", {dim} wide" if dim else ""))
    return said


def _layers(info: Info) -> str:
    """Layers by kind, where there is more than one that sees all."""
    said = []
    for kind in info["layers"]:
        sees = f"a window of {kind['window']:,} tokens" if kind["window"] else "all tokens"
        said.append(f"{kind['n_layer']} that see {sees}")
    attend = sum(kind["n_layer"] for kind in info["layers"])
    if said and (others := info["shape"]["n_layer"] - attend):
        said.append(f"{others} with a state")
    are_alike = len(said) == 1 and not info["layers"][0]["window"]
    return "" if are_alike else ", ".join(said)


def _active(info: Info) -> str:
    if not info["shape"]["n_expert"]:
        return ""
    active, all_of_them = info["decode"]["active_params"], info["n_params"]
    return f", {active / 1e9:.1f} of {all_of_them / 1e9:.1f} billion"


def _rope(rope: Info) -> str:
    scaling = dict(rope["scaling"])
    kind = scaling.pop("type")
    numbers = "".join(f", {k} {v:g}" for k, v in scaling.items())
    scaled = "" if kind == "none" else f", {kind} scaling{numbers}"
    factors = ", with frequency factors" if rope["frequency_factors"] else ""
    style = f"{rope['style']}, " if rope["style"] else ""
    return f"{style}{rope['dim']} dimensions, base {rope['base']:,.0f}{scaled}{factors}"


def _pooling(pooling: str) -> str:
    said = {
        "last": "the state behind the last token (last)",
        "mean": "the mean of all states (mean)",
        "none": "the file names no pooling (none)",
        "cls": "the state of the first token (cls)",
        "rank": "a reranker's scores (rank), which are not made here",
    }
    return said[pooling]


def _tokenizer(tokenizer: Info | None) -> str:
    if not tokenizer:
        return "none"
    said = [f"{tokenizer['model']}" + (f" / {tokenizer['pre']}" if tokenizer["pre"] else "")]
    said.append(f"{tokenizer['n_vocab']:,} tokens")
    for name in ["bos", "eos"]:
        if token := tokenizer[name]:
            added = " (added)" if tokenizer[f"add_{name}"] else ""
            said.append(f"{name.upper()} {token['id']} {token['text']}{added}")
    if tokenizer["error"]:
        said.append(f"cannot be used: {tokenizer['error']}")
    return ", ".join(said)


def _memory_rows(info: Info) -> list[Row]:
    memory, decode = info["memory"], info["decode"]
    of = f"{memory['max_batch']} x {memory['n_ctx']:,} tokens, {memory['kv_type']}"
    cards = len(arguments.cards(memory["device"]))
    of_each = f" of each of {cards} cards" if cards > 1 else ""
    rows = [
        ("memory needed", size(memory["total_bytes"]) + of_each),
        ("  weights", size(memory["weights_bytes"])),
        ("  keys, values", f"{size(memory['kv_bytes'])} for {of}"),
        *_window_rows(memory["windows"]),
        ("  scratch", size(memory["scratch_bytes"])),
    ]
    if state := memory["state_bytes_per_sequence"]:
        rows.append(("  of that, states", f"{size(state)} a sequence, however long"))
    free = _free_on(memory["device"])
    if free is not None:
        rows.append(("free here", f"{size(free)}: {_what_fits(info, free)}"))
    read = f"{size(decode['weight_bytes'])} of weights{_active(info)}"
    before = f"{decode['kv_bytes_per_position']:,} B of keys and values for each token before it"
    if not info["looks_ahead"]:  # others read them once for a whole text
        rows.append(("a token reads", f"{read}, and {before}"))
    return rows


def _window_rows(windows: Info | None) -> list[Row]:
    """What layers that see a window have of the keys and values."""
    if windows is None:
        return []
    said = (
        f"{size(windows['bytes'])} of {windows['n_layer']} layers that see {windows['tokens']:,} "
        f"tokens; all tokens would make it {size(windows['kv_bytes_without'])}"
    )
    return [("  of that, windows", said)]


def _what_fits(info: Info, free: int) -> str:
    """Whether the asked-for context fits, and the longest that would."""
    memory = info["memory"]
    room = free - memory["weights_bytes"] - memory["scratch_bytes"]
    if room < 0:
        return "too little for the weights"
    per_token = info["decode"]["kv_bytes_per_position"]
    if windows := memory["windows"]:
        room -= windows["bytes_alone"]
        per_token -= windows["bytes_per_position"]
    longest = max(room, 0) // max(per_token, 1)
    trained = info["shape"]["n_ctx_train"]
    one = f"one sequence of {min(longest, trained):,} tokens would fit"
    if memory["total_bytes"] <= free:
        return "it fits"
    return f"it does not fit; {one}"


def _print_mix(info: Info) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("quant mix", min_width=14)
    for name in ["tensors", "parameters", "size", "share"]:
        table.add_column(name, justify="right")
    for row in info["quant_mix"]:
        share = f"{100 * row['bytes'] / info['tensor_bytes']:.1f}%"
        numbers = [str(row["tensors"]), count(row["params"]), size(row["bytes"]), share]
        table.add_row(row["type"], *numbers)
    show_table(table)


def _print_rows(rows: list[Row], style: str = "bold") -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(style=style, min_width=14, no_wrap=True)
    table.add_column(overflow="fold")
    for name, said in rows:
        # Text, not a string: brackets in a model's own words are no markup.
        table.add_row(name, Text(printable(said)))
    show_table(table)
