"""Several cards as one device: what they give together is what one gives, whatever is asked of
them, and what ails one of them is an error."""

from __future__ import annotations

from pathlib import Path

import pytest
import shapes
import synth
from support.card_process import OnCard, few_layers

CARDS = {"KSIM_DEVICES": "4"}

SAME = """
ids = list(range(3, 80))
load = {"n_ctx": 256, "max_batch": 4, "prefill_chunk": 64, "kv_type": "i16"}
texts = [ids, ids[:5], ids[:40] + [9], [7]]
def use(device):
    with onegraph.LLM(path, device=device, **load) as llm:
        greedy = llm.generate(ids, max_tokens=10, temperature=0, logprobs=2)
        found = [r.token_ids for r in llm.generate(texts, max_tokens=9, temperature=1.0, seed=11,
                                                   frequency_penalty=0.4, ignore_eos=True)]
        again = llm.generate(ids + [5, 6], max_tokens=4, seed=2).usage.cached_tokens
        return [greedy.token_ids, str(greedy.logprobs), found, again > 0,
                llm.logits(ids).tobytes().hex()]
wanted = use("cpu")
out["same"] = [use(device) == wanted for device in given["devices"]]
"""


def model(tmp_path: Path, name: str) -> Path:
    path = tmp_path / f"{name}.gguf"
    synth.write(path, few_layers(shapes.find(name)), "Q4_K_M")
    return path


def test_two_cards_give_what_one_gives(simulated: OnCard) -> None:
    assert simulated(SAME, env=CARDS, devices=["cuda:1,0"])["same"] == [True]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "device", "env"),
    [
        # Work that runs late, lanes in any order.
        ("tiny-llama", "cuda:3,1,0,2", {"KSIM_SEED": "5", "KSIM_LAZY": "1"}),
        # Heads that do not divide by four.
        ("tiny-llama-gqa", "cuda:0,1,2,3", {}),
        ("tiny-qwen3moe", "cuda:0,1,2,3", {}),
        ("tiny-gemma3", "cuda:0,1", {}),
        # Layers that keep states, and gates of heads.
        ("tiny-qwen35", "cuda:0,1", {"KSIM_SEED": "3"}),
        ("tiny-gpt-oss", "cuda:0,1", {}),
        # Keys that all heads share.
        ("tiny-deepseek2", "cuda:0,1", {}),
    ],
)
def test_more_cards_give_what_one_gives(
    simulated: OnCard, tmp_path: Path, name: str, device: str, env: dict[str, str]
) -> None:
    found = simulated(SAME, path=model(tmp_path, name), env=CARDS | env, devices=[device])
    assert found["same"] == [True]


RANDOM = """
import random
draw = random.Random(given["seed"])
def request():
    ids = [draw.randrange(3, 500) for _ in range(draw.choice([1, 3, 20, 70, 130]))]
    if draw.random() < 0.4:
        ids = list(range(3, 3 + draw.choice([64, 90]))) + ids[:9]
    return ids, {"max_tokens": draw.choice([1, 4, 9]), "temperature": draw.choice([0, 1.0]),
                 "seed": draw.randrange(99), "ignore_eos": draw.random() < 0.5}
requests = [request() for _ in range(given["requests"])]
read = lambda stream: [token for piece in stream for token in piece.token_ids]
def use(device, at_once):
    with onegraph.LLM(path, device=device, n_ctx=160, max_batch=4, kv_tokens=512,
                      prefill_chunk=64) as llm:
        streams, texts = {}, {}
        for i, (ids, options) in enumerate(requests):
            streams[i] = llm.generate(ids, stream=True, **options)
            if len(streams) == at_once:
                first = min(streams)
                texts[first] = read(streams.pop(first))
        texts.update({i: read(stream) for i, stream in streams.items()})
        return [texts[i] for i in range(len(requests))]
out["same"] = use("cuda:0,1", 6) == use("cpu", 1)
"""


@pytest.mark.thorough
def test_random_requests_on_two_cards(simulated: OnCard) -> None:
    assert simulated(RANDOM, env=CARDS, seed=4, requests=40)["same"]


REFUSED = """
def refused(device, **load):
    try:
        with onegraph.LLM(path, device=device, n_ctx=64, **load):
            return "it loads"
    except onegraph.Error as e:
        return f"{type(e).__name__}: {e}"
for device in given["devices"]:
    out[device] = refused(device)
out["mtp"] = refused("cuda:0,1", speculate="mtp")
"""


def test_what_cannot_be_is_refused_with_the_reason(simulated: OnCard) -> None:
    apart = simulated(REFUSED, env=CARDS | {"KSIM_PEERS": "0"}, devices=["cuda:0,2"])
    for part in ("DeviceError", "cuda:0", "cuda:2", "cannot reach each other", "or one card"):
        assert part in apart["cuda:0,2"]
    devices = ["cuda:0,0", "cuda:0,1,2,3,4", "cuda:0,", "cuda:0,5"]
    found = simulated(REFUSED, env=CARDS, devices=devices)
    assert "names a card twice" in found["cuda:0,0"]
    assert "5 cards: a model runs on up to 4" in found["cuda:0,1,2,3,4"]
    assert "cuda:N,M" in found["cuda:0,"]
    assert "cuda:5" in found["cuda:0,5"] and "4 cards" in found["cuda:0,5"]
    assert "ArgumentError" in found["mtp"] and "one card" in found["mtp"]


LOST = """
import ctypes
driver = ctypes.CDLL("libcuda.so")
llm = onegraph.LLM(path, device="cuda:0,1", n_ctx=256, max_batch=2)
llm.generate([3, 4, 5], max_tokens=3)
long = {"max_tokens": 200, "ignore_eos": True, "stream": True}
streams = [llm.generate([3 + i, 4, 5], **long) for i in range(2)]
next(iter(streams[0]))
if given["after"]:
    driver.ksimFailAfter(ctypes.c_longlong(given["after"]), 700)
out["errors"] = []
for stream in streams:
    try:
        for _ in stream:
            pass
        out["errors"].append("none")
    except onegraph.Error as e:
        out["errors"].append(type(e).__name__)
try:
    llm.generate([3], max_tokens=1)
    out["errors"].append("none")
except onegraph.Error as e:
    out["errors"].append(type(e).__name__)
driver.ksimFailAfter(ctypes.c_longlong(0), 0)
llm.close()
out["closed"] = True
"""


@pytest.mark.thorough
@pytest.mark.parametrize("after", [1, 3, 8, 40])
def test_a_card_that_fails_ends_the_waits_of_all(simulated: OnCard, after: int) -> None:
    found = simulated(LOST, env=CARDS, after=after)
    assert found["closed"] and all(error != "none" for error in found["errors"]), found


@pytest.mark.thorough
def test_a_kernel_that_fails_on_one_card_ends_the_waits_of_all(
    simulated: OnCard, tmp_path: Path
) -> None:
    kernel = (Path(__file__).parents[2] / "rust/engine/kernels/exchange.cu").read_text()
    fails = "if (p.rank == 1 && number > 400) *reinterpret_cast<volatile int*>(8) = 1;"
    (tmp_path / "exchange.cu").write_text(
        kernel.replace("__syncthreads();", f"{fails}\n    __syncthreads();", 1)
    )
    env = {"KSIM_KERNELS": str(tmp_path), "ONEGRAPH_CACHE_DIR": str(tmp_path / "cache")}
    found = simulated(LOST, env=CARDS | env, after=0)
    assert found["closed"] and all(error == "DeviceError" for error in found["errors"]), found
