"""Conversations, put into words by the model's own template."""

import io
from pathlib import Path

import gguf_io
import onegraph
import pytest
from onegraph import LLM

MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]


def test_chat_goes_on_from_the_rendered_template(smol: LLM) -> None:
    template = smol.chat_template
    assert template is not None
    text = template.render(MESSAGES)
    ids = smol.tokenize(text, add_special=False, parse_special=True)
    assert smol.tokenizer.token_id("<|im_start|>") in ids
    by_hand = smol.generate(ids, max_tokens=16, temperature=0.0)
    answer = smol.chat(MESSAGES, max_tokens=16, temperature=0.0)
    assert answer.token_ids == by_hand.token_ids
    assert "Paris" in answer.text and answer.finish_reason == "stop"
    stream = smol.chat(MESSAGES, stream=True, max_tokens=16, temperature=0.0)
    assert "".join(p.text for p in stream) == answer.text


def test_template_variables_reach_the_template(tmp_path: Path, tiny: Path) -> None:
    path = with_template(tiny, tmp_path / "m.gguf", "{{ style }}{{ messages[0].content }}")
    with LLM(path, device="cpu") as llm:
        answer = llm.chat(MESSAGES, template_kwargs={"style": "tea"}, max_tokens=2)
        assert answer.usage.prompt_tokens == len(llm.tokenize("tea" + MESSAGES[0]["content"]))


def test_a_model_without_a_template_says_what_to_do(tmp_path: Path, tiny: Path) -> None:
    with LLM(with_template(tiny, tmp_path / "m.gguf", None), device="cpu") as llm:
        assert llm.chat_template is None
        with pytest.raises(
            onegraph.ModelError, match=r"m\.gguf has no chat template: use generate"
        ):
            llm.chat(MESSAGES)


def test_a_wrong_template_spoils_chat_alone(tmp_path: Path, tiny: Path) -> None:
    with LLM(with_template(tiny, tmp_path / "m.gguf", "{% if %}"), device="cpu") as llm:
        assert llm.generate("tea", max_tokens=1).token_ids
        with pytest.raises(onegraph.ModelError, match="chat template: line 1"):
            llm.chat(MESSAGES)
        assert llm.generate("tea", max_tokens=1).token_ids


def with_template(source: Path, target: Path, template: str | None) -> Path:
    """A copy of a model with another chat template, or none."""
    reader = gguf_io.Reader(source)
    metadata, tensors = dict(reader.encoded), list(reader.tensors.values())
    start = gguf_io.write_header(io.BytesIO(), metadata, tensors)
    del metadata["tokenizer.chat_template"]
    if template is not None:
        metadata["tokenizer.chat_template"] = gguf_io.string(template)
    with target.open("wb") as file:
        gguf_io.write_header(file, metadata, tensors)
        file.write(source.read_bytes()[start:])
    return target
