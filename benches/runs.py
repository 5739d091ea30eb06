"""A run of a bench: the model that it is given, rates of sequences together, and its record."""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import onegraph
from onegraph.bench import machine

REPOSITORY = Path(__file__).resolve().parents[1]


def make_model(args: argparse.Namespace) -> None:
    """Writes `args.model` where there is none and `args.shape` (models/shapes.toml) is given."""
    if args.shape and not Path(args.model).exists():
        command = [sys.executable, str(REPOSITORY / "models" / "synth.py"), args.shape]
        subprocess.run([*command, "--mix", args.mix, "-o", args.model], check=True)


def together(
    llm: onegraph.LLM, n: int, turn: int, tokens: int, **options: Any
) -> tuple[float, list[onegraph.Result]]:
    """Tokens a second of `n` sequences at once, and what they are: tokens after the first, by the
    time from a sequence's first token to its last, of that sequence for which this took longest.
    No two prompts are alike."""
    prompts = [[3 + turn % 100, *[3 + i] * 7] for i in range(n)]
    results = llm.generate(prompts, max_tokens=tokens, **options)
    return n * (tokens - 1) / max(r.timings.decode_seconds for r in results), results


def write_record(args: argparse.Namespace, device: str, **found: Any) -> None:
    """Writes what was found to `args.record`, where that is given, with the machine and what else
    was asked for."""
    if args.record:
        asked = {name: value for name, value in vars(args).items() if name != "record"}
        told = {"machine": dataclasses.asdict(machine.describe(device)), "options": asked, **found}
        Path(args.record).write_text(json.dumps(told, indent=1, default=str) + "\n")
