"""A model as a step of a data set of Ray, and behind Ray Serve: a real Ray on this machine."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from onegraph import ArgumentError, ContextError, ModelError
from onegraph.cli.help import pages
from onegraph.ray import Generate, app, plain
from support.serving import until

pytestmark = pytest.mark.thorough

GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 6}
CPU: dict[str, Any] = {"device": "cpu", "n_ctx": 256, "max_batch": 8}

pytest.importorskip("ray", reason="no ray: `pip install .[thorough]` brings it")

# Its own five and ten seconds are too few on a busy machine: proxies that still start are ended.
for check in ("READY", "HEALTH"):
    os.environ.setdefault(f"RAY_SERVE_PROXY_{check}_CHECK_TIMEOUT_S", "120")


@pytest.fixture(scope="module")
def generate(smollm2: Path) -> Iterator[Generate]:
    made = Generate(str(smollm2), prompt="question", load=CPU, **GREEDY)
    yield made
    made.llm.close()


@pytest.fixture(scope="module")
def chats(smollm2: Path) -> Iterator[Generate]:
    made = Generate(str(smollm2), messages="said", load=CPU, prefix="model_", **GREEDY)
    yield made
    made.llm.close()


def test_rows_get_what_their_own_calls_give(generate: Generate) -> None:
    texts = [f"The capital of {name} is" for name in ("France", "Spain", "Italy")]
    given = {"question": np.array(texts, dtype=object), "id": np.arange(3)}
    made = generate(given)
    results = [generate.llm.generate(text, **GREEDY) for text in texts]
    assert made["id"] is given["id"] and made["question"] is given["question"]
    assert made["generated_text"].tolist() == [r.text for r in results]
    assert made["num_input_tokens"].tolist() == [r.usage.prompt_tokens for r in results]
    assert made["num_generated_tokens"].tolist() == [6, 6, 6]
    assert made["finish_reason"].tolist() == ["length"] * 3
    assert made["error"].tolist() == [""] * 3


def test_token_ids_are_prompts_too(generate: Generate) -> None:
    ids = generate.llm.tokenize("The capital of France is")
    text = generate.llm.generate(ids, **GREEDY).text
    # Rows of one length are one array, others an array of arrays.
    ragged = np.empty(2, dtype=object)
    ragged[:] = [np.array(ids), np.array(ids[:-1])]
    for column in (np.array([ids, ids]), ragged):
        assert generate({"question": column})["generated_text"][0] == text


def test_a_row_that_cannot_be_answered_costs_no_other(
    generate: Generate, caplog: pytest.LogCaptureFixture
) -> None:
    good = "The capital of France is"
    made = generate({"question": np.array([good, "tea " * 300, None, good], dtype=object)})
    alone = generate({"question": np.array([good], dtype=object)})
    text = alone["generated_text"][0]
    assert text
    assert made["generated_text"].tolist() == [text, "", "", text]
    assert made["finish_reason"].tolist() == ["length", "error", "error", "length"]
    assert made["error"][[0, 3]].tolist() == ["", ""]
    assert "302 tokens" in made["error"][1] and "256" in made["error"][1]
    assert "prompt = None" in made["error"][2]
    assert "2 of 4 rows have no answer" in caplog.text
    # Whatever went wrong, a column has one type.
    for name in ("num_input_tokens", "num_generated_tokens"):
        assert made[name].dtype == alone[name].dtype == np.int64
    assert all(isinstance(each, str) for each in made["error"])


def test_the_first_such_row_raises_on_request(smollm2: Path) -> None:
    made = Generate(str(smollm2), prompt="question", load=CPU, errors="raise", **GREEDY)
    with pytest.raises(ContextError, match="302 tokens"):
        made({"question": np.array(["tea", "tea " * 300], dtype=object)})
    until(lambda: made.llm.stats().running == 0)  # the others are not left behind
    made.llm.close()
    with pytest.raises(Exception, match="closed"):
        made({"question": np.array(["tea"], dtype=object)})


def test_conversations_come_as_columns_have_them(chats: Generate) -> None:
    said = [{"role": "user", "content": "Name a colour."}]
    # Arrow gives every message the keys of all of them.
    row = np.array([{**said[0], "tool_calls": None, "content": "Name a colour."}], dtype=object)
    column = np.empty(2, dtype=object)
    column[:] = [row, np.array([], dtype=object)]
    made = chats({"said": column})
    assert made["model_generated_text"][0] == chats.llm.chat(said, **GREEDY).text
    assert "at least one message" in made["model_error"][1]


def test_values_become_pythons_own() -> None:
    assert plain(np.array([np.array([1, 2]), "a"], dtype=object)) == [[1, 2], "a"]
    assert type(plain(np.int64(3))) is int
    nested = {"a": None, "b": np.array([{"c": None, "d": np.float32(0.5)}], dtype=object)}
    assert plain(nested) == {"b": [{"d": 0.5}]}


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({}, "set exactly one of them"),
        ({"prompt": "a", "messages": "b"}, "set exactly one of them"),
        ({"prompt": "a", "errors": "ignore"}, 'must be "column" or "raise"'),
        ({"prompt": "a", "temperature": -1.0}, "temperature"),
    ],
)
def test_wrong_options_are_refused_before_a_row(
    options: dict[str, Any], match: str, tiny: Path
) -> None:
    with pytest.raises(ArgumentError, match=match):
        Generate(str(tiny), load={"device": "cpu"}, **options)


def test_a_model_without_a_template_takes_no_conversations(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "plain.gguf"
    path.write_bytes(
        tiny.read_bytes().replace(b"tokenizer.chat_template", b"tokenizer.chat_anything")
    )
    with pytest.raises(ModelError, match=r"plain\.gguf has no chat template: give one by"):
        Generate(str(path), messages="said", load={"device": "cpu"})


def test_columns_that_are_missing_or_in_the_way_are_refused(generate: Generate) -> None:
    with pytest.raises(ArgumentError, match=r"'question': not in the batch, which has text"):
        generate({"text": np.array(["tea"])})
    with pytest.raises(ArgumentError, match=r"'error': is already in the batch"):
        generate({"question": np.array(["tea"], dtype=object), "error": np.array([1])})
    with pytest.raises(ArgumentError, match='batch_format="numpy"'):
        generate([1])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("args", "match"),
    [({}, "pass model="), ({"model": "smollm2", "n_ctxt": 4}, "n_ctxt: is not an argument")],
)
def test_an_application_names_what_is_wrong(args: dict[str, Any], match: str) -> None:
    pytest.importorskip("ray.serve")
    with pytest.raises(ArgumentError, match=match):
        app(args)


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """Ray on this machine: two CPUs, no dashboard, nothing reported to anybody."""
    found = pytest.importorskip("ray", reason="Ray is not installed: the extra `test` has it")
    folder = tempfile.mkdtemp(prefix="ray")  # a short path: sockets are in it
    before = {
        n: os.environ.get(n) for n in ("RAY_USAGE_STATS_ENABLED", "RAY_DATA_DISABLE_PROGRESS_BARS")
    }
    os.environ |= dict.fromkeys(before, "0")
    try:
        found.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=100 << 20,
            _node_ip_address="127.0.0.1",
            _temp_dir=folder,
            logging_level="ERROR",
            log_to_driver=False,
        )
        yield found
    finally:
        found.shutdown()
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
        shutil.rmtree(folder, ignore_errors=True)


def test_a_data_set_is_answered_by_a_model_that_is_loaded_once(
    ray: Any, generate: Generate, smollm2: Path, tmp_path: Path
) -> None:
    class Counted(Generate):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            (tmp_path / f"{os.getpid()} {time.time()}").touch()

    rows = [{"question": f"{i} and {i} are"} for i in range(20)]
    rows[7]["question"] = "tea " * 300
    said = (
        ray.data.from_items(rows)
        .map_batches(
            Counted,
            fn_constructor_kwargs={
                "model": str(smollm2),
                "prompt": "question",
                "load": CPU,
                **GREEDY,
            },
            batch_size=8,
            compute=ray.data.ActorPoolStrategy(size=1),
        )
        .take_all()
    )
    assert len(list(tmp_path.iterdir())) == 1
    found = {row["question"]: row for row in said}
    assert len(found) == 20
    assert "302 tokens" in found.pop("tea " * 300)["error"]
    results = generate.llm.generate([*found], **GREEDY)
    for row, result in zip(found.values(), results, strict=True):
        assert (row["generated_text"], row["error"]) == (result.text, "")


PAGE = pages()["deploying"].path.read_text()


def snippets() -> list[str]:
    """What the page shows of Python."""
    return re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.M | re.S)


@contextlib.contextmanager
def served(serve: Any, application: Any) -> Iterator[str]:
    """The address of an application."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    try:
        serve.run(application, route_prefix="/")
        yield f"http://127.0.0.1:{port}"
    finally:
        serve.shutdown()


def test_serve_answers_a_client_as_the_server_does(
    ray: Any, generate: Generate, smollm2: Path
) -> None:
    import httpx
    import openai
    from ray import serve

    asked: Any = {"messages": [{"role": "user", "content": "Name a colour."}], **GREEDY}
    # As `serve run` gives them: words.
    words = {"model": str(smollm2), "name": "smol", "device": "cpu", "n_ctx": "256"}
    with served(serve, app({**words, "api_keys": ["sesame"]})) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="sesame", max_retries=0)
        assert [model.id for model in client.models.list()] == ["smol"]
        stream = client.chat.completions.create(model="smol", stream=True, **asked)
        pieces = [chunk.choices[0].delta.content for chunk in stream if chunk.choices]
        assert len([piece for piece in pieces if piece]) > 2
        text = generate.llm.chat(asked["messages"], **GREEDY).text
        assert "".join(piece or "" for piece in pieces) == text
        wrong = openai.OpenAI(base_url=f"{url}/v1", api_key="salt", max_retries=0)
        with pytest.raises(openai.AuthenticationError):
            wrong.models.list()
        assert httpx.get(f"{url}/ready").json() == {"status": "ready"}

        def running() -> float:
            text = httpx.get(f"{url}/metrics", headers={"x-api-key": "sesame"}).text
            return float(text.split('vllm:num_requests_running{model_name="smol"} ')[1].split()[0])

        # An actor that leaves is not waited for.
        long: Any = {**asked, "max_tokens": 200, "extra_body": {"ignore_eos": True}}
        stream = client.chat.completions.create(model="smol", stream=True, **long)
        next(iter(stream))
        assert running() == 1
        stream.close()
        until(lambda: running() == 0, 5.0)


def test_what_the_page_shows_of_a_data_set_runs(ray: Any, smollm2: Path, tmp_path: Path) -> None:
    (code,) = [each for each in snippets() if "map_batches" in each]
    code = code.replace("/models/my-model.gguf", str(smollm2))
    code = code.replace('"load": {', '"load": {"device": "cpu", ').replace(
        "num_gpus=1", "num_gpus=0"
    )
    code = code.replace("256", "4").replace("4096", "128").replace("max_size=8", "max_size=1")
    questions = [{"question": "The capital of France is"}, {"question": "tea " * 300}]
    ray.data.from_items(questions).write_parquet(str(tmp_path / "questions.parquet"))
    for name in ("questions.parquet", "answers"):
        code = code.replace(f'"{name}"', repr(str(tmp_path / name)))
    exec(compile(code, "page", "exec"), {})
    rows = ray.data.read_parquet(str(tmp_path / "answers")).take_all()
    # Blocks come back in no order.
    found = {row["question"]: row for row in rows}
    france, tea = (found[each["question"]] for each in questions)
    assert "Paris" in france["generated_text"] and france["error"] == ""
    assert tea["generated_text"] == "" and "302 tokens" in tea["error"]


def test_the_app_that_the_page_shows_is_an_ingress(ray: Any, smollm2: Path) -> None:
    import httpx
    from ray import serve

    (code,) = [each for each in snippets() if "serve.ingress" in each]
    code = code.replace('"/models/my-model.gguf"', f'{str(smollm2)!r}, device="cpu", n_ctx=128')
    scope: dict[str, Any] = {}
    exec(compile(code.replace('"num_gpus": 1', '"num_gpus": 0'), "page", "exec"), scope)
    with served(serve, scope["app"]) as url:
        asked = {"model": "my-model", "prompt": "tea", "max_tokens": 3, "ignore_eos": True}
        made = httpx.post(f"{url}/v1/completions", json=asked)
        assert made.json()["usage"]["completion_tokens"] == 3


def test_the_file_that_the_page_shows_is_one_of_ray_serve() -> None:
    schema = pytest.importorskip("ray.serve.schema")
    found = re.findall(r"^```yaml\n(applications:.*?)^```$", PAGE, flags=re.M | re.S)
    (application,) = schema.ServeDeploySchema.model_validate(yaml.safe_load(found[0])).applications
    module, _, name = application.import_path.partition(":")
    made = getattr(importlib.import_module(module), name)(application.args)
    (deployment,) = application.deployments
    assert made._bound_deployment.name == deployment.name
