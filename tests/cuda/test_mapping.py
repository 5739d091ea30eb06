"""Pages are mapped in the order of the stream: nobody waits for what is queued."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest
import shapes
import synth

pytestmark = pytest.mark.thorough

# Sequences that grow as they decode, or whose windows go on, take pages after pages. None is taken
# from prefixes: an evicted page is copied to the host, which is waited for.
SCRIPT = """
import sys
import onegraph
path, tokens, kv_tokens = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
load = {"device": "cuda", "n_ctx": 512, "max_batch": 2, "progress": False}
options = {"temperature": 0.0, "ignore_eos": True, "max_tokens": tokens, "stream": True}

def both(llm, one, other):
    # The other one comes behind the first token of the one: a pass each, however busy the machine.
    first = llm.generate(one, **options)
    next(first)
    second = llm.generate(other, **options)
    for stream in (first, second):
        for _ in stream:
            pass

with onegraph.LLM(path, kv_tokens=kv_tokens or None, prefix_cache=False, **load) as llm:
    # Whatever is captured on the way is there then.
    both(llm, [5, 6], [7, 8, 9])
    print("MARK", file=sys.stderr, flush=True)
    both(llm, [15, 16], [17, 18, 19])
    print("MARK", file=sys.stderr, flush=True)
"""


@pytest.mark.parametrize(("shape", "kv_tokens"), [("tiny-llama", 576), ("tiny-gemma3", 0)])
def test_no_step_waits_for_pages(
    shape: str,
    kv_tokens: int,
    simulator: dict[str, str],
    tmp_path: Path,
) -> None:
    path = tmp_path / "model.gguf"
    tiny = shapes.find(shape)
    if tiny.window:
        # A layer of each kind, and a window that soon leaves a page.
        tiny = dataclasses.replace(tiny, n_layer=2, window_pattern=2, window=16)
    synth.write(path, tiny, "Q4_K_M")

    def calls(tokens: int) -> tuple[int, int]:
        """Copies to the card, and waits for it, of so many tokens."""
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(path), str(tokens), str(kv_tokens)],
            env=simulator | {"KSIM_VERBOSE": "1"},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        made = re.findall(r"^ksim: (\w+)$", done.stderr.split("MARK\n")[1], re.MULTILINE)
        return made.count("cuMemcpyHtoDAsync_v2"), made.count("cuStreamSynchronize")

    (few_copies, few_waits), (copies, waits) = calls(30), calls(86)
    # A page more of each, in some of which another one is left.
    assert copies >= few_copies + 2
    assert waits == few_waits > 0
