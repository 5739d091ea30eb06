"""Shapes of models: `shapes.toml` as typed records, and the tensors each architecture has."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

PATH = Path(__file__).with_name("shapes.toml")


@dataclass(frozen=True)
class Shape:
    """One table of `shapes.toml`; see there."""

    name: str
    arch: str
    pre: str
    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_vocab: int
    n_ctx: int
    eps: float
    rope_base: float
    rope_scaling: dict[str, Any]
    tied: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    n_expert: int = 0
    n_expert_used: int = 0
    n_ff_exp: int = 0

    def tensors(self) -> list[tuple[str, tuple[int, ...]]]:
        """Name and GGUF shape (row length first) of every tensor, in file order."""
        q, kv = self.n_head * self.head_dim, self.n_head_kv * self.head_dim
        out: list[tuple[str, tuple[int, ...]]] = []
        if not self.tied:
            out.append(("output.weight", (self.n_embd, self.n_vocab)))
        out.append(("token_embd.weight", (self.n_embd, self.n_vocab)))
        out.append(("output_norm.weight", (self.n_embd,)))
        if self.rope_scaling.get("type") == "llama3":
            out.append(("rope_freqs.weight", (self.head_dim // 2,)))
        for layer in range(self.n_layer):
            block: list[tuple[str, tuple[int, ...]]] = [
                ("attn_norm.weight", (self.n_embd,)),
                ("attn_q.weight", (self.n_embd, q)),
                ("attn_k.weight", (self.n_embd, kv)),
                ("attn_v.weight", (self.n_embd, kv)),
                ("attn_output.weight", (q, self.n_embd)),
                ("ffn_norm.weight", (self.n_embd,)),
            ]
            if self.n_expert:
                block += [
                    ("ffn_gate_inp.weight", (self.n_embd, self.n_expert)),
                    ("ffn_gate_exps.weight", (self.n_embd, self.n_ff_exp, self.n_expert)),
                    ("ffn_up_exps.weight", (self.n_embd, self.n_ff_exp, self.n_expert)),
                    ("ffn_down_exps.weight", (self.n_ff_exp, self.n_embd, self.n_expert)),
                ]
            else:
                block += [
                    ("ffn_gate.weight", (self.n_embd, self.n_ff)),
                    ("ffn_up.weight", (self.n_embd, self.n_ff)),
                    ("ffn_down.weight", (self.n_ff, self.n_embd)),
                ]
            if self.qkv_bias:
                block += [("attn_q.bias", (q,)), ("attn_k.bias", (kv,)), ("attn_v.bias", (kv,))]
            if self.qk_norm:
                block += [(f"attn_{x}_norm.weight", (self.head_dim,)) for x in "qk"]
            out += [(f"blk.{layer}.{name}", shape) for name, shape in block]
        return out


def load(path: Path = PATH) -> dict[str, Shape]:
    """Every shape of the file, by name."""
    known = {f.name for f in fields(Shape)}
    shapes = {}
    for name, table in tomllib.loads(path.read_text()).items():
        if unknown := set(table) - known:
            raise ValueError(f"{path.name}: [{name}] has unknown keys {sorted(unknown)}")
        table.setdefault("head_dim", table["n_embd"] // table["n_head"])
        table.setdefault("rope_scaling", {})
        shapes[name] = Shape(name=name, **table)
    return shapes


def find(name: str) -> Shape:
    """The shape of that name, case ignored."""
    shapes = load()
    if name.lower() not in shapes:
        raise ValueError(f"no shape {name!r}; there are {', '.join(shapes)}")
    return shapes[name.lower()]
