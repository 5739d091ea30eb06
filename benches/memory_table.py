"""The table of what models need: files of the true shapes (models/shapes.toml) and what
`onegraph info` says of each on the CPU, as Markdown.

    python benches/memory_table.py

The files hold no weights, only room for them, so that nothing large is written. Keys and values are
those of `kv_type="i16"`, as large as float16. Each thread has scratch of its own: figures are those
of one core, so that every machine prints the same.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from onegraph import _native
from onegraph.cli.terminal import size

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "models"))

import shapes  # noqa: E402 (found through the line above)
import synth  # noqa: E402

#: Name for people, shape and mix of each row.
MODELS = [
    ("SmolLM2 135M", "smollm2-135m", "Q8_0"),
    ("Qwen3 0.6B", "qwen3-0.6b", "Q8_0"),
    ("Llama 3.2 1B", "llama-3.2-1b", "Q4_K_M"),
    ("Qwen2.5 1.5B", "qwen2.5-1.5b", "Q4_K_M"),
    ("Llama 3.2 3B", "llama-3.2-3b", "Q4_K_M"),
    ("Qwen3 4B", "qwen3-4b", "Q4_K_M"),
    ("Gemma 3 4B", "gemma-3-4b", "Q4_K_M"),
    ("Gemma 4 E4B", "gemma-4-e4b", "Q4_K_M"),
    ("Gemma 4 12B", "gemma-4-12b", "Q4_K_M"),
    ("Granite 3.3 2B", "granite-3.3-2b", "Q4_K_M"),
    ("LFM2 1.2B", "lfm2-1.2b", "Q4_K_M"),
    ("LFM2 8B-A1B", "lfm2-8b-a1b", "Q4_K_M"),
    ("Ministral 3 8B", "ministral-3-8b", "Q4_K_M"),
    ("OLMo 3 7B", "olmo-3-7b", "Q4_K_M"),
    ("Llama 3.1 8B", "llama-3.1-8b", "Q4_K_M"),
    ("Qwen3 8B", "qwen3-8b", "Q4_K_M"),
    ("Hunyuan 7B", "hunyuan-7b", "Q4_K_M"),
    ("GLM-4 9B", "glm-4-9b", "Q4_K_M"),
    ("Command R7B", "command-r7b", "Q4_K_M"),
    ("Llama 3.1 8B", "llama-3.1-8b", "Q8_0"),
    ("Phi-4 14B", "phi-4", "Q4_K_M"),
    ("gpt-oss 20B", "gpt-oss-20b", "MXFP4"),
    ("Qwen3.5 27B", "qwen3.5-27b", "Q4_K_M"),
    ("Qwen3 30B-A3B", "qwen3-30b-a3b", "Q4_K_M"),
    ("Qwen3.5 35B-A3B", "qwen3.5-35b-a3b", "Q4_K_M"),
    ("DeepSeek-V2-Lite", "deepseek-v2-lite", "Q4_K_M"),
    ("GLM-4.7-Flash", "glm-4.7-flash", "Q4_K_M"),
    ("Laguna XS.2", "laguna-xs.2", "Q4_K_M"),
    ("Nemotron 3 Nano 30B-A3B", "nemotron-3-nano-30b-a3b", "Q4_K_M"),
    ("Granite 4.0 H Tiny", "granite-4.0-h-tiny", "Q4_K_M"),
    ("Seed-OSS 36B", "seed-oss-36b", "Q4_K_M"),
    ("EXAONE 4.0 32B", "exaone-4.0-32b", "Q4_K_M"),
    ("Qwen3-Next 80B-A3B", "qwen3-next-80b-a3b", "Q4_K_M"),
    ("Qwen3.8-Flash-Next", "qwen3.8-flash-next", "Q4_K_M"),
    ("GLM-4.5-Air", "glm-4.5-air", "Q4_K_M"),
    ("DeepSeek-R1 671B", "deepseek-r1", "Q4_K_M"),
]
#: Tokens of the conversation that is told.
CONTEXT = 8192


def row(name: str, shape: str, mix: str, folder: Path) -> list[str]:
    """What `onegraph info FILE --n-ctx 8192 --max-batch 1 --kv-type i16` says."""
    path = folder / f"{shape}.gguf"
    synth.outline(path, shapes.find(shape), mix)
    told = json.loads(_native.model_info(path, CONTEXT, 1, "i16", "cpu"))
    path.unlink()
    memory = told["memory"]
    each = told["decode"]["kv_bytes_per_position"] * 1024
    return [
        name,
        mix,
        size(memory["weights_bytes"]),
        size(each),
        size(memory["total_bytes"]),
    ]


def table() -> str:
    """The whole, as Markdown."""
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    heads = ["model", "types", "weights", "keys and values of 1,024 tokens"]
    heads.append(f"in all, one conversation of {CONTEXT:,}")
    with tempfile.TemporaryDirectory() as folder:
        rows = [row(*model, Path(folder)) for model in MODELS]
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    print(table())
