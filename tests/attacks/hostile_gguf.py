"""Writes GGUF files that no honest program would, byte by byte. Needs nothing but Python.

Each script beside this one is one class of attack that worked on some engine. Run
`python tests/attacks/NAME.py FOLDER` to get its files and try them on any program.
"""

import json
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
FORMATS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B"}
FORMATS |= {U64: "Q", I64: "q", F64: "d"}

N_EMBD, N_FF, N_VOCAB = 8, 12, 6


@dataclass
class Attack:
    """One hostile file and what must come of it."""

    name: str
    data: bytes
    #: What refuses it: "plan", "tokenizer" or "chat"; "memory" where only a limit on memory does;
    #: "encode", "turns" and "finite" are for a valid file.
    door: str
    #: A pattern in the error's message; for a valid file, the text to encode or the messages.
    expect: str = ""
    #: The error's class.
    error: str = "ModelError"


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def array(kind: int, items: list[Any], length: int | None = None) -> bytes:
    """An array; `length` is what its header claims."""
    body = b"".join(value(kind, x) for x in items)
    return struct.pack("<IQ", kind, len(items) if length is None else length) + body


def value(kind: int, x: Any) -> bytes:
    if kind == STRING:
        return string(x)
    if kind == ARRAY:
        return bytes(x)
    return struct.pack("<" + FORMATS[kind], x)


@dataclass
class Tensor:
    """A record; `offset` None puts it behind the one before, `held` are the bytes the file has."""

    dims: list[int]
    kind: int = 0
    offset: int | None = None
    #: Every value, of a tensor of float32.
    fill: float = 0.0
    held: int | None = None


@dataclass
class File:
    """A small valid llama; change what you like."""

    metadata: dict[str, tuple[int, Any]] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    n_tensors: int | None = None
    n_keys: int | None = None
    version: int = 3

    def __post_init__(self) -> None:
        counts = {
            "block_count": 1,
            "context_length": 32,
            "embedding_length": N_EMBD,
            "feed_forward_length": N_FF,
            "attention.head_count": 2,
            "attention.head_count_kv": 1,
        }
        self.metadata = {
            "general.architecture": (STRING, "llama"),
            **{f"llama.{key}": (U32, n) for key, n in counts.items()},
            "llama.attention.layer_norm_rms_epsilon": (F32, 1e-5),
            "tokenizer.ggml.model": (STRING, "gpt2"),
            "tokenizer.ggml.pre": (STRING, "gpt-2"),
            "tokenizer.ggml.tokens": (ARRAY, array(STRING, ["a", "b", "ab", "c", "d", "</s>"])),
            "tokenizer.ggml.token_type": (ARRAY, array(I32, [1, 1, 1, 1, 1, 3])),
            "tokenizer.ggml.merges": (ARRAY, array(STRING, ["a b"])),
            "tokenizer.ggml.eos_token_id": (U32, 5),
        }
        kv = N_EMBD // 2
        shapes = {
            "token_embd": [N_EMBD, N_VOCAB],
            "blk.0.attn_norm": [N_EMBD],
            "blk.0.attn_q": [N_EMBD, N_EMBD],
            "blk.0.attn_k": [N_EMBD, kv],
            "blk.0.attn_v": [N_EMBD, kv],
            "blk.0.attn_output": [N_EMBD, N_EMBD],
            "blk.0.ffn_norm": [N_EMBD],
            "blk.0.ffn_gate": [N_EMBD, N_FF],
            "blk.0.ffn_up": [N_EMBD, N_FF],
            "blk.0.ffn_down": [N_FF, N_EMBD],
            "output_norm": [N_EMBD],
        }
        self.tensors = {f"{name}.weight": Tensor(dims) for name, dims in shapes.items()}

    def bytes(self) -> bytes:
        n_tensors = len(self.tensors) if self.n_tensors is None else self.n_tensors
        n_keys = len(self.metadata) if self.n_keys is None else self.n_keys
        out = b"GGUF" + struct.pack("<IQQ", self.version, n_tensors, n_keys)
        for key, (kind, x) in self.metadata.items():
            out += string(key) + struct.pack("<I", kind) + value(kind, x)
        data = b""
        for name, t in self.tensors.items():
            out += string(name) + struct.pack("<I", len(t.dims))
            out += b"".join(struct.pack("<Q", n) for n in t.dims)
            offset = len(data) if t.offset is None else t.offset
            out += struct.pack("<IQ", t.kind, offset)
            size = 4
            for n in t.dims:
                size *= n
            # What a record claims may be beyond all bounds; the file holds 64 KiB of it at most.
            held = min(size, 1 << 16) if t.held is None else t.held
            data += (struct.pack("<f", t.fill) * (held // 4)).ljust(held + -held % 32, b"\0")
        out += bytes(-len(out) % 32)
        return out + data


def model(change: Callable[[File], object]) -> bytes:
    """The small model after a change."""
    file = File()
    change(file)
    return file.bytes()


def main(attacks: Callable[[], Iterator[Attack]]) -> None:
    """Writes the files and a list of them into the folder named on the command line."""
    if len(sys.argv) != 2:
        sys.exit(f"usage: python {sys.argv[0]} FOLDER")
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for attack in attacks():
        (folder / f"{attack.name}.gguf").write_bytes(attack.data)
        rows.append({key: x for key, x in asdict(attack).items() if key != "data"})
    (folder / "attacks.json").write_text(json.dumps(rows, indent=1))
    print(f"{len(rows)} files in {folder}")
