"""What a Modelfile said of a model in ollama's store."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import onegraph
import pytest
from onegraph.hub import modelfile
from support import fake_ollama

LIBRARY = "registry.ollama.ai/library"

#: As Modelfiles of many models have it.
TEMPLATE = """{{ if .System }}<|im_start|>system
{{ .System }}<|im_end|>
{{ end }}{{- if .Prompt }}<|im_start|>user
{{ .Prompt }}<|im_end|>
{{ end }}<|im_start|>assistant
{{ .Response }}<|im_end|>
"""

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi {{ you }}"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "Bye"},
]

RENDERED = """<|im_start|>system
Be brief.<|im_end|>
<|im_start|>user
Hi {{ you }}<|im_end|>
<|im_start|>assistant
Hello<|im_end|>
<|im_start|>user
Bye<|im_end|>
<|im_start|>assistant
"""


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    return tmp_path / "ollama"


def added(store: Path, content: bytes = b"GGUF", **layers: str) -> modelfile.Modelfile:
    """What is read of a model with these layers."""
    encoded = {name: text.encode() for name, text in layers.items()}
    fake_ollama.add_model(store, f"{LIBRARY}/mine/latest", content, **encoded)
    return modelfile.read("ollama:mine")


def test_system_and_parameters_are_read(store: Path) -> None:
    given = {"temperature": 0.6, "top_k": 20, "stop": ["<|im_end|>"], "num_ctx": 4096}
    given |= {"num_predict": -1, "seed": -1, "num_gpu": 99, "mirostat": 2}
    found = added(store, system="Be brief.", params=json.dumps(given))
    assert found.system == "Be brief."
    assert found.sampling == {
        "temperature": 0.6,
        "top_k": 20,
        "stop": ["<|im_end|>"],
        "max_tokens": None,
    }
    assert found.n_ctx == 4096
    more = added(store, params='{"num_predict": 7, "seed": 3}')
    assert more.sampling == {"max_tokens": 7, "seed": 3}
    assert modelfile.read("hf:user/repo:Q8_0") == modelfile.Modelfile()


@pytest.mark.parametrize(
    "params", ["", "[", "[]", '{"num_predict": "all"}', '{"num_ctx": "4k"}', '{"num_ctx": 0}']
)
def test_damaged_parameters_are_an_error(store: Path, params: str) -> None:
    with pytest.raises(onegraph.ModelError, match="its parameters in ollama's store are damaged"):
        added(store, params=params)


def test_a_plain_template_is_one_of_conversations(store: Path) -> None:
    source = added(store, template=TEMPLATE).template
    assert source is not None
    template = onegraph.ChatTemplate(source)
    assert template.render(MESSAGES) == RENDERED
    closed = template.render(MESSAGES[:3], add_generation_prompt=False)
    assert closed == RENDERED[: RENDERED.index("<|im_start|>user\nBye")]


def test_an_answer_comes_last_where_a_template_has_no_place_for_it(store: Path) -> None:
    source = added(store, template="{{ .System }} USER: {{ .Prompt }} ASSISTANT: ").template
    assert source is not None
    text = onegraph.ChatTemplate(source).render(MESSAGES)
    assert text == "Be brief. USER: Hi {{ you }} ASSISTANT: Hello USER: Bye ASSISTANT: "


@pytest.mark.parametrize(
    "template",
    ["{{ range .Messages }}{{ .Content }}{{ end }}", "{{ if .Prompt }}{{ .Prompt }}", "{{ end }}"],
)
def test_what_does_more_is_no_template(store: Path, template: str) -> None:
    assert added(store, template=template).template is None


def test_a_model_without_a_template_of_its_own_has_the_modelfiles(store: Path, tiny: Path) -> None:
    added(store, tiny.read_bytes(), template=TEMPLATE)
    with onegraph.LLM("ollama:mine", device="cpu") as llm:
        assert llm.chat_template is not None
        assert llm.chat_template.render(MESSAGES) == RENDERED


@pytest.mark.thorough
def test_run_holds_to_what_no_option_says_otherwise(
    store: Path, smollm2: Path, cli: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    given = {"temperature": 0.0, "num_predict": 5, "num_ctx": 10**6}
    added(store, smollm2.read_bytes(), system="Talk like a pirate.", params=json.dumps(given))
    env = {"OLLAMA_MODELS": str(store)}

    def run(*more: str) -> dict[str, object]:
        found = json.loads(
            cli("run", "mine", "Hi", "--json", "--device", "cpu", *more, env=env).stdout
        )
        return {name: found[name] for name in ("text", "usage")}

    plain = cli(
        *("run", str(smollm2), "Hi", "--json", "--device", "cpu", "--temperature", "0"),
        *("--max-tokens", "5", "--system", "Talk like a pirate."),
    )
    assert run()["text"] == json.loads(plain.stdout)["text"]
    assert run("--max-tokens", "2")["usage"]["completion_tokens"] == 2
    assert run("--system", "Be brief.")["usage"]["prompt_tokens"] < run()["usage"]["prompt_tokens"]
