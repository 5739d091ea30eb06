"""A whole call is asked for in every dialect, also where what came behind it was cut."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from onegraph import LLM
from onegraph.server import asgi
from support import scripted
from support.calls import ADD, ADD_ANTHROPIC, ADD_FLAT, ASKED, CALL
from support.serving import Served, serving

SECOND = '<tool_call>{"arguments": {"b": 16, "a": 7}, "name": "add"}</tool_call>'


class Dialect(NamedTuple):
    """How a call is asked for, and how an answer says that it ended."""

    path: str
    body: dict[str, Any]
    #: The name of the most tokens.
    most: str
    #: The field that says why it ended; that a tool is to be called, and that it was cut.
    ended: str
    called: str
    cut: str


CHAT: dict[str, Any] = {"messages": ASKED, "tools": [ADD]}
DIALECTS = {
    "openai": Dialect(
        "/v1/chat/completions", CHAT, "max_tokens", "finish_reason", "tool_calls", "length"
    ),
    "responses": Dialect(
        "/v1/responses",
        {"input": ASKED, "tools": [ADD_FLAT]},
        "max_output_tokens",
        "status",
        "completed",
        "incomplete",
    ),
    "anthropic": Dialect(
        "/v1/messages",
        {"messages": ASKED, "tools": [ADD_ANTHROPIC]},
        "max_tokens",
        "stop_reason",
        "tool_use",
        "max_tokens",
    ),
    "ollama": Dialect("/api/chat", CHAT, "num_predict", "done_reason", "stop", "length"),
}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LLM, Served]]:
    """A model that calls a function twice."""
    path = tmp_path_factory.mktemp("scripted") / "two.gguf"
    scripted.write(path, [CALL + SECOND])
    with LLM(path, device="cpu", max_batch=2) as llm, serving(asgi({"two": llm})) as served:
        yield llm, served


def lengths(llm: LLM) -> tuple[int, int]:
    """Tokens that cut the second call, and the first."""
    whole = llm.chat(ASKED, tools=[ADD])
    assert [call.arguments["b"] for call in whole.tool_calls] == [8, 16]
    return len(whole.token_ids) - 8, 12


def test_in_python(two: tuple[LLM, Served]) -> None:
    llm, _ = two
    for n, reason, calls in zip(lengths(llm), ("tool_calls", "length"), (1, 0), strict=True):
        with llm.chat(ASKED, tools=[ADD], max_tokens=n, stream=True) as stream:
            *_, last = stream
        for result in (stream.result, llm.chat(ASKED, tools=[ADD], max_tokens=n)):
            assert result is not None and result.finish_reason == last.finish_reason == reason
            assert (result.cut, len(result.tool_calls)) == ("max_tokens", calls)
            # What was cut goes nowhere: it is text, or a call that went wrong.
            assert result.text or result.invalid_tool_calls


def documents(said: Any) -> list[dict[str, Any]]:
    """Those of an answer, or of a stream in any dialect."""
    if isinstance(said, dict):
        return [said]
    lines = [line.removeprefix("data: ") for line in said.splitlines()]
    return [json.loads(line) for line in lines if line.startswith("{")]


def values(found: Any, key: str) -> Iterator[Any]:
    """Those of a key, wherever it stands."""
    if isinstance(found, dict):
        yield from (value for name, value in found.items() if name == key and value is not None)
    if isinstance(found, dict | list):
        for item in found.values() if isinstance(found, dict) else found:
            yield from values(item, key)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", DIALECTS)
def test_in_every_dialect(name: str, stream: bool, two: tuple[LLM, Served]) -> None:
    llm, served = two
    dialect = DIALECTS[name]
    for n, expected in zip(lengths(llm), (dialect.called, dialect.cut), strict=True):
        most = {dialect.most: n}
        limit: dict[str, Any] = {"options": most} if name == "ollama" else most
        asked = {**dialect.body, **limit, "model": "two", "stream": stream}
        status, said = served.post(dialect.path, asked)
        assert status == 200, said
        last = documents(said)
        # A response says it of itself before its items do, and once more at the end.
        ended = list(values(last[-1] if name == "responses" else last, dialect.ended))
        assert (ended[0] if name == "responses" else ended[-1]) == expected
