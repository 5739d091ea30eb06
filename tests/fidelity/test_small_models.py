"""Small random models of every architecture, type and rotary scaling against the exact pass."""

from pathlib import Path

import numpy as np
import pytest
import shapes
import synth
from onegraph import LLM, _native
from support.backends import EXHAUSTIVE
from support.reference import Reference, mean_kl

SHAPES = shapes.load()
TYPES = {t[0]: t[2] for t in _native.quant_types()}
TOKENS = 200

#: Type of keys and values, most mean KL, most difference of a logit. Rounding to half precision
#: costs random weights, which attend to everything a little, up to 9e-6 and 0.07; real ones 4e-7.
BARS = [("f32", 1e-10, 1e-3), ("f16", 2e-5, 0.1), ("i16", 2e-6, 0.05)]


ARCHITECTURES = (
    *("llama", "qwen2", "qwen3", "qwen3moe", "gpt-oss", "qwen35", "qwen35moe", "gemma3"),
    *("gemma4", "granite", "lfm2", "lfm2moe", "mistral3"),
)

#: Caches that round move a router's logits, so that now and then a choice falls otherwise, between
#: experts that count the same: that row, and what attends to it, is then another sum. So such a
#: model is held to the bars with caches of float32, and with others to this.
MOST_KL_WITH_EXPERTS = 0.5


def fits(name: str, kind: str) -> bool:
    shape = SHAPES[name]
    # Convolutions are float32 in every mix.
    columns = [n for at, (n, *rest) in shape.tensors() if rest and "conv" not in at.split(".")[-2]]
    return all(n % TYPES[kind] == 0 for n in columns)


SMALL = [name for name in SHAPES if name.startswith(("tiny-", "odd-"))]
#: Of each architecture its first shape meets every type that fits, the others every fourth.
FIRST = {SHAPES[name].arch: name for name in reversed(SMALL)}.values()
ALL_CASES = {
    name: [
        (name, kind)
        for number, kind in enumerate(TYPES)
        if fits(name, kind) and (name in FIRST or (number + at) % 4 == 0)
    ]
    for at, name in enumerate(SMALL)
}
#: Of each shape every third of its types, so that each type is met by some; ONEGRAPH_EXHAUSTIVE=1
#: takes all of them.
CASES = [
    case
    for at, cases in enumerate(ALL_CASES.values())
    for case in (cases if EXHAUSTIVE else cases[at % min(3, len(cases) or 1) :: 3])
]


def test_every_architecture_meets_every_type() -> None:
    met = {(SHAPES[name].arch, kind) for cases in ALL_CASES.values() for name, kind in cases}
    assert met == {(arch, kind) for arch in ARCHITECTURES for kind in TYPES}
    assert {name for name, _ in CASES} == {name for name in SMALL if ALL_CASES[name]}
    assert {kind for _, kind in CASES} == set(TYPES)
    scalings = {SHAPES[name].rope_scaling.get("type") for name, _ in CASES}
    assert scalings == {None, "linear", "yarn", "llama3"}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param(*case, marks=[] if i % 5 == 0 else [pytest.mark.thorough])
        for i, case in enumerate(CASES)
    ],
)
def test_exact(name: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    shape = SHAPES[name]
    synth.write(path, shape, kind, seed=3)
    ids = [int(i) for i in np.random.default_rng(4).integers(3, shape.n_vocab, TOKENS)]
    exact = Reference(path).logits(ids)
    assert 0.5 < exact.std() < 20, "logits that differ too little, or too much, prove little"
    for kv_type, most_kl, most in BARS:
        with LLM(path, device="cpu", n_ctx=TOKENS, max_batch=1, kv_type=kv_type) as llm:
            found = llm.logits(ids)
            steps = llm.logits(ids, path="decode")
        if shape.sinks:
            # Weights that are off by 3e-8 move some of its rows by 5e-5, ten times as far as those
            # of the others.
            most_kl, most = max(most_kl, 5e-9), max(most, 1e-2)
        if shape.delta and shape.n_expert:
            # Sums that are off by 1e-7 cost experts and states together ten to twenty times the
            # divergence that they cost either alone.
            most_kl, most = max(most_kl, 5e-9), max(most, 1e-2)
        if shape.n_expert and kv_type != "f32":
            assert mean_kl(exact, found) <= MOST_KL_WITH_EXPERTS
        else:
            assert mean_kl(exact, found) <= most_kl
            assert np.abs(found - exact).max() <= most
        assert np.array_equal(steps.view(np.uint32), found.view(np.uint32))
        if kv_type == "f32":
            assert np.array_equal(found.argmax(axis=1), exact.argmax(axis=1))
