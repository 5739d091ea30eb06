"""Small random models of every architecture, type and rotary scaling against the exact pass."""

from pathlib import Path

import numpy as np
import pytest
import shapes
import synth
from onegraph import LLM, _native
from support.backends import EXHAUSTIVE
from support.reference import Array, Reference, mean_kl

SHAPES = shapes.load()
TYPES = {t[0]: t[2] for t in _native.quant_types()}
TOKENS = 200

#: Type of keys and values, most mean KL, most difference of a logit. Rounding to half precision
#: costs random weights, which attend to everything a little, up to 9e-6 and 0.07; real ones 4e-7.
BARS = [("f32", 1e-10, 1e-3), ("f16", 2e-5, 0.1), ("i16", 2e-6, 0.05)]

#: The same where weights are small integers, whose products keep 11 bits of x: up to 6e-5 and 0.15.
#: What these products are, to the bit, is held by tests/ops/test_exact_sums.py.
BARS_OF_INTEGERS = [("f32", 1e-4, 0.2), ("f16", 1.5e-4, 0.25), ("i16", 1e-4, 0.2)]


ARCHITECTURES = (
    *("llama", "qwen2", "qwen3", "qwen3moe", "gpt-oss", "qwen35", "qwen35moe"),
    *("qwen3next", "gemma3", "gemma4", "granite", "lfm2", "lfm2moe", "mistral3"),
    *("muse-glimmer", "olmo2", "smollm3", "ernie4_5", "seed_oss", "hunyuan-dense", "glm4"),
    *("exaone4", "glm4moe", "phi3", "cohere2", "command-r", "laguna"),
    *("nemotron_h", "nemotron_h_moe", "granitehybrid", "deepseek2"),
    "qwen4exp",
)

#: How near the exact scores of two experts are where caches that round may choose the other; they
#: have a standard deviation of 2. The largest seen is 0.025, of gpt-oss, and of the others 0.002.
MOST_MARGIN = 0.03


def routed_alike(reference: Reference, ids: list[int], found: np.ndarray, most: float) -> Array:
    """The exact logits by the experts that `found` was made by, as far as a choice is within
    MOST_MARGIN: a row of another choice, and what attends to it, is another sum altogether."""
    reference.swapped.clear()
    exact = reference.logits(ids)
    while (bad := np.abs(found - exact).max(axis=1) > most).any():
        row = int(np.argmax(bad))
        others = {}
        for layer, margins in list(reference.margins.items()):
            if margins[row] <= MOST_MARGIN and (layer, row) not in reference.swapped:
                reference.swapped.add((layer, row))
                others[layer] = reference.logits(ids)
                reference.swapped.remove((layer, row))
        off = {layer: np.abs(found[row] - other[row]).max() for layer, other in others.items()}
        best = min(off, key=lambda layer: off[layer], default=-1)
        if best < 0 or off[best] >= np.abs(found[row] - exact[row]).max():
            break
        reference.swapped.add((best, row))
        exact = reference.logits(ids)
    return exact


def fits(name: str, kind: str) -> bool:
    shape = SHAPES[name]
    # Convolutions, and what a scan has a number of a head or a channel, are float32 in every mix.
    parts = {at: at.split(".")[2] for at, _ in shape.tensors() if at.startswith("blk.")}
    always = {
        at for at, part in parts.items() if "conv" in at or part in ("ssm_a", "ssm_d", "ssm_norm")
    }
    # Rows that are as narrow in the models that are published, where a mix takes another type.
    if shape.streams:
        always |= {at for at, _ in shape.tensors() if "hc_" in at or "per_layer_token" in at}
    columns = [n for at, (n, *rest) in shape.tensors() if rest and at not in always]
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
    assert scalings == {None, "linear", "yarn", "llama3", "longrope"}


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
    reference = Reference(path)
    exact = reference.logits(ids)
    assert 0.5 < exact.std() < 20, "logits that differ too little, or too much, prove little"
    are_integers = TYPES[kind] > 1
    for kv_type, most_kl, most in BARS_OF_INTEGERS if are_integers else BARS:
        with LLM(path, device="cpu", n_ctx=TOKENS, max_batch=1, kv_type=kv_type) as llm:
            found = llm.logits(ids)
            steps = llm.logits(ids, path="decode")
        if shape.sinks:
            # Weights that are off by 3e-8 move some of its rows by 5e-5, ten times as far as those
            # of the others: so do caches that round, five times as far.
            most_kl, most = max(10 * most_kl, 5e-9), max((6 if are_integers else 5) * most, 1e-2)
        if shape.delta and shape.n_expert:
            # Sums that are off by 1e-7 cost experts and states together ten to twenty times the
            # divergence that they cost either alone; those of integers are off by more.
            factor = 10 if are_integers else 1
            most_kl, most = max(factor * most_kl, 5e-9), max(factor * most, 1e-2)
        wanted = exact
        if shape.n_expert and (are_integers or kv_type != "f32"):
            wanted = routed_alike(reference, ids, found, most)
        assert mean_kl(wanted, found) <= most_kl
        assert np.abs(found - wanted).max() <= most
        assert np.array_equal(steps.view(np.uint32), found.view(np.uint32))
        if kv_type == "f32" and not are_integers:
            assert np.array_equal(found.argmax(axis=1), exact.argmax(axis=1))


def test_long_factors_are_of_what_a_context_may_hold(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    synth.write(path, SHAPES["tiny-phi"], "F32", seed=3)
    ids = list(range(3, 67))
    found = []
    for n_ctx in (128, 129):
        with LLM(path, device="cpu", n_ctx=n_ctx, max_batch=1, kv_type="f32") as llm:
            found.append(llm.logits(ids))
        assert np.abs(found[-1] - Reference(path, n_ctx=n_ctx).logits(ids)).max() <= 1e-3
    assert np.abs(found[0] - found[1]).max() > 0.1


def test_only_a_choice_between_near_scores_may_fall_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    synth.write(path, SHAPES["tiny-qwen3moe"], "Q8_0", seed=3)
    reference, ids = Reference(path), list(range(3, 103))
    reference.logits(ids)
    by_margin = sorted(
        (margin, (layer, row))
        for layer, margins in reference.margins.items()
        for row, margin in enumerate(margins)
    )
    for margin, place in (by_margin[0], by_margin[-1]):
        reference.swapped = {place}
        found = reference.logits(ids)
        same = np.array_equal(routed_alike(reference, ids, found, 0.05), found)
        assert same == (margin <= MOST_MARGIN), margin
