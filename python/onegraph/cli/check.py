"""`onegraph check`: whether a model computes on this card what its file says."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import click

from onegraph import LLM, ArgumentError, _native
from onegraph.check import SUMS, Distance, SumCheck, check_sums, measure
from onegraph.cli.card import card_only
from onegraph.cli.options import MODEL, given, model_options
from onegraph.cli.terminal import debug_option, json_option, progress, say, show_table
from onegraph.graphs import GraphVerification, check_text
from onegraph.progress import shown

#: Tokens of one sequence: logits of all of them are kept at a time.
SEGMENT = 256

#: What somebody without a card is told.
ABOUT = (
    "`onegraph check` is for machines with an NVIDIA GPU, and tests that it computes the same bits "
    "as the CPU. Without a GPU there is nothing to test: `onegraph run MODEL` runs on the CPU, and "
    "`onegraph bench MODEL` measures it."
)

#: What the rows of the table compare.
COMPARED = """\
sums on tensor cores, 16 or 32 products each: with sums of integers
captured decode steps: logits, cache and states with the same kernels one by one
logits of a fixed text, by prefill and by decode steps: with the CPU's
"""


@click.command()
@click.argument("model")
@click.option(
    "--tokens", type=int, default=4 * SEGMENT, show_default=True, help="Tokens of text to compare."
)
@click.option(
    "--max-batch", type=int, default=4, show_default=True, help="Largest batch to verify."
)
@click.option(
    "--sums", type=int, default=SUMS, show_default=True, help="Tensor core sums to compare."
)
@model_options
@json_option
@debug_option
def command(
    model: str, tokens: int, max_batch: int, sums: int, as_json: bool, **options: Any
) -> None:
    """Test a GPU: integer sums on its tensor cores, which every product relies on; every captured
    decode step against the same kernels launched one by one; and the logits of a fixed text, by
    prefill and by the captured step, against the CPU's with the same type of keys and values.

    The CPU computes all --tokens, which takes minutes for a large model. The exit code is 1 if a
    limit is exceeded.
    """
    chosen = given(MODEL, options)
    if tokens < 1:
        raise ArgumentError(f"tokens = {tokens}: must be 1 or more")
    kv_type = chosen.get("kv_type", _native.DEFAULT_KV_TYPE)
    chosen.setdefault("n_ctx", SEGMENT)
    compared = "it is what GPUs are compared with"
    with card_only(chosen.pop("device", "auto"), compared, ABOUT) as device:
        exact = check_sums(device, sums)
        loaded = LLM(
            model,
            device=device,
            max_batch=max_batch,
            warmup=True,
            progress=progress(),
            **chosen,
        )
    with loaded as llm:
        graphs = llm.verify_graph()
        ids = llm.tokenize(check_text())
        # Short texts come again: what is compared is arithmetic.
        ids = (ids * (tokens // len(ids) + 1))[:tokens]
        segment = min(SEGMENT, llm.n_ctx)
        threads = {"threads": chosen["threads"]} if "threads" in chosen else {}
        with (
            # The same type of cache: what rounding it costs is not the card's doing.
            LLM(
                llm.path, device="cpu", max_batch=1, n_ctx=segment, kv_type=kv_type, **threads
            ) as cpu,
            shown(progress()) as told,
        ):
            distances = measure(cpu, llm, ids, segment, told)
        device, name = llm.device, llm.path.name
    ok = graphs.ok and all(d.is_none for d in distances.values())
    ok = ok and all(s.wrong == 0 for s in exact)
    if as_json:
        say(json.dumps(_as_json(name, device, kv_type, exact, graphs, distances, ok)))
    else:
        say(f"{name} on {device}, keys and values as {kv_type}")
        say(COMPARED)
        _show(exact, graphs, distances)
        say("\nall within limits" if ok else "\na limit is exceeded: please report it")
    if not ok:
        raise click.exceptions.Exit(1)


def _show(exact: list[SumCheck], graphs: GraphVerification, distances: dict[str, Distance]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ["what", "found", "limit", ""]:
        table.add_column(column)

    def add(what: str, found: str, bar: str, ok: bool) -> None:
        table.add_row(what, found, bar, "ok" if ok else "EXCEEDED")

    for s in exact:
        found = f"{s.wrong:,} of {s.sums:,} differ"
        add(f"sums of {s.type}", found, "none", s.wrong == 0)
    for step in graphs.steps:
        wrong = [
            (step.logits_wrong, "logits"),
            (step.kv_bytes_wrong, "bytes of the cache"),
            (step.states_wrong, "states"),
        ]
        found = ", ".join(f"{n:,} {what}" for n, what in wrong if n) or "none"
        what = f"{step.kind} graph of {step.batch_size}, {step.steps} steps"
        add(what, f"{found} differ", "none", step.ok)
    for path, d in distances.items():
        add(f"{path}, {d.tokens:,} tokens: mean KL", f"{d.kl:.2e}", "0", d.kl == 0)
        add("  largest logit difference", f"{d.max_logit:.2e}", "0", d.is_none)
        add("  same best token", f"{d.top_1:.2%}", "100%", d.top_1 == 1)
    show_table(table)


def _as_json(
    name: str,
    device: str,
    kv_type: str,
    exact: list[SumCheck],
    graphs: GraphVerification,
    distances: dict[str, Distance],
    ok: bool,
) -> dict[str, Any]:
    # JSON has no infinity.
    figures = {
        path: {
            "tokens": d.tokens,
            "mean_kl": d.kl if d.kl < float("inf") else None,
            "max_logit_difference": d.max_logit if d.max_logit < float("inf") else None,
            "top_1": d.top_1,
            "ok": d.is_none,
        }
        for path, d in distances.items()
    }
    steps = [dataclasses.asdict(step) for step in graphs.steps]
    for step in steps:
        if step["max_difference"] == float("inf"):
            step["max_difference"] = None
    return {
        "model": name,
        "device": device,
        "kv_type": kv_type,
        "ok": ok,
        "sums": [dataclasses.asdict(s) for s in exact],
        "graphs": steps,
        "logits": figures,
    }
