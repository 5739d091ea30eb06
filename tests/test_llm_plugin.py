"""The plugin for `llm`, as its users have it: by the entry point of the package, through the real
command and the real library."""

import asyncio
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import llm
import pytest
import shapes
import synth
from llm.parts import Message, ToolResultPart
from onegraph import LLM, ArgumentError, llm_plugin
from onegraph.sampling import DEFAULTS

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).resolve().parents[1]
NAME = "onegraph/smollm2"

#: Runs `llm`; the process must succeed unless `status` says otherwise.
Llm = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def metadata(tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    """Where the package is not installed, a folder with its metadata as the build writes them."""
    try:
        importlib.metadata.distribution("onegraph")
    except importlib.metadata.PackageNotFoundError:
        folder = tmp_path_factory.mktemp("metadata")
        subprocess.run(
            ["maturin", "pep517", "write-dist-info", "--metadata-directory", str(folder)],
            cwd=ROOT,
            check=True,
            capture_output=True,
        )
        return folder
    return None


@pytest.fixture
def run_llm(metadata: Path | None, smollm2: Path, tmp_path: Path) -> Llm:
    paths = [str(metadata)] if metadata else []
    env = os.environ | {
        "LLM_USER_PATH": str(tmp_path / "llm"),
        "OLLAMA_MODELS": str(tmp_path / "ollama"),
        "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]).strip(os.pathsep),
    }

    def run(*args: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "llm", *args],
            env=env,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == status, done.stderr
        return done

    return run


def test_llm_lists_the_models_and_their_options(run_llm: Llm, tmp_path: Path) -> None:
    manifest = tmp_path / "ollama/manifests/registry.ollama.ai/library/qwen2.5/1.5b"
    manifest.parent.mkdir(parents=True)
    manifest.write_text("{}")
    listed = run_llm("models").stdout
    assert f"Onegraph: {NAME}\n" in listed
    assert "Onegraph: onegraph/ollama:qwen2.5:1.5b\n" in listed
    options = run_llm("models", "-m", NAME, "--options").stdout
    for option in ["max_tokens: int", "temperature: float", "seed: int", "stop: str", "n_ctx: int"]:
        assert option in options
    # Of what generate takes, all that can be written as one value.
    several = {"logit_bias", "logprobs", "stop_token_ids", "choice", "schema"}
    assert set(DEFAULTS) - several <= set(re.findall(r"(\w+): \w+\n", options))
    plugins = json.loads(run_llm("plugins").stdout)
    assert [plugin["name"] for plugin in plugins] == ["onegraph"]


def test_llm_holds_an_answer_to_its_schema(run_llm: Llm) -> None:
    schema = {"type": "object", "properties": {"legs": {"enum": [2, 4]}}, "required": ["legs"]}
    schema["additionalProperties"] = False
    options = ["-o", "max_tokens", "40", "-o", "temperature", "0", "-o", "device", "cpu"]
    said = run_llm("-m", NAME, "--schema", json.dumps(schema), "A cat", *options).stdout
    assert json.loads(said)["legs"] in (2, 4)


def test_llm_answers_and_goes_on_with_the_conversation(run_llm: Llm, smollm2: Path) -> None:
    options = ["-o", "max_tokens", "8", "-o", "temperature", "0", "-o", "device", "cpu"]
    question, again = "What is the capital of France?", "And of Italy?"
    system = "Answer in capital letters."
    first = run_llm("-m", NAME, "-s", system, question, *options).stdout.removesuffix("\n")
    second = run_llm("-c", again, *options).stdout.removesuffix("\n")
    with LLM(smollm2, device="cpu", max_batch=1) as model:
        messages = [
            {"role": "system", "content": system},
            {"role": "user", "content": question},
        ]
        result = model.chat(messages, max_tokens=8, temperature=0.0)
        assert first == result.text
        messages += [
            {"role": "assistant", "content": first},
            {"role": "user", "content": again},
        ]
        assert second == model.chat(messages, max_tokens=8, temperature=0.0).text
    logged = json.loads(run_llm("logs", "--json", "-n", "2").stdout)
    assert [row["model"] for row in logged] == [NAME, NAME]
    told = {(row["input_tokens"], row["output_tokens"]) for row in logged}
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) in told


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["hi", "-o", "temperature", "1000"], "temperature = 1000"),
        (["hi", "-o", "max_tokens", "many"], "max_tokens"),
        (["hi", "-o", "device", "tpu"], "tpu"),
    ],
)
def test_what_is_wrong_is_said_by_llm(args: list[str], said: str, run_llm: Llm) -> None:
    done = run_llm("-m", NAME, *args, status=1)
    assert said in done.stderr and "Traceback" not in done.stderr


# --- the library ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def models(smollm2: Path) -> tuple[llm.Model, llm.AsyncModel]:
    found: dict[str, tuple[llm.Model, llm.AsyncModel]] = {}
    llm_plugin.register_models(
        lambda model, its_async: found.update({model.model_id: (model, its_async)})
    )
    return found[NAME]


OPTIONS = {"max_tokens": 8, "temperature": 0.0, "device": "cpu"}


def test_the_text_comes_in_pieces_and_a_model_is_loaded_once(
    models: tuple[llm.Model, llm.AsyncModel],
) -> None:
    model, _ = models
    conversation = model.conversation()
    pieces = list(conversation.prompt("Count from one to ten.", options=OPTIONS))
    assert len(pieces) > 3
    loaded = model._loaded.get({"device": "cpu"})  # type: ignore[attr-defined]
    answer = conversation.prompt("Go on.", options=OPTIONS)
    assert answer.text()
    assert model._loaded.get({"device": "cpu"}) is loaded  # type: ignore[attr-defined]
    assert answer.response_json == {"finish_reason": "length", "device": "cpu"}
    assert answer.usage().output == 8
    with pytest.raises(ArgumentError, match=r"top_p = 7"):
        model.prompt("x", options=OPTIONS | {"top_p": 7.0}).text()


def test_async_gives_the_same_text_while_the_event_loop_runs(
    models: tuple[llm.Model, llm.AsyncModel],
) -> None:
    model, its_async = models
    options = OPTIONS | {"max_batch": 2}

    async def both() -> list[str]:
        answers = [its_async.prompt(text, options=options) for text in ["Say one.", "Say two."]]
        return list(await asyncio.gather(*(answer.text() for answer in answers)))

    assert asyncio.run(both()) == [
        model.prompt(text, options=OPTIONS).text() for text in ["Say one.", "Say two."]
    ]


def test_what_a_model_cannot_read_is_refused(models: tuple[llm.Model, llm.AsyncModel]) -> None:
    model, _ = models
    result = Message(role="tool", parts=[ToolResultPart(name="clock", output="12:00")])
    with pytest.raises(ArgumentError, match="a message of 'tool' has a ToolResultPart"):
        model.prompt("And now?", messages=[llm.user("Time?"), result], options=OPTIONS).text()


def test_threads_that_ask_at_once_load_one_model(
    models: tuple[llm.Model, llm.AsyncModel],
) -> None:
    model, _ = models
    answers: list[str] = []
    options = OPTIONS | {"n_ctx": 256}
    threads = [
        threading.Thread(
            target=lambda: answers.append(model.prompt("Say hi.", options=options).text())
        )
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 3 and len(set(answers)) == 1


def test_a_model_without_a_template_takes_one_prompt(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    synth.write(path, shapes.find("tiny-llama"), "Q8_0", seed=1)
    key = b"tokenizer.chat_template"
    path.write_bytes(path.read_bytes().replace(key, key[:-1] + b"x"))
    model = llm_plugin.Onegraph(llm_plugin.Loaded(str(path)))
    answer = model.prompt("tea", options=OPTIONS)
    with LLM(path, device="cpu") as bare:
        assert answer.text() == bare.generate("tea", max_tokens=8, temperature=0.0).text
    with pytest.raises(ArgumentError, match=r"2 were given, but tiny\.gguf has no chat template"):
        model.prompt("tea", system="Be brief.", options=OPTIONS).text()
