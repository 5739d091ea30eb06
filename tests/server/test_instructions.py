"""Instructions in the middle of a conversation stay there, whatever the template takes."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from onegraph.server import asgi
from support.calls import Recorded
from support.serving import Served, serving

#: Shows every message where it stands.
OPEN = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
#: Has a place for instructions at the beginning alone, and wants sides to take turns.
STRICT = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
    "{% if not loop.first and m.role == loop.previtem.role %}"
    "{{ raise_exception('Roles must alternate.') }}{% endif %}{% endfor %}" + OPEN
)
#: Leaves out without a word what it has no place for, and says all instructions first.
LEAVES_OUT = OPEN.replace("%}[", "%}{% if m.role != 'system' or loop.first %}[", 1).replace(
    "\n{% endfor", "\n{% endif %}{% endfor"
)
HOISTS = (
    "{% for m in messages if m.role == 'system' %}[system]{{ m.content }}\n{% endfor %}"
) + OPEN.replace("in messages", "in messages if m.role != 'system'")

TURNS: list[dict[str, Any]] = [
    {"role": "user", "content": "one"},
    {"role": "system", "content": "now be brief"},
    {"role": "user", "content": "two"},
    {"role": "assistant", "content": "ok"},
    {"role": "system", "content": "tools have changed"},
    {"role": "system", "content": "and the time"},
    {"role": "user", "content": "three"},
    {"role": "assistant", "content": "done"},
    {"role": "system", "content": "go on"},
]
IN_PLACE = (
    "[system]Be good.\n[user]one\n[system]now be brief\n[user]two\n[assistant]ok\n"
    "[system]tools have changed\nand the time\n[user]three\n[assistant]done\n[system]go on\n"
    "[assistant]"
)
FOLDED = (
    "[system]Be good.\n[user]one\n<system>\nnow be brief\n</system>\ntwo\n[assistant]ok\n"
    "[user]<system>\ntools have changed\nand the time\n</system>\nthree\n[assistant]done\n"
    "[user]<system>\ngo on\n</system>\n[assistant]"
)


class Model:
    def __init__(self, llm: Recorded, served: Served) -> None:
        self.llm, self.served = llm, served

    def read(self, path: str, body: dict[str, Any]) -> str:
        """What the model reads of a request."""
        status, said = self.served.post(path, {"max_tokens": 1, "temperature": 0, **body})
        assert status == 200, said
        return self.llm.detokenize(self.llm.prompts[-1], skip_special=False)


@pytest.fixture(scope="module")
def models(tiny: Path) -> Iterator[dict[str, Model]]:
    templates = {"open": OPEN, "strict": STRICT, "leaves out": LEAVES_OUT, "hoists": HOISTS}
    llms = {
        name: Recorded(tiny, device="cpu", max_batch=1, chat_template=template)
        for name, template in templates.items()
    }
    with serving(asgi(llms)) as served:
        for llm in llms.values():
            llm.prompts = []
        yield {name: Model(llm, served) for name, llm in llms.items()}


def by_chat(turns: list[dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    joined = [*turns]
    if turns[4:6] == TURNS[4:6]:  # there each message is one of its own
        both = {"role": "system", "content": "tools have changed\nand the time"}
        joined[4:6] = [both]
    return "/v1/chat/completions", {"messages": [SYSTEM, *joined]}


def by_anthropic(turns: list[dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    return "/v1/messages", {"system": "Be good.", "messages": turns}


def by_responses(turns: list[dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    items = [{**t, "role": "developer"} if t["role"] == "system" else t for t in turns]
    return "/v1/responses", {"instructions": "Be good.", "input": items, "max_output_tokens": 1}


SYSTEM = {"role": "system", "content": "Be good."}


@pytest.mark.parametrize("ask", [by_chat, by_anthropic, by_responses])
@pytest.mark.parametrize(
    ("model", "meant"),
    [("open", IN_PLACE), ("strict", FOLDED), ("leaves out", FOLDED), ("hoists", FOLDED)],
)
def test_instructions_stay_where_they_are(
    model: str, meant: str, ask: Any, models: dict[str, Model]
) -> None:
    path, body = ask(TURNS)
    assert models[model].read(path, {"model": model, **body}) == meant


@pytest.mark.parametrize("model", ["open", "strict", "leaves out", "hoists"])
def test_each_turn_begins_with_all_that_was_read_before(
    model: str, models: dict[str, Model]
) -> None:
    """Up to where a turn ends, to which the model answers."""
    asked = [n for n in range(1, len(TURNS) + 1) if [*TURNS, TURNS[3]][n]["role"] == "assistant"]
    read = [models[model].read(*_named(by_anthropic(TURNS[:n]), model)) for n in asked]
    assert len(read) == 3
    for before, behind in itertools.pairwise(read):
        assert behind.startswith(before)


def _named(asked: tuple[str, dict[str, Any]], model: str) -> tuple[str, dict[str, Any]]:
    return asked[0], {"model": model, **asked[1]}


@pytest.mark.parametrize("model", ["strict", "open"])
def test_a_conversation_may_begin_with_several_instructions(
    model: str, models: dict[str, Model]
) -> None:
    messages = [SYSTEM, {"role": "developer", "content": "Be brief."}, *TURNS[:2]]
    found = models[model].read("/v1/chat/completions", {"model": model, "messages": messages})
    assert ("[system]Be good.\nBe brief.\n[user]" in found) == (model == "strict")


#: What Claude Code has at the head of its instructions, once as a block and once as a line.
HEADER = "x-anthropic-billing-header: cc_version=2.1.0; cc_entrypoint=cli; cch={};"
RULES = "You help with programs. " * 6


@pytest.mark.parametrize("as_blocks", [True, False])
def test_what_is_new_in_each_request_is_left_out(as_blocks: bool, models: dict[str, Model]) -> None:
    def ask(nonce: str, turns: list[dict[str, Any]]) -> Any:
        header = HEADER.format(nonce)
        blocks = [{"type": "text", "text": header}, {"type": "text", "text": RULES}]
        system = blocks if as_blocks else f"{header}\n{RULES}"
        body = {"model": "open", "system": system, "messages": turns, "max_tokens": 1}
        status, said = models["open"].served.post("/v1/messages", body)
        assert status == 200, said
        return said["usage"]

    first = ask("00a1f", TURNS[:3])
    assert "cch" not in json.dumps(models["open"].llm.detokenize(models["open"].llm.prompts[-1]))
    old = first["input_tokens"] + first["cache_read_input_tokens"]
    assert old == len(models["open"].llm.prompts[-1])
    again = ask("93bcd", TURNS[:7])
    assert again["cache_read_input_tokens"] >= 0.95 * old


@pytest.mark.parametrize("system", ["Be good. x-anthropic-billing-header: cch=1;", "Be good."])
def test_other_instructions_are_whole(system: str, models: dict[str, Model]) -> None:
    body = {"model": "open", "system": system, "messages": TURNS[:1]}
    assert f"[system]{system}\n" in models["open"].read("/v1/messages", body)
