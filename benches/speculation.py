"""What drafts gain, by how many are right, by depth and by sequences: of a model's own layer, or of
a draft model.

    python benches/speculation.py qwen3.5-27b --agree 0.88 0.6 --record out.json
    python benches/speculation.py llama-3.1-8b --draft llama-3.2-1b --record out.json

Random weights accept nothing, so each file is one of `models/synth.py --known`: true bytes and
shapes, the next token known, and a set share of the guesses right; with 0.88 a round of
three drafts yields 3.3 tokens, with 0.6 2.2. Each way to draft is loaded in turn and generates the
same texts; a token that differs from those without drafts is an error.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onegraph
import runs

sys.path.insert(0, str(runs.REPOSITORY / "models"))

import shapes
import synth


def written(args: argparse.Namespace, agree: float) -> tuple[Path, Path | None]:
    """A file, and that of its draft model: its layer, or that model, is right about `agree` of the
    tokens. Both are kept for the next run."""
    own = 1.0 if args.draft else agree
    path = known(args, args.shape, own, n_layer_nextn=0 if args.draft else 1)
    return path, known(args, args.draft, agree, tied=False) if args.draft else None


def known(args: argparse.Namespace, name: str, agree: float, **other: Any) -> Path:
    path = Path(args.folder) / f"{name}-{args.mix}-{agree}.gguf"
    if not path.exists():
        shape = dataclasses.replace(shapes.find(name), **other)
        synth.write(path, shape, args.mix, known=True, agree=agree)
    return path


Found = dict[tuple[int, int], Any]


def measured(
    path: Path, draft: Path | None, mode: str, args: argparse.Namespace
) -> tuple[str, Found]:
    """The device; by depth and number of sequences tokens a second, tokens a round, texts."""
    cases = [(d, n) for d in args.depths for n in args.sequences if d * n <= args.most]
    n_ctx = max(d for d, _ in cases) + args.length + 64
    out: Found = {}
    ordinary = np.flatnonzero(synth.followers(shapes.find(args.shape)) >= 0)
    with onegraph.LLM(
        path,
        device=args.device,
        speculate=mode,
        draft=draft,
        n_ctx=n_ctx,
        max_batch=max(n for _, n in cases),
        kv_tokens=max(n * (d + args.length + 64) for d, n in cases),
    ) as llm:
        for depth, n in cases:
            # No two prompts are alike, and none is in the cache for another's sake.
            prompts = np.random.default_rng(depth).choice(ordinary, (n, depth + 16)).tolist()
            rates, rounds = [], []
            for _ in range(args.repeats + 1):
                results = llm.generate(
                    prompts, max_tokens=args.length, temperature=0.0, ignore_eos=True
                )
                tokens = n * (args.length - 1)
                rates.append(tokens / max(r.timings.decode_seconds for r in results))
                accepted = sum(r.usage.accepted_tokens for r in results)
                rounds.append(tokens / (tokens - accepted))
            out[depth, n] = {
                "rate": statistics.median(rates[1:]),
                "tokens_a_round": statistics.median(rounds[1:]),
                "drafted": sum(r.usage.drafted_tokens for r in results),
                "texts": [r.token_ids for r in results],
            }
        return llm.device, out


def main(arguments: list[str] | None = None) -> int:
    """Prints the table; 1 where a token differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("shape", help="a name in models/shapes.toml")
    parser.add_argument("--mix", default="Q4_K_M")
    parser.add_argument("--agree", type=float, nargs="+", default=[0.88], help="shares right")
    parser.add_argument("--draft", help="the shape of a draft model; none: the model's own layer")
    parser.add_argument("--modes", nargs="+", help="auto, and one to three tokens a round")
    parser.add_argument("--depths", type=int, nargs="+", default=[0, 4096, 32768])
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--most", type=int, default=33_000, help="tokens before all texts together")
    parser.add_argument("--length", type=int, default=384, help="tokens of a text")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--folder", default=".", help="where files are kept")
    parser.add_argument("--record", type=Path, help="a JSON file for all of it")
    args = parser.parse_args(arguments)
    by = "draft" if args.draft else "mtp"
    modes = args.modes or [f"{by}:1", f"{by}:2", f"{by}:3", "auto"]
    rows: list[dict[str, Any]] = []
    device = args.device
    print("| right | depth | sequences | drafts | tokens/s | a round | gain | equal |")
    print("|---|---|---|---|---|---|---|---|")
    for agree in args.agree:
        files = written(args, agree)
        device, plain = measured(*files, "off", args)
        for mode in ["off", *modes]:
            found = plain if mode == "off" else measured(*files, mode, args)[1]
            for (depth, n), case in found.items():
                base = plain[depth, n]
                row = {"agree": agree, "depth": depth, "sequences": n, "drafts": mode}
                row |= {k: v for k, v in case.items() if k != "texts"}
                row["gain"] = case["rate"] / base["rate"]
                row["equal"] = case["texts"] == base["texts"]
                rows.append(row)
                print(
                    f"| {agree} | {depth} | {n} | {mode} | {case['rate']:.1f} "
                    f"| {case['tokens_a_round']:.2f} | {row['gain']:.2f} | {row['equal']} |",
                    flush=True,
                )
    runs.write_record(args, device, rows=rows)
    return int(not all(row["equal"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
