"""What prompt lookup gains where code is edited, and that it changes no token.

    python benches/prompt_lookup.py [MODEL] --device cpu --record out.json

Each task shows a program and asks for it with one name changed; the beginning of the answer is
given, as an editor would, so that a small model keeps to it. Tasks go on to a fixed number of
tokens each, greedy and sampled in turn, once with `prompt_lookup_num_tokens` and once without,
one after the other, until `--tokens` were compared. Printed are tokens a second after the first,
median of the tasks and of their ratios, how many of the drafted tokens were right, and how many
tokens were equal. A token that differs is an error.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onegraph
from onegraph.bench import machine

#: Programs to edit, and in each the name that changes.
PROGRAMS = {
    "values": '''\
def read_values(path):
    """Numbers of a file, one a line; empty lines are left out."""
    values = []
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            line = line.strip()
            if line:
                values.append(float(line))
    return values


def mean(values):
    """The mean of some numbers."""
    if not values:
        raise ValueError("no values: there is no mean")
    return sum(values) / len(values)


def variance(values):
    """The sample variance of some numbers."""
    if len(values) < 2:
        raise ValueError("fewer than two values: there is no variance")
    middle = mean(values)
    return sum((value - middle) ** 2 for value in values) / (len(values) - 1)


def summary(path):
    """Number, mean and variance of the numbers of a file."""
    values = read_values(path)
    return {"n": len(values), "mean": mean(values), "variance": variance(values)}
''',
    "stack": '''\
class Machine:
    """Runs programs of a few instructions on a stack of numbers."""

    def __init__(self):
        self.stack = []
        self.steps = 0

    def push(self, number):
        self.stack.append(number)

    def pop(self):
        if not self.stack:
            raise IndexError("the stack is empty")
        return self.stack.pop()

    def step(self, name, argument=None):
        self.steps += 1
        if name == "push":
            self.push(argument)
        elif name == "add":
            self.push(self.pop() + self.pop())
        elif name == "mul":
            self.push(self.pop() * self.pop())
        elif name == "drop":
            self.pop()
        else:
            raise ValueError(f"no instruction {name!r}")

    def run(self, program):
        for name, argument in program:
            self.step(name, argument)
        return list(self.stack)
''',
    "orders": """\
export function total(orders, rates) {
  let sum = 0;
  for (const order of orders) {
    const rate = rates[order.country];
    if (rate === undefined) {
      throw new Error(`no rate for ${order.country}`);
    }
    sum += order.price * order.count * (1 + rate);
  }
  return sum;
}

export function byCountry(orders) {
  const groups = new Map();
  for (const order of orders) {
    const group = groups.get(order.country) ?? [];
    group.push(order);
    groups.set(order.country, group);
  }
  return groups;
}

export function largest(orders) {
  let found = null;
  for (const order of orders) {
    if (found === null || order.price > found.price) {
      found = order;
    }
  }
  return found;
}
""",
}

NEW_NAMES = ["items", "entries", "samples", "records", "points", "cells"]


@dataclass
class Task:
    """A request with and without lookup."""

    name: str
    temperature: float
    tokens: int
    equal: int
    rate: float
    plain_rate: float
    drafted: int
    accepted: int


def prompt(number: int) -> tuple[str, str]:
    """The name of a task, and its text: a program, what is to change, and how the answer begins."""
    names = list(PROGRAMS)
    old = names[number % len(names)]
    new = NEW_NAMES[number // len(names) % len(NEW_NAMES)]
    program = PROGRAMS[old]
    edited = program.replace(old, new).splitlines(keepends=True)
    # A third of it, so that the model sees what it is to do.
    begun = "".join(edited[: len(edited) // 3])
    text = f"Rename `{old}` to `{new}`.\n\nBefore:\n\n{program}\nAfter:\n\n{begun}"
    return f"{old} to {new}", text


def run(llm: onegraph.LLM, number: int, args: argparse.Namespace) -> Task:
    """One task, with and without in turn, which of them first in turn too."""
    name, text = prompt(number)
    temperature = 0.0 if number % 2 == 0 else 0.5
    options: dict[str, Any] = {
        "max_tokens": args.length,
        "temperature": temperature,
        "seed": number,
        "ignore_eos": True,
    }
    lookups = [0, args.draft] if number % 4 < 2 else [args.draft, 0]
    results = {n: llm.generate(text, prompt_lookup_num_tokens=n, **options) for n in lookups}
    plain, drafted = results[0], results[args.draft]
    pairs = zip(plain.token_ids, drafted.token_ids, strict=False)
    return Task(
        name=name,
        temperature=temperature,
        tokens=len(plain.token_ids),
        equal=sum(a == b for a, b in pairs) if plain.text == drafted.text else 0,
        rate=drafted.timings.decode_tokens_per_second,
        plain_rate=plain.timings.decode_tokens_per_second,
        drafted=drafted.usage.drafted_tokens,
        accepted=drafted.usage.accepted_tokens,
    )


def table(tasks: list[Task]) -> str:
    """A row for each temperature, and one for all."""
    lines = [
        "| tasks | tokens | equal | tokens/s | without | ratio | drafted right | tokens a step |",
        "|---|---|---|---|---|---|---|---|",
    ]
    kinds = {"greedy": 0.0, "temperature 0.5": 0.5, "all": None}
    for kind, temperature in kinds.items():
        own = [t for t in tasks if temperature in (None, t.temperature)]
        if not own:
            continue
        tokens, accepted = sum(t.tokens for t in own), sum(t.accepted for t in own)
        drafted = sum(t.drafted for t in own)
        cells = [
            kind,
            f"{tokens:,}",
            f"{sum(t.equal for t in own):,}",
            f"{statistics.median(t.rate for t in own):.1f}",
            f"{statistics.median(t.plain_rate for t in own):.1f}",
            f"{statistics.median(t.rate / t.plain_rate for t in own):.2f}",
            f"{accepted / max(drafted, 1):.0%}",
            f"{tokens / max(tokens - accepted, 1):.2f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Prints the table; 1 where a token differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--kv-type", default=onegraph._native.DEFAULT_KV_TYPE)
    parser.add_argument("--draft", type=int, default=7, help="most tokens of a draft")
    parser.add_argument("--length", type=int, default=500, help="tokens of a task")
    parser.add_argument("--tokens", type=int, default=10_000, help="tokens to compare")
    parser.add_argument("--record", type=Path, help="a JSON file for all of it")
    args = parser.parse_args(arguments)
    tasks: list[Task] = []
    with onegraph.LLM(args.model, device=args.device, kv_type=args.kv_type, max_batch=1) as llm:
        record = {
            "command": "python benches/prompt_lookup.py",
            "device": llm.device,
            "kv_type": llm.kv_type,
            **{name: getattr(args, name) for name in ("model", "draft", "length", "tokens")},
            "machine": asdict(machine.describe(llm.device)),
            "when": machine.now(),
        }
        run(llm, 0, argparse.Namespace(**{**vars(args), "length": min(args.length, 32)}))
        while sum(task.tokens for task in tasks) < args.tokens:
            tasks.append(run(llm, len(tasks), args))
            print(asdict(tasks[-1]), file=sys.stderr)
            if args.record is not None:
                # What is done is kept, whatever ends it.
                written = record | {"tasks": [asdict(task) for task in tasks]}
                args.record.write_text(json.dumps(written, indent=1) + "\n")
    print(table(tasks))
    return int(any(task.equal != task.tokens for task in tasks))


if __name__ == "__main__":
    sys.exit(main())
