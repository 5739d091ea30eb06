"""A small file whose widths ask for a hundred times its bytes of activations.

Weights of four bits make a wide layer cheap in the file; each row of a prompt takes 32-bit numbers
of that width several times over. Seen as an allocation that fails, which ends the process.
"""

from collections.abc import Iterator

import hostile_gguf
from hostile_gguf import U32, Attack, File, Tensor

Q4_0, BLOCK, BLOCK_BYTES = 2, 32, 18
N_EMBD, N_FF, N_CTX = 32, 1 << 18, 4096

#: Bytes of one buffer of the wide layer for the 256 rows of a forward pass: a quarter of a GiB.
BUFFER = 256 * N_FF * 4


def wide() -> File:
    """One layer, its feed-forward part a quarter of a million wide; all weights are zero."""
    file = File()
    for key, n in [
        ("embedding_length", N_EMBD),
        ("feed_forward_length", N_FF),
        ("context_length", N_CTX),
    ]:
        file.metadata[f"llama.{key}"] = (U32, n)
    for name, tensor in file.tensors.items():
        tensor.dims = [N_EMBD if n == hostile_gguf.N_EMBD else n for n in tensor.dims]
        if name.endswith(("attn_k.weight", "attn_v.weight")):
            tensor.dims = [N_EMBD, N_EMBD // 2]
    for name, dims in [
        ("ffn_gate", [N_EMBD, N_FF]),
        ("ffn_up", [N_EMBD, N_FF]),
        ("ffn_down", [N_FF, N_EMBD]),
    ]:
        held = N_EMBD * N_FF // BLOCK * BLOCK_BYTES
        file.tensors[f"blk.0.{name}.weight"] = Tensor(dims, Q4_0, held=held)
    return file


def attacks() -> Iterator[Attack]:
    yield Attack("wide", wide().bytes(), "memory", "activations of 256 rows")


if __name__ == "__main__":
    hostile_gguf.main(attacks)
