"""Every class of attack on model files that worked somewhere: a typed error for each.

Nothing here asks for a time: what a text or a template may cost is counted in work, by the tests of
the tokenizer and the templates, and what hangs is ended by the run's own limit.

The classes that are no files are tested where they live: requests that are cancelled or abandoned
with the engine, devices that are silently replaced with the Python interface.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onegraph
import pytest
from onegraph import _native

HERE = Path(__file__).parent
SCRIPTS = sorted({*HERE.glob("*.py")} - {*HERE.glob("test_*.py"), HERE / "hostile_gguf.py"})


#: Those that take seconds.
SLOW = {"chat_template", "special_tokens", "tokenizer_blow_up"}


@pytest.mark.parametrize(
    "script",
    [pytest.param(p, marks=[pytest.mark.thorough] if p.stem in SLOW else []) for p in SCRIPTS],
    ids=lambda p: p.stem,
)
def test_attack(script: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, script, tmp_path], check=True, stdout=subprocess.DEVNULL)
    rows = json.loads((tmp_path / "attacks.json").read_text())
    assert rows
    for row in rows:
        path = tmp_path / f"{row['name']}.gguf"
        if row["door"] == "encode":
            survives(path, row["expect"])
            continue
        if row["door"] == "turns":
            keeps_its_turns(path, json.loads(row["expect"]))
            continue
        if row["door"] == "finite":
            stays_finite(path, row["expect"])
            continue
        for enter in DOORS[row["door"]]:
            with pytest.raises(getattr(onegraph, row["error"]), match=row["expect"]):
                enter(path)


def load(path: Path) -> onegraph.LLM:
    return onegraph.LLM(path, device="cpu", threads=1, max_batch=1, progress=False)


def chat(path: Path) -> None:
    """The model loads; its template is the attack."""
    with load(path) as llm:
        llm.chat([{"role": "user", "content": "Hi"}], max_tokens=1)


#: Ways in. A limit on memory is one of the process: see test_memory_limits.py.
DOORS: dict[str, list[Callable[[Path], object]]] = {
    "plan": [_native.model_plan, load],
    "tokenizer": [onegraph.Tokenizer, load],
    "chat": [chat],
    "memory": [],
}


def survives(path: Path, prompt: str) -> None:
    """A megabyte of a prompt becomes tokens."""
    tokenizer = onegraph.Tokenizer(path)
    text = prompt * ((1 << 20) // len(prompt.encode()))
    ids = tokenizer.encode(text, parse_special=True)
    # A text of characters that nothing spells has none.
    assert all(id < tokenizer.n_vocab for id in ids)


def keeps_its_turns(path: Path, messages: list[dict[str, str]]) -> None:
    """A conversation has the control tokens that its template writes, two for each message."""
    with load(path) as llm:
        assert llm.chat_template is not None
        ids = llm.tokenizer.encode_rendering(llm.chat_template.rendering(messages))
        control = [llm.tokenizer.token_text(id) for id in ids if llm.tokenizer.is_special(id)]
        assert control == ["<|im_start|>", "<|im_end|>"] * len(messages)
        assert llm.chat(messages, max_tokens=1).usage.prompt_tokens == len(ids)
        # By name, for messages that are trusted.
        trusted = llm.chat(messages, max_tokens=1, parse_special=True)
        assert trusted.usage.prompt_tokens < len(ids)


def stays_finite(path: Path, prompt: str) -> None:
    """Numbers stay numbers, what was done to them is counted, wider types need none of it."""
    for kv_type, saturated in [("f16", 2), ("i16", 0), ("f32", 0)]:
        options = dict(device="cpu", threads=1, max_batch=1, kv_type=kv_type, progress=False)
        with onegraph.LLM(path, **options) as llm:
            assert np.isfinite(llm.logits(llm.tokenize(prompt))).all()
            assert len(llm.generate(prompt, max_tokens=3, ignore_eos=True).token_ids) == 3
            assert llm.saturated_sequences == saturated
