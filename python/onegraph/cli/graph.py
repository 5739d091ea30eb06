"""`onegraph graph`: what the captured decode step of a model is, or the passes of a prompt, and
where its time goes."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import click

from onegraph import LLM, ArgumentError, GraphOptions, _native, hub
from onegraph.cli.card import card_only
from onegraph.cli.options import MODEL, given, model_options, refuse_given
from onegraph.cli.terminal import debug_option, json_option, progress, say, show_table
from onegraph.graphs import GraphKernel, GraphMode, GraphProfile
from onegraph.printable import printable
from onegraph.progress import shown

#: Tokens before the step that is timed, where the context has them.
POSITION = 128
#: Tokens behind that timing needs: steps are timed in rows.
ROOM = 16
#: What somebody without a card is told.
ABOUT = (
    "`onegraph graph` is for machines with an NVIDIA GPU, and shows the step that it replays for "
    "each token and where the time goes. Without a GPU, `onegraph graph MODEL --plan` prints the "
    "operations of that step, and `onegraph bench MODEL` measures the CPU."
)
#: Options of what is measured.
MEASURED = ("prompt", "depth", "position", "repeats", "cuda_graph", "each", "stamps", "dot")
#: Options of a step.
OF_A_STEP = ("batch_size", "position", "stamps")

T = TypeVar("T")


@click.command()
@click.argument("model")
@click.option(
    "--batch-size", type=int, default=1, show_default=True, help="Rows of the decode step."
)
@click.option(
    "--position", type=int, help=f"Tokens before the step.  [default: {POSITION}, or what fits]"
)
@click.option("--prompt", type=int, help="Show the passes of a prompt of N tokens instead.")
@click.option("--depth", type=int, default=0, show_default=True, help="Tokens before the prompt.")
@click.option("--repeats", type=int, default=20, show_default=True, help="Measurements per median.")
@click.option("--cuda-graph", default="full", show_default=True, help="full or piecewise.")
@click.option("--each", is_flag=True, help="Print a line per kernel, in order.")
@click.option("--stamps", is_flag=True, help="Also print when kernels reached each point.")
@click.option("--plan", is_flag=True, help="Print the fused plan of the step; run nothing.")
@click.option(
    "--dot", type=click.Path(dir_okay=False, path_type=Path), help="Write the graph to this file."
)
@model_options
@json_option
@debug_option
def command(
    model: str,
    batch_size: int,
    position: int | None,
    prompt: int | None,
    depth: int,
    repeats: int,
    cuda_graph: GraphMode,
    each: bool,
    stamps: bool,
    plan: bool,
    dot: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Print nodes, edges and kernels of the captured decode step, or of a prompt's passes, timed by
    the GPU's clock.

    Each kernel is launched separately and timed from the end of its predecessor. In a replay, the
    end of a kernel overlaps with the start of the next, so the step takes less than the sum: the
    line "boundaries" says how much of the sum is starts and ends. MB and GB/s count everything a
    kernel must read and write: weights, keys and values, rows; the peak is that of a kernel that
    only reads. --prompt also counts operations, two per multiply-add in products, attention and
    recurrences; their peak is that of a kernel that only multiplies float16. --stamps runs the step
    with kernels that record when their blocks reach each point. --plan prints a line per fused
    operation, with its rule and the operations of the plan that it replaced; without a GPU, as for
    132 multiprocessors. --dot writes Graphviz' language; `dot -Tsvg` draws it.
    """
    if each and as_json:
        raise click.UsageError("--each is for the table: JSON always lists each kernel")
    chosen = given(MODEL, options)
    if batch_size < 1:
        raise ArgumentError(f"batch_size = {batch_size}: must be 1 or more")
    if prompt is None:
        refuse_given(("depth",), "only applies to a --prompt; a step has --position")
    else:
        refuse_given(OF_A_STEP, "only applies to a step; a --prompt has --depth")
        if prompt < 1:
            raise ArgumentError(f"prompt = {prompt}: must be 1 or more")
        if depth < 0:
            raise ArgumentError(f"depth = {depth}: must be 0 or more")
        chosen.setdefault("n_ctx", prompt + depth + ROOM)
    if plan and as_json:
        raise click.UsageError("--plan and --json cannot be combined: the plan is a listing")
    if plan:
        refuse_given(MEASURED, "the plan depends only on --batch-size")
        with shown(progress()) as told:
            path = hub.resolve(model, progress=told)
        say(_native.fused_plan(path, batch_size).rstrip("\n"))
        return
    with (
        card_only(chosen.pop("device", "auto"), "it captures no graphs", ABOUT) as device,
        LLM(
            model,
            device=device,
            max_batch=batch_size,
            graph=GraphOptions(mode=cuda_graph),
            progress=progress(),
            **chosen,
        ) as llm,
    ):
        if position is None:
            position = max(0, min(POSITION, llm.n_ctx - ROOM)) if prompt is None else depth
        profile = llm.profile_graph(
            batch_size, prompt=prompt, position=position, repeats=repeats, dot=dot, stamps=stamps
        )
        name = llm.path.name
    if as_json:
        say(json.dumps({"model": name, **dataclasses.asdict(profile)}))
        return
    _say(name, profile)
    _show_kernels(profile, each)
    if stamps:
        _show_stamps(profile, each)
    if dot is not None:
        say(f"\nthe graph is in {dot}: dot -Tsvg {dot} -o graph.svg")


def _say(name: str, p: GraphProfile) -> None:
    say(f"{name} on {p.device}")
    if p.prompt:
        tokens = "token" if p.prompt == 1 else "tokens"
        say(f"a prompt of {p.prompt} {tokens} at position {p.position}")
    else:
        rows = "row" if p.batch_size == 1 else "rows"
        say(f"a step of {p.batch_size} {rows} at position {p.position}")
    graphs = "one graph" if p.graphs == 1 else f"{p.graphs} graphs"
    edges = f"{p.edges} edges, {p.programmatic_edges} of them programmatic"
    say(f"{graphs}, {p.nodes} nodes, {edges}; {p.launches} kernels")
    if p.prompt:
        rate, peak = p.operations / p.replay_us / 1e6, p.multiply_peak_tflop_s
        say(f"replayed {p.replay_us:.1f} us: {p.prompt / p.replay_us * 1e6:.0f} tokens/s")
        say(f"{rate:.3g} TFLOP/s, {100 * rate / peak:.0f}% of the multiply peak of {peak:.3g}")
    else:
        rate, peak = p.bytes / p.replay_us / 1e3, p.read_peak_gb_s
        share = f"{100 * rate / peak:.0f}% of the read peak of {peak:.0f} GB/s"
        say(f"replayed {p.replay_us:.1f} us: {rate:.0f} GB/s of weights, {share}")
    alone = sum(k.us for k in p.kernels)
    say(f"launched kernel by kernel {p.eager_us:.1f} us; sum of separate kernels {alone:.1f} us\n")


def _show_kernels(profile: GraphProfile, each: bool) -> None:
    from rich.table import Table
    from rich.text import Text

    # 80 columns hold it with the tensors of a fused product.
    table = Table(box=None, pad_edge=False, collapse_padding=True, header_style="bold")
    table.add_column("kernel", overflow="fold")
    columns = ["launches", "us each", "us", "share", "MB", "GB/s", "% peak"]
    if profile.prompt:
        columns = ["launches", "us", "share", "MB", "% read", "GFLOP", "% mul"]
    for column in columns:
        table.add_column(column, justify="right")
    total = sum(k.us for k in profile.kernels)

    def add(label: str, kernels: list[GraphKernel], style: str = "") -> None:
        line(label, len(kernels), sum(k.us for k in kernels), kernels, style)

    def line(label: str, n: int, us: float, kernels: list[GraphKernel], style: str = "") -> None:
        moved, operations = (sum(getattr(k, of) for k in kernels) for of in ("moved", "operations"))
        each = [] if profile.prompt else [_microseconds(us / n, 2)]
        numbers = [f"{n}", *each, _microseconds(us, 1)]
        numbers.append(f"{100 * us / total:.1f}%" if total else "")
        # Three digits: the rows of one token are kilobytes.
        gb_s = moved / us / 1e3 if us else 0.0
        of_read = f"{100 * gb_s / profile.read_peak_gb_s:.0f}"
        tflop_s = operations / us / 1e6 if us else 0.0
        of_multiply = f"{100 * tflop_s / profile.multiply_peak_tflop_s:.0f}"
        if profile.prompt:
            counted = [f"{moved / 1e6:.3g}", of_read] if moved else ["", ""]
            counted += [f"{operations / 1e9:.3g}", of_multiply] if operations else ["", ""]
        else:
            counted = [f"{moved / 1e6:.3g}", f"{gb_s:.0f}", of_read] if moved else ["", "", ""]
        table.add_row(Text(printable(label)), *numbers, *counted, style=style)

    if each:
        for kernel in profile.kernels:
            add(_short(kernel.label), [kernel])
    else:
        for kind, kernels in _grouped(profile.kernels, lambda k: k.kernel):
            add(kind, kernels, "bold")
            for label, alike in _grouped(kernels, lambda k: across_layers(k.label)):
                if label != kind:
                    add(f"  {_short(label.removeprefix(kind)).strip()}", alike)
    add("sum", profile.kernels, "bold")
    # What lies between the sum and the replay.
    n = len(profile.kernels)
    line("  of it boundaries", n, n * profile.boundary_us, [])
    line("  overlapped by the replay", n, total - profile.replay_us, [])
    line("replay", 1, profile.replay_us, profile.kernels, "bold")
    show_table(table)


def _microseconds(us: float, digits: int) -> str:
    """With digits behind the point below a millisecond alone: columns stay narrow."""
    return f"{us:.{digits if abs(us) < 1000 else 0}f}"


@dataclasses.dataclass(frozen=True)
class _Span:
    """Where the time of a kernel goes in a replay, microseconds; None without such a moment."""

    #: SMs with a block of it, and with several.
    sms: float
    crowded: float
    #: From the middle block's begin to the end of the predecessor, as that block learns of it.
    lead: float | None
    #: From the last block's end of the predecessor to that.
    start: float | None
    #: From that until activations are there, until the block's own sums are, from those of the
    #: middle block to those of the last one, and from there to the last block's end.
    ready: float | None
    sums: float | None
    spread: float | None
    end: float | None
    #: From one kernel's learning of its predecessor's end to the next one's.
    whole: float | None


def _spans(kernels: list[GraphKernel]) -> list[_Span]:
    """The spans of each kernel of a step."""

    def at(i: int, name: str, which: str = "median") -> float | None:
        stamps = kernels[i].stamps if 0 <= i < len(kernels) else None
        moment = stamps.at(name) if stamps is not None else None
        return getattr(moment, which) if moment is not None else None

    def between(begin: float | None, end: float | None) -> float | None:
        return None if begin is None or end is None else end - begin

    spans = []
    for i, kernel in enumerate(kernels):
        waited = at(i, "waited")
        # What has no sums of blocks ends when it ends.
        summed = at(i, "summed", "last")
        spans.append(
            _Span(
                sms=kernel.stamps.sms if kernel.stamps else 0,
                crowded=kernel.stamps.crowded if kernel.stamps else 0,
                lead=between(at(i, "begun"), waited),
                start=between(at(i - 1, "ended", "last"), waited),
                ready=between(waited, at(i, "ready")),
                sums=between(at(i, "ready"), at(i, "summed")),
                spread=between(at(i, "summed"), summed),
                end=between(waited if summed is None else summed, at(i, "ended", "last")),
                whole=between(waited, at(i + 1, "waited")),
            )
        )
    return spans


def _show_stamps(profile: GraphProfile, each: bool) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, collapse_padding=True, header_style="bold")
    table.add_column("stamps, us", overflow="fold")
    names = [field.name for field in dataclasses.fields(_Span)]
    for column in ["n", *names]:
        table.add_column(column, justify="right")
    labelled = list(zip(profile.kernels, _spans(profile.kernels), strict=True))
    groups = _grouped(labelled, lambda one: across_layers(one[0].label))
    if each:
        groups = [(kernel.label, [(kernel, span)]) for kernel, span in labelled]
    for label, alike in groups:
        row = [str(len(alike))]
        for name in names:
            values = [getattr(span, name) for _, span in alike]
            known = [value for value in values if value is not None]
            digits = 0 if name in ("sms", "crowded") else 2
            row.append(f"{median(known):.{digits}f}" if known else "")
        table.add_row(Text(printable(_short(label))), *row)
    say("")
    show_table(table)


def _short(label: str) -> str:
    """A label with `0.attn_q` for `blk.0.attn_q.weight`."""
    return re.sub(r"\bblk\.(?=\d)|\.weight\b", "", label)


def across_layers(label: str) -> str:
    """A label with no layer in it: kernels of one kind on the same tensors have the same one."""
    label = re.sub(r"\bblk\.\d+\.", "", label)
    # Of a cache, then of a state.
    return re.sub(r" \d+$|\[\d+\]$", "", label)


def _grouped(kernels: list[T], key: Callable[[T], str]) -> list[tuple[str, list[T]]]:
    """Kernels by a key, in the order of its first appearance."""
    groups: dict[str, list[T]] = {}
    for kernel in kernels:
        groups.setdefault(key(kernel), []).append(kernel)
    return list(groups.items())
