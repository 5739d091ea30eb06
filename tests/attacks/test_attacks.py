"""Every class of attack on model files that worked somewhere: a typed error, at once, for each.

The classes that are no files are tested where they live: requests that are cancelled or abandoned
with the engine, devices that are silently replaced with the Python interface.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import onegraph
import pytest
from onegraph import _native

HERE = Path(__file__)
SCRIPTS = sorted(set(HERE.parent.glob("*.py")) - {HERE, HERE.with_name("hostile_gguf.py")})


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.stem)
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
        for enter, seconds in DOORS[row["door"]]:
            start = time.perf_counter()
            with pytest.raises(onegraph.ModelError, match=row["expect"]):
                enter(path)
            assert time.perf_counter() - start < seconds, row["name"]


def load(path: Path) -> onegraph.LLM:
    return onegraph.LLM(path, device="cpu", threads=1, max_batch=1, progress=False)


def chat(path: Path) -> None:
    """The model loads; its template is the attack."""
    with load(path) as llm:
        llm.chat([{"role": "user", "content": "Hi"}], max_tokens=1)


#: Ways in, each with the seconds it may take. A template may take all of its fuel, and half a
#: second is usual for that; the machine may be busy.
DOORS: dict[str, list[tuple[Callable[[Path], object], float]]] = {
    "plan": [(_native.model_plan, 1), (load, 1)],
    "tokenizer": [(onegraph.Tokenizer, 1), (load, 1)],
    "chat": [(chat, 10)],
}


def survives(path: Path, prompt: str) -> None:
    """A megabyte of a prompt becomes tokens in linear time."""
    tokenizer = onegraph.Tokenizer(path)
    text = prompt * ((1 << 20) // len(prompt.encode()))
    start = time.perf_counter()
    ids = tokenizer.encode(text, parse_special=True)
    seconds = time.perf_counter() - start
    # A tenth of a second is usual; the machine may be busy.
    assert seconds < 3, f"{path.name}: {seconds:.1f} s for {len(text)} x {prompt!r}"
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
