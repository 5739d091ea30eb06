"""`onegraph graph`: what the captured decode step of a model is, and where its time goes."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import click

from onegraph import LLM, ArgumentError, GraphKernel, GraphProfile
from onegraph.cli.card import card_only
from onegraph.cli.options import MODEL, given, model_options
from onegraph.cli.terminal import debug_option, json_option, progress, say, show_table
from onegraph.printable import printable

#: Tokens before the step that is timed, where the context has them.
POSITION = 128
#: Tokens after it that timing needs: steps are timed in rows.
ROOM = 16


@click.command()
@click.argument("model")
@click.option("--batch-size", type=int, default=1, show_default=True, help="Rows that decode.")
@click.option(
    "--position", type=int, help=f"Tokens before the step.  [default: {POSITION}, or what fits]"
)
@click.option("--repeats", type=int, default=20, show_default=True, help="Measurements a median.")
@click.option("--cuda-graph", default="full", show_default=True, help="full or piecewise.")
@click.option("--each", is_flag=True, help="A line for each kernel, in the order of the step.")
@click.option("--dot", type=click.Path(dir_okay=False, path_type=Path), help="Write the graph.")
@model_options
@json_option
@debug_option
def command(
    model: str,
    batch_size: int,
    position: int | None,
    repeats: int,
    cuda_graph: str,
    each: bool,
    dot: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Print nodes, edges and kernels of the captured decode step, with times by the card's clock.

    Each kernel is timed launched by itself, from the end of its predecessor; in a replay the end of
    a kernel and the start of the next one overlap, so that the step takes less than their sum: the
    line of boundaries says how much of the sum is starts and ends. MB and GB/s count all that a
    kernel has to read and write: weights, keys and values, rows; the peak is measured here by a
    kernel that only reads. --dot writes Graphviz' language, `dot -Tsvg` draws it.
    """
    if each and as_json:
        raise click.UsageError("--each is for the table: the JSON lists each kernel as it is")
    chosen = given(MODEL, options)
    if batch_size < 1:
        raise ArgumentError(f"batch_size = {batch_size}: must be 1 or more")
    with (
        card_only(chosen.pop("device", "auto"), "it captures no graphs") as device,
        LLM(
            model,
            device=device,
            max_batch=batch_size,
            cuda_graph=cuda_graph,
            progress=progress(),
            **chosen,
        ) as llm,
    ):
        if position is None:
            position = max(0, min(POSITION, llm.n_ctx - ROOM))
        profile = llm.profile_graph(batch_size, position=position, repeats=repeats, dot=dot)
        name = llm.path.name
    if as_json:
        say(json.dumps({"model": name, **dataclasses.asdict(profile)}))
        return
    _say(name, profile)
    _show_kernels(profile, each)
    if dot is not None:
        say(f"\nthe graph is in {dot}: dot -Tsvg {dot} -o graph.svg")


def _say(name: str, p: GraphProfile) -> None:
    rows = "row" if p.batch_size == 1 else "rows"
    say(f"{name} on {p.device}")
    say(f"the step of {p.batch_size} {rows} at position {p.position}")
    graphs = "one graph" if p.graphs == 1 else f"{p.graphs} graphs"
    edges = f"{p.edges} edges of which {p.programmatic_edges} programmatic"
    say(f"{graphs}, {p.nodes} nodes, {edges}; {p.launches} kernels")
    rate, peak = p.bytes / p.replay_us / 1e3, p.read_peak_gb_s
    share = f"{100 * rate / peak:.0f}% of the read peak of {peak:.0f} GB/s"
    say(f"replayed {p.replay_us:.1f} us: {rate:.0f} GB/s of weights, {share}")
    alone = sum(k.us for k in p.kernels)
    say(f"launched kernel by kernel {p.eager_us:.1f} us; kernels by themselves {alone:.1f} us\n")


def _show_kernels(profile: GraphProfile, each: bool) -> None:
    from rich.table import Table
    from rich.text import Text

    # 80 columns hold it with the tensors of a fused product.
    table = Table(box=None, pad_edge=False, collapse_padding=True, header_style="bold")
    table.add_column("kernel", overflow="fold")
    for column in ["launches", "us each", "us", "share", "MB", "GB/s", "% peak"]:
        table.add_column(column, justify="right")
    total = sum(k.us for k in profile.kernels)

    def add(label: str, kernels: list[GraphKernel], style: str = "") -> None:
        us, moved = sum(k.us for k in kernels), sum(k.moved for k in kernels)
        line(label, len(kernels), us, moved, style)

    def line(label: str, n: int, us: float, moved: int, style: str = "") -> None:
        rate = moved / us / 1e3 if us else 0.0
        numbers = [f"{n}", f"{us / n:.2f}", f"{us:.1f}"]
        numbers.append(f"{100 * us / total:.1f}%" if total else "")
        # Three digits: the rows of one token are kilobytes.
        bytes_ = [f"{moved / 1e6:.3g}", f"{rate:.0f}", f"{100 * rate / profile.read_peak_gb_s:.0f}"]
        table.add_row(
            Text(printable(label)), *numbers, *(bytes_ if moved else ["", "", ""]), style=style
        )

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
    line("  of it boundaries", n, n * profile.boundary_us, 0)
    line("  overlapped by the replay", n, total - profile.replay_us, 0)
    line("replay", 1, profile.replay_us, sum(k.moved for k in profile.kernels), "bold")
    show_table(table)


def _short(label: str) -> str:
    """A label with `0.attn_q` for `blk.0.attn_q.weight`."""
    return re.sub(r"\bblk\.(?=\d)|\.weight\b", "", label)


def across_layers(label: str) -> str:
    """A label with no layer in it: kernels of one kind on the same tensors have the same one."""
    label = re.sub(r"\bblk\.\d+\.", "", label)
    # Of a cache, then of a state.
    return re.sub(r" \d+$|\[\d+\]$", "", label)


def _grouped(kernels: list[GraphKernel], key: Any) -> list[tuple[str, list[GraphKernel]]]:
    """Kernels by a key, in the order of its first appearance."""
    groups: dict[str, list[GraphKernel]] = {}
    for kernel in kernels:
        groups.setdefault(key(kernel), []).append(kernel)
    return list(groups.items())
