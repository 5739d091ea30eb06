"""Plans written by hand, and a NumPy face for `PlanRunner`.

plan = Plan()
x, y = plan.buffer("x", 64), plan.buffer("y", 3)
plan.op("mat_vec", x=x, weight=plan.weight("w", "Q8_0", blocks, 64, 3), bias=None, out=y)
run = Run(backend, plan)
y = run({"x": values})["y"]       # float32 [rows, 3]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from onegraph import _native, nvrtc

from support.backends import Backend

Floats = NDArray[np.float32]

#: Tokens in a KV page.
PAGE = 64

#: name -> (block elements, block bytes) of every type of the table.
TYPES = {name: (elems, size) for name, _, elems, size, _ in _native.quant_types()}
#: Whether a type has a quantizer.
WRITTEN = {row[0]: row[4] for row in _native.quant_types()}
#: Scales of inputs that an op must not mind.
SCALES = [1e-6, 1e-3, 1.0, 1e3, 1e6]
#: Rows of a batch: below, at and above what kernels treat alike.
ROWS = [1, 2, 3, 4, 5, 8, 64, 100]
#: The types that keys and values may have.
KV_TYPES = _native.kv_types(on_card=False)


def head_bytes(kv_type: str, head_dim: int) -> int | None:
    """Bytes of a head of keys or values; none where the type holds none of that width."""
    if kv_type in ("I16", "Q8_0"):
        # Beside each block of up to 128 or 32 two bytes.
        size, block = (2, 128) if kv_type == "I16" else (1, 32)
        return size * head_dim - 2 * (head_dim // -block)
    elems, size = TYPES[kv_type]
    return head_dim // elems * size if head_dim % elems == 0 else None


class Plan:
    """A plan under construction, with the bytes of its weights."""

    def __init__(
        self,
        *,
        n_layer: int = 1,
        n_head_kv: int = 1,
        head_dim: int = 32,
        values_in_keys: int | None = None,
        inv_freq: Sequence[float] = (),
        rope_scale: float = 1.0,
    ) -> None:
        self.weights: dict[str, bytes] = {}
        cache = {"n_head_kv": n_head_kv, "head_dim": head_dim, "values_in_keys": values_in_keys}
        self._plan: dict[str, Any] = {
            "buffers": [],
            "weights": [],
            "ops": [],
            "ropes": [],
            "kv": [cache] * n_layer,
            "states": [],
            "logits": 0,
        }
        self.rope_table(inv_freq, rope_scale)

    def rope_table(
        self,
        inv_freq: Sequence[float],
        scale: float = 1.0,
        temperature: dict[str, float] | None = None,
    ) -> int:
        """A table of angles."""
        table = {"inv_freq": list(inv_freq), "factors": None, "scale": scale}
        self._plan["ropes"].append(table | {"temperature": temperature})
        return len(self._plan["ropes"]) - 1

    def cache(self, n_head_kv: int, head_dim: int) -> int:
        """One layer more, with a cache of this shape."""
        self._plan["kv"].append({"n_head_kv": n_head_kv, "head_dim": head_dim})
        return len(self._plan["kv"]) - 1

    def state(self, name: str, width: int) -> int:
        """What a sequence keeps from token to token: so many float32 numbers."""
        self._plan["states"].append({"name": name, "width": width})
        return len(self._plan["states"]) - 1

    def buffer(self, name: str, width: int, *, rows: str = "batch") -> int:
        """A float32 buffer `[rows, width]`; `rows` is "batch" or "out"."""
        self._plan["buffers"].append({"name": name, "width": width, "rows": rows})
        return len(self._plan["buffers"]) - 1

    def weight(self, name: str, ty: str, data: bytes, n_in: int, n_out: int = 1) -> int:
        """A tensor `[n_out, n_in]` in the encoding `ty`."""
        self.weights[name] = data
        self._plan["weights"].append({"name": name, "n_in": n_in, "n_out": n_out, "ty": ty})
        return len(self._plan["weights"]) - 1

    def vector(self, name: str, values: Floats) -> int:
        """A float32 vector."""
        return self.weight(name, "F32", np.asarray(values, "<f4").tobytes(), len(values))

    def norm(self, name: str, values: Floats, eps: float) -> dict[str, Any]:
        """A norm over rows, for the products that it is part of."""
        return {"weight": self.vector(name, values), "eps": eps}

    def rope_factors(self, values: Floats) -> None:
        """Divisors of the frequencies of the first rope table."""
        self._plan["ropes"][0]["factors"] = self.vector("rope_factors", values)

    def op(self, name: str, **fields: Any) -> None:
        """Appends an op; one that rotates heads has the first table by default."""
        if name == "rope":
            fields = {"table": 0, **fields}
        self._plan["ops"].append({"op": name, **fields})

    def json(self) -> str:
        return json.dumps(self._plan)


class Run:
    """A plan on a backend; on a GPU each pass is a replay, and `options` are more of its own. The
    slots' pages are mapped in order unless `mapped` is false."""

    def __init__(
        self,
        backend: Backend,
        plan: Plan,
        *,
        n_slots: int = 1,
        n_ctx: int = PAGE,
        n_pages: int | None = None,
        kv_type: str = "I16",
        threads: int = 1,
        mapped: bool = True,
        **options: Any,
    ) -> None:
        self.backend = backend
        if backend.device != "cpu":
            options = {"capture": True, "nvrtc_folders": nvrtc.folders()} | options
        per_slot = -(-n_ctx // PAGE)
        n_pages = n_slots * per_slot + 1 if n_pages is None else n_pages
        self.native = _native.PlanRunner(
            backend.device,
            plan.json(),
            plan.weights,
            n_slots=n_slots,
            n_ctx=n_ctx,
            n_pages=n_pages,
            kv_type=kv_type,
            threads=threads,
            **options,
        )
        self._widths = {b["name"]: b["width"] for b in plan._plan["buffers"]}
        if mapped:
            for slot in range(n_slots):
                self.map(slot, range(1 + slot * per_slot, 1 + (slot + 1) * per_slot))

    def map(self, slot: int, pages: Sequence[int], first: int = 0) -> None:
        """Gives `pages` to `slot`, from its page `first` on."""
        self.native.map_pages(slot, first, list(pages))

    def __call__(
        self,
        inputs: Mapping[str, Floats],
        *,
        tokens: Sequence[int] | None = None,
        positions: Sequence[int] | None = None,
        slots: Sequence[int] | None = None,
        out_rows: Sequence[int] = (),
        types: Sequence[int] = (),
    ) -> Run:
        """Sets `inputs`, each `[rows, width]`, and runs every op once."""
        if tokens is None:
            tokens = [0] * (len(positions) if positions is not None else rows_of(inputs))
        for name, values in inputs.items():
            assert values.shape[1] == self._widths[name], (name, values.shape)
            self.native.write(name, np.ascontiguousarray(values, "<f4").tobytes())
        positions = [0] * len(tokens) if positions is None else positions
        slots = [0] * len(tokens) if slots is None else slots
        self.native.forward(list(tokens), list(positions), list(slots), list(out_rows), list(types))
        return self

    def __getitem__(self, name: str) -> Floats:
        """A buffer after the run, float32 `[rows, width]`."""
        return np.frombuffer(self.native.read(name), "<f4").reshape(-1, self._widths[name])

    def state(self, slot: int) -> Floats:
        """What the sequence in `slot` keeps beside keys and values."""
        return np.frombuffer(self.native.read_state(slot), "<f4")

    def set_state(self, slot: int, values: Floats) -> None:
        """Gives `slot` what `state` gave, of any slot."""
        self.native.write_state(slot, values.astype("<f4").tobytes())

    @property
    def kv(self) -> NDArray[np.uint8]:
        """Every byte of the KV pool."""
        return np.frombuffer(self.native.read_kv(), np.uint8)

    @kv.setter
    def kv(self, pool: NDArray[np.uint8]) -> None:
        self.native.write_kv(pool.tobytes())


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> Floats:
    """Standard normal numbers times `scale`."""
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def rows_of(inputs: Mapping[str, Floats]) -> int:
    (rows,) = {len(values) for values in inputs.values()}
    return rows


def bits(values: Floats) -> NDArray[np.uint32]:
    """The bits of float32 values: NaN equals itself, the two zeros differ."""
    return np.ascontiguousarray(values, "<f4").view(np.uint32)


def nmse(
    found: NDArray[Any], exact: NDArray[Any], energy: NDArray[np.float64] | None = None
) -> float:
    """Mean square error over mean square.

    `energy`, the sum of the squares of each cell's terms, is the mean square of sums of terms with
    such sizes and random signs. It stands in for that of `exact` where cells are so few that one
    whose terms cancel, and whose own square says nothing, would decide.
    """
    found, exact = np.asarray(found, np.float64), np.asarray(exact, np.float64)
    # Scaled first: the squares of 1e300 and 1e-300 are no numbers.
    size = float(np.abs(exact).max(initial=0.0)) or 1.0
    error, square = ((found - exact) / size) ** 2, (exact / size) ** 2
    if energy is not None:
        square = energy / size / size
    return float(error.sum() / (square.sum() or 1.0))


def encode(ty: str, values: Floats) -> bytes:
    """Values in the encoding `ty`; of a type that is read alone, as many of their deviation."""
    if not WRITTEN[ty]:
        elems, size = TYPES[ty]
        rng = np.random.default_rng(values.size)
        blocks = rng.integers(0, 256, (values.size // elems, size), dtype=np.uint8)
        # Processes of a test's own know this folder alone.
        sys.path.append(str(Path(__file__).resolve().parents[2] / "models"))
        import synth

        synth.kind_of(ty).fill(blocks, float(values.std()))
        return blocks.tobytes()
    return _native.quantize(ty, np.ascontiguousarray(values, np.float32).reshape(-1))


def decode(ty: str, data: bytes) -> Floats:
    """What the bytes of encoding `ty` stand for, by the `gguf` package."""
    size = TYPES[ty][1]
    blocks = np.frombuffer(data, np.uint8).reshape(-1, size)
    values = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[ty])
    return np.asarray(values, np.float32).reshape(-1)


def rounded(ty: str, values: Floats) -> Floats:
    """Values as a round trip through `ty` leaves them."""
    return decode(ty, encode(ty, values)).reshape(values.shape)
