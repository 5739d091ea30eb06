"""Tunes the table of shapes (lower/shapes.json) on the card at hand: times whole steps and prompts
of models with one number of the row changed after another, keeps what is faster, and writes the row
with its record.

    python benches/tune.py llama-8b.gguf qwen-1.5b.gguf --batch-sizes 1,4,8,32 --prompts 512 --table
    python benches/tune.py llama-8b.gguf --knobs matvec.warps=12,16,20 --knobs matvec.ahead

A candidate wins where the geometric mean of its times, of every model and number of rows, is less
than the row's by --least per cent; both are measured in turn, --rounds times, each in a process of
its own. Without values a knob has those of CANDIDATES. No bit of a model depends on a row. --table
puts it into the table, and the record into benches/records: build the package again for others to
have it.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from onegraph import __version__, _native, nvrtc
from runs import REPOSITORY

TABLE = REPOSITORY / "rust/engine/src/backend/cuda/lower/shapes.json"
RECORDS = REPOSITORY / "benches/records"

Row = dict[str, Any]
#: Microseconds of a model at a number of rows; "p" before that of a prompt.
Times = dict[str, float]

#: Values to try of each number of a row.
CANDIDATES: dict[str, list[Any]] = {
    "matvec.warps": [8, 12, 16, 20],
    "matvec.most_warps": [16, 20, 24],
    "matvec.round": [2, 4, 8],
    "matvec.ahead": [1, 2, 8],
    "matvec.shared_short": [49, 61, 70, 100],
    "matvec.shared_long": [61, 70, 85, 100],
    "matvec.holding_threads": [1, 256, 384, 512],
    "matvec.long_row": [4096, 6144, 8192],
    "matvec.many_bytes": [1 << 26, 1 << 27, 1 << 28],
    "matvec.light_tiles": [8, 16, 32],
    "matvec.shared_light": [20, 30, 40],
    "skinny.warps": [12, 16],
    "skinny.ahead": [1, 2],
    "skinny.more_warps": [16, 18, 20],
    "skinny.more_ahead": [1, 2],
    "skinny.few_warps": [8, 12],
    "skinny.pair_warps": [10, 12],
    "skinny.unpaired_superblocks": [2, 4, 8],
    "matmul.ring": [2, 3, 4],
    "matmul.short_rows": [16, 32, 64],
    "matmul.short_superblocks": [2, 4, 8],
    "attention.heads": [4, 8],
    "attention.teams": [1, 2],
    "attention.shared": [50, 60, 76],
    "attention.long_context": [4096, 8192, 16384],
    "attention.parts": [4, 6, 8],
    "prompt.warps": [4, 8],
    "prompt.few_rows": [16, 32, 64],
}


def place(row: Row, knob: str) -> tuple[Row, str]:
    """The group of a row that has a number, and its name there."""
    group, _, name = knob.partition(".")
    if name not in row.get(group, {}):
        raise SystemExit(f"{knob}: a row has no such number")
    return row[group], name


def measured(models: Sequence[str], args: argparse.Namespace, row: Row, folder: Path) -> Times:
    """Times with this row, in a process for it."""
    file = folder / "row.json"
    file.write_text(json.dumps(row))
    command = [sys.executable, __file__, *models, "--measure"]
    command += ["--batch-sizes", args.batch_sizes, "--prompts", args.prompts]
    command += ["--repeats", str(args.repeats), "--position", str(args.position)]
    done = subprocess.run(
        command,
        env=os.environ | {"ONEGRAPH_SHAPES": str(file)},
        stdout=subprocess.PIPE,
        text=True,
    )
    # What a card has no room for is no candidate.
    return json.loads(done.stdout) if done.returncode == 0 else {}


def measure(args: argparse.Namespace) -> Times:
    """Times of every model, at every number of rows, with the row that this process has."""
    import onegraph

    sizes, prompts = numbers(args.batch_sizes), numbers(args.prompts)
    n_ctx = max([args.position + 64, *(2 * prompt for prompt in prompts)])
    times: Times = {}
    for model in args.models:
        name = Path(model).stem
        with onegraph.LLM(model, device="cuda", n_ctx=n_ctx, max_batch=max([1, *sizes])) as llm:
            for size in sizes:
                found = llm.profile_graph(size, position=args.position, repeats=args.repeats)
                times[f"{name} {size}"] = found.replay_us
            for prompt in prompts:
                # No two are alike, so that none is in the cache; the first one compiles.
                texts = ([3 + turn, *[7] * (prompt - 1)] for turn in range(args.repeats + 1))
                results = [llm.generate(ids, max_tokens=1) for ids in texts]
                seconds = [result.timings.prefill_seconds for result in results[1:]]
                times[f"{name} p{prompt}"] = 1e6 * median(seconds)
    return times


def numbers(text: str) -> list[int]:
    return [int(n) for n in text.split(",") if n]


def medians_of(times: Sequence[Times]) -> Times:
    """Of each case the median of all rounds."""
    return {case: median(t[case] for t in times) for case in times[0]}


def ratio(found: Times, base: Times) -> float:
    """The geometric mean of what each case takes, of what it took."""
    logs = [math.log(found[case] / base[case]) for case in base]
    return math.exp(sum(logs) / len(logs))


def tune(args: argparse.Namespace, row: Row, folder: Path) -> tuple[Row, list[dict[str, Any]]]:
    """The best row, and what was compared on the way there."""
    comparisons = []
    for knob, values in args.knobs.items():
        group, name = place(row, knob)
        now, found = group[name], {}
        rows = {}
        for value in [now, *(value for value in values if value != now)]:
            rows[value] = copy.deepcopy(row)
            changed, _ = place(rows[value], knob)
            changed[name] = value
            found[value] = []
        for _ in range(args.rounds):
            for value in list(found):
                times = measured(args.models, args, rows[value], folder)
                if times:
                    found[value].append(times)
                else:
                    del found[value]
        if now not in found:
            raise SystemExit("the models do not run with the row as it is")
        medians = {value: medians_of(times) for value, times in found.items()}
        ratios = {value: ratio(times, medians[now]) for value, times in medians.items()}
        best = min(ratios, key=lambda value: ratios[value])
        if ratios[best] > 1 - args.least / 100:
            best = now
        row = rows[best]
        said = ", ".join(f"{value}: {100 * (r - 1):+.2f}%" for value, r in ratios.items())
        print(f"{knob} = {best}   {said}", file=sys.stderr)
        cases = list(medians[now])
        comparisons.append(
            {
                "of": knob,
                "what": "us: " + ", ".join(cases),
                "card": row["card"],
                "values": {str(v): [t[case] for case in cases] for v, t in medians.items()},
                "chose": str(best),
            }
        )
    return row, comparisons


def knobs(given: Sequence[str]) -> dict[str, list[Any]]:
    """What to try of which numbers."""
    found = {}
    for text in given:
        knob, _, values = text.partition("=")
        found[knob] = json.loads(f"[{values}]") if values else CANDIDATES.get(knob, [])
        if not found[knob]:
            raise SystemExit(f"{knob}: say what to try of it, as in {knob}=8,16")
    return found or dict(CANDIDATES)


def nearest(table: Sequence[Row], card: dict[str, Any]) -> Row:
    """The row that the card has now, as `onegraph info --devices` says, for the card itself."""
    said = card["shapes"]
    same = [r for r in table if (r["card"], r["sm_count"]) == (said["card"], said["sm_count"])]
    row = copy.deepcopy(same[0])
    name = card["name"].lower().replace("nvidia ", "").replace(" ", "_")
    compute = list(divmod(int(card["arch"].removeprefix("sm_")), 10))
    own = {"card": card["name"], "compute": compute, "sm_count": card["sm_count"]}
    return row | own | {"record": f"shapes_{name}.json"}


def laid_out(table: Sequence[Row]) -> str:
    """The text of the table: a group of a row a line."""
    rows = []
    for row in table:
        fields = [f'    "{name}": {json.dumps(value)}' for name, value in row.items()]
        rows.append("  {\n" + ",\n".join(fields) + "\n  }")
    return "[\n" + ",\n".join(rows) + "\n]\n"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+")
    parser.add_argument("--knobs", action="append", default=[], metavar="NAME[=VALUE,...]")
    parser.add_argument("--batch-sizes", default="1,4,8,32")
    parser.add_argument("--prompts", default="", help="tokens of prompts, joined by commas")
    parser.add_argument("--position", type=int, default=128, help="tokens before a step")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--least", type=float, default=0.5, help="per cent that a change is worth")
    parser.add_argument("--output", type=Path, help="a file for the row, for ONEGRAPH_SHAPES")
    parser.add_argument("--record", type=Path, help="a file for what was compared")
    parser.add_argument("--table", action="store_true", help="write the table and its record")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.measure:
        print(json.dumps(measure(args)))
        return 0
    args.knobs = knobs(args.knobs)
    cuda = json.loads(_native.cuda_devices(nvrtc.folders()))
    if not cuda["cards"]:
        parser.error(f"tuning needs a card: {cuda['error']}")
    table, card = json.loads(TABLE.read_text()), cuda["cards"][0]
    with tempfile.TemporaryDirectory() as folder:
        row, comparisons = tune(args, nearest(table, card), Path(folder))
    told = {"card": card["name"], "driver": cuda["driver"], "onegraph": __version__}
    record = json.dumps(told | {"comparisons": comparisons}, indent=1) + "\n"
    if args.record:
        args.record.write_text(record)
    if args.output:
        args.output.write_text(json.dumps(row) + "\n")
    if args.table:
        others = [r for r in table if (r["card"], r["sm_count"]) != (row["card"], row["sm_count"])]
        TABLE.write_text(laid_out([*others, row]))
        (RECORDS / row["record"]).write_text(record)
    print(json.dumps(row))
    return 0


if __name__ == "__main__":
    sys.exit(main())
