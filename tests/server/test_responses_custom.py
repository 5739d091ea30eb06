"""Tools of OpenAI's responses that are more than functions: texts held to grammars, namespaces."""

import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest
from onegraph import LLM
from onegraph.answers import ToolCall, ToolCallBegun, ToolCallDelta, ToolCallEnded
from onegraph.server import asgi, tools
from onegraph.server.items import Items
from onegraph.server.lark import LONGEST, Irregular, regex_of
from onegraph.server.tools import Named
from support import calls, scripted, strict
from support.calls import ADD_FLAT, ASKED, Scripted
from support.serving import Served, serving

#: What is short whatever the model writes.
WORDS = 'start: word ("-" word)~1..2\nword: "tea" | "q\\"\\\\" | /[0-9]{2}/ LF\n%import common.LF\n'


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A model that writes anything that it is let."""
    path = scripted.write(tmp_path_factory.mktemp("noise") / "noise.gguf", ["hm"])
    with (
        LLM(path, device="cpu", max_batch=2) as llm,
        serving(asgi({"noise": llm})) as served,
    ):
        yield served


def custom(syntax: str, definition: str) -> dict[str, Any]:
    form = {"type": "grammar", "syntax": syntax, "definition": definition}
    return {"type": "custom", "name": "say", "description": "Says it.", "format": form}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    ("syntax", "definition", "regex"),
    [("lark", WORDS, regex_of(WORDS)), ("regex", r"(yes|no) [0-9]{2}", r"(yes|no) [0-9]{2}")],
)
def test_a_call_is_held_to_the_grammar_of_its_tool(
    syntax: str, definition: str, regex: str, seed: int, stream: bool, noise: Served
) -> None:
    tool = custom(syntax, definition)
    choice = {"type": "custom", "name": "say"}
    asked = {"input": "tea", "tools": [tool], "tool_choice": choice, "seed": seed, "temperature": 1}
    status, said = noise.post(
        "/v1/responses", {**asked, "stream": stream, "max_output_tokens": 1000}
    )
    assert status == 200, said
    response = strict.responses(said)[-1]["response"] if stream else said
    (call,) = response["output"]
    assert (call["type"], call["name"]) == ("custom_tool_call", "say")
    assert re.fullmatch(regex, call["input"]), call


def test_only_tools_that_are_allowed_are_called(noise: Served) -> None:
    """The model is shown all: what it read before is found again."""
    offered = [ADD_FLAT, custom("regex", "yes|no")]
    asked = {"input": "tea", "tools": offered, "max_output_tokens": 1000}
    counted = noise.post("/v1/responses/input_tokens", asked)[1]["input_tokens"]
    for seed in (1, 2, 3):
        allowed = [{"type": "custom", "name": "say"}, {"type": "web_search"}]
        choice = {"type": "allowed_tools", "mode": "required", "tools": allowed}
        status, said = noise.post("/v1/responses", {**asked, "tool_choice": choice, "seed": seed})
        assert status == 200, said
        assert {item["name"] for item in said["output"]} == {"say"}
        assert said["usage"]["input_tokens"] == counted
    within = {"mode": "required", "tools": [{"type": "function", "function": {"name": "two"}}]}
    chat = {
        "messages": [{"role": "user", "content": "tea"}],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": name,
                    "parameters": {
                        "type": "object",
                        "properties": {},
                        "additionalProperties": False,
                    },
                },
            }
            for name in ("one", "two")
        ],
        "tool_choice": {"type": "allowed_tools", "allowed_tools": within},
        "parallel_tool_calls": False,
        "max_tokens": 100,
    }
    status, said = noise.post("/v1/chat/completions", chat)
    assert status == 200, said
    (call,) = said["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "two"
    within["tools"][0]["function"]["name"] = "three"  # type: ignore[index]
    status, said = noise.post("/v1/chat/completions", chat)
    assert status == 400 and "no tool is named 'three'" in said["error"]["message"]


PATCHES = r"""
start: begin hunk+ end
begin: "*** Begin Patch" LF
end: "*** End Patch" LF?
hunk: add | update
add: "*** Add File: " name LF ("+" /(.*)/ LF)+
update: "*** Update File: " name LF move? change+ [last]
name: /(.+)/
move: "*** Move to: " name LF
// one line each
change: ("@@" | "@@ " /(.+)/) LF
    | ("+" | "-" | " ") /(.*)/ LF -> line
last: "*** End of File" LF
%import common.LF
"""


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ('*** Begin Patch\n*** Add File: a\n+\n+x "y" \\ é\n*** End Patch', True),
        ("*** Begin Patch\n*** Update File: a\n*** Move to: b\n@@ f\n-x\n*** End Patch\n", True),
        ("*** Begin Patch\n*** Update File: a\n+x\n*** End of File\n*** End Patch\n", True),
        ("*** Begin Patch\n*** Update File: a\n*** End Patch\n", False),
        ("*** Begin Patch\n*** Add File: a\n-x\n*** End Patch\n", False),
        ("", False),
    ],
)
def test_a_grammar_of_patches_is_a_regular_expression(text: str, is_one: bool, llm: LLM) -> None:
    regex = regex_of(PATCHES)
    assert bool(re.fullmatch(regex, text)) == is_one
    # As a string in JSON, which is what a model writes.
    schema = {"type": "string", "pattern": f"^(?:{regex})$"}
    assert llm.fits(json.dumps(text, ensure_ascii=False), schema=schema) == is_one


DEEP = "start: " + "(" * 1000 + '"a"' + ")" * 1000
GROWS = "start: a a\n" + "\n".join(
    f"{a}: {b} {b}" for a, b in zip("abcdefghijkl", "bcdefghijklm", strict=True)
)


@pytest.mark.parametrize(
    ("grammar", "why"),
    [
        ('start: "a" start | "b"', "'start' is not defined, or recursive"),
        ("start: a", "'a' is not defined"),
        ("", "'start' is not defined"),
        ('start: "a', "is not known"),
        ('start: "a"i', "has flags"),
        ('start: "\\q"', "is not known"),
        ("%ignore WS", "is not known"),
        ("no rule", "is no rule"),
        ('start: ("a"', "is not closed"),
        ('start: "a")', "a sign too many"),
        ("start: +", "stands behind nothing"),
        (DEEP, "deep"),
        (GROWS + '\nm: "aaaa"', "an expression of more than"),
        ("//" + "x" * LONGEST, "has more than"),
    ],
)
def test_a_grammar_that_is_no_expression_says_why(grammar: str, why: str) -> None:
    with pytest.raises(Irregular, match=re.escape(why)):
        regex_of(grammar)


def test_a_grammar_that_cannot_be_held_is_told_of(
    noise: Served, caplog: pytest.LogCaptureFixture
) -> None:
    tool = custom("lark", 'start: "(" start ")" | "x"')
    with caplog.at_level(logging.WARNING, "onegraph.server"):
        status, said = noise.post("/v1/responses/input_tokens", {"input": "tea", "tools": [tool]})
    assert status == 200, said
    assert "tools[0].format.definition: not enforced" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (' {"input" : "a\\n\\"\\\\\\u00e9\\ud83d\\ude00é\\/" } ', 'a\n"\\é\N{GRINNING FACE}é/'),
        ('{"input": ""}', ""),
        ('{"path": "a", "input": "b"}', "b"),
        ('{"path": "\\n"}', '{"path": "\\n"}'),
        ('{"input": 5}', '{"input": 5}'),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 5, 100])
def test_the_text_of_a_call_comes_as_it_is_written(arguments: str, text: str, size: int) -> None:
    items = Items({"say": Named("say", None, True)}, hides=False)
    parts = [arguments[at : at + size] for at in range(0, len(arguments), size)]
    call = ToolCall("i", "say", json.loads(arguments))
    events = [ToolCallBegun(0, "i", "say"), *(ToolCallDelta(0, part) for part in parts)]
    told = [each for event in [*events, ToolCallEnded(0, call)] for each in items.event(event)]
    deltas = [more["delta"] for kind, more in told if kind.endswith("input.delta")]
    assert "".join(deltas) == text == items.done[0]["input"]
    assert size > 1 or text != 'a\n"\\é\N{GRINNING FACE}é/' or len(deltas) == len(text)


def test_tools_of_openais_own_servers_are_left_out_with_one_warning(
    adder: Scripted, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, "_said", set())
    kinds = ["web_search", "web_search_preview", "image_generation", "local_shell", "mcp"]
    others = [{"type": kind} for kind in [*kinds, "file_search", "computer_use_preview"]]
    items = [{"type": "web_search_call", "id": "w", "status": "completed"}, *ASKED]
    with caplog.at_level(logging.WARNING, "onegraph.server"):
        for _ in range(2):
            body = {"input": items, "tools": [*others, ADD_FLAT]}
            status, said = adder.served.post("/v1/responses", body)
            assert status == 200, said
    assert adder.llm.prompts[-1] == adder.expected(ASKED)
    said = [record.getMessage() for record in caplog.records if "not shown" in record.getMessage()]
    assert len(said) == 7 and sum("web_search " in each for each in said) == 1
    body = {"input": ASKED, "tools": others, "tool_choice": "required"}
    status, said = adder.served.post("/v1/responses", body)
    assert status == 400 and "no tools are offered" in said["error"]["message"]


@pytest.mark.parametrize("namespace", ["shelf", "shelf__"])
def test_tools_of_a_namespace_are_shown_under_both_names(namespace: str, adder: Scripted) -> None:
    within = {
        "type": "namespace",
        "name": namespace,
        "description": "Of sums.",
        "tools": [ADD_FLAT],
    }
    call = {"type": "function_call", "call_id": "c", "namespace": namespace, "name": "add"}
    items = [*ASKED, {**call, "arguments": "{}"}]
    status, said = adder.served.post("/v1/responses", {"input": items, "tools": [within]})
    assert status == 200, said
    read = adder.llm.detokenize(adder.llm.prompts[-1], skip_special=False)
    assert read.count('"name": "shelf__add"') == 2 and "Of sums.\\nAdds two numbers." in read
    choice = {"type": "function", "name": "sub", "namespace": namespace}
    body = {"input": ASKED, "tools": [within], "tool_choice": choice}
    status, said = adder.served.post("/v1/responses", body)
    assert status == 400 and "'shelf__sub'" in said["error"]["message"]


def test_a_reasoning_that_a_client_keeps_is_read_again(adder: Scripted) -> None:
    body = {"input": ASKED, "tools": [ADD_FLAT], "include": ["reasoning.encrypted_content"]}
    status, made = adder.served.post("/v1/responses", body)
    assert status == 200, made
    reasoning = made["output"][0]
    assert "so" not in reasoning["encrypted_content"]
    usage = made["usage"]
    assert usage["input_tokens_details"]["cache_write_tokens"] == 0
    # <think> and "so", in pieces of three characters.
    assert usage["output_tokens_details"] == {"reasoning_tokens": 3}
    kept = {"type": "reasoning", "id": "r", "summary": [], "content": None}
    said = {"role": "assistant", "content": "I add."}

    def prompt(encrypted: str) -> list[int]:
        items = [*ASKED, {**kept, "encrypted_content": encrypted}, said, *ASKED]
        status, answer = adder.served.post("/v1/responses", {"input": items, "tools": [ADD_FLAT]})
        assert status == 200, answer
        return adder.llm.prompts[-1]

    thought = {**said, "reasoning_content": "so", "thinking": "so"}
    assert prompt(reasoning["encrypted_content"]) == adder.expected([*ASKED, thought, *ASKED])
    for others in ("gAAAAB", "onegraph:?", "onegraph:/w=="):
        assert prompt(others) == adder.expected([*ASKED, said, *ASKED])
    status, plain = adder.served.post("/v1/responses", {"input": ASKED, "tools": [ADD_FLAT]})
    assert "encrypted_content" not in plain["output"][0]


def test_tokens_of_a_request_are_counted_as_they_are_read(adder: Scripted) -> None:
    body = {"instructions": "Be brief.", "input": calls.RESPONSES, "tools": [ADD_FLAT]}
    status, said = adder.served.post("/v1/responses/input_tokens", body)
    assert (status, said["object"]) == (200, "response.input_tokens")
    assert said["input_tokens"] == len(adder.expected(calls.PLAIN))
