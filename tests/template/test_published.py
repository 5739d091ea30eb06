"""Published chat templates render as jinja2 renders them."""

from pathlib import Path
from typing import Any

import jinja2
import onegraph
import pytest
from support import jinja
from support.conversations import CONVERSATIONS, NAMES, VARIABLES


def outcomes(source: str, messages: Any, variables: dict[str, Any]) -> tuple[str, str]:
    """What the oracle and what onegraph gives; an error is the same as any other error."""
    rest = {k: v for k, v in variables.items() if k not in ("bos_token", "eos_token")}
    tokens = {
        "bos_token": variables.get("bos_token", "<s>"),
        "eos_token": variables.get("eos_token", "</s>"),
    }
    ours = onegraph.ChatTemplate(source, **tokens)
    try:
        expected = jinja.render(source, messages, **tokens, **rest)
    except (jinja2.exceptions.TemplateError, TypeError, ValueError) as e:
        with pytest.raises(onegraph.ModelError) as caught:
            ours.render(messages, **rest)
        if type(e) is jinja2.exceptions.TemplateError:  # what `raise_exception` raises
            assert str(e) in str(caught.value)
        return "error", "error"
    return expected, ours.render(messages, **rest)


def check_all(source: str) -> int:
    """Every conversation with every set of variables; how many rendered to text."""
    rendered = 0
    for name, messages in CONVERSATIONS.items():
        for variables in VARIABLES:
            expected, got = outcomes(source, messages, variables)
            assert got == expected, (name, variables)
            rendered += expected != "error"
    return rendered


@pytest.mark.parametrize("name", NAMES)
def test_published_template(vectors: Path, name: str) -> None:
    source = (vectors / "templates" / f"{name}.jinja").read_text(encoding="utf-8")
    assert check_all(source) > 40


def test_template_of_smollm2() -> None:
    # The text of `tokenizer.chat_template` in SmolLM2-135M-Instruct.
    source = (
        "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
        "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
        "Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + "
        "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
        "{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    assert check_all(source) > 100
