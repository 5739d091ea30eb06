"""What of Anthropic's dialect its own servers do, and what stands for it here."""

import logging
from typing import Any

import anthropic
import openai
import pytest
from onegraph.server import tools
from support.calls import ADD_ANTHROPIC, ASKED, Scripted

TYPES = [
    *("web_search_20250305", "web_fetch_20250910", "code_execution_20250825", "mcp_toolset"),
    *("computer_20250124", "bash_20250124", "text_editor_20250728", "memory_20250818"),
]
OTHERS = [{"type": kind, "name": kind.rpartition("_")[0]} for kind in TYPES]


def test_tools_of_anthropics_own_servers_are_left_out_with_one_warning(
    adder: Scripted, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, "_said", set())
    body = {"messages": ASKED, "tools": [*OTHERS, ADD_ANTHROPIC], "max_tokens": 50}
    with caplog.at_level(logging.WARNING, "onegraph.server"):
        for _ in range(2):
            status, said = adder.served.post("/v1/messages", body)
            assert status == 200, said
    assert adder.llm.prompts[-1] == adder.expected(ASKED)
    warned = [each.getMessage() for each in caplog.records]
    assert len(warned) == len(TYPES) and "a tool of type web_search only works" in warned[0]
    status, said = adder.served.post("/v1/messages/count_tokens", body)
    assert said == {"input_tokens": len(adder.expected(ASKED))}
    choice = {"type": "tool", "name": "web_search"}
    status, said = adder.served.post("/v1/messages", {**body, "tool_choice": choice})
    assert status == 400 and "no tool is named 'web_search'" in said["error"]["message"]


def test_what_they_did_in_a_conversation_is_left_out(adder: Scripted) -> None:
    used = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "x"}}
    found = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}
    text = {"type": "text", "text": "I looked."}
    turns = [*ASKED, {"role": "assistant", "content": [used, found, text]}, *ASKED]
    body = {"messages": turns, "tools": [ADD_ANTHROPIC], "max_tokens": 1}
    status, said = adder.served.post("/v1/messages", body)
    assert status == 200, said
    plain = {"role": "assistant", "content": "I looked."}
    assert adder.llm.prompts[-1] == adder.expected([*ASKED, plain, *ASKED])
    wrong = [{"role": "user", "content": [used]}]
    status, said = adder.served.post("/v1/messages", {**body, "messages": wrong})
    assert status == 400 and "messages[0].content[0].type" in said["error"]["message"]


def test_images_are_refused_by_name_where_tokens_are_counted(adder: Scripted) -> None:
    image = {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}
    body = {"messages": [{"role": "user", "content": [image]}]}
    status, said = adder.served.post("/v1/messages/count_tokens", body)
    assert status == 400
    assert said["error"]["message"].startswith("messages[0].content[0].type = 'image'")


def test_the_clients_of_both_list_models(adder: Scripted) -> None:
    by_anthropic = anthropic.Anthropic(base_url=adder.served.url, api_key="any", max_retries=0)
    (model,) = by_anthropic.models.list().data
    assert (model.id, model.type, model.display_name) == ("adder", "model", "adder")
    assert model.created_at.year >= 2025
    assert by_anthropic.models.retrieve("adder").created_at == model.created_at
    by_openai = openai.OpenAI(base_url=f"{adder.served.url}/v1", api_key="any", max_retries=0)
    (same,) = by_openai.models.list().data
    assert same.created == int(model.created_at.timestamp())
    _, listed = adder.served.get("/v1/models")
    pages = {"first_id": "adder", "last_id": "adder", "has_more": False, "models": []}
    assert {name: listed[name] for name in pages} == pages


HARMLESS: dict[str, Any] = {
    "metadata": {"user_id": "u"},
    "service_tier": "auto",
    "store": True,
    "prediction": {"type": "content", "content": "x"},
    "parallel_tool_calls": True,
    "safety_identifier": "s",
    "prompt_cache_key": "k",
    "context_management": {"edits": []},
}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
def test_what_changes_no_answer_is_taken(path: str, adder: Scripted) -> None:
    said = {"messages": ASKED, "input": ASKED, "max_tokens": 50, "max_output_tokens": 50}
    for more in ({}, HARMLESS):
        status, answer = adder.served.post(path, {**said, **more})
        assert status == 200, answer
    assert adder.llm.prompts[-1] == adder.llm.prompts[-2]
