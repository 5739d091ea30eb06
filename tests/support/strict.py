"""The events of streams, each read by the strict types of its dialect's own client."""

from __future__ import annotations

import json
from typing import Any

from anthropic.types import RawMessageStreamEvent
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

OF_RESPONSES: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
OF_MESSAGES: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


def _frames(raw: str) -> list[tuple[str | None, str]]:
    """Name and data of each frame of a stream."""
    found = []
    for frame in raw.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in frame.splitlines() if line[:1] != ":")
        if lines:
            found.append((lines.get("event"), lines["data"]))
    return found


def responses(raw: str) -> list[dict[str, Any]]:
    """Of OpenAI's responses: numbered, each item begun, filled and ended before the next."""
    events = []
    open_items: list[int] = []
    for number, (name, data) in enumerate(_frames(raw)):
        event = json.loads(data)
        OF_RESPONSES.validate_python(event)
        assert (event["type"], event["sequence_number"]) == (name, number)
        if event["type"] == "response.output_item.added":
            assert not open_items
            open_items.append(event["output_index"])
        elif event["type"] == "response.output_item.done":
            assert open_items.pop() == event["output_index"]
        elif "output_index" in event:
            assert open_items == [event["output_index"]]
        events.append(event)
    assert not open_items
    assert [e["type"] for e in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1]["type"] in ("response.completed", "response.incomplete")
    return events


def messages(raw: str) -> list[dict[str, Any]]:
    """Of Anthropic: each block begun, filled and ended before the next."""
    events = []
    is_open, begun = False, 0
    for name, data in _frames(raw):
        event = json.loads(data)
        assert event["type"] == name
        if name == "ping":
            continue
        OF_MESSAGES.validate_python(event)
        if name == "content_block_start":
            assert not is_open and event["index"] == begun
            is_open, begun = True, begun + 1
        elif name in ("content_block_delta", "content_block_stop"):
            assert is_open and event["index"] == begun - 1
            is_open = name == "content_block_delta"
        events.append(event)
    kinds = [event["type"] for event in events]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    assert not is_open and kinds.count("message_start") == 1
    return events


def chunks(raw: str) -> list[dict[str, Any]]:
    """Of OpenAI's chat: chunks up to the end."""
    frames = _frames(raw)
    assert frames.pop() == (None, "[DONE]")
    events = [json.loads(data) for _, data in frames]
    for event in events:
        ChatCompletionChunk.model_validate(event)
    finished = [bool(e["choices"] and e["choices"][0]["finish_reason"]) for e in events]
    assert finished.count(True) == 1 and not any(
        e["choices"] for e in events[finished.index(True) + 1 :]
    )
    return events
