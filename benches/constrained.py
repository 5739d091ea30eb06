"""What it costs that texts are held to a form.

    python benches/constrained.py MODEL --device cuda --sequences 1,8,64 --record out.json

So many sequences at once, free and held to a JSON schema in turn, each drawn with a temperature and
a seed. The schema is a list of records that has no end before `--tokens` tokens, so that
both make as many. Rates are tokens after the first, by the time from a sequence's first token to
its last, of that sequence for which this took longest; the ratio is the median of the rounds'
ratios, whose spread is printed. MODEL is what `onegraph run` takes, or a file that is made from
`--shape` (models/shapes.toml) where there is none.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median
from typing import Any

import onegraph
from onegraph import hub
from runs import make_model, together, write_record

REPOSITORY = Path(__file__).resolve().parents[1]

RECORD: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "kind": {"enum": ["tool", "person", "place"]},
        "count": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 4},
    },
    "required": ["name", "kind", "count", "tags"],
    "additionalProperties": False,
}
#: A list that no answer comes to the end of.
SCHEMA: dict[str, Any] = {"type": "array", "items": RECORD, "minItems": 100_000}

Record = dict[str, Any]


def rate(llm: onegraph.LLM, n: int, turn: int, args: argparse.Namespace, schema: Any) -> float:
    """Tokens a second of `n` sequences."""
    options: Record = {"temperature": 0.8, "seed": turn, "ignore_eos": schema is None}
    found, results = together(llm, n, turn, args.tokens, schema=schema, **options)
    for i, result in enumerate(results):
        if len(result.token_ids) != args.tokens:
            raise SystemExit(
                f"sequence {i} of {n} ended after {len(result.token_ids)} of {args.tokens} tokens "
                f"({result.finish_reason}); nothing is compared"
            )
    return found


def measured(llm: onegraph.LLM, n: int, args: argparse.Namespace) -> Record:
    """Rates of each round, held and free in turn; a round before them warms up."""
    rounds = []
    for turn in range(args.rounds + 1):
        ways: list[Any] = [None, SCHEMA] if turn % 2 else [SCHEMA, None]
        rates = {"held" if way else "free": rate(llm, n, turn, args, way) for way in ways}
        rounds.append(rates)
    rounds = rounds[1:]
    ratios = [each["held"] / each["free"] for each in rounds]
    found = {name: median(each[name] for each in rounds) for name in ("free", "held")}
    return {"sequences": n, **found, "ratio": median(ratios), "ratios": ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--shape", help="of a file to write (models/shapes.toml)")
    parser.add_argument("--mix", default="Q4_K_M")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--sequences", default="1,8,64", help="numbers of sequences, by commas")
    parser.add_argument("-n", "--tokens", type=int, default=256, help="of each sequence")
    parser.add_argument("-r", "--rounds", type=int, default=5)
    parser.add_argument("--record", type=Path, help="write the figures as JSON")
    args = parser.parse_args()
    make_model(args)
    sequences = sorted({int(n) for n in args.sequences.split(",")})
    path = hub.resolve(args.model)
    load: Record = {"n_ctx": args.tokens + 64, "max_batch": max(sequences), "progress": False}
    print("| sequences | free, tok/s | held | held / free |\n|---|---|---|---|")
    with onegraph.LLM(path, device=args.device, **load) as llm:
        rows = []
        for n in sequences:
            rows.append(row := measured(llm, n, args))
            spread = f"{min(row['ratios']):.3f} to {max(row['ratios']):.3f}"
            rates = f"{row['free']:,.0f} | {row['held']:,.0f}"
            print(f"| {n} | {rates} | {row['ratio']:.3f} ({spread}) |", flush=True)
        device = llm.device
    write_record(args, device, rows=rows)


if __name__ == "__main__":
    main()
