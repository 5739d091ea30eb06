"""`onegraph compare` against real engines: llama.cpp wherever the tests run, ollama where it is."""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onegraph
import psutil
import pytest
import shapes
import synth
from onegraph.bench import race, stream
from onegraph.bench.cases import Case
from onegraph.bench.engines import ENGINES, MissingError, Prompt, Setup, find, llama_server, ollama
from onegraph.bench.engines.llama_server import free_port
from onegraph.bench.engines.xllamacpp import XLlamaCpp
from onegraph.bench.fidelity import agreement
from onegraph.bench.measurement import EngineError
from onegraph.bench.prompts import exact
from support.backends import EXHAUSTIVE

pytestmark = pytest.mark.thorough

SMALL = ["-p", "24", "-n", "8", "-r", "2", "--device", "cpu", "--threads", "1"]


def setup(model: Path, reference: str | None = None, copy: bool = False) -> Setup:
    return Setup(model, reference or str(model), "cpu", 256, 1, copy)


@pytest.fixture
def no_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """No program on PATH and no server at ollama's address."""
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setenv("OLLAMA_HOST", f"127.0.0.1:{free_port()}")
    monkeypatch.setenv("VLLM_HOST", f"127.0.0.1:{free_port()}")


# --- llama.cpp, and engines that are missing ------------------------------------------------------


def test_llama_cpp_is_raced_and_a_missing_engine_is_reported(cli, smollm2, tmp_path) -> None:
    pytest.importorskip("xllamacpp")
    chart = tmp_path / "race.png"
    options = ["--against", "xllamacpp", "--against", "ollama", "-o", "json", "--plot", chart]
    options += ["-p", "32", "-n", "32", "-r", "3", "--device", "cpu", "--threads", "1"]
    nobody = f"127.0.0.1:{free_port()}"
    done = cli("compare", smollm2, *options, env={"OLLAMA_HOST": nobody})
    assert done.returncode == 0, done.stderr
    ours, theirs, missing = json.loads(done.stdout)
    assert [r["engine"] for r in (ours, theirs, missing)] == ["onegraph", "xllamacpp", "ollama"]
    for r in (ours, theirs):
        assert len(r["samples_ts"]) == len(r["samples_first_token_ms"]) == 3
        assert all(rate > 0 for rate in r["samples_ts"] + r["samples_ts_prompt"])
        assert (r["n_prompt"], r["n_gen"], r["failure"]) == (32, 32, None)
    rounds = [a / b for a, b in zip(ours["samples_ts"], theirs["samples_ts"], strict=True)]
    assert theirs["decode_ratio"]["least"] == pytest.approx(min(rounds))
    assert theirs["decode_ratio"]["most"] == pytest.approx(max(rounds))
    agree = max(rounds) <= 1.25 * min(rounds)
    assert (theirs["decode_ratio"]["median"] is not None) == agree
    assert ours["check"]["ok"] is True
    assert theirs["check"]["first_choice_agreement"] >= 0.9
    assert f"ollama does not answer at http://{nobody}" in missing["failure"]
    assert "https://ollama.com" in missing["failure"] and missing["samples_ts"] == []
    assert "ollama: not measured" in done.stderr
    assert chart.read_bytes().startswith(b"\x89PNG")


def test_missing_engines_are_said_before_anything_is_loaded(cli, tmp_path: Path) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    env = {"OLLAMA_HOST": nobody, "PATH": "/nonexistent"}
    against = ["--against", "ollama", "--against", "llama-bench"]
    # Not even the model is looked at.
    done = cli("compare", tmp_path / "no such model.gguf", *against, env=env)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"ollama is missing: ollama does not answer at http://{nobody}" in done.stderr
    assert "llama-bench is missing: llama-bench is not on PATH: get llama.cpp" in done.stderr
    assert "Error: no other engine was found: see above for how to get one" in done.stderr
    assert "no such model" not in done.stderr
    if importlib.util.find_spec("xllamacpp"):
        # Another is here: what is missing is said first, and then the model is.
        both = [*against, "--against", "xllamacpp"]
        done = cli("compare", tmp_path / "no such model.gguf", *both, env=env)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.index("ollama is missing") < done.stderr.index("there is no file")


def test_a_race_in_the_terminal_is_a_table_and_notes(cli, smollm2: Path) -> None:
    pytest.importorskip("xllamacpp")
    nobody = f"127.0.0.1:{free_port()}"
    against = ["--against", "xllamacpp", "--against", "ollama"]
    done = cli("compare", "-m", smollm2, *against, *SMALL, "-ngl", 99, env={"OLLAMA_HOST": nobody})
    assert done.returncode == 2 and "-ngl 99 and --device cpu: give one" in done.stderr
    options = [*SMALL[:-2], "-t", 1, "-r", 1, "--no-warmup", "-fa", 1]
    done = cli("compare", "-m", smollm2, *against, *options, env={"OLLAMA_HOST": nobody})
    assert done.returncode == 0, done.stderr
    table, notes = done.stdout.split("\n\n")
    assert table.startswith("| pp24+tg8 ") and all(len(line) <= 80 for line in table.splitlines())
    rows = {line.split("|")[1].strip(): line for line in table.splitlines()}
    ours, theirs, none = (cell.strip() for cell in rows["decode t/s"].split("|")[2:-1])
    # One round: there is no deviation, and a ratio is not headlined.
    assert float(ours) > 0 and float(theirs) > 0 and none == "failed"
    assert " no ratio " in rows["onegraph is"] and "x to " in rows["least to most"]
    assert "agrees " in rows["output"] and "KL " in rows["output"]
    assert f"- onegraph {onegraph.__version__} (" in notes
    assert "xllamacpp, pp24+tg8: no ratio: one round has no spread; give more by -r" in notes
    assert "- ollama: not measured: ollama does not answer" in notes


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "Missing option '--against'"),
        (["--against", "llamacpp"], "'llamacpp' is not one of"),
        (["--against", "ollama", "-n", "1"], "-n 1: must be at least 2"),
        (["--against", "ollama", "-p", "0"], "-p 0: must be at least 1"),
    ],
)
def test_wrong_use(options: list[str], said: str, cli, smollm2: Path) -> None:
    done = cli("compare", smollm2, *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_a_family_takes_the_first_that_is_there(no_engines) -> None:
    pytest.importorskip("xllamacpp")
    first = "llama-cpp-python" if importlib.util.find_spec("llama_cpp") else "xllamacpp"
    assert find("llama.cpp").name == first
    with pytest.raises(onegraph.ArgumentError, match=r"unknown engine 'tgi'; known are .*oll"):
        find("tgi")


@pytest.mark.parametrize("name", ["ollama", "llama-server", "llama-bench", "vllm"])
def test_a_missing_engine_says_how_to_get_it(name: str, no_engines) -> None:
    with pytest.raises(MissingError, match=r"https://|pip install"):
        find(name)
    assert ENGINES[name].summary


def test_a_server_that_dies_ends_its_race_and_no_other(smollm2: Path, monkeypatch) -> None:
    """A real server, killed while it generates."""
    pytest.importorskip("xllamacpp")
    generate = llama_server.Running.generate
    calls = []

    def dies(self: llama_server.Running, prompt: Prompt, n: int):
        calls.append(n)
        if len(calls) == 3:  # the output's check, the warm-up, then this
            os.kill(self.process_id, signal.SIGKILL)
        return generate(self, prompt, n)

    monkeypatch.setattr(llama_server.Running, "generate", dies)
    case = Case(16, 4)
    (result,) = race.run(setup(smollm2), [case], ["xllamacpp"], rounds=3, version="0")
    assert len(result.ours.rounds) == 3
    assert result.others[0].rounds == [] and not result.others[0].ok
    assert "xllamacpp" in result.others[0].failure
    assert "died" in result.others[0].failure or "does not answer" in result.others[0].failure


def test_a_race_that_is_ended_leaves_no_server(command, smollm2: Path) -> None:
    pytest.importorskip("xllamacpp")
    options = ["-p", "64", "-n", "150", "-r", "1000", "--device", "cpu", "--threads", "1"]
    line = [*command, "compare", str(smollm2), "--against", "xllamacpp", *options]
    running = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process = psutil.Process(running.pid)
    while not (started := process.children()) and running.poll() is None:
        time.sleep(0.05)
    assert started
    time.sleep(1)
    running.terminate()
    _, said = running.communicate(timeout=300)
    assert running.returncode == 143, said
    assert psutil.wait_procs(started, timeout=300)[1] == []


def test_a_model_that_llama_cpp_cannot_load_is_said_with_its_words(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(EngineError, match=r"xllamacpp did not start: .*load"):
        XLlamaCpp().start(setup(broken))


@pytest.mark.parametrize("name", ["llama-server", "llama-bench", "llama-cpp-python"])
def test_the_other_ways_to_llama_cpp(name: str, smollm2: Path) -> None:
    try:
        engine = find(name)
    except MissingError as e:
        pytest.skip(f"{e}; then `pytest tests/bench -k other_ways`")
    tokenizer = onegraph.Tokenizer(smollm2)
    with engine.start(setup(smollm2)) as running, onegraph.LLM(smollm2, device="cpu") as llm:
        assert running.settings.device == "cpu" and running.settings.warnings == ()
        assert running.settings.version not in ("", "not told")
        for seed in (1, 1, 2):
            prompt = exact(tokenizer, 20, seed)
            made = running.generate(prompt, 6)
            made.check(20, 6, name)
            assert made.prompt_rate > 0 and (made.decode_rate or made.wall_decode_rate) > 0
            if made.tokens is not None:
                assert agreement(llm, prompt.tokens, made.tokens) >= 0.5
    assert (made.tokens is None) == (name == "llama-bench")


def test_a_completions_server_is_timed_by_the_caller(smollm2: Path, monkeypatch) -> None:
    """What vLLM speaks, llama.cpp's server speaks too."""
    pytest.importorskip("xllamacpp")
    with XLlamaCpp().start(setup(smollm2)) as server:
        monkeypatch.setenv("VLLM_HOST", server.address)
        with find("vllm").start(setup(smollm2)) as running:
            made = running.generate(exact(onegraph.Tokenizer(smollm2), 20, seed=1), 6)
        assert (made.n_prompt, made.n_generated) == (20, 6)
        assert made.decode_rate is None and made.wall_decode_rate > 0
        assert made.first_token_seconds > 0 and made.text
        os.kill(server.process_id, signal.SIGKILL)
        with pytest.raises(EngineError, match="vllm"):
            running.generate(exact(onegraph.Tokenizer(smollm2), 20, seed=1), 6)


@pytest.mark.skipif(not EXHAUSTIVE, reason="ONEGRAPH_EXHAUSTIVE=1 races on the simulated card")
def test_a_card_is_raced_and_a_rival_on_the_cpu_is_marked(cli, tmp_path, ksim_env) -> None:
    pytest.importorskip("xllamacpp")
    model = tmp_path / "tiny.gguf"
    synth.write(model, shapes.find("tiny-llama"), "Q8_0")
    options = ["-p", "8", "-n", "2", "-r", "1", "--device", "cuda", "-o", "json"]
    done = cli("compare", model, "--against", "xllamacpp", *options, env=ksim_env)
    ours, theirs = json.loads(done.stdout)
    assert (ours["engine_device"], theirs["engine_device"]) == ("cuda:0", "cpu")
    assert ours["check"]["what"] == "GPU against CPU interpreter" and ours["check"]["ok"]
    assert "llama.cpp runs on the CPU against our GPU" in theirs["warnings"][0]
    assert "xllamacpp: WARNING" in done.stderr
    # Random weights leave the choice of a token to the last bits, which it rounds.
    assert theirs["check"]["first_choice_agreement"] > 0.5


# --- prompts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 17, 64, 257])
def test_a_prompt_has_the_length_and_its_text_the_tokens(n: int, smollm2: Path) -> None:
    tokenizer = onegraph.Tokenizer(smollm2)
    prompts = [exact(tokenizer, n, seed) for seed in range(5)]
    for prompt in prompts:
        assert len(prompt.tokens) == n
        assert tuple(tokenizer.encode(prompt.text)) == prompt.tokens
    if n > 2:
        # Each begins in its own way: a server would keep a common start.
        assert len({prompt.tokens[:2] for prompt in prompts}) == 5


def test_prompts_of_every_published_vocabulary(vectors: Path) -> None:
    seen = 0
    for path in sorted((vectors / "vocab").glob("*.gguf")):
        try:
            tokenizer = onegraph.Tokenizer(path)
        except onegraph.ModelError:
            continue  # a kind that is not supported
        prompt = exact(tokenizer, 100, seed=3)
        assert tuple(tokenizer.encode(prompt.text)) == prompt.tokens and len(prompt.tokens) == 100
        seen += 1
    assert seen >= 3


def test_a_prompt_shorter_than_what_the_model_puts_in_front_is_refused(smollm2: Path) -> None:
    with pytest.raises(onegraph.ArgumentError, match="use at least -p 1"):
        exact(onegraph.Tokenizer(smollm2), 0, 1)


# --- ollama ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", "http://127.0.0.1:11434"),
        ("0.0.0.0", "http://127.0.0.1:11434"),
        ("host", "http://host:11434"),
        (":8080", "http://127.0.0.1:8080"),
        ("10.0.0.1:1234", "http://10.0.0.1:1234"),
        ("http://host", "http://host:80"),
        ("https://host/api-root/", "https://host:443/api-root"),
        ("[::1]:5", "http://[::1]:5"),
        ("[::]", "http://[::1]:11434"),
        ('"host:1"', "http://host:1"),
    ],
)
def test_the_address_is_read_as_ollama_reads_it(given: str, expected: str, monkeypatch) -> None:
    monkeypatch.setenv("OLLAMA_HOST", given)
    assert ollama.address() == expected


def test_an_address_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_HOST", "host:many")
    with pytest.raises(MissingError, match=r"OLLAMA_HOST is 'host:many'.*write it as host:port"):
        find("ollama")


@contextmanager
def serving(program: str, store: Path) -> Iterator[str]:
    address = f"127.0.0.1:{free_port()}"
    env = os.environ | {"OLLAMA_HOST": address, "OLLAMA_MODELS": str(store), "HOME": str(store)}
    with (store / "log").open("wb") as log:
        process = subprocess.Popen([program, "serve"], env=env, stdout=log, stderr=log)
        try:
            for _ in range(300):
                try:
                    stream.request_json(f"http://{address}", "GET", "/api/version", None, "ollama")
                    break
                except EngineError:
                    time.sleep(0.1)
            yield address
        finally:
            process.terminate()
            process.wait(30)


@pytest.fixture(scope="module")
def own_ollama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Address and store of a real ollama that serves this module's tests alone."""
    program = os.environ.get("ONEGRAPH_TEST_OLLAMA") or shutil.which("ollama")
    if not program:
        pytest.skip(
            "ollama is not on PATH: install it, or set ONEGRAPH_TEST_OLLAMA to the program, and "
            "run `pytest tests/bench/test_compare.py`"
        )
    # Its sockets have short paths only.
    with tempfile.TemporaryDirectory() as folder, serving(program, Path(folder)) as address:
        yield address, Path(folder)


def test_ollama_is_raced_on_a_copy_that_is_removed(cli, smollm2, own_ollama) -> None:
    address, _ = own_ollama
    env = {"OLLAMA_HOST": address}
    options = ["--against", "ollama", "--create", "-o", "json"]
    done = cli("compare", smollm2, *options, *SMALL, env=env)
    assert done.returncode == 0, done.stderr
    ours, theirs = json.loads(done.stdout)
    assert theirs["engine"] == "ollama" and theirs["engine_device"] == "cpu"
    assert len(theirs["samples_ts"]) == len(ours["samples_ts"]) == 2
    assert all(rate > 0 for rate in theirs["samples_ts"] + theirs["samples_ts_prompt"])
    # Both clocks see the same steps; HTTP and a busy machine lie between them.
    assert theirs["samples_ts_wall"][0] == pytest.approx(theirs["samples_ts"][0], rel=0.5)
    assert theirs["check"]["first_choice_agreement"] >= 0.9
    assert theirs["engine_options"]["num_ctx"] == "256"
    assert theirs["engine_options"]["temperature"] == "0"
    listed = stream.request_json(f"http://{address}", "GET", "/api/tags", None, "ollama")[1]
    assert listed["models"] == []


def test_ollama_asks_before_it_copies(smollm2, own_ollama, monkeypatch) -> None:
    monkeypatch.setenv("OLLAMA_HOST", own_ollama[0])
    with pytest.raises(EngineError, match=r"name the model ollama:NAME, or use --create to copy"):
        find("ollama").start(setup(smollm2))


def test_ollamas_own_store_is_read_in_place(smollm2, own_ollama, monkeypatch) -> None:
    """A store that the real ollama laid out; its model, raced by name."""
    address, store = own_ollama
    monkeypatch.setenv("OLLAMA_HOST", address)
    monkeypatch.setenv("OLLAMA_MODELS", str(store))
    name = ollama.create(f"http://{address}", smollm2)
    try:
        found = onegraph.hub.resolve(f"ollama:{name}")
        assert found.parent == store / "blobs" and found.read_bytes() == smollm2.read_bytes()
        assert onegraph.hub.resolve(f"ollama:library/{name}:latest") == found
        with find("ollama").start(setup(found, f"ollama:{name}")) as running:
            assert running.settings.device == "cpu" and running.settings.warnings == ()
            prompt = exact(onegraph.Tokenizer(found), 20, seed=1)
            made = running.generate(prompt, 4)
            made.check(20, 4, "ollama")
            assert made.prompt_rate is not None
            again = running.generate(prompt, 4)
            assert again.prompt_rate is None and again.text == made.text
        with pytest.raises(onegraph.FileError, match="ollama has no model absent"):
            onegraph.hub.resolve("ollama:absent")
        with pytest.raises(EngineError, match="ollama refused /api/generate with status 404"):
            find("ollama").start(setup(found, "ollama:absent"))
    finally:
        body = {"model": name}
        stream.request_json(f"http://{address}", "DELETE", "/api/delete", body, "ollama")


def test_ollama_says_why_it_takes_no_broken_model(own_ollama, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("OLLAMA_HOST", own_ollama[0])
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(EngineError, match=r"ollama refused .* status 400: .*does not support"):
        find("ollama").start(setup(broken, copy=True))


def test_something_else_at_ollamas_address_is_noticed(smollm2, monkeypatch) -> None:
    pytest.importorskip("xllamacpp")
    with XLlamaCpp().start(setup(smollm2)) as running:
        monkeypatch.setenv("OLLAMA_HOST", running.address)
        with pytest.raises((MissingError, EngineError), match=r"not an ollama server"):
            find("ollama")
