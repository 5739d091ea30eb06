"""`onegraph run`, with the real model, as processes and pipes see it."""

import inspect
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import onegraph
import pytest
from onegraph import sampling
from onegraph.cli.options import MODEL, SAMPLING

QUESTION = "Why is the sky blue?"
GREEDY = ["--device", "cpu", "--temperature", "0", "--max-tokens", "24"]


@pytest.fixture(scope="module")
def llm(smollm2: Path) -> onegraph.LLM:
    return onegraph.LLM(smollm2, max_batch=1)


@pytest.fixture(scope="module")
def answer(llm: onegraph.LLM) -> str:
    conversation = [{"role": "user", "content": QUESTION}]
    text = llm.chat(conversation, temperature=0.0, max_tokens=24).text
    assert len(text) > 20
    return text


@pytest.mark.thorough
def test_the_readmes_command_answers(cli, smollm2: Path) -> None:
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text()
    (line,) = re.findall(r"^## Run it\n+```sh\n(.*)\n```$", readme, flags=re.M)
    *install, run = line.split(" && ")
    assert install == ["python3 -m venv .venv", ".venv/bin/pip install ."]
    assert run.startswith(".venv/bin/onegraph run smollm2 ")
    done = cli(*shlex.split(run)[1:])
    assert done.returncode == 0, done.stderr
    # Without a card, that is said too.
    assert re.fullmatch(r"(.*\n)?(cut after 256 tokens; --max-tokens allows more\n)?", done.stderr)
    assert len(done.stdout.split()) > 5


@pytest.mark.thorough
def test_a_cut_that_nobody_asked_for_is_said(cli, smollm2: Path) -> None:
    ask = ["run", smollm2, QUESTION, "--device", "cpu", "--ignore-eos"]
    asked = cli(*ask, "--max-tokens", 9)
    assert asked.stderr == ""
    default = cli(*ask)
    assert default.stderr == "cut after 256 tokens; --max-tokens allows more\n"
    for more in [[], ["--max-tokens", 100], ["--max-tokens", "none"]]:
        full = cli(*ask, "--raw", "--n-ctx", 48, *more)
        assert re.fullmatch(r"cut after \d\d tokens; --n-ctx allows more\n", full.stderr)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-16"])
def test_a_pipe_gets_utf8_whatever_the_locale_says(encoding: str, cli, smollm2: Path) -> None:
    tokenizer = onegraph.Tokenizer(smollm2)
    (token,) = tokenizer.encode(" é", add_special=False)
    args = ["Hi", "--device", "cpu", "--max-tokens", 2, "--logit-bias", f"{token}=inf"]
    done = cli("run", smollm2, *args, env={"PYTHONIOENCODING": encoding})
    assert (done.returncode, done.stdout, done.stderr) == (0, " é é\n", "")


def test_standard_output_carries_the_text_alone(cli, smollm2: Path, answer: str) -> None:
    done = cli("run", smollm2, QUESTION, *GREEDY)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{answer}\n", "")
    loud = cli("run", smollm2, QUESTION, *GREEDY, "--verbose")
    assert (loud.returncode, loud.stdout) == (0, f"{answer}\n")
    assert re.search(r"output: 24 tokens, [\d.]+ s, [\d.]+ tokens/s", loud.stderr)
    assert re.search(r"seed \d+, finish reason length", loud.stderr)


@pytest.mark.parametrize("args", [[], ["-"]])
@pytest.mark.parametrize("piped", [QUESTION, QUESTION + "\n"])
def test_a_pipe_is_the_prompt(args: list[str], piped: str, cli, smollm2: Path, answer: str) -> None:
    done = cli("run", smollm2, *args, *GREEDY, input=piped)
    assert (done.returncode, done.stdout) == (0, f"{answer}\n"), done.stderr


def test_raw_leaves_the_template_out(cli, smollm2: Path, llm: onegraph.LLM) -> None:
    prompt = "The capital of France is"
    done = cli("run", smollm2, prompt, "--raw", *GREEDY)
    assert done.stdout == llm.generate(prompt, temperature=0.0, max_tokens=24).text + "\n"
    raw, wrapped = (
        json.loads(cli("run", smollm2, prompt, "--json", *more, *GREEDY).stdout)
        for more in (["--raw"], [])
    )
    assert raw["usage"]["prompt_tokens"] == len(llm.tokenize(prompt))
    assert wrapped["usage"]["prompt_tokens"] > raw["usage"]["prompt_tokens"]


def test_system_precedes_the_prompt(cli, smollm2: Path, llm: onegraph.LLM) -> None:
    system = "You answer in French."
    conversation = [
        {"role": "system", "content": system},
        {"role": "user", "content": QUESTION},
    ]
    done = cli("run", smollm2, QUESTION, "--system", system, *GREEDY)
    assert done.stdout == llm.chat(conversation, temperature=0.0, max_tokens=24).text + "\n"


def test_json_is_the_result(cli, smollm2: Path, answer: str) -> None:
    greedy = ["--device", "cpu", "--top-k", 1, "--max-tokens", 24]
    done = cli("run", smollm2, QUESTION, *greedy, "--json", "--logprobs", 2, "--seed", 7)
    assert (done.returncode, done.stderr) == (0, "")
    made = json.loads(done.stdout)
    assert made["text"] == answer
    assert made["finish_reason"] == "length"
    assert made["seed"] == 7
    assert made["device"] == "cpu"
    assert made["usage"]["completion_tokens"] == len(made["token_ids"]) == 24
    assert [len(token["top"]) for token in made["logprobs"]] == [2] * 24
    assert made["timings"]["decode_tokens_per_second"] > 0


@pytest.mark.thorough
def test_sampling_options_reach_the_sampler(cli, smollm2: Path, answer: str) -> None:
    def run(*more: object) -> str:
        done = cli("run", smollm2, QUESTION, "--max-tokens", 12, *more)
        assert done.returncode == 0, done.stderr
        return done.stdout

    hot = ["--temperature", 1.5, "--top-k", 0, "--top-p", 1, "--min-p", 0]
    assert run(*hot, "--seed", 1) == run(*hot, "--seed", 1) != run(*hot, "--seed", 2)
    assert run(*hot[:2], "--top-k", 1) == run("--temperature", 0)
    word = answer.split()[3]
    assert run("--temperature", 0, "--stop", word) == answer[: answer.index(word)] + "\n"
    banned = cli("run", smollm2, QUESTION, *GREEDY, "--logit-bias", "28=-100", "--json")
    assert 28 not in json.loads(banned.stdout)["token_ids"]


def test_a_run_that_ends_up_on_the_cpu_says_so_once_and_why(cli, smollm2: Path) -> None:
    ask = ["run", smollm2, "Hi", "--max-tokens", 1]
    if json.loads(cli(*ask, "--json").stdout)["device"] != "cpu":
        pytest.skip("this machine has a card; the machines of CI have none")
    for more in [[], ["--device", "auto"], ["--verbose"]]:
        told = [line for line in cli(*ask, *more).stderr.splitlines() if "CPU" in line]
        assert len(told) == 1, told
        assert "NVIDIA" in told[0] and "--device cpu" in told[0]
    assert cli(*ask, "--device", "cpu").stderr == ""


def test_options_carry_the_names_of_python() -> None:
    assert [name for name, _, _ in SAMPLING] == list(sampling.DEFAULTS)
    parameters = inspect.signature(onegraph.LLM).parameters
    assert {name for name, _, _ in MODEL} <= parameters.keys()


#: A run of so many tokens takes a while: one that makes them all was not ended.
ENDLESS = ["--device", "cpu", "--ignore-eos", "--max-tokens", "8000"]


def test_text_streams_as_it_is_made(command: list[str], smollm2: Path, llm: onegraph.LLM) -> None:
    args = ["run", str(smollm2), QUESTION, *ENDLESS]
    with subprocess.Popen([*command, *args], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        begun = process.stdout.read1()
        process.kill()
        rest = process.stdout.read()
    assert process.returncode == -signal.SIGKILL
    # Had it been written at the end, all would have been there at once.
    assert begun and len(llm.tokenize((begun + rest).decode(errors="replace"))) < 8000


def test_a_reader_that_leaves_ends_the_run(smollm2: Path) -> None:
    count = """
import sys
import onegraph
from onegraph.cli import main

pieces = 0
given = onegraph.Stream.__next__

def counted(stream):
    global pieces
    pieces += 1
    return given(stream)

onegraph.Stream.__next__ = counted
code = main(sys.argv[1:])
print(pieces, file=sys.stderr)
sys.exit(code)
"""
    run = [sys.executable, "-c", count, "run", str(smollm2), QUESTION, *ENDLESS]
    line = f"set -o pipefail; {shlex.join(run)} | head -c 20"
    done = subprocess.run(["bash", "-c", line], capture_output=True, timeout=300)
    assert (done.returncode, len(done.stdout)) == (0, 20)
    assert int(done.stderr) < 8000


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_stops_the_run(command: list[str], smollm2: Path, llm: onegraph.LLM) -> None:
    args = ["run", str(smollm2), QUESTION, *ENDLESS]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*command, *args], **pipes) as process:
        assert process.stdout is not None and process.stderr is not None
        text = process.stdout.read(10)
        process.send_signal(signal.SIGINT)
        text += process.stdout.read()
        assert process.wait(60) == -signal.SIGINT
        assert process.stderr.read() == b""
    assert len(llm.tokenize(text.decode(errors="replace"))) < 8000


def test_a_run_in_the_background_of_a_script_ignores_ctrl_c(
    command: list[str], smollm2: Path
) -> None:
    run = shlex.join([*command, "run", str(smollm2), QUESTION, *ENDLESS[:-1], "64"])
    # A shell without job control starts what is in its background with Ctrl-C ignored.
    with subprocess.Popen(
        ["bash", "-c", f"{run} & echo $! >&2; wait $!"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as shell:
        assert shell.stdout is not None and shell.stderr is not None
        process = int(shell.stderr.readline())
        assert shell.stdout.read(1)
        os.kill(process, signal.SIGINT)
        shell.stdout.read()
        assert (shell.wait(60), shell.stderr.read()) == (0, b"")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--temperature", "-1"], "--temperature "),
        (["--top-p", "2"], "--top-p "),
        (["--max-tokens", "-5"], "--max-tokens -5: must be 1 or more; --max-tokens None"),
        (["--max-tokens", "all"], "'all' is neither an integer nor none"),
        (["--n-ctx", "0"], "--n-ctx "),
        (["--n-ctx", "1000000"], "8192"),
        (["--kv-type", "q9"], "--kv-type "),
        (["--seed", "-1"], "--seed "),
        (["--seed", str(2**64)], "--seed "),
        (["--logit-bias", "1"], "is not a token id, '=' and a number"),
        (["--temperature", "warm"], "'warm' is not a valid float"),
        (["--raw", "--system", "x"], "--system needs the chat template"),
    ],
)
def test_a_bad_option_is_wrong_use(args: list[str], said: str, cli, smollm2: Path) -> None:
    done = cli("run", smollm2, QUESTION, *args)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("piped", "said"),
    [
        (b"", "standard input is empty"),
        (b"\n", "standard input is empty"),
        (b"caf\xe9 au lait", "standard input is not UTF-8: byte 0xe9 at offset 3"),
    ],
)
def test_a_bad_prompt_is_wrong_use(piped: bytes, said: str, cli, smollm2: Path) -> None:
    done = cli("run", smollm2, input=piped, text=False, encoding=None)
    assert (done.returncode, done.stdout) == (2, b"")
    assert said in done.stderr.decode()


def test_an_argument_that_is_not_utf8_is_wrong_use(command: list[str], smollm2: Path) -> None:
    args = [*map(str.encode, [*command, "run", str(smollm2)]), b"caf\xe9"]
    done = subprocess.run(args, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"'caf\\udce9' is not UTF-8" in done.stderr


def test_a_failed_run_is_one(cli, smollm2: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(smollm2.read_bytes()[:5_000_000])
    failing = [
        ([cut, QUESTION], "5000000"),
        ([tmp_path / "none.gguf", QUESTION], "there is no file"),
        ([smollm2, "word " * 200, "--n-ctx", 64, "--device", "cpu"], "64"),
        ([smollm2, QUESTION, "--device", "cuda"], "cuda"),
    ]
    for args, said in failing:
        done = cli("run", *args)
        assert (done.returncode, done.stdout) == (1, ""), args
        assert done.stderr.startswith("error: ") and said in done.stderr
        assert len(done.stderr.splitlines()) == 1
