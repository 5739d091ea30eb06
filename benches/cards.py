"""What more cards give: steps alone, of many sequences, and prompts, on one card and on several.

    python benches/cards.py llama-3.1-8b qwen3.5-27b --cards 1 2 --record out.json

Each file is synthetic and of the true shape. It is loaded on each number of cards in turn, which
generate the same texts; a token that differs from those of one card is an error. With
`--llama-bench PATH` the program is run on the same files and cards, by layers and by rows.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onegraph
import runs

sys.path.insert(0, str(runs.REPOSITORY / "models"))

import shapes
import synth

Row = dict[str, Any]


def written(args: argparse.Namespace, name: str) -> Path:
    """A file of the shape; kept for the next run."""
    path = Path(args.folder) / f"{name}-{args.mix}.gguf"
    if not path.exists():
        synth.write(path, shapes.find(name), args.mix)
    return path


def measured(path: Path, cards: int, args: argparse.Namespace) -> tuple[str, Row, list[list[int]]]:
    """The device, tokens a second of each kind, and all texts."""
    device = "cuda:" + ",".join(map(str, range(cards)))
    random = np.random.default_rng(0)
    most = max(args.sequences)
    row: Row = {"cards": cards}
    texts: list[list[int]] = []
    with onegraph.LLM(
        path,
        device=device,
        speculate="off",
        n_ctx=args.prompt + args.length + 64,
        max_batch=most,
        kv_tokens=max(most * (args.length + 128), args.prompt + args.length + 64),
        prefix_cache=False,
    ) as llm:
        for n in args.sequences:
            rates = []
            for _ in range(args.repeats + 1):
                prompts = random.integers(100, 500, (n, 16)).tolist()
                found = llm.generate(
                    prompts, max_tokens=args.length, temperature=0.0, ignore_eos=True
                )
                slowest = max(r.timings.decode_seconds for r in found)
                rates.append(n * (args.length - 1) / slowest)
                texts += [r.token_ids for r in found]
            row[f"steps_{n}"] = statistics.median(rates[1:])
        rates = []
        for _ in range(args.repeats + 1):
            prompt = random.integers(100, 500, args.prompt).tolist()
            result = llm.generate([prompt], max_tokens=1, temperature=0.0)[0]
            rates.append(args.prompt / result.timings.prefill_seconds)
            texts.append(result.token_ids)
        row["prompt"] = statistics.median(rates[1:])
        return llm.device, row, texts


def of_llama_bench(path: Path, cards: int, split: str, args: argparse.Namespace) -> Row:
    """The same kinds by llama-bench; what it said, where it fails."""
    command = [args.llama_bench, "-m", str(path), "-o", "json", "-ngl", "99", "-fa", "1"]
    command += ["-sm", split, "-p", str(args.prompt), "-n", str(args.length)]
    devices = "/".join(f"CUDA{n}" for n in range(cards))
    done = subprocess.run(
        [*command, "-dev", devices], capture_output=True, text=True, timeout=900, check=False
    )
    row: Row = {"cards": cards, "engine": f"llama-bench -sm {split}"}
    if done.returncode:
        return row | {"error": done.stderr[-300:]}
    for test in json.loads(done.stdout):
        row["prompt" if test["n_prompt"] else "steps_1"] = test["avg_ts"]
    return row


def main(arguments: list[str] | None = None) -> int:
    """Prints the table; 1 where a token differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("shapes", nargs="+", help="names in models/shapes.toml")
    parser.add_argument("--mix", default="Q4_K_M")
    parser.add_argument("--cards", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--prompt", type=int, default=2048, help="tokens of a prompt")
    parser.add_argument("--length", type=int, default=256, help="tokens of a text")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", default=".", help="where files are kept")
    parser.add_argument("--llama-bench", help="its path; left out: not run")
    parser.add_argument("--record", type=Path, help="a JSON file for all of it")
    args = parser.parse_args(arguments)
    rows: list[Row] = []
    device, is_equal = "", True
    kinds = [*(f"steps_{n}" for n in args.sequences), "prompt"]
    print(f"| model | engine | cards | {' | '.join(kinds)} | over one card |")
    print("|---|---|---|" + "---|" * (len(kinds) + 1))
    for name in args.shapes:
        path = written(args, name)
        one: dict[str, Row] = {}
        wanted: list[list[int]] = []
        for cards in args.cards:
            device, own, texts = measured(path, cards, args)
            wanted = wanted or texts
            is_equal &= texts == wanted
            found = [own | {"engine": "onegraph", "equal": texts == wanted}]
            if args.llama_bench:
                splits = ["layer", "tensor"] if cards > 1 else ["layer"]
                found += [of_llama_bench(path, cards, split, args) for split in splits]
            for row in found:
                first = one.setdefault(row["engine"].split()[0], row)
                gains = [f"{row[k] / first[k]:.2f}" for k in kinds if k in row and k in first]
                rates = [f"{row[k]:.0f}" if k in row else "" for k in kinds]
                rows.append({"model": name, **row})
                cells = [name, row["engine"], str(cards), *rates, ", ".join(gains)]
                print(f"| {' | '.join(cells)} |", flush=True)
    runs.write_record(args, device, rows=rows)
    return int(not is_equal)


if __name__ == "__main__":
    sys.exit(main())
