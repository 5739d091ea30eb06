"""A lab for kernels: runs one op at a shape, compares its bits with the interpreter's, times its
kernels and says how far from the roofs of memory and of tensor cores they are.

    python benches/lab.py matvec --type Q4_K --n-in 4096 --n-out 14336 --rows 1
    python benches/lab.py matmul --rows 64,512
    python benches/lab.py attention_fixed --tokens 8192

What a kernel is compiled for is printed too. Matrices are as many copies as a card's cache does not
hold. The time of a kernel is from the end of its predecessor, alone; `replay` is the whole pass. A
change of a kernel or of a row of shapes (ONEGRAPH_SHAPES, see tune.py) is seen at once; what is
faster here has to be in whole steps.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onegraph import _native, nvrtc

sys.path.append(str(Path(__file__).resolve().parents[1] / "models"))
import synth

Floats = NDArray[np.float32]

#: Dense float16 products of tensor cores, 10^12 operations a second: NVIDIA's data sheets.
TENSOR_PEAKS = {"H200": 989.0, "H100": 989.0, "A100": 312.0}

#: Tokens of a page of keys and values.
PAGE = 64

#: Bytes of weights that no cache of a card holds.
COLD_BYTES = 256 << 20


def block_of(ty: str) -> tuple[int, int]:
    """Weights of a block of a type, and its bytes; of one that is floats there is one."""
    return next((elems, size) for name, _, elems, size, _ in _native.quant_types() if name == ty)


class Op:
    """A plan of one op, several times over, and what goes into it."""

    def __init__(self, **kv: int) -> None:
        caches = [kv] if kv else []
        self.plan: dict[str, Any] = {
            "buffers": [],
            "weights": [],
            "ops": [],
            "ropes": [],
            "kv": caches,
        }
        self.plan |= {"states": [], "logits": 0}
        self.weights: dict[str, bytes] = {}
        self.inputs: list[str] = []
        self.outputs: list[str] = []
        #: Operations of a row, of all copies.
        self.operations = 0
        #: Whether its float32 operations are all stated, so that every bit is the interpreter's.
        self.is_exact = False

    def buffer(self, name: str, width: int) -> int:
        self.plan["buffers"].append({"name": name, "width": width, "rows": "batch"})
        return len(self.plan["buffers"]) - 1

    def weight(self, name: str, ty: str, n_in: int, n_out: int = 1) -> int:
        rng = np.random.default_rng(len(self.weights))
        if ty == "F32":
            self.weights[name] = rng.standard_normal(n_in * n_out).astype("<f4").tobytes()
        else:
            elems, size = block_of(ty)
            if n_in % elems:
                raise SystemExit(f"--n-in {n_in}: rows of {ty} have a multiple of {elems} weights")
            blocks = rng.integers(0, 256, (n_in * n_out // elems, size), dtype=np.uint8)
            synth.kind_of(ty).fill(blocks, n_in**-0.5)
            self.weights[name] = blocks.tobytes()
        self.plan["weights"].append({"name": name, "n_in": n_in, "n_out": n_out, "ty": ty})
        return len(self.plan["weights"]) - 1

    def add(self, op: str, **fields: Any) -> None:
        self.plan["ops"].append({"op": op, **fields})


def product(args: argparse.Namespace) -> Op:
    op = Op()
    op.is_exact = block_of(args.type)[0] > 1
    copies = args.copies
    for i in range(copies or 1024):
        # Products of one x would be one launch.
        x = op.buffer(f"x{i}", args.n_in)
        op.inputs.append(f"x{i}")
        weight = op.weight(f"w{i}", args.type, args.n_in, args.n_out)
        out = op.buffer(f"y{i}", args.n_out)
        op.add("mat_vec", x=x, norm=None, weight=weight, bias=None, out=out)
        op.outputs.append(f"y{i}")
        op.operations += 2 * args.n_in * args.n_out
        if not copies and sum(map(len, op.weights.values())) >= COLD_BYTES:
            break
    return op


def attention(args: argparse.Namespace) -> Op:
    op = Op(n_head_kv=args.heads_kv, head_dim=args.head_dim)
    q, out = (op.buffer(name, args.heads * args.head_dim) for name in ("q", "heads"))
    k, v = (op.buffer(name, args.heads_kv * args.head_dim) for name in ("k", "v"))
    op.inputs, op.outputs = ["q", "k", "v"], ["heads"]
    op.add("kv_scatter", k=k, v=v, layer=0)
    scale = args.head_dim**-0.5
    shape = {"layer": 0, "n_head": args.heads, "scale": scale}
    op.add("attention", q=q, out=out, window=None, sinks=None, **shape)
    op.operations = 4 * args.heads * args.head_dim * args.tokens
    return op


def rms_norm(args: argparse.Namespace) -> Op:
    op = Op()
    x, out = op.buffer("x", args.n_in), op.buffer("y", args.n_in)
    op.inputs, op.outputs = ["x"], ["y"]
    weight = op.weight("norm", "F32", args.n_in)
    op.add("rms_norm", x=x, weight=weight, out=out, group=args.n_in, eps=1e-5)
    return op


def swiglu(args: argparse.Namespace) -> Op:
    op = Op()
    gate, up, out = (op.buffer(name, args.n_in) for name in ("gate", "up", "act"))
    op.inputs, op.outputs = ["gate", "up"], ["act"]
    op.add("swi_glu", gate=gate, up=up, out=out)
    return op


#: A kernel: what makes its op, and rows for which it is chosen.
KERNELS: dict[str, tuple[Callable[[argparse.Namespace], Op], str]] = {
    "matvec": (product, "1"),
    "matvec_floats": (product, "1"),
    "skinny": (product, "2,8"),
    "matmul": (product, "64,512"),
    "attention_fixed": (attention, "1"),
    "prompt_attention_fixed": (attention, "512"),
    "rms_norm": (rms_norm, "1,512"),
    "swiglu": (swiglu, "1,512"),
}


def run(op: Op, device: str, rows: int, args: argparse.Namespace) -> tuple[Any, dict[str, Floats]]:
    """One pass, and what it left."""
    n_ctx = -(-max(args.tokens, rows) // PAGE) * PAGE
    more = {} if device == "cpu" else {"capture": True, "nvrtc_folders": nvrtc.folders()}
    n_pages = n_ctx // PAGE + 1
    runner = _native.PlanRunner(
        device,
        json.dumps(op.plan),
        op.weights,
        n_ctx=n_ctx,
        n_pages=n_pages,
        kv_type=args.kv_type,
        **more,
    )
    runner.map_pages(0, 0, list(range(1, n_pages)))
    for i, name in enumerate(op.inputs):
        width = next(b["width"] for b in op.plan["buffers"] if b["name"] == name)
        values = np.random.default_rng(i).standard_normal((rows, width))
        runner.write(name, values.astype("<f4").tobytes())
    # The last rows of a text, so that a step has all of the tokens before it.
    first = max(args.tokens, rows) - rows
    runner.forward([0] * rows, list(range(first, first + rows)), [0] * rows, [])
    return runner, {name: np.frombuffer(runner.read(name), "<f4") for name in op.outputs}


def compare(found: dict[str, Floats], wanted: dict[str, Floats]) -> tuple[int, float]:
    """How many numbers have other bits, and the largest normalized mean square error."""
    wrong, worst = 0, 0.0
    for name, values in wanted.items():
        wrong += int((found[name].view(np.uint32) != values.view(np.uint32)).sum())
        error = (found[name].astype(np.float64) - values) ** 2
        worst = max(
            worst, float(error.sum() / max(float((values.astype(np.float64) ** 2).sum()), 1e-300))
        )
    return wrong, worst


def measure(
    args: argparse.Namespace, rows: int, card: dict[str, Any], peak: float
) -> dict[str, Any]:
    make, _ = KERNELS[args.kernel]
    op = make(args)
    runner, found = run(op, "cuda", rows, args)
    profile = json.loads(runner.profile(args.repeats))
    names = sorted({kernel["kernel"] for kernel in profile["kernels"]})
    if args.kernel not in names:
        raise SystemExit(
            f"--rows {rows}: {args.kernel} is not chosen there, but {', '.join(names)}"
        )
    wrong, error = compare(found, run(op, "cpu", rows, args)[1])
    tensor = next(
        (tflops for name, tflops in TENSOR_PEAKS.items() if name in card["name"]), args.tensor_peak
    )
    kernels = []
    for name in names:
        alike = [kernel for kernel in profile["kernels"] if kernel["kernel"] == name]
        first, us = alike[0], median(kernel["us"] for kernel in alike)
        moved = first["bytes"] + first["rows"]
        if name.endswith("attention_fixed"):
            heads = 2 * args.heads_kv * args.head_dim
            moved += args.tokens * heads * (1 if args.kv_type.lower() == "q8_0" else 2)
        operations = rows * op.operations // len(alike) if name == args.kernel else 0
        kernels.append(
            {key: first[key] for key in ("kernel", "label", "grid", "block", "shared", "constants")}
            | {"launches": len(alike), "us": us, "moved": moved, "operations": operations}
            | {"memory_us": moved / peak * 1e6, "gb_s": moved / us / 1e3 if us else 0.0}
            | {"tensor_us": operations / tensor / 1e6 if tensor else None}
        )
    result = {"rows": rows, "wrong": wrong, "error": error, "is_exact": op.is_exact}
    result["ok"] = wrong == 0 if op.is_exact else error < 1e-10
    return result | {"replay_us": profile["replay_us"], "kernels": kernels}


def show(args: argparse.Namespace, found: dict[str, Any], peak: float) -> None:
    bar = "the interpreter's bits" if found["is_exact"] else "the interpreter's values to 1e-10"
    rows, said = found["rows"], "ok" if found["ok"] else "MISSED"
    print(f"\n{rows} rows: {bar}: {found['wrong']} differ, error {found['error']:.1e}: {said}")
    print(f"replay {found['replay_us']:.2f} us")
    for k in found["kernels"]:
        print(f"{k['label']}: {k['launches']} launches, {k['us']:.2f} us each")
        print(f"  grid {k['grid']}, block {k['block']}, {k['shared']:,} B of shared memory")
        share = 100 * k["memory_us"] / k["us"] if k["us"] else 0.0
        print(
            f"  memory: {k['moved'] / 1e6:.3f} MB, {k['gb_s']:.0f} GB/s; at {peak / 1e9:.0f} GB/s "
            f"{k['memory_us']:.2f} us, {share:.0f}% of the roof"
        )
        if k["operations"]:
            print(f"  tensor cores: {k['operations'] / 1e9:.3f} G operations", end="")
            if k["tensor_us"] is None:
                print("; no figure for this card: --tensor-peak")
            else:
                share = 100 * k["tensor_us"] / k["us"] if k["us"] else 0.0
                print(f"; at the peak {k['tensor_us']:.2f} us, {share:.0f}% of the roof")
        print("  " + ", ".join(f"{name} {value}" for name, value in k["constants"]))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kernel", choices=KERNELS)
    parser.add_argument("--rows", help="numbers of rows, joined by commas")
    parser.add_argument("--type", help="of weights", default=None)
    parser.add_argument("--n-in", type=int, default=4096)
    parser.add_argument("--n-out", type=int, default=4096)
    parser.add_argument("--copies", type=int, help="of the op; as many as no cache holds")
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--heads-kv", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument(
        "--tokens", type=int, default=PAGE, help="that the last row of attention sees"
    )
    parser.add_argument("--kv-type", default=_native.DEFAULT_KV_TYPE)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument(
        "--tensor-peak", type=float, help="10^12 operations a second, of other cards"
    )
    parser.add_argument("--peak-bytes", type=int, help="bytes that the read peak is measured with")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    if args.type is None:
        args.type = "F16" if args.kernel == "matvec_floats" else "Q4_K"
    if (block_of(args.type)[0] > 1) == (args.kernel == "matvec_floats"):
        parser.error(f"--type {args.type}: {args.kernel} has no weights of it")
    cards = json.loads(_native.cuda_devices(nvrtc.folders()))
    if not cards["cards"]:
        parser.error(f"a lab needs a card: {cards['error']}")
    card = cards["cards"][0]
    peak, _ = _native.cuda_read_peak(0, nvrtc.folders(), args.peak_bytes)
    rows = [int(n) for n in (args.rows or KERNELS[args.kernel][1]).split(",")]
    found = [measure(args, n, card, peak) for n in rows]
    if args.json:
        shapes = card["shapes"]
        print(
            json.dumps({"card": card["name"], "shapes": shapes, "read_peak": peak, "rows": found})
        )
    else:
        print(f"{args.kernel} on {card['name']} ({card['arch']})")
        for one in found:
            show(args, one, peak)
    return 0 if all(one["ok"] for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
