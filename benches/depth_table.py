"""The published tables at depth and of many sequences, beside llama.cpp.

    python benches/depth_table.py --llama-bench PATH --llama-batched-bench PATH \\
        --models 1B,8B --depths 0,512,2048,16384,32768 --sequences 8,32,64 --record depth.json
    python benches/depth_table.py --show depth.json

For each model it writes a synthetic file of the true shape (models/shapes.toml) and runs the
programs on it in turn: onegraph, llama-bench, llama-batched-bench, onegraph again. What is timed is
`--tokens` steps behind each depth, prompts of `--prompt` tokens behind each of `--prompt-depths`,
and steps of several sequences that each have `--held` tokens behind them. The record has every
sample, and is written anew after each program, so that a time limit costs what is left and no more.
A program that fails is in the record with what it said. Sequences are timed while all of them run:
those that begin first make tokens while others' prompts are read, so `--tokens` must be more.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from onegraph.bench import machine, tables
from onegraph.bench.engines import llama_bench
from onegraph.bench.measurement import EngineError

REPOSITORY = Path(__file__).resolve().parents[1]

#: Heading, shape and mix of each model that has a name of its own here.
MODELS = {
    "135M Q8_0": ("smollm2-135m", "Q8_0"),
    "1B": ("llama-3.2-1b", "Q4_K_M"),
    "1.5B": ("qwen2.5-1.5b", "Q4_K_M"),
    "3B": ("llama-3.2-3b", "Q4_K_M"),
    "8B": ("llama-3.1-8b", "Q4_K_M"),
    "8B Q8_0": ("llama-3.1-8b", "Q8_0"),
}
#: Tokens of a prompt that a pass on a card reads, unless `prefill_chunk` says otherwise.
CHUNK = 512
#: Tokens of one pass of llama-batched-bench's prompts, and what they leave in its cache.
BATCHED_ROW = re.compile(r"^\|(?:\s*[\d.]+\s*\|)+$")

Record = dict[str, Any]


def numbers(text: str) -> list[int]:
    """The whole numbers of a list such as 8,32,64; none of an empty one."""
    return [int(part) for part in text.split(",") if part]


def kinds(args: argparse.Namespace) -> list[tuple[str, list[str]]]:
    """What `onegraph bench` and llama-bench are asked for, each in the words that both take."""
    asked = []
    if args.depths:
        asked.append(("steps", ["-p", "0", "-n", str(args.tokens), "-d", args.depths]))
    if args.prompt_depths:
        asked.append(("prompts", ["-p", str(args.prompt), "-n", "0", "-d", args.prompt_depths]))
    return asked


def ours(path: Path, args: argparse.Namespace) -> Record:
    """onegraph's samples: tokens a second by what was timed."""
    program = [sys.executable, "-m", "onegraph", "bench", str(path), "-o", "json", "-r"]
    common = [str(args.rounds), "--device", args.device, "--kv-type", args.kv_type]
    out: Record = {}
    asked = [options for _, options in kinds(args)]
    if args.sequences:
        held = ["-d", str(args.held)]
        asked.append(["-p", "0", "-n", str(args.tokens), "-npl", args.sequences, *held])
    for options in asked:
        command = [*program, *common, *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise EngineError(f"onegraph bench {' '.join(options)}: {done.stderr.strip()[-400:]}")
        for row in json.loads(done.stdout):
            out[name(row["n_prompt"], row["n_depth"], row["n_seq"])] = row["samples_ts"]
            checked = row.get("check_mean_kl")
            if checked is not None:
                out["mean_kl"] = checked
    return out


def name(n_prompt: int, depth: int, sequences: int) -> str:
    """What one test is called in a record."""
    if sequences > 1:
        return f"{sequences} sequences"
    return f"prompt behind {depth}" if n_prompt else f"step behind {depth}"


def llama(path: Path, args: argparse.Namespace) -> Record:
    """llama-bench's samples, by the same names."""
    on_gpu = args.device != "cpu"
    common = ["-fa", "1", "-ngl", "999" if on_gpu else "0", "-r", str(args.rounds)]
    common += ["-ctk", args.llama_kv_type, "-ctv", args.llama_kv_type]
    out: Record = {}
    for _, options in kinds(args):
        for row in llama_bench.rows(args.llama_bench, path, [*common, *options]):
            out[name(row["n_prompt"], row["n_depth"], 1)] = row["samples_ts"]
    return out


def batched(path: Path, args: argparse.Namespace) -> Record:
    """llama-batched-bench's rates of steps: one sample a number of sequences, as it prints."""
    most = max(numbers(args.sequences))
    # A prompt of its own for each sequence, as long as what ours hold.
    command = [args.llama_batched_bench, "-m", str(path), "-fa", "on", "-ngl", "999"]
    command += ["-npp", str(max(args.held, 16)), "-ntg", str(args.tokens), "-npl", args.sequences]
    command += ["-c", str(most * (max(args.held, 16) + args.tokens))]
    command += ["-ctk", args.llama_kv_type, "-ctv", args.llama_kv_type]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        raise EngineError(f"llama-batched-bench: {done.stderr.strip()[-400:]}")
    out: Record = {}
    for line in done.stdout.splitlines():
        if BATCHED_ROW.match(line):
            cells = [float(cell) for cell in line.strip("| ").split("|")]
            # PP, TG, B, N_KV, T_PP, S_PP, T_TG, S_TG, T, S.
            out[f"{int(cells[2])} sequences"] = [cells[7]]
    return out


def model(title: str, folder: Path, args: argparse.Namespace, keep: Any) -> None:
    """Every program on one model, in turn."""
    shape, mix = MODELS[title] if title in MODELS else title.split(":")
    found: Record = {"shape": shape, "mix": mix, "seconds": {}}
    path = folder / f"{shape}-{mix}.gguf"
    command = [sys.executable, "models/synth.py", shape, "--mix", mix, "-o", str(path)]
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
    found["file_bytes"] = path.stat().st_size
    turns: list[tuple[str, Any]] = [("onegraph", ours)]
    if args.llama_bench and kinds(args):
        turns.append(("llama.cpp", llama))
    if args.llama_batched_bench and args.sequences:
        turns.append(("llama.cpp", batched))
    if len(turns) > 1 and not args.once:
        turns.append(("onegraph", ours))
    try:
        for engine, run in turns:
            print(f"{title}: {run.__name__}", file=sys.stderr, flush=True)
            begin = time.monotonic()
            try:
                for test, samples in run(path, args).items():
                    of = found.setdefault(engine, {})
                    of[test] = samples if test == "mean_kl" else of.get(test, []) + samples
            except (EngineError, OSError) as e:
                found.setdefault("failures", []).append(str(e))
                print(f"{title}: {e}", file=sys.stderr, flush=True)
            spent = found["seconds"]
            spent[run.__name__] = round(spent.get(run.__name__, 0) + time.monotonic() - begin, 1)
            keep(found)
    finally:
        path.unlink(missing_ok=True)


def table(record: Record) -> str:
    """Markdown of a record: for each model a line a program, a column a test."""
    tests: list[str] = []
    for found in record["models"].values():
        for engine in ("onegraph", "llama.cpp"):
            tests += [t for t in found.get(engine, {}) if t not in [*tests, "mean_kl"]]
    rows = []
    for title, found in record["models"].items():
        sides = [found.get(engine, {}) for engine in ("onegraph", "llama.cpp")]
        for engine, side in zip(("onegraph", "llama.cpp"), sides, strict=True):
            cells = [f"{median(side[t]):,.0f}" if t in side else "" for t in tests]
            rows.append([f"{title}, {engine}", *cells])
        both = [(sides[0].get(t), sides[1].get(t)) for t in tests]
        rows.append(
            ["ratio", *(f"{median(a) / median(b):.2f}" if a and b else "" for a, b in both)]
        )
    notes = [
        f"- {title}: {failure}"
        for title, found in record["models"].items()
        for failure in found.get("failures", [])
    ]
    here = record["machine"]
    notes.append(
        f"- onegraph {here['version']} ({here['commit'] or 'commit not known'}), keys and values "
        f"{record['kv_type']}, llama.cpp's {record['llama_kv_type']}; "
        + tables.machine_line(here["gpu"] or here["cpu"], here["driver"], here["nvrtc"])
    )
    return "\n".join([tables.markdown(["tokens/s", *tests], rows, len(tests)), "", *notes])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default="1B,8B", help="names of this script, or SHAPE:MIX")
    parser.add_argument("--depths", default="0,512,2048,16384,32768", help="before timed steps")
    parser.add_argument("--prompt-depths", default="0,16384", help="before timed prompts")
    parser.add_argument("--sequences", default="8,32,64", help="that generate together")
    parser.add_argument("--held", type=int, default=0, help="tokens that each sequence holds")
    parser.add_argument("-p", "--prompt", type=int, default=2048)
    parser.add_argument("-n", "--tokens", type=int, default=64)
    parser.add_argument("-r", "--rounds", type=int, default=3)
    parser.add_argument("--once", action="store_true", help="onegraph before the others alone")
    parser.add_argument("--kv-type", default="i16")
    parser.add_argument("--llama-kv-type", default="f16")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--llama-bench", help="path of llama-bench")
    parser.add_argument("--llama-batched-bench", help="path of llama-batched-bench")
    parser.add_argument("--record", type=Path, help="where to write the JSON record")
    parser.add_argument("--show", type=Path, help="print the table of a record and do nothing else")
    parser.add_argument("--folder", type=Path, help="where model files are written for a while")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no model after this")
    args = parser.parse_args()
    most = max(numbers(args.sequences), default=0)
    # Each pass of a chunk of a prompt is a step of those that have begun.
    if args.tokens < (least := 2 * most * args.held // CHUNK):
        parser.error(f"--tokens {args.tokens}: {most} sequences of {args.held} tokens need {least}")
    if args.show:
        print(table(json.loads(args.show.read_text())))
        return 0
    begin = time.monotonic()
    record: Record = {
        "machine": dataclasses.asdict(machine.describe(args.device)),
        "when": machine.now(),
        "command": sys.argv[1:],
        "kv_type": args.kv_type,
        "llama_kv_type": args.llama_kv_type,
        "models": {},
    }
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for title in args.models.split(","):

            def keep(found: Record, title: str = title) -> None:
                record["models"][title] = found
                if args.record:
                    args.record.write_text(json.dumps(record, indent=1) + "\n")

            if time.monotonic() - begin > args.seconds:
                keep({"failures": [f"not run: {args.seconds:.0f} s were over"]})
            else:
                model(title, Path(folder), args, keep)
    print(table(record))
    return 1 if any("failures" in found for found in record["models"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
