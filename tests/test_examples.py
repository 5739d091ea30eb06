"""Each program of `pages/examples`, run as a reader would run it."""

import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import onegraph
import pytest
import shapes
import synth
from support import scripted
from support.terminal import Terminal

pytestmark = pytest.mark.thorough

FOLDER = Path(onegraph.__file__).parent / "pages" / "examples"
PROGRAMS = sorted(path.name for path in FOLDER.glob("*.py"))

MANUAL = """\
The kettle holds 1.7 litres of water and boils it in four minutes.

The warranty lasts three years from the day of purchase.
It covers the heating element, but not the lid.

Descale the kettle once a month with vinegar.
"""

Done = subprocess.CompletedProcess[str]


@pytest.fixture
def example(smollm2: Path) -> Callable[..., Done]:
    """`example("chat.py", "--seed", 1, input=...)`, with the model of the tests."""

    def run(name: str, *args: object, input: str = "", model: object = smollm2) -> Done:
        return subprocess.run(
            [sys.executable, str(FOLDER / name), *map(str, args), "--model", str(model)],
            input=input,
            capture_output=True,
            encoding="utf-8",
            timeout=120,
            env=os.environ | {"COLUMNS": "80"},
        )

    return run


@pytest.fixture
def at_terminal(smollm2: Path) -> Iterator[Callable[..., Terminal]]:
    opened = []

    def start(name: str, *args: object) -> Terminal:
        words = [sys.executable, str(FOLDER / name), *map(str, args), "--model", str(smollm2)]
        opened.append(Terminal(words))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


@pytest.fixture(scope="module")
def llm(smollm2: Path) -> Iterator[onegraph.LLM]:
    with onegraph.LLM(smollm2, device="cpu") as loaded:
        yield loaded


def test_summaries_are_one_line_a_file_and_of_what_the_file_says(
    example: Callable[..., Done], tmp_path: Path
) -> None:
    kettle, parcels = tmp_path / "kettle.txt", tmp_path / "parcels.txt"
    kettle.write_text(MANUAL)
    parcels.write_text("Deliveries take two working days." + " Lorem ipsum." * 9000)
    done = example("summaries.py", "--words", 10, "--read", 60, kettle, parcels)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith(f"{kettle}: ") and "kettle" in first.removeprefix(f"{kettle}: ")
    # This file is longer than the context: its front is summarized.
    assert second.startswith(f"{parcels}: ")
    assert "days" in second.removeprefix(f"{parcels}: ")


def test_summaries_draw_a_bar_on_a_terminal_unless_they_are_told_not_to(
    at_terminal: Callable[..., Terminal], tmp_path: Path
) -> None:
    files = [tmp_path / f"{i}.txt" for i in range(3)]
    for path in files:
        path.write_text(MANUAL)
    said = at_terminal("summaries.py", "--words", 3, *files).read_until("2.txt: ")
    assert re.search(r"generate .*[0-3]/3", said)
    said = at_terminal("summaries.py", "--words", 3, "--quiet", *files).read_until("2.txt: ")
    assert "generate" not in said


def test_a_chat_streams_answers_to_all_that_was_said_before(
    example: Callable[..., Done], llm: onegraph.LLM
) -> None:
    asked = ["My name is Ada.", "What is my name?"]
    options = ["--seed", 7, "--max-tokens", 24, "--system", "You are brief."]
    done = example("chat.py", *options, input="\n".join(asked))
    assert done.returncode == 0, done.stderr
    messages = [{"role": "system", "content": "You are brief."}]
    for text in asked:
        messages.append({"role": "user", "content": text})
        said = llm.chat(messages, seed=7, max_tokens=24).text
        messages.append({"role": "assistant", "content": said})
    answers = "".join(f"> {m['content']}\n" for m in messages if m["role"] == "assistant")
    assert done.stdout == answers + "> "


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_an_answer_of_the_chat_and_then_the_chat(
    at_terminal: Callable[..., Terminal],
) -> None:
    chat = at_terminal("chat.py", "--seed", 1)
    chat.read_until("> ")
    chat.type("Count from one to one thousand, in words.\r")
    chat.read_until("\r\n")
    begun = ""
    while not begun.strip():
        begun += chat.read_for(60)
    chat.type("\x03")
    chat.read_until("> ", timeout=60)
    # Python's input() misses a Ctrl-C that comes between its prompt and its wait for a key.
    for _ in range(60):
        if chat.ended():
            break
        chat.type("\x03")
        chat.read_for(1)
    assert chat.wait() == 130
    assert "Traceback" not in chat.seen


def test_a_chat_that_is_too_long_says_so_and_begins_anew(example: Callable[..., Done]) -> None:
    long = "word " * 9000
    done = example("chat.py", "--max-tokens", 8, input=f"{long}\nHi\n")
    assert done.returncode == 0, done.stderr
    assert "the prompt has 90" in done.stderr and "the context holds 8192" in done.stderr
    assert "The conversation was cleared, except for the system message." in done.stderr
    assert len(done.stdout.split("> ")[2]) > 3


def test_texts_are_classified_by_the_probabilities_of_labels(
    example: Callable[..., Done],
) -> None:
    good, bad = "Works as described, very happy with it.", "The food was cold and the waiter rude."
    done = example("classify.py", good, bad)
    assert done.returncode == 0, done.stderr
    rows = [re.fullmatch(r"(\w+) +(\d+)%  (.*)", line) for line in done.stdout.splitlines()]
    assert [(row[1], row[3]) for row in rows if row] == [("positive", good), ("negative", bad)]
    assert all(50 <= int(row[2]) < 100 for row in rows if row)


def test_lines_are_classified_and_labels_that_nobody_thinks_of_are_not_compared(
    example: Callable[..., Done],
) -> None:
    done = example("classify.py", "--labels", "☃,☂", input="One.\n\nTwo.\n")
    assert (done.returncode, done.stdout) == (0, "?  One.\n?  Two.\n"), done.stderr
    assert example("classify.py", input="").stdout == ""


def test_an_answer_from_files_quotes_the_passage_with_its_line(
    example: Callable[..., Done], tmp_path: Path
) -> None:
    manual, other = tmp_path / "manual.txt", tmp_path / "other.txt"
    manual.write_text(MANUAL)
    other.write_text("Deliveries take two working days.")
    done = example("rag.py", "How long does the warranty last?", other, manual, "--top", 1)
    assert done.returncode == 0, done.stderr
    answer, _, sources = done.stdout.partition("\n\n")
    assert "three years" in answer
    quoted = MANUAL.split("\n\n")[1].replace("\n", "\n> ")
    assert sources == f"{manual}:3\n> {quoted}\n"


def test_passages_are_ranked_by_a_models_vectors_where_one_is_named(
    example: Callable[..., Done], tmp_path: Path
) -> None:
    manual, embedder = tmp_path / "manual.txt", tmp_path / "embedder.gguf"
    manual.write_text(MANUAL)
    shape = dataclasses.replace(shapes.find("tiny-qwen3-embedding"), pooling="last")
    synth.write(embedder, shape, "Q8_0", seed=1)
    done = example("rag.py", "covered?", manual, "--top", 1, "--embedder", embedder)
    assert done.returncode == 0, done.stderr
    task = "Given a web search query, retrieve relevant passages that answer the query"
    texts = MANUAL.strip().split("\n\n")
    with onegraph.LLM(embedder, device="cpu") as llm:
        asked = llm.embed(f"Instruct: {task}\nQuery:covered?")
        best = int((llm.embed(texts) @ asked).argmax())
    assert done.stdout.endswith("> " + texts[best].replace("\n", "\n> ") + "\n")


def test_a_question_that_no_passage_shares_a_word_with_is_not_answered(
    example: Callable[..., Done], tmp_path: Path
) -> None:
    manual, empty = tmp_path / "manual.txt", tmp_path / "empty.txt"
    manual.write_text(MANUAL)
    empty.write_text("\n \n")
    for files in [[manual], [empty]]:
        done = example("rag.py", "Who?", *files)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == "no passage has a word of the question\n"


def test_async_requests_run_together_are_left_early_and_cancelled(
    example: Callable[..., Done],
) -> None:
    prompts = ["Red is", "Blue is", "Green is", "Black is", "White is", "Grey is"]
    done = example("async_many.py", *prompts, "--seconds", 0.5)
    assert done.returncode == 0, done.stderr
    *first, end, cancelled = done.stdout.splitlines()
    whole = first[: len(prompts)]
    for prompt, line in zip(prompts, whole, strict=True):
        assert re.fullmatch(rf"['\"]{prompt}.*['\"] \(\d+ tokens\)", line), line
    streamed = "\n".join(first[len(prompts) :])
    assert streamed.startswith("Red is") and streamed.count(".") <= 3
    assert end == "left the stream after a sentence"
    # The other way, it would make 8,000 tokens.
    assert cancelled == "cancelled after 0.5 s"


def test_an_agent_reads_the_notes_that_it_needs(
    example: Callable[..., Done], tmp_path: Path
) -> None:
    (tmp_path / "tea.txt").write_text("The harvest of tea begins in March.\nIt ends in May.")
    (tmp_path / "rye.txt").write_text("Rye is sown in September.")

    def call(name: str, arguments: str) -> str:
        return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'

    answers = [
        call("list_notes", "{}"),
        call("read_note", '{"name": "herbs.txt"}') + call("read_note", '{"name": 7}'),
        call("read_note", '{"lines": 1, "name": "tea.txt"}'),
        "It begins in March.",
    ]
    model = scripted.write(tmp_path / "scripted.gguf", answers)
    done = example("agent.py", "--folder", tmp_path, "When is the harvest?", model=model)
    assert (done.returncode, done.stdout) == (0, "It begins in March.\n"), done.stderr
    assert [line for line in done.stderr.splitlines() if "_note" in line] == [
        "list_notes {}",
        "read_note {'name': 'herbs.txt'}",
        "read_note {'name': 7}",
        "read_note {'lines': 1, 'name': 'tea.txt'}",
    ]
    done = example("agent.py", "--turns", 2, "When is the harvest?", model=model)
    assert done.stdout == "no answer after 2 turns\n"


def test_an_agent_says_that_a_model_has_no_place_for_tools(example: Callable[..., Done]) -> None:
    done = example("agent.py", "When?")
    assert done.returncode == 1
    assert "error: tools = 2 tools: the chat template has no place for them" in done.stderr


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_example_says_what_it_takes(name: str, example: Callable[..., Done]) -> None:
    done = example(name, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"usage: {name} ") and "--model MODEL" in done.stdout


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_example_says_an_error_in_one_line(
    name: str, example: Callable[..., Done], tmp_path: Path
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("What a word.")
    needed = {
        "summaries.py": [text],
        "classify.py": ["word"],
        "rag.py": ["word", text],
        "agent.py": ["word"],
    }
    done = example(name, *needed.get(name, []), model=tmp_path / "absent.gguf")
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: there is no file {tmp_path / 'absent.gguf'}")


def test_the_list_of_examples_has_each_with_a_command_that_runs_it() -> None:
    text = (FOLDER / "README.md").read_text()
    assert re.findall(r"^\| \[(\w+\.py)\]\(\1\) \|", text, re.M) == [
        "summaries.py",
        "chat.py",
        "classify.py",
        "rag.py",
        "async_many.py",
        "agent.py",
    ]
    assert sorted(re.findall(r"^python (\w+\.py)", text, re.M)) == PROGRAMS
    (shown,) = re.findall(r'^python -c "(.*)"$', text, re.M)
    printed = subprocess.check_output([sys.executable, "-c", shown], text=True, timeout=60)
    assert printed == f"{FOLDER}\n"
