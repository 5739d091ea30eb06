"""`mat_vec` and `embed` for every type of the table against float64 over the `gguf` package's
expansion of the same blocks."""

from itertools import cycle

import numpy as np
import onegraph
import pytest
from support.backends import INTERPRETER, Backend, over_backends, over_cards
from support.plans import ROWS, SCALES, TYPES, Floats, Plan, Run, bits, decode, encode, nmse, normal

#: Row lengths by block length: one block, several, and none a multiple of 32 lanes or 256 where
#: the type allows that.
N_IN = {
    1: [1, 7, 31, 32, 33, 64, 100, 257, 576],
    32: [32, 64, 96, 544, 576, 864],
    64: [64, 192, 576, 832],
    256: [256, 768, 1280],
}
N_OUT = [1, 7, 33, 1000]
#: Behind all others the type that most files are of: simulated cards run the first and the last.
CASES = [
    (ty, n_in) for ty in sorted(TYPES, key=lambda ty: ty == "Q4_K") for n_in in N_IN[TYPES[ty][0]]
]

over_types = pytest.mark.parametrize("ty", TYPES)


def most(backend: Backend, ty: str) -> float:
    """Most normalized mean square error: products of small integers keep 11 bits of x, 2.5e-4.
    Their bits are held by test_exact_sums.py."""
    return backend.nmse if TYPES[ty][0] == 1 else 1e-6


def linear(ty: str, n_in: int, n_out: int, bias: Floats | None = None, seed: int = 0) -> Plan:
    """`y = weight · x + bias`."""
    plan = Plan()
    x, y = plan.buffer("x", n_in), plan.buffer("y", n_out)
    data = encode(ty, normal(n_out, n_in, seed=seed, scale=0.1))
    weight = plan.weight("w", ty, data, n_in, n_out)
    b = None if bias is None else plan.vector("b", bias)
    plan.op("mat_vec", x=x, weight=weight, bias=b, out=y)
    return plan


def exact(plan: Plan, ty: str, x: Floats, n_out: int, bias: Floats | None = None) -> np.ndarray:
    weight = decode(ty, plan.weights["w"]).reshape(n_out, -1).astype(np.float64)
    return x.astype(np.float64) @ weight.T + (0.0 if bias is None else bias.astype(np.float64))


def energy(plan: Plan, ty: str, x: Floats, n_out: int, bias: Floats) -> np.ndarray:
    """The squares of the terms of each sum, summed."""
    weight = decode(ty, plan.weights["w"]).reshape(n_out, -1).astype(np.float64)
    return (x.astype(np.float64) ** 2) @ (weight**2).T + bias.astype(np.float64) ** 2


@over_backends
@pytest.mark.parametrize(("ty", "n_in"), CASES)
def test_shapes_and_rows(backend: Backend, ty: str, n_in: int) -> None:
    for n_out, threads in zip(N_OUT, cycle([1, 2, 3]), strict=False):
        bias = normal(n_out, seed=7)
        plan = linear(ty, n_in, n_out, bias)
        run = Run(backend, plan, threads=threads)
        for rows in ROWS if n_out < 1000 else [1, 5]:
            x = normal(rows, n_in, seed=rows)
            found = run({"x": x})["y"]
            assert found.shape == (rows, n_out)
            expected = exact(plan, ty, x, n_out, bias), energy(plan, ty, x, n_out, bias)
            assert nmse(found, *expected) <= most(backend, ty), (n_out, rows)


@over_backends
@over_types
@pytest.mark.parametrize("scale", SCALES)
def test_scales(backend: Backend, ty: str, scale: float) -> None:
    n_in = N_IN[TYPES[ty][0]][-1]
    plan = linear(ty, n_in, 33)
    for rows in (1, 6):
        x = normal(rows, n_in, seed=rows, scale=scale)
        found = Run(backend, plan)({"x": x})["y"]
        assert nmse(found, exact(plan, ty, x, 33)) <= most(backend, ty)


@over_backends
@over_types
def test_a_row_of_all_magnitudes(backend: Backend, ty: str) -> None:
    """Small numbers beside large ones: each row's own size is the measure."""
    n_in = N_IN[TYPES[ty][0]][-1]
    plan = linear(ty, n_in, 33)
    x = normal(5, n_in) * 10.0 ** np.random.default_rng(1).uniform(-6, 6, (5, n_in))
    x = x.astype(np.float32)
    found = Run(backend, plan)({"x": x})["y"]
    for row, wanted in zip(found, exact(plan, ty, x, 33), strict=True):
        assert nmse(row, wanted) <= most(backend, ty)


@over_backends
@over_types
def test_zero_gives_the_bias(backend: Backend, ty: str) -> None:
    n_in = N_IN[TYPES[ty][0]][0]
    bias = normal(33)
    for rows in (1, 5):
        x = np.zeros((rows, n_in), np.float32)
        found = Run(backend, linear(ty, n_in, 33, bias))({"x": x})["y"]
        assert np.array_equal(found, np.broadcast_to(bias, (rows, 33)))


@over_backends
@over_types
def test_a_row_of_nan_stays_alone(backend: Backend, ty: str) -> None:
    n_in = N_IN[TYPES[ty][0]][-1]
    run = Run(backend, linear(ty, n_in, 33))
    x = normal(9, n_in)
    clean = run({"x": x})["y"]
    x[4] = np.nan
    if TYPES[ty][0] == 1:
        run({"x": x})
    else:
        # Small integers meet x as block fixed point, and NaN is none.
        with pytest.raises(onegraph.ModelError, match=r"product with w at position 4 .* of NaN"):
            run({"x": x}, positions=range(9))
        if backend.device == "cpu":
            return
    found = run["y"]
    assert np.isnan(found[4]).all()
    others = np.arange(9) != 4
    assert np.array_equal(bits(found[others]), bits(clean[others]))


@pytest.mark.thorough
@over_backends
def test_products_of_one_input_are_independent(backend: Backend) -> None:
    """Several mat-vecs in a row that read the same x, of several types: q, k and v of a layer."""
    n_in = 256
    plan = Plan()
    x = plan.buffer("x", n_in)
    parts = {}
    for i, ty in enumerate(TYPES):
        n_out = 40 + 13 * i
        data = encode(ty, normal(n_out, n_in, seed=i))
        weight = plan.weight(f"w{i}", ty, data, n_in, n_out)
        bias = plan.vector(f"b{i}", normal(n_out, seed=50 + i)) if i % 2 else None
        plan.op("mat_vec", x=x, weight=weight, bias=bias, out=plan.buffer(f"y{i}", n_out))
        offset = normal(n_out, seed=50 + i).astype(np.float64) if i % 2 else 0.0
        parts[f"y{i}"] = ty, decode(ty, data).reshape(n_out, n_in).astype(np.float64), offset
    for rows in (1, 3, 16):
        values = normal(rows, n_in, seed=rows)
        for threads in (1, 3) if backend.device == "cpu" else (1,):
            run = Run(backend, plan, threads=threads)({"x": values})
            for name, (ty, weight, offset) in parts.items():
                wanted = values @ weight.T + offset
                assert nmse(run[name], wanted) <= most(backend, ty), name


@pytest.mark.thorough
@over_cards
@pytest.mark.parametrize(
    "types",
    [
        ["Q4_K", "Q6_K", "Q5_K", "Q8_0"],
        ["Q4_K"] * 4,
        ["Q8_0", "Q4_K", "Q4_K", "IQ4_XS"],
        ["IQ4_XS", "Q6_K", "IQ4_NL", "Q5_0"],
        ["F16", "F32", "F16", "BF16"],
    ],
    ids="-".join,
)
def test_four_products_of_one_input_have_the_interpreters_bits(
    backend: Backend, types: list[str]
) -> None:
    n_in = 768
    plan = Plan()
    x, norm = plan.buffer("x", n_in), plan.norm("n", normal(n_in, seed=3), 1e-6)
    # Of several tiles, of one, of less than one.
    for i, (ty, n_out) in enumerate(zip(types, [140, 16, 7, 53], strict=True)):
        data = encode(ty, normal(n_out, n_in, seed=i))
        weight = plan.weight(f"w{i}", ty, data, n_in, n_out)
        bias = plan.vector(f"b{i}", normal(n_out, seed=50 + i)) if i % 2 else None
        out = plan.buffer(f"y{i}", n_out)
        plan.op("mat_vec", x=x, norm=norm, weight=weight, bias=bias, out=out)
    runs = [Run(b, plan) for b in (INTERPRETER, backend)]
    for rows in (1, 3, 40):
        wanted, found = (run({"x": normal(rows, n_in, seed=rows)}) for run in runs)
        for i in range(4):
            assert np.array_equal(bits(found[f"y{i}"]), bits(wanted[f"y{i}"])), (i, rows)


@over_cards
@pytest.mark.parametrize("ty", ["Q4_K", "Q8_0", "F16"])
def test_sums_that_are_taken_apart_have_the_interpreters_bits(backend: Backend, ty: str) -> None:
    """As queries and their gates, head by head, are the rows of one matrix."""
    n_in, n = 256, 3
    for first, second in [(64, 64), (16, 64), (24, 8)]:
        plan = Plan()
        of = first + second
        x = plan.buffer("x", n_in)
        both, k = plan.buffer("both", n * of), plan.buffer("k", 33)
        for out, width in [(both, n * of), (k, 33)]:
            data = encode(ty, normal(width, n_in, seed=width))
            weight = plan.weight(f"w{out}", ty, data, n_in, width)
            plan.op("mat_vec", x=x, weight=weight, bias=None, out=out)
        for name, begin, width in [("q", 0, first), ("gate", first, second)]:
            out = plan.buffer(name, n * width)
            plan.op("slice", x=both, out=out, n=n, first=begin, of=of)
        runs = [Run(b, plan) for b in (INTERPRETER, backend)]
        for rows in (1, 3, 40):
            wanted, found = (run({"x": normal(rows, n_in, seed=rows)}) for run in runs)
            for name in ("q", "gate", "k"):
                assert np.array_equal(bits(found[name]), bits(wanted[name])), (name, rows, of)


@pytest.mark.thorough
@over_backends
@over_types
@pytest.mark.parametrize("scale", SCALES)
def test_a_norm_and_its_products(backend: Backend, ty: str, scale: float) -> None:
    """Two products of one norm, one of another and one of the input as it is."""
    n_in, eps = N_IN[TYPES[ty][0]][-1], 1e-6
    plan = Plan()
    x = plan.buffer("x", n_in)
    scales = [normal(n_in, seed=40 + i) for i in range(2)]
    norms = [plan.norm(f"n{i}", values, eps) for i, values in enumerate(scales)]
    parts = {}
    for i, which in enumerate([0, 0, 1, None]):
        n_out = 33 + i
        data, offset = encode(ty, normal(n_out, n_in, seed=i)), normal(n_out, seed=50 + i)
        plan.op(
            "mat_vec",
            x=x,
            norm=None if which is None else norms[which],
            weight=plan.weight(f"w{i}", ty, data, n_in, n_out),
            bias=plan.vector(f"b{i}", offset),
            out=plan.buffer(f"y{i}", n_out),
        )
        parts[f"y{i}"] = decode(ty, data).reshape(n_out, n_in).astype(np.float64), offset, which
    for rows in (1, 3, 16):
        values = normal(rows, n_in, seed=rows, scale=scale)
        run = Run(backend, plan, threads=2)({"x": values})
        row = values.astype(np.float64)
        normed = row / np.sqrt((row**2).mean(axis=1, keepdims=True) + eps)
        for name, (weight, offset, which) in parts.items():
            read = row if which is None else normed * scales[which]
            wanted = read @ weight.T + offset
            assert nmse(run[name], wanted) <= most(backend, ty), (name, rows)


@over_backends
@pytest.mark.parametrize(("ty", "n_in"), CASES)
def test_embedding_rows_are_copied(backend: Backend, ty: str, n_in: int) -> None:
    plan = Plan()
    data = encode(ty, normal(50, n_in))
    plan.op("embed", weight=plan.weight("w", ty, data, n_in, 50), out=plan.buffer("y", n_in))
    table = decode(ty, data).reshape(50, n_in)
    for tokens in ([0], [49, 0, 7, 7, 1], list(range(50)) * 2):
        found = Run(backend, plan)({}, tokens=tokens)["y"]
        assert np.array_equal(bits(found), bits(table[tokens]))


@over_backends
@pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value")
@pytest.mark.parametrize("ty", [ty for ty, (elems, _) in TYPES.items() if elems > 1])
def test_embedding_rows_of_any_bits(backend: Backend, ty: str) -> None:
    """Scales of every size, of no number too."""
    n_in = N_IN[TYPES[ty][0]][-1]
    plan = Plan()
    data = any_bits(ty, 50 * n_in)
    plan.op("embed", weight=plan.weight("w", ty, data, n_in, 50), out=plan.buffer("y", n_in))
    found = Run(backend, plan)({}, tokens=range(50))["y"]
    assert np.array_equal(canonical(found), canonical(decode(ty, data).reshape(50, n_in)))


@over_backends
@pytest.mark.parametrize("token", [50, 2**31, 2**32 - 1])
def test_a_token_past_the_vocabulary_is_refused(backend: Backend, token: int) -> None:
    plan = Plan()
    weight = plan.weight("w", "F32", normal(50, 8).tobytes(), 8, 50)
    plan.op("embed", weight=weight, out=plan.buffer("y", 8))
    run = Run(backend, plan)
    with pytest.raises(onegraph.ArgumentError) as error:
        run({}, tokens=[3, token])
    assert f"token = {token}" in str(error.value)
    assert "the vocabulary has 50 tokens" in str(error.value)
    assert np.array_equal(run({}, tokens=[3])["y"][0], normal(50, 8)[3])


@over_backends
@over_types
def test_weights_of_the_wrong_length_are_refused(backend: Backend, ty: str) -> None:
    n_in = N_IN[TYPES[ty][0]][0]
    plan = linear(ty, n_in, 7)
    good = plan.weights["w"]
    for bad in (good[:-1], good + b"\0", b""):
        plan.weights["w"] = bad
        with pytest.raises(onegraph.ModelError) as error:
            Run(backend, plan)
        text = str(error.value)
        assert "tensor w" in text and f"found {len(bad)} bytes" in text and str(len(good)) in text
    del plan.weights["w"]
    with pytest.raises(onegraph.ModelError, match="tensor w: found nothing"):
        Run(backend, plan)


def any_bits(ty: str, weights: int) -> bytes:
    """Blocks of random bytes."""
    elems, size = TYPES[ty]
    return np.random.default_rng(elems).bytes(weights // elems * size)


def canonical(x: Floats) -> np.ndarray:
    """Its bits, those of one NaN for all: which NaN an operation gives is not stated."""
    return bits(np.where(np.isnan(x), np.float32(np.nan), x))


def of_both(backend: Backend, plan: Plan, outs: list[str], x: Floats) -> None:
    """The interpreter's bits are the backend's."""
    wanted, found = (Run(b, plan)({"x": x}) for b in (INTERPRETER, backend))
    for name in outs:
        differ = canonical(found[name]) != canonical(wanted[name])
        assert not differ.any(), (name, len(x), np.argwhere(differ)[:5], int(differ.sum()))


#: Rows that take each way through the kernels: one, a few, whole blocks of them, a prompt.
BATCHES = [1, 2, 8, 9, 17, 40, 64, 70, 130]


@pytest.mark.thorough
@over_cards
@pytest.mark.parametrize("normed", [False, True], ids=["plain", "normed"])
@pytest.mark.parametrize(("ty", "n_in"), CASES)
def test_products_have_the_interpreters_bits(
    backend: Backend, ty: str, n_in: int, normed: bool
) -> None:
    """One row, a batch's step, a prompt: the same bits as on the CPU."""
    for n_out, rows in zip(cycle([7, 33, 300]), BATCHES, strict=False):
        plan = Plan()
        x = plan.buffer("x", n_in)
        norm = plan.norm("n", normal(n_in, seed=3), 1e-6) if normed else None
        for i in range(2):
            weight = plan.weight(f"w{i}", ty, encode(ty, normal(n_out, n_in, seed=i)), n_in, n_out)
            bias = plan.vector(f"b{i}", normal(n_out, seed=5)) if i else None
            out = plan.buffer(f"y{i}", n_out)
            plan.op("mat_vec", x=x, norm=norm, weight=weight, bias=bias, out=out)
        of_both(backend, plan, ["y0", "y1"], normal(rows, n_in, seed=rows) * outliers(rows, n_in))


@pytest.mark.thorough
@over_cards
def test_products_of_blocks_of_any_bits(backend: Backend) -> None:
    """Scales of every size, of no number too: the same bits as on the CPU."""
    n_in = 256
    plan = Plan()
    x = plan.buffer("x", n_in)
    types = [ty for ty, (elems, _) in TYPES.items() if elems > 1]
    for ty in types:
        weight = plan.weight(ty, ty, any_bits(ty, 40 * n_in), n_in, 40)
        plan.op("mat_vec", x=x, weight=weight, bias=None, out=plan.buffer(ty, 40))
    for rows in (1, 16):
        of_both(backend, plan, types, normal(rows, n_in, seed=rows))


def outliers(rows: int, n_in: int) -> Floats:
    """Factors: most 1, some 1,000, some zero, a row of the smallest."""
    pick = np.random.default_rng(rows).random((rows, n_in))
    factors = np.where(pick > 0.99, 1000.0, np.where(pick < 0.05, 0.0, 1.0)).astype(np.float32)
    factors[-1] *= np.float32(1e-37 if rows > 1 else 1.0)
    return factors


@pytest.mark.thorough
@over_cards
# The gate before floats is a launch of its own.
@pytest.mark.parametrize("ty", ["Q4_K", "F16", "Q8_0"])
@pytest.mark.parametrize("kind", ["one", "each", "normed"])
def test_a_row_has_the_same_bits_whether_its_gate_is_passed_on_the_way_or_before(
    backend: Backend, kind: str, ty: str
) -> None:
    """The launch of one row is the gate too; of several, and of floats, they are two."""
    n_in, n_out, group = 1280, 33, 128
    plan = Plan()
    x, normed, gated = (plan.buffer(name, n_in) for name in ("x", "normed", "gated"))
    gates = 1 if kind == "one" else n_in
    gate = plan.buffer("gate", gates)
    if kind == "normed":
        weight = plan.vector("norm", 1 + 0.1 * normal(group))
        plan.op("rms_norm", x=x, weight=weight, out=normed, group=group, eps=1e-6)
        plan.op("swi_glu", gate=gate, up=normed, out=gated)
    else:
        plan.op("sigmoid_mul", x=x, gate=gate, out=gated)
    weight = plan.weight("w", ty, encode(ty, normal(n_out, n_in, scale=0.1)), n_in, n_out)
    plan.op("mat_vec", x=gated, weight=weight, bias=None, out=plan.buffer("y", n_out))
    for rows in (1, 2, 9):
        inputs = {"x": normal(rows, n_in, seed=rows), "gate": normal(rows, gates, seed=2, scale=3)}
        wanted, found = (Run(b, plan)(inputs)["y"] for b in (INTERPRETER, backend))
        assert np.array_equal(bits(found), bits(wanted)), rows
