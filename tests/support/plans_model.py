"""A whole small model as a plan: every op, two layers.

`python -m support.plans_model` prints digests of the logits that this machine's CPU gives, a line
for each type and size of chunk: two instruction sets compare by them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from support.backends import Backend
from support.plans import PAGE, TYPES, Floats, Plan, Run, encode, normal

N_EMBD, N_HEAD, N_HEAD_KV, HEAD_DIM, N_FF, N_VOCAB, N_LAYER = 256, 8, 2, 64, 512, 300, 2


@cache
def model(ty: str) -> Plan:
    """Random weights in `ty`, small enough that logits are finite and differ from row to row.

    Reads `tokens`, writes `logits` of the rows that are wanted.
    """
    half = HEAD_DIM // 2
    plan = Plan(
        n_layer=N_LAYER,
        n_head_kv=N_HEAD_KV,
        head_dim=HEAD_DIM,
        inv_freq=(10000.0 ** (-np.arange(half) / half)).tolist(),
    )
    widths = {
        **{"x": N_EMBD, "delta": N_EMBD, "gate": N_FF, "up": N_FF, "act": N_FF},
        **{"q": N_HEAD * HEAD_DIM, "heads": N_HEAD * HEAD_DIM},
        **{"k": N_HEAD_KV * HEAD_DIM, "v": N_HEAD_KV * HEAD_DIM},
    }
    b = {name: plan.buffer(name, width) for name, width in widths.items()}
    b["last"] = plan.buffer("last", N_EMBD, rows="out")
    b["logits"] = plan.buffer("logits", N_VOCAB, rows="out")
    drawn = 0

    def matrix(n_in: int, n_out: int, scale: float) -> int:
        nonlocal drawn
        drawn += 1
        values = normal(n_out, n_in, seed=drawn, scale=scale * n_in**-0.5)
        return plan.weight(f"w{drawn}", ty, encode(ty, values), n_in, n_out)

    def vector(n: int, scale: float = 1.0) -> int:
        nonlocal drawn
        drawn += 1
        return plan.vector(f"w{drawn}", normal(n, seed=drawn, scale=scale))

    def norm() -> dict[str, Any]:
        nonlocal drawn
        drawn += 1
        return plan.norm(f"w{drawn}", normal(N_EMBD, seed=drawn), 1e-5)

    def norm_heads(x: str) -> None:
        fields = {"weight": vector(HEAD_DIM), "group": HEAD_DIM, "eps": 1e-5}
        plan.op("rms_norm", x=b[x], out=b[x], **fields)

    def matvec(
        x: str,
        out: str,
        scale: float = 1.0,
        *,
        norm: dict[str, Any] | None = None,
        bias: bool = False,
    ) -> None:
        n_in, n_out = widths[x], widths[out]
        offset = vector(n_out, 0.1) if bias else None
        weight = matrix(n_in, n_out, scale)
        plan.op("mat_vec", x=b[x], norm=norm, weight=weight, bias=offset, out=b[out])

    widths |= {"last": N_EMBD, "logits": N_VOCAB}
    plan.op("embed", weight=matrix(N_EMBD, N_VOCAB, N_EMBD**0.5), out=b["x"])
    for layer in range(N_LAYER):
        before = norm()
        for part in "qkv":
            matvec("x", part, norm=before, bias=True)
        for part, n_head in [("q", N_HEAD), ("k", N_HEAD_KV)]:
            norm_heads(part)
            plan.op("rope", x=b[part], n_head=n_head, style="halves")
        plan.op("kv_scatter", k=b["k"], v=b["v"], layer=layer)
        plan.op(
            "attention", q=b["q"], out=b["heads"], layer=layer, n_head=N_HEAD, scale=HEAD_DIM**-0.5
        )
        matvec("heads", "delta", 0.5)
        plan.op("add", x=b["delta"], out=b["x"])
        before = norm()
        matvec("x", "gate", norm=before)
        matvec("x", "up", norm=before)
        plan.op("swi_glu", gate=b["gate"], up=b["up"], out=b["act"])
        matvec("act", "delta", 0.5)
        plan.op("add", x=b["delta"], out=b["x"])
    plan.op("select_rows", x=b["x"], out=b["last"])
    matvec("last", "logits", norm=norm())
    return plan


#: The types that a model of these widths may have.
MODEL_TYPES = list(TYPES)


def logits(
    run: Run, tokens: Sequence[int], start: int = 0, slot: int = 0, *, whole: bool = False
) -> Floats:
    """The logits after each of `tokens` from position `start` on, fed in as few chunks as have the
    sums of steps, or, `whole`, as one."""
    found = []
    for piece in run.backend.pieces(len(tokens), len(tokens) if whole else None):
        n = len(piece)
        run(
            {},
            tokens=[tokens[i] for i in piece],
            positions=[start + i for i in piece],
            slots=[slot] * n,
            out_rows=range(n),
        )
        found.append(run["logits"])
    return np.concatenate(found)


def types(backend: Backend) -> list[str]:
    """Those that a test of many types runs on."""
    return ["Q4_K"] if backend.few else MODEL_TYPES


def runner(
    backend: Backend,
    ty: str,
    *,
    n_slots: int = 1,
    threads: int = 1,
    n_ctx: int = 150,
    **options: Any,
) -> Run:
    """The model of one type with room for `n_ctx` tokens a slot."""
    return Run(
        backend,
        model(ty),
        n_slots=n_slots,
        n_ctx=n_ctx,
        n_pages=n_slots * -(-n_ctx // PAGE) + 1,
        threads=threads,
        **options,
    )


def tokens(n: int, seed: int = 0) -> list[int]:
    """Random tokens."""
    return np.random.default_rng(seed).integers(0, N_VOCAB, n).tolist()


def digests() -> list[str]:
    lines = []
    for ty in MODEL_TYPES:
        run = runner(Backend("cpu", nmse=0.0), ty)
        for n in (1, 6, 33):
            found = logits(run, tokens(n, seed=n))
            lines.append(f"{ty} {n} {hashlib.sha256(found.tobytes()).hexdigest()}")
    return lines


if __name__ == "__main__":
    print(*digests(), sep="\n")
