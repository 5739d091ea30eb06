"""What of JSON schema a text can be held to, by the official test suite; and answers to random
schemas, none of which may be invalid.

    python benches/json_schema.py --record out.json
    python benches/json_schema.py --answers 10000

The suite (https://github.com/json-schema-org/JSON-Schema-Test-Suite) comes with the source
distribution of `jsonschema`, which pip fetches; `--suite` names an unpacked one instead. It has
schemas, and values that are valid or not. A schema is refused when it is given, with the reason, or
held to: then each value is written as JSON, an object with its keys in every order, and asked
whether such a text could be given. One that is invalid must not be. A valid one that is not given
costs no correctness: a model is held to write `1`, never `1.0`, for an integer. Texts that are
invalid and could be given are an error, unless `KNOWN` says why.

With `--answers` a model of random weights writes as many answers to random schemas, some at a time
as in a server; `jsonschema` judges each that ended.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import jsonschema
import onegraph

#: The source distribution that the suite comes with.
DISTRIBUTION = "jsonschema==4.26.0"
DRAFT = "draft2020-12"

#: Orders of an object's keys that are tried.
MOST_ORDERS = 120

#: Schemas whose invalid texts could be given, by keyword and description, and why.
KNOWN: dict[tuple[str, str], str] = {}


@dataclass
class Row:
    """What became of the schemas of one keyword."""

    keyword: str
    schemas: int = 0
    refused: int = 0
    #: Values of the schemas that were not refused, and those of them whose text could be given.
    valid: int = 0
    valid_given: int = 0
    invalid: int = 0
    invalid_given: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    #: Descriptions of the schemas with invalid texts that could be given.
    wrong: list[str] = field(default_factory=list)


def fetch(folder: Path) -> Path:
    """The suite, of the source distribution that pip fetches."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--no-binary", "jsonschema", "--dest", str(folder), DISTRIBUTION]
    if subprocess.run(command, check=False).returncode:
        sys.exit(f"{DISTRIBUTION} cannot be fetched; name an unpacked suite by --suite")
    (archive,) = folder.glob("jsonschema-*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return next(folder.glob("jsonschema-*/json"))


def texts(value: Any) -> Iterator[str]:
    """JSON of a value, an object's keys in every order."""
    if not isinstance(value, dict):
        yield json.dumps(value)
        return
    orders = itertools.permutations(value.items())
    for order in itertools.islice(orders, MOST_ORDERS):
        yield json.dumps(dict(order))


def reason(error: onegraph.ArgumentError) -> str:
    """Why a schema was refused, without the schema."""
    said = str(error).rpartition("}: ")[2] or str(error)
    return said.partition("; ")[0][:60]


def judge(llm: onegraph.LLM, path: Path) -> Row:
    """What becomes of the schemas in a file."""
    row = Row(path.stem)
    for group in json.loads(path.read_text(encoding="utf-8")):
        schema = json.dumps(group["schema"])
        row.schemas += 1
        try:
            llm.fits("", schema=schema)
        except onegraph.ArgumentError as e:
            row.refused += 1
            why = reason(e)
            row.reasons[why] = row.reasons.get(why, 0) + 1
            continue
        wrong = False
        for case in group["tests"]:
            given = any(llm.fits(text, schema=schema) for text in texts(case["data"]))
            if case["valid"]:
                row.valid += 1
                row.valid_given += given
            else:
                row.invalid += 1
                row.invalid_given += given
                wrong = wrong or given
        if wrong:
            row.wrong.append(group["description"])
    return row


def table(rows: list[Row]) -> str:
    """Markdown, a line a keyword."""
    lines = [
        "| keyword | schemas | refused | valid given | invalid given | refused for |",
        "|---|---|---|---|---|---|",
    ]
    total = Row("all")
    for row in rows:
        for name in ("schemas", "refused", "valid", "valid_given", "invalid", "invalid_given"):
            setattr(total, name, getattr(total, name) + getattr(row, name))
    for row in [*rows, total]:
        why = max(row.reasons, key=row.reasons.__getitem__, default="")
        cells = [row.keyword, row.schemas, row.refused, f"{row.valid_given} of {row.valid}"]
        cells += [f"{row.invalid_given} of {row.invalid}", why]
        lines.append("| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def suite(llm: onegraph.LLM, folder: Path, record: Path | None) -> int:
    """Judges the draft's schemas; says what is wrong by the exit status."""
    rows = [judge(llm, path) for path in sorted((folder / "tests" / DRAFT).glob("*.json"))]
    print(table(rows))
    wrong = [(row.keyword, each) for row in rows for each in row.wrong]
    for keyword, described in wrong:
        print(f"{keyword}, {described}: {KNOWN.get((keyword, described), 'not known')}")
    if record:
        found = {"suite": DISTRIBUTION, "draft": DRAFT, "rows": [asdict(row) for row in rows]}
        record.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return int(any(each not in KNOWN for each in wrong))


def random_schema(draw: random.Random, depth: int) -> dict[str, Any]:
    """Of what JSON schemas are made of, with texts and lists that end."""
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "const"]
    kind = draw.choice(kinds + ["array", "object", "anyOf"] * (depth > 0))
    if kind == "string":
        least = draw.randrange(3)
        forms = [
            {"minLength": least, "maxLength": least + draw.randrange(6)},
            {"pattern": draw.choice(["^[a-f]{2,4}$", "^(ab|cd)$", r"^\d\d?$"])},
            {"format": draw.choice(["date", "time", "uuid", "ipv4"])},
        ]
        return {"type": "string", **draw.choice(forms)}
    if kind in ("integer", "number"):
        least = draw.randrange(-50, 50)
        return {"type": kind, "minimum": least, "maximum": least + draw.randrange(1, 400)}
    if kind == "enum":
        return {"enum": draw.sample(["a", "b c", 1, 2.5, None, True, "\u00e9"], 3)}
    if kind == "const":
        return {"const": draw.choice(["x", 3, False, {"a": [1]}])}
    if kind == "array":
        least = draw.randrange(2)
        items = random_schema(draw, depth - 1)
        return {"type": "array", "items": items, "minItems": least, "maxItems": least + 2}
    if kind == "anyOf":
        return {"anyOf": [random_schema(draw, depth - 1) for _ in range(2)]}
    if kind == "object":
        names = draw.sample(["a", "b", "name", "x y", "\u00fc", "d"], draw.randrange(1, 4))
        return {
            "type": "object",
            "properties": {name: random_schema(draw, depth - 1) for name in names},
            "required": names[: draw.randrange(len(names) + 1)],
            "additionalProperties": False,
        }
    return {"type": kind}


def answers(llm: onegraph.LLM, n: int, seed: int, at_once: int = 4) -> Counter[str]:
    """How many of so many answers to random schemas, `at_once` to each, were "valid", "cut" or
    "invalid"."""
    draw = random.Random(seed)
    found: Counter[str] = Counter()
    while found.total() < n:
        schema = random_schema(draw, 2)
        sampling = onegraph.Sampling(
            schema=schema, max_tokens=300, temperature=1.0, seed=found.total(), top_k=0
        )
        for result in llm.generate("abc", n=min(at_once, n - found.total()), sampling=sampling):
            if result.finish_reason != "stop":
                found["cut"] += 1
                continue
            try:
                jsonschema.validate(json.loads(result.text), schema)
                found["valid"] += 1
            except (ValueError, jsonschema.ValidationError) as e:  # no JSON, or not of the schema
                print(f"{schema}: {result.text!r}: {e}", file=sys.stderr)
                found["invalid"] += 1
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("model", nargs="?", default="smollm2", help="its vocabulary is used")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--suite", type=Path, help="an unpacked suite, the folder above `tests`")
    parser.add_argument("--record", type=Path, help="write the table's figures here, as JSON")
    parser.add_argument("--answers", type=int, default=0, help="answers instead of the suite")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with onegraph.LLM(given.model, device=given.device, n_ctx=512, max_batch=4) as llm:
        if given.answers:
            found = answers(llm, given.answers, given.seed)
            print(", ".join(f"{found[kind]} {kind}" for kind in ("valid", "cut", "invalid")))
            return int(found["invalid"] > 0)
        if given.suite:
            return suite(llm, given.suite, given.record)
        with tempfile.TemporaryDirectory() as folder:
            return suite(llm, fetch(Path(folder)), given.record)


if __name__ == "__main__":
    sys.exit(main())
