"""Prompts on the simulated card through the public interface: cut in chunks, and cancelled."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import shapes
import synth

#: Interrupts long prompts, twice; all of them are far more than a test waits for. Says how often
#: that ended the call, and whether a prompt afterwards is what it was.
INTERRUPTED = """
import json, os, signal, sys, threading, time
from onegraph import LLM

llm = LLM(sys.argv[1], device="cuda", n_ctx=512, max_batch=1, prefill_chunk=64)
long = [7 + i % 400 for i in range(220)]
options = {"max_tokens": 1, "temperature": 0, "ignore_eos": True, "logprobs": 1}
wanted = llm.generate(long, **options)

def interrupt():
    begun.wait()
    time.sleep(0.2)  # most likely a prompt is on the card by then
    os.kill(os.getpid(), signal.SIGINT)

ended = 0
for _ in range(2):
    begun = threading.Event()
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        begun.set()
        llm.generate([long] * 200, **options)
    except KeyboardInterrupt:
        ended += 1
    thread.join()
    llm.generate([5], **options)
again = llm.generate(long, **options)
llm.close()
print(json.dumps({
    "ended": ended,
    "same": again.token_ids == wanted.token_ids and again.logprobs == wanted.logprobs,
}))
"""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    synth.write(path, shapes.find("tiny-llama"), "Q4_K_M", seed=1)
    return path


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_a_prompt_between_chunks(tiny: Path, ksim_env: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(tiny)],
        env=ksim_env | {"ONEGRAPH_CACHE_DIR": str(tiny.parent / "cache")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout)
    assert said["ended"] == 2
    assert said["same"], "the interrupted prompts changed a later one"
