"""What the README and the pages say is so: their snippets run, their commands, paths and links are
there, their figures are those of the records."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import click
import pytest
from onegraph import hub
from onegraph.cli import COMMANDS, cli
from onegraph.cli.help import PAGES, pages
from support import generated_pages

ROOT = Path(__file__).resolve().parents[1]
TEXTS = {"README": ROOT / "README.md"} | {name: page.path for name, page in pages().items()}

#: Where a path in a text may begin.
ROOTS = ["", "rust/engine", "rust/engine/src"]


def by_hand(path: Path) -> str:
    """A text without what is generated."""
    return path.read_text().partition(generated_pages.MARK)[0]


def blocks(path: Path, language: str) -> Iterator[tuple[str, str]]:
    """The fenced blocks of a language: what follows its name, and the code."""
    fenced = re.compile(rf"^```{language}(?: (\w+))?\n(.*?)^```$", re.M | re.S)
    for found in fenced.finditer(by_hand(path)):
        yield found[1] or "", found[2]


def spans(path: Path) -> list[str]:
    """What is set as code in a line of text."""
    plain = re.sub(r"^```.*?^```$", "", by_hand(path), flags=re.M | re.S)
    return re.findall(r"`([^`\n]+)`", plain)


over_texts = pytest.mark.parametrize("text", TEXTS)

SNIPPETS = [
    pytest.param(code, id=f"{name}-{i}", marks=[pytest.mark.gpu] if mark == "gpu" else [])
    for name, path in TEXTS.items()
    for i, (mark, code) in enumerate(blocks(path, "python"))
    if "import onegraph" in code
]


def test_snippets_for_a_card_are_python() -> None:
    for snippet in SNIPPETS:
        compile(str(snippet.values[0]), "snippet", "exec")


@pytest.mark.parametrize("code", SNIPPETS)
def test_a_snippet_runs(code: str, smollm2: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


def test_there_are_snippets_in_the_readme_and_in_pages() -> None:
    assert len(SNIPPETS) >= 7
    assert any(each.id.startswith("README") for each in SNIPPETS)


def typed(line: str) -> Iterator[list[str]]:
    """The commands of `onegraph` in a line for a shell, each without its redirections."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if set(word) <= set("|&;"):
            while words and re.match(r"\w+=", words[0]):
                words.pop(0)
            if len(words) > 1 and words[0].rpartition("/")[2] == "onegraph":
                yield words[1:]
            words = []
        else:
            words.append(word)


def without_redirections(words: list[str]) -> list[str]:
    kept, skip = [], False
    for word in words:
        if skip or word in ("<", ">"):
            skip = not skip
        else:
            kept.append(word)
    return kept


def parse(words: list[str]) -> None:
    """Raises where the command line would not take these words."""
    # An option that ends a command, such as --help, does so here.
    with contextlib.suppress(click.exceptions.Exit), cli.make_context("onegraph", words) as above:
        name, command, rest = cli.resolve_command(above, words)
        assert command is not None
        command.make_context(name, without_redirections(rest), parent=above)


def shell_lines(path: Path) -> Iterator[str]:
    for _, code in blocks(path, "sh"):
        yield from code.replace("\\\n", " ").splitlines()


@over_texts
def test_every_command_is_one(text: str) -> None:
    seen = [words for line in shell_lines(TEXTS[text]) for words in typed(line)]
    for words in seen:
        parse(words)
    # What is set in a line may leave out what does not matter there.
    for span in spans(TEXTS[text]):
        if span.startswith("onegraph ") and span.split()[1] not in ("COMMAND", "help"):
            with contextlib.suppress(click.MissingParameter):
                parse(shlex.split(span)[1:])


def test_a_command_that_is_none_is_found() -> None:
    line = "FOO=1 .venv/bin/onegraph info a | cat && onegraph list # all"
    assert list(typed(line)) == [["info", "a"], ["list"]]
    assert list(typed("echo x | onegraph run m 'a b' < f")) == [["run", "m", "a b", "<", "f"]]
    assert without_redirections(["m", "<", "f", "--raw"]) == ["m", "--raw"]
    for wrong in ["info m --contxt 3", "frobnicate", "run m --top-k many"]:
        with pytest.raises(click.UsageError):
            parse(wrong.split())


#: Commands that need a card or another program, change what is here, or do not end.
NOT_CHEAP = ("batch", "check", "compare", "graph", "rm", "serve")


def is_cheap(line: str) -> bool:
    """Whether a line needs no card, no other model, no minutes, and nobody who types."""
    found = list(typed(line))
    if not found or "--device cuda" in line or "--compile" in line or ".venv" in line:
        return False
    for name, *rest in found:
        known = {"smollm2", *hub.names()}
        models = [w for w in rest if w in known or w.startswith("hf:") or w.endswith(".gguf")]
        if models not in ([], ["smollm2"]) or name in NOT_CHEAP:
            return False
        if name == "bench" and "-p 16" not in line:
            return False
        if name == "run" and len(without_redirections(rest)) == 1:
            return False
    return True


CHEAP = [
    pytest.param(line, id=f"{name}: {line.partition('#')[0].strip()}")
    for name, path in TEXTS.items()
    for line in shell_lines(path)
    if is_cheap(line)
]


@pytest.mark.thorough
@pytest.mark.parametrize("line", CHEAP)
def test_a_command_works(line: str, command: list[str], smollm2: Path, tmp_path: Path) -> None:
    script = tmp_path / "onegraph"
    script.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    script.chmod(0o755)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", line],
        cwd=ROOT,
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_cheap_commands_are_most_kinds() -> None:
    names = {words[0] for each in CHEAP for words in typed(str(each.values[0]))}
    assert {"run", "info", "list", "pull", "help", "bench"} <= names <= set(COMMANDS)


@pytest.mark.parametrize("text", sorted(set(TEXTS) - {"README"}))
def test_a_command_to_copy_fits_a_terminal(text: str) -> None:
    lines = [line for _, code in blocks(TEXTS[text], "sh") for line in code.splitlines()]
    assert [line for line in lines if len(line.partition("  #")[0]) > 78] == []


@over_texts
def test_every_link_leads_somewhere(text: str) -> None:
    path = TEXTS[text]
    for target in re.findall(r"\]\(([^()\s]+)\)", by_hand(path)):
        if "://" in target:
            continue
        file, _, heading = target.partition("#")
        to = Path(path.parent, file).resolve() if file else path
        assert to.is_file(), f"{path.name} links to {target}"
        headings = re.findall(r"^#+ (.*)$", to.read_text(), flags=re.M)
        slugs = {re.sub(r"[^\w -]", "", h).strip().lower().replace(" ", "-") for h in headings}
        assert not heading or heading in slugs, f"{path.name} links to {target}"


def test_the_readme_links_to_every_page() -> None:
    linked = set(re.findall(r"\]\((python/onegraph/pages/[^)#]+)\)", TEXTS["README"].read_text()))
    here = {page.path.relative_to(PAGES).as_posix() for page in pages().values()}
    assert {f"python/onegraph/pages/{name}" for name in here} <= linked


@over_texts
def test_every_path_is_there(text: str) -> None:
    named = re.compile(r"(?:^|(?<=[\s=]))[\w.*-]+(?:/[\w.*-]+)+(?=[\s,]|$)")
    known = re.compile(r"\.(rs|cu|cuh|py|toml|json|md)$|^(tests|benches|rust|python)/")
    missing = []
    for span in spans(TEXTS[text]):
        for path in named.findall(span):
            if not known.search(path) or "NAME" in path or path.startswith("path/"):
                continue
            if not any(list(Path(ROOT, root).glob(path)) for root in ROOTS):
                missing.append(path)
        for crate, test in re.findall(r"cargo test -p (\w+) --test (\w+)", span):
            assert crate == "onegraph"
            program = ROOT / "rust/engine/tests" / test
            assert program.with_suffix(".rs").is_file() or (program / "main.rs").is_file(), span
        for file, word in re.findall(r"(tests/[\w/]+\.py) -k (\w+)", span):
            assert word in (ROOT / file).read_text(), span
    assert missing == []


@functools.cache
def generated() -> dict[str, str]:
    """The pages that are generated, by a process of their own: click keeps the first `--help` that
    it makes of a command, with the names that the context of that moment gave it."""
    code = "import json; from support import generated_pages as g; print(json.dumps(g.written()))"
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), *sys.path])}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    made: dict[str, str] = json.loads(done.stdout)
    return made


@pytest.mark.parametrize("name", ["api.md", "command-line.md", "gpu.md", "tools.md"])
def test_what_is_generated_is_current(name: str) -> None:
    behind = f"{name} is not what the code says: run `{generated_pages.COMMAND}`"
    assert (PAGES / name).read_text() == generated()[name], behind


@functools.cache
def record(name: str) -> Any:
    return json.loads((ROOT / "benches" / "records" / name).read_text())


def mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers)


def rows(title: str, ours: list[float], theirs: list[float], who: str) -> list[str]:
    """Lines of a table as the texts have them."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return [
        f"| {title}, onegraph | {' | '.join(f'{n:,.0f}' for n in ours)} |",
        f"| {title}, {who} | {' | '.join(f'{n:,.0f}' for n in theirs)} |",
        f"| ratio | {' | '.join(f'{n:.2f}' for n in ratios)} |",
    ]


#: In the order of the columns.
MODELS = ["135M Q8_0", "1B", "1.5B", "3B", "8B", "8B Q8_0"]
HEADS = f"| | {' | '.join(MODELS)} |\n|---|---|---|---|---|---|---|\n"


def test_the_tables_of_models_are_the_records() -> None:
    made = record("models_h200.json")
    assert set(MODELS) == set(made["models"])

    def lines(test: str, title: str) -> str:
        found = [
            [mean(made["models"][m][e][test]) for m in MODELS] for e in ("onegraph", "llama.cpp")
        ]
        return "\n".join(rows(title, *found, "llama.cpp")) + "\n"

    decode = HEADS + lines("decode", "decode")
    short, long = (lines(f"prompt of {n}", f"prompt of {n:,}") for n in (512, 2048))
    speed = TEXTS["speed"].read_text()
    assert decode + short + long in speed
    assert "H200" in speed and made["machine"]["driver"] in speed
    for command in made["commands"]:
        assert command.removesuffix(" -o json") in speed


def test_the_table_of_steps_is_the_record() -> None:
    made = record("steps_h200.json")
    found = [
        [median(made["models"][m][e]["step behind 0"]) for m in MODELS]
        for e in ("onegraph", "llama.cpp")
    ]
    table = HEADS + "\n".join(rows("decode", *found, "llama.cpp")) + "\n"
    speed = TEXTS["speed"].read_text()
    assert table in speed and "H200" in speed and made["machine"]["driver"] in speed


@pytest.mark.parametrize(
    ("name", "tests"),
    [
        (
            "depth_h200.json",
            [f"step behind {n}" for n in (0, 512, 2048, 16384, 32768)]
            + [f"prompt behind {n}" for n in (0, 16384)],
        ),
        (
            "batch_h200.json",
            ["step behind 0", *(f"{n} sequences" for n in (8, 32, 64)), "prompt behind 0"],
        ),
        (
            "q8_0_h200.json",
            [*(f"step behind {n}" for n in (0, 2048, 32768)), "prompt behind 0"],
        ),
        ("held_h200.json", ["64 sequences"]),
    ],
)
def test_the_tables_at_depth_and_of_sequences_are_records(name: str, tests: list[str]) -> None:
    models = record(name)["models"]
    assert list(models) == ["1B", "8B"]
    lines = []
    for model, made in models.items():
        engines = [e for e in ("onegraph", "llama.cpp", "vLLM") if e in made]
        ours, *others = [[median(made[e][test]) for test in tests] for e in engines]
        for engine, theirs in zip(engines[1:], others, strict=True):
            # Ours stand above the first of the others.
            lines += rows(model, ours, theirs, engine)[0 if theirs is others[0] else 1 :]
    assert "\n".join(lines) in TEXTS["speed"].read_text()


def test_the_tables_of_one_float16_are_the_record() -> None:
    models = record("one_float16_h200.json")["models"]
    tests = ["1 sequence", *(f"{n} sequences" for n in (8, 64, 128, 256))]
    lines = []
    for model in ("1B", "8B"):
        before, now = (
            [
                median(models[model][of][test])
                for test in (*tests, "prompt of 512", "prompt of 2048")
            ]
            for of in ("before", "onegraph")
        )
        lines += [
            f"| {model}, two integers | " + " | ".join(f"{n:,.0f}" for n in before) + " |",
            f"| {model}, one float16 | " + " | ".join(f"{n:,.0f}" for n in now) + " |",
            "| ratio | "
            + " | ".join(f"{b / a:.2f}" for a, b in zip(before, now, strict=True))
            + " |",
        ]
    for model in ("8B Q6_K", "8B Q5_K_M", "8B Q8_0", "8B IQ4_XS"):
        of = models[model]
        ratios = [
            f"{median(of['onegraph'][test]) / median(of['before'][test]):.2f}"
            for test in ("1 sequence", "64 sequences", "prompt of 2048")
        ]
        lines.append(f"| {model[3:]} | " + " | ".join(ratios) + " |")
    assert all(line in TEXTS["speed"].read_text() for line in lines)


#: What a row of the README's table is in a record of the H200.
HEADLINES = {
    "1B alone": ("batch", "1B", "step behind 0"),
    "8B alone": ("batch", "8B", "step behind 0"),
    "8B alone, at depth 32,768": ("depth", "8B", "step behind 32768"),
    "8B, 8 sequences together": ("batch", "8B", "8 sequences"),
    "8B, 64 sequences together": ("batch", "8B", "64 sequences"),
    "8B, a prompt of 2,048": ("depth", "8B", "prompt behind 0"),
    "Qwen3.5-35B-A3B alone": ("families", "Qwen3.5-35B-A3B Q4_K_M", "tg64"),
    "gpt-oss-20b alone": ("families", "gpt-oss-20b MXFP4", "tg64"),
}


def test_the_readmes_speeds_are_records() -> None:
    readme, speed = (TEXTS[name].read_text() for name in ("README", "speed"))
    lines = ["| | onegraph | llama.cpp | ratio |", "|---|---|---|---|"]
    rates = {}
    for row, (name, model, test) in HEADLINES.items():
        made = record(f"{name}_h200.json")
        of = made["models"][model]
        ours, theirs = (median(of[engine][test]) for engine in ("onegraph", "llama.cpp"))
        rates[row] = f"{ours:,.0f}", f"{ours / theirs:.2f}"
        lines.append(f"| {row} | {ours:,.0f} | {theirs:,.0f} | {ours / theirs:.2f} |")
        assert made["machine"]["gpu"] == "NVIDIA H200"
    assert "\n".join([*lines, ""]) in readme
    alone, many = rates["8B alone"], rates["8B, 64 sequences together"]
    for text, said in [
        (readme, f"makes {alone[0]} tokens a second, {alone[1]} times"),
        (readme, f"make {many[0]}, {many[1]} times"),
        (speed, f"{alone[1]} times for an 8B"),
        (speed, f"{rates['8B, 8 sequences together'][1]} times as many"),
        (speed, f"64 sequences {many[1]} times"),
        (speed, f"read {rates['8B, a prompt of 2,048'][1]} times as fast"),
    ]:
        assert said in " ".join(text.split())


def test_the_table_of_families_is_the_record() -> None:
    made = record("families_h200.json")
    speed = TEXTS["speed"].read_text()
    for name, of in made["models"].items():
        cells = []
        for test in ("tg64", "pp512"):
            ours, theirs = (median(of[engine][test]) for engine in ("onegraph", "llama.cpp"))
            cells += [f"{ours:,.0f}", f"{theirs:,.0f}", f"{ours / theirs:.2f}"]
        assert f"| {name} | {' | '.join(cells)} |" in speed
    assert all(command in speed for command in made["commands"])


def test_what_capturing_gains_is_the_record() -> None:
    gains = [
        row["median"]["full"] / row["median"]["none"]
        for row in record("graph_eager_h200.json")["rows"]
    ]
    assert "{:.2f}, {:.2f} and {:.2f} times the rate".format(*gains) in TEXTS["speed"].read_text()


def test_what_was_measured_of_many_sequences_is_the_records() -> None:
    speed = TEXTS["speed"].read_text()
    rows = record("graph_eager_batches_h100.json")["rows"]
    for title, mode in (("one graph", "full"), ("eager", "none")):
        rates = " | ".join(f"{row['median'][mode]:,.0f}" for row in rows)
        assert f"| {title} | {rates} |" in speed
    for card, middle in (("h100", mean), ("h200", median)):
        for name, of in record(f"few_rows_{card}.json")["models"].items():
            sequences = of["sequences"]
            for when in of.keys() - {"sequences"}:
                rates = [middle(samples) for samples in zip(*of[when], strict=True)]
                steps = [n * rates[0] / rate for n, rate in zip(sequences, rates, strict=True)]
                cells = [f"{rate:,.0f}" for rate in rates] + [f"{step:.2f}" for step in steps[1:]]
                assert f"| {name}, {when} | {' | '.join(cells)} |" in speed
    rounds = record("joining_h100.json")["rounds"]
    first, alone = (median(r[name] for r in rounds) for name in ("joined", "alone"))
    longest = max(r["while"][1] for r in rounds)
    said = " ".join(speed.partition("## A long prompt")[2].partition("```")[0].split())
    assert f"at most {longest * 1e3:.0f} ms" in said
    assert f"after {first:.2f} s, {first / alone:.2f} times" in said
    names = {"llama-3.1-8b": "8B", "gemma-3-4b": "Gemma 3 4B", "qwen3.5-0.8b": "Qwen3.5 0.8B"}
    for shape, of in record("agent_trace_h100.json")["traces"].items():
        for engine, turns in of["turns"].items():
            new = sum(turn["new"] for turn in turns)
            # ollama says nothing of it.
            said = [turn["read"] for turn in turns if turn["read"] is not None]
            over = f"{sum(said) / new:.3f}" if said else "\u2013"
            later = sorted(turn["first_token_seconds"] * 1e3 for turn in turns[1:])
            p50, p99 = (later[min(int(part * len(later)), len(later) - 1)] for part in (0.5, 0.99))
            cells = [p50, p99, turns[0]["first_token_seconds"] * 1e3]
            title = f"{names[shape.partition(' ')[0]]}, {engine.replace('-server', '.cpp')}"
            shown = " | ".join(f"{ms:,.0f}" for ms in cells)
            assert f"| {title} | {over} | {shown} |" in speed


def test_what_forms_and_serving_cost_is_the_records() -> None:
    for row in record("constrained_h100.json")["rows"]:
        rates = f"{row['free']:,.0f} | {row['held']:,.0f} | {row['ratio']:.3f}"
        assert f"| {row['sequences']} | {rates} |" in TEXTS["structured"].read_text()
    for row in record("serving_h100.json")["rows"]:
        rates = f"{row['generate']:,.0f} | {row['served']:,.0f} | {row['ratio']:.3f}"
        more = f"+{row['first_more'] * 1e3:.1f} ms | {row['between_p99']:.1f} steps"
        assert f"| {row['streams']} | {rates} | {more} |" in TEXTS["serving"].read_text()
    for row in record("serving_load_h100.json")["rows"]:
        times = [row[name] * 1e3 for name in ("first_p50", "first_p99", "each_p50", "each_p99")]
        shown = "{:,.0f} ms | {:,.0f} ms | {:.1f} ms | {:.1f} ms".format(*times)
        line = f"| {row['engine']} | {row['rate']:g} | {shown} | {row['goodput']:.1f} |"
        assert line in TEXTS["serving"].read_text()
    tasks = record("prompt_lookup_h100.json")["tasks"]
    right = sum(t["accepted"] for t in tasks) / sum(t["drafted"] for t in tasks)
    ratio = median(t["rate"] / t["plain_rate"] for t in tasks)
    lookup = " ".join(TEXTS["prompt-lookup"].read_text().split())
    assert all(t["equal"] == t["tokens"] for t in tasks)
    assert f"{right:.0%} of the drafted ones were right" in lookup
    assert f"the rate was {ratio:.2f} times that without" in lookup


def test_the_older_table_is_its_record() -> None:
    made = record("speed_h200.json")["models"]
    shown = TEXTS["speed"].read_text().partition("## Against ollama too")[2]
    ours = [made[m]["onegraph"]["decode"]["avg_ts"] for m in ("135M", "1B", "1.5B", "3B", "8B")]
    assert f"| decode, onegraph | {' | '.join(f'{n:,.0f}' for n in ours)} |" in shown


def test_the_tables_of_exactness_agree() -> None:
    figures = re.findall(r"`(\w+)` \| ([\d.e-]+) \| ", TEXTS["README"].read_text())
    assert [kind for kind, _ in figures] == ["f32", "i16"]
    for kind, figure in figures:
        of_kind = re.compile(rf"^\| `{kind}` \| .*{re.escape(figure)} nats from exact", re.M)
        assert of_kind.search(TEXTS["exactness"].read_text())


def glossary_places(page: str) -> dict[str, list[tuple[str, list[str]]]]:
    """The last column of each table: of a term the paths, and the names that belong behind each."""
    found: dict[str, list[tuple[str, list[str]]]] = {}
    for line in page.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) != 3 or cells[0] in ("term", "---"):
            continue
        places: list[tuple[str, list[str]]] = []
        for word in re.findall(r"`([^`]+)`", cells[2]):
            if any(Path(ROOT, root, word).exists() for root in ROOTS):
                places.append((word, []))
            else:
                assert places, f"{cells[0]}: {word} is no path"
                places[-1][1].append(word)
        found[cells[0]] = places
    return found


def test_the_glossary_names_what_is_there() -> None:
    places = glossary_places(TEXTS["glossary"].read_text())
    assert {"preemption", "split-K", "GQA, MQA", "eviction (LRU)"} <= places.keys()
    missing = []
    for term, named in places.items():
        for path, names in named:
            (at,) = {p for root in ROOTS if (p := Path(ROOT, root, path)).exists()}
            sources = [at] if at.is_file() else [*at.rglob("*.rs")]
            text = "".join(source.read_text() for source in sources)
            missing += [f"{term}: {n} in {path}" for n in names if not re.search(rf"\b{n}\b", text)]
    assert missing == []
