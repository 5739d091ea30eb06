"""Published chat templates render as jinja2 renders them."""

from pathlib import Path
from typing import Any

import gguf
import jinja2
import onegraph
import pytest
from support import jinja, published
from support.conversations import (
    CONVERSATIONS,
    FAMILIES,
    NAMES,
    REASONING,
    REASONING_VARIABLES,
    VARIABLES,
)


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


def check_all(
    source: str,
    conversations: dict[str, Any] = CONVERSATIONS,
    every: list[dict[str, Any]] = VARIABLES,
) -> int:
    """Every conversation with every set of variables; how many rendered to text."""
    rendered = 0
    for name, messages in conversations.items():
        for variables in every:
            expected, got = outcomes(source, messages, variables)
            assert got == expected, (name, variables)
            rendered += expected != "error"
    return rendered


@pytest.mark.parametrize("name", dict.fromkeys([*NAMES, *FAMILIES]))
def test_published_template(vectors: Path, name: str) -> None:
    assert check_all(published.template(vectors, name)) > 40


@pytest.mark.parametrize("name", FAMILIES)
def test_reasoning_and_tools(vectors: Path, name: str) -> None:
    source = published.template(vectors, name)
    assert check_all(source, REASONING, REASONING_VARIABLES) >= 100


def test_template_of_the_vocabulary_of_gemma_4(vectors: Path) -> None:
    fields = gguf.GGUFReader(published.vocabulary(vectors, "gemma-4")).fields
    source = fields["tokenizer.chat_template"].contents()
    assert check_all(source) > 40
    assert check_all(source, REASONING, REASONING_VARIABLES) >= 100


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
