"""Models that say what a test wants: llama files whose next token depends on the last alone."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from onegraph import LLM
from onegraph.sampling import resolve
from onegraph.streams import Job

#: A template that shows tools and writes calls as Hermes does, and ends a prompt with the token
#: that begins the answer of that number.
HERMES = (
    "{% if tools %}tools: {% for tool in tools %}{{ tool | tojson }}\n{% endfor %}{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls %}"
    '<tool_call>\n{"name": {{ c.function.name | tojson }}, "arguments": '
    "{{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "<|turn{{ messages | selectattr('role', 'equalto', 'assistant') | list | length }}|>"
    "{% endif %}"
)

N_HEAD, N_FF = 4, 32

NORMAL, CONTROL = 1, 3


def letters() -> list[str]:
    """How byte-level vocabularies spell the 256 bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = itertools.count(256)
    return [chr(b) if b in plain else chr(next(rest)) for b in range(256)]


def pieces(answer: str, taken: set[str], markers: Sequence[str]) -> list[str]:
    """An answer cut into tokens, none of which was there before; markers stay whole."""
    cut = []
    while answer:
        marker = next((m for m in markers if answer.startswith(m)), None)
        ahead = [at for m in markers if (at := answer.find(m, 1)) > 0]
        room = min([len(answer), *ahead])
        n = len(marker) if marker else min(3, room)
        while not marker and n < room and (answer[:n] in taken or room - n < 3):
            n += 1
        piece, answer = answer[:n], answer[n:]
        while piece in taken and cut and cut[-1] not in markers:
            taken.discard(cut[-1])
            piece = cut.pop() + piece
        assert piece not in taken, f"{piece!r} is there twice: change the script"
        taken.add(piece)
        cut.append(piece)
    return cut


def write(
    path: Path,
    answers: Sequence[str],
    *,
    template: str = HERMES,
    markers: Sequence[str] = (),
    begins: Sequence[str] = (),
    n_ctx: int = 4096,
) -> Path:
    """A model that gives these answers, one a turn of the assistant. `markers` are control tokens
    of its vocabulary; each answer follows the token of `begins`, `<|turn0|>` and so on without."""
    spelling = letters()
    tokens = [*spelling, "ĠĠ"]
    types = [NORMAL] * len(tokens)
    # Those of an answer are made by no merge, so no prompt has them.
    taken = {chr(b) for b in range(128)} | {"  "}
    scripts = []
    for answer in answers:
        cut = pieces(answer, taken, markers)
        scripts.append(
            [p if p in markers else "".join(spelling[b] for b in p.encode()) for p in cut]
        )
        tokens += scripts[-1]
        types += [CONTROL if piece in markers else NORMAL for piece in cut]
    starts = [*begins] or [f"<|turn{i}|>" for i in range(len(answers) + 1)]
    for special in [*starts, "<|im_start|>", "<|im_end|>", *(m for m in markers if m not in taken)]:
        tokens.append(special)
        types.append(CONTROL)
    ids = {token: i for i, token in enumerate(tokens)}
    end = ids["<|im_end|>"]
    following = [
        pair
        for start, script in zip(starts, [*scripts, []], strict=False)
        for pair in itertools.pairwise([ids[start], *(ids[piece] for piece in script), end])
    ]
    n_embd = -(-len(following) // 64) * 64 + 64
    embedding = np.zeros((len(tokens), n_embd), np.float32)
    embedding[:, 0] = 1
    output = np.zeros_like(embedding)
    for place, (token, following_one) in enumerate(following, 1):
        embedding[token] = 0
        embedding[token, place] = 1
        output[following_one, place] = 1
    head = n_embd // N_HEAD
    zeros = {
        "attn_q": (n_embd, n_embd),
        "attn_k": (n_embd, n_embd),
        "attn_v": (n_embd, n_embd),
        "attn_output": (n_embd, n_embd),
        "ffn_gate": (N_FF, n_embd),
        "ffn_up": (N_FF, n_embd),
        "ffn_down": (n_embd, N_FF),
    }
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("scripted")
    writer.add_block_count(1)
    writer.add_context_length(n_ctx)
    writer.add_embedding_length(n_embd)
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(N_HEAD)
    writer.add_head_count_kv(N_HEAD)
    writer.add_rope_dimension_count(head)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(["Ġ Ġ"])
    writer.add_eos_token_id(end)
    writer.add_add_bos_token(False)
    writer.add_chat_template(template)
    writer.add_tensor("token_embd.weight", embedding)
    for name, shape in zeros.items():
        writer.add_tensor(f"blk.0.{name}.weight", np.zeros(shape, np.float32))
    for name in ("blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight"):
        writer.add_tensor(name, np.ones(n_embd, np.float32))
    writer.add_tensor("output.weight", output)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def asked(
    llm: LLM,
    messages: Sequence[Any],
    tools: Sequence[Any],
    template_kwargs: dict[str, Any] | None = None,
) -> Job:
    """What `LLM.chat` makes of a conversation before it asks the engine."""
    return LLM._conversations(
        llm,
        messages,
        resolve({"seed": 1}),
        None,
        tools=tools,
        tool_choice="auto",
        parallel=True,
        tool_format=None,
        chat_template=None,
        continues=False,
        template_kwargs=template_kwargs,
        parse_special=False,
    )
