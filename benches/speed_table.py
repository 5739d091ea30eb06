"""The published table: decode and prompt speed of each model size, beside llama.cpp and ollama.

    OLLAMA_HOST=127.0.0.1:11434 python benches/speed_table.py \\
        --llama-bench /path/to/llama-bench --record speed.json
    python benches/speed_table.py --show speed.json

For each model it writes a synthetic file of the true shape (models/shapes.toml), checks onegraph's
output against the interpreter on the CPU, times it by llama-bench's tests from an empty cache, runs
llama-bench on the same file, and then races ollama on a copy of it in alternating rounds. The
record is written anew after each model, so that a time limit costs the models that are left and no
more; `--seconds` ends it by itself. An engine that is missing or fails is in the record with the
reason. Each clock is told by one convention: decode is steps a second; ollama's own, of N tokens in
a time that starts with the first, is converted to N - 1.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from onegraph import LLM, __version__, _native
from onegraph.bench import machine, tables
from onegraph.bench.cases import Case
from onegraph.bench.engines import Running, Setup, llama_bench, ollama
from onegraph.bench.fidelity import agreement, answered, check
from onegraph.bench.measurement import EarlyEnd, Measurement
from onegraph.bench.memory import read_peak
from onegraph.bench.prompts import exact
from onegraph.bench.race import measured_here
from onegraph.bench.statistics import Ratio, mean, ratio, sample_stddev
from onegraph.bench.suite import measure
from onegraph.errors import Error

REPOSITORY = Path(__file__).resolve().parents[1]

#: Heading, shape and mix of each column.
MODELS = {
    "135M": ("smollm2-135m", "Q8_0"),
    "1B": ("llama-3.2-1b", "Q4_K_M"),
    "1.5B": ("qwen2.5-1.5b", "Q4_K_M"),
    "3B": ("llama-3.2-3b", "Q4_K_M"),
    "8B": ("llama-3.1-8b", "Q4_K_M"),
}
#: Tokens of the prompt before a race's decode: nearly empty, as llama-bench's tests begin.
SHORT = 10
#: Tokens of ollama's that are asked to be onegraph's first choice.
CHECKED = 32

Record = dict[str, Any]


def rates(values: list[float]) -> Record:
    """Samples with their mean and sample standard deviation."""
    return {"avg_ts": mean(values), "stddev_ts": sample_stddev(values), "samples_ts": values}


def ours(llm: LLM, args: argparse.Namespace, peak: float) -> Record:
    """onegraph by llama-bench's tests, its output checked first."""
    checked = check(llm)
    out: Record = {
        "version": __version__,
        "check": dataclasses.asdict(checked) | {"ok": checked.ok},
    }
    for key, case in [("prompt", Case(args.prompt, 0)), ("decode", Case(0, args.tokens))]:
        runs = [measure(llm, case, seed) for seed in range(args.rounds + 1)][1:]
        out[key] = rates([run.rate for run in runs])
        plain = [run.n_tokens / s for run in runs if (s := run.seconds_without_sampling)]
        if plain:
            out[f"{key}_without_sampling"] = rates(plain)
    weights = json.loads(_native.model_info(llm.path))["decode"]["weight_bytes"]
    out["weight_bytes_per_second"] = weights * out["decode"]["avg_ts"]
    out["part_of_read_peak"] = out["weight_bytes_per_second"] / peak
    return out


def llama_cpp(program: str, model: Path, args: argparse.Namespace) -> Record:
    """llama-bench's own tests, in one process."""
    on_gpu = args.device != "cpu"
    options = ["-p", str(args.prompt), "-n", str(args.tokens), "-r", str(args.rounds), "-fa", "1"]
    options += ["-ngl", "999" if on_gpu else "0"] + ([] if on_gpu else ["-t", str(args.threads)])
    out: Record = {}
    setup = Setup(model, str(model), args.device, args.n_ctx, args.threads)
    for row in llama_bench.rows(program, model, options, setup.environment):
        out["prompt" if row["n_prompt"] else "decode"] = rates(
            [float(x) for x in row["samples_ts"]]
        )
        out["version"] = f"{row.get('build_number')} ({row.get('build_commit')})"
        out["device"] = row.get("gpu_info") if on_gpu else row.get("cpu_info")
        if on_gpu and not out["device"]:
            out["warnings"] = ["it runs on the CPU: this llama-bench has no GPU library"]
    return out


def race(llm: LLM, running: Running, args: argparse.Namespace) -> Record:
    """ollama and onegraph in turn: decode behind a short prompt, and a long prompt."""
    settings = running.settings
    out: Record = {
        "version": settings.version,
        "device": settings.device,
        "warnings": list(settings.warnings),
    }
    agreed = exact(llm.tokenizer, SHORT, seed=0)
    tokens = answered(llm, running.answer(agreed, CHECKED)) or []
    out["first_choice_agreement"] = agreement(llm, agreed.tokens, tokens)
    out["first_choice_tokens"] = len(tokens)
    # No prompt may begin like an earlier one: ollama keeps its work, and does not say how much.
    first = 1
    for key, length, n in [("decode", SHORT, args.tokens), ("prompt", args.prompt, 8)]:
        here, there = rounds(llm, running, length, n, args.rounds, first)
        first += args.rounds + 1
        if key == "decode":
            mine = [m.decode_rate or m.wall_decode_rate for m in here]
            theirs = [m.decode_rate or m.wall_decode_rate for m in there]
        else:
            mine, theirs = [m.prompt_rate for m in here], [m.prompt_rate for m in there]
        out[key] = {"onegraph": [rate for rate in mine if rate]}
        told = [rate for rate in theirs if rate]
        if len(told) == len(theirs):
            out[key] |= rates(told)
            out[key]["ratio"] = dataclasses.asdict(ratio(out[key]["onegraph"], told))
        for side, them in [("onegraph", here), ("ollama", there)]:
            waits = [1e3 * m.first_token_seconds for m in them if m.first_token_seconds]
            out[key][f"first_token_ms_{side}"] = waits
    return out


def rounds(
    llm: LLM, running: Running, length: int, n: int, count: int, first: int
) -> tuple[list[Measurement], list[Measurement]]:
    """`count` rounds of both after one that warms up, of prompts from number `first` on; where a
    text ends early it is another prompt's turn."""
    here: list[Measurement] = []
    there: list[Measurement] = []
    for seed in range(first, first + 10 * count):
        prompt = exact(llm.tokenizer, length, seed)
        with contextlib.suppress(EarlyEnd):
            theirs = running.generate(prompt, n)
            theirs.check(length, n, "ollama")
            here.append(measured_here(llm, prompt, n))
            there.append(theirs)
        if len(there) == count + 1:
            return here[1:], there[1:]
    raise EarlyEnd(f"ollama ended its text before {n} tokens in most of {10 * count} rounds")


@contextlib.contextmanager
def written(shape: str, mix: str, folder: Path, vocab: str | None) -> Iterator[Path]:
    """A synthetic file, for as long as it is needed."""
    path = folder / f"{shape}-{mix}.gguf"
    command = [sys.executable, "models/synth.py", shape, "--mix", mix, "-o", str(path)]
    command += ["--vocab", vocab] if vocab else []
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def one(shape: str, mix: str, folder: Path, args: argparse.Namespace, peak: float) -> Record:
    """Every engine on one model."""
    out: Record = {"shape": shape, "mix": mix, "seconds": {}}

    @contextlib.contextmanager
    def part(name: str) -> Iterator[None]:
        begin = time.monotonic()
        print(f"{shape} {mix}: {name}", file=sys.stderr, flush=True)
        try:
            yield
        except (Error, subprocess.SubprocessError, OSError) as e:
            out[name] = {"failure": str(e)}
            print(f"{shape} {mix}: {name}: {e}", file=sys.stderr, flush=True)
        out["seconds"][name] = round(time.monotonic() - begin, 2)

    with written(shape, mix, folder, args.vocab) as path:
        out["file_bytes"] = path.stat().st_size
        # Its own process comes first: it needs the card's memory to itself the least.
        if args.llama_bench:
            with part("llama-bench"):
                out["llama-bench"] = llama_cpp(args.llama_bench, path, args)
        with part("onegraph"):
            options: Record = {"device": args.device, "n_ctx": args.n_ctx, "max_batch": 1}
            # Each round reads its prompt.
            options["prefix_cache"] = False
            if args.device == "cpu":
                options["threads"] = args.threads
            with LLM(path, **options) as llm:
                out["onegraph"] = ours(llm, args, peak)
                if os.environ.get("OLLAMA_HOST"):
                    with part("ollama"):
                        where = llm.device
                        setup = Setup(path, str(path), where, args.n_ctx, args.threads, copy=True)
                        with ollama.find().start(setup) as running:
                            out["ollama"] = race(llm, running, args)
    return out


def noted(engine: Record) -> list[str]:
    """What a reader of an engine's numbers must know."""
    return engine.get("warnings", []) + ([engine["failure"]] if "failure" in engine else [])


def times(model: Record, engine: str, part: str) -> Ratio | None:
    """How many times as fast onegraph is: round by round where both were measured in turn, else
    the means, with the least and the most that single rounds give."""
    mine = model.get("onegraph", {}).get(part, {}).get("samples_ts")
    theirs = model.get(engine, {}).get(part, {})
    if "ratio" in theirs:
        # An older record does not say how many rounds there were.
        return Ratio(**({"rounds": len(theirs["samples_ts"])} | theirs["ratio"]))
    others = theirs.get("samples_ts")
    if not mine or not others:
        return None
    least, most = min(mine) / max(others), max(mine) / min(others)
    return Ratio(mean(mine) / mean(others), least, most, min(len(mine), len(others)))


def table(record: Record) -> str:
    """Markdown of a record: a column a model."""
    models = record["models"]

    def row(name: str, engine: str, part: str) -> list[str]:
        cells = []
        for model in models.values():
            found = model.get(engine, {})
            samples = found.get(part, {}).get("samples_ts")
            failed = "failed" if "failure" in found else ""
            cells.append(tables.plus_minus(samples) if samples else failed)
        return [name, *cells]

    def against(name: str, engine: str, part: str) -> list[str]:
        cells = []
        for column, model in models.items():
            found = times(model, engine, part)
            spread = f" ({found.least:.2f} to {found.most:.2f})" if found else ""
            cells.append(f"{found.headline:.2f}{spread}" if found and found.headline else "")
            if found and found.doubt:
                cells[-1] = "no ratio"
                doubts.append(f"- {column}, {name}, {part}: no ratio: {found.doubt}")
        return [name, *cells]

    doubts: list[str] = []
    rows = []
    for part in ["decode", "prompt"]:
        label = "decode" if part == "decode" else f"prompt of {record['prompt']}"
        rows.append(row(f"{label}, onegraph", "onegraph", part))
        for engine, name in [("llama-bench", "llama.cpp"), ("ollama", "ollama")]:
            if any(engine in model for model in models.values()):
                rows.append(row(f"{label}, {name}", engine, part))
                rows.append(against(f"ratio to {name}", engine, part))
    kl = []
    for model in models.values():
        checked = model.get("onegraph", {}).get("check", {})
        wrong = "" if checked.get("ok", True) else " WRONG"
        kl.append(f"{checked['mean_kl']:.0e}{wrong}" if checked else "")
    parts = [m.get("onegraph", {}).get("part_of_read_peak") for m in models.values()]
    rows.append(["decode, % of the read peak", *(f"{100 * p:.0f}" if p else "" for p in parts)])
    rows.append(["mean KL, GPU against CPU", *kl])
    notes = [
        f"- {name}, {engine}: {note}"
        for name, model in models.items()
        for engine in ["llama-bench", "ollama", "onegraph"]
        for note in noted(model.get(engine, {}))
    ]
    notes += doubts
    here = record["machine"]
    notes.append(
        f"- onegraph {here['version']} ({here['commit'] or 'commit not known'}); "
        + tables.machine_line(here["gpu"] or here["cpu"], here["driver"], here["nvrtc"])
    )
    return "\n".join([tables.markdown(["tokens/s", *models], rows, len(models)), "", *notes])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS), help="columns, or SHAPE:MIX")
    parser.add_argument("--llama-bench", help="path of llama-bench")
    parser.add_argument("--record", type=Path, help="where to write the JSON record")
    parser.add_argument("--show", type=Path, help="print the table of a record and do nothing else")
    parser.add_argument("--folder", type=Path, help="where model files are written for a while")
    parser.add_argument("--vocab", help="a GGUF whose vocabulary the models take")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--n-ctx", type=int, default=4096)
    parser.add_argument("-p", "--prompt", type=int, default=512)
    parser.add_argument("-n", "--tokens", type=int, default=128)
    parser.add_argument("-r", "--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1e9, help="start no model after this")
    args = parser.parse_args()
    if args.show:
        print(table(json.loads(args.show.read_text())))
        return 0
    begin = time.monotonic()
    peak = read_peak(args.device, args.threads)
    record: Record = {
        "machine": dataclasses.asdict(machine.describe(args.device)),
        "when": machine.now(),
        "command": sys.argv[1:],
        "prompt": args.prompt,
        "tokens": args.tokens,
        "rounds": args.rounds,
        "n_ctx": args.n_ctx,
        "read_peak": dataclasses.asdict(peak),
        "models": {},
    }
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for name in args.models.split(","):
            if time.monotonic() - begin > args.seconds:
                found: Record = {"not_run": f"{args.seconds:.0f} s were over"}
            else:
                shape, mix = MODELS[name] if name in MODELS else name.split(":")
                found = one(shape, mix, Path(folder), args, peak.bytes_per_second)
            record["models"][name] = found
            record["seconds"] = round(time.monotonic() - begin, 1)
            if args.record:
                args.record.write_text(json.dumps(record, indent=1) + "\n")
            print(json.dumps({name: found}), file=sys.stderr, flush=True)
    print(table(record))
    failed = [name for name, m in record["models"].items() if "failure" in m.get("onegraph", {})]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
