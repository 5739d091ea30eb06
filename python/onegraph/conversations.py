"""Conversations on their way to a chat template: what they must be, and how one is rendered."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from onegraph import _native, arguments
from onegraph.answers import ToolCall
from onegraph.errors import ArgumentError, ModelError

__all__ = [
    "EFFORTS",
    "UNREAD",
    "UNREADABLE",
    "batch",
    "conversation",
    "has_calls",
    "needs_content",
    "render",
    "thinking",
]

#: What messages of other programs have beside their text, and what is said of it.
UNREAD = ("image", "images", "audio", "audios", "video", "videos", "file", "files")
UNREADABLE = "only text is supported"

#: Words for how much a model is to think, and those of them that templates know.
EFFORTS = {
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}


def thinking(switch: bool | None = None, effort: str | None = None) -> dict[str, Any] | None:
    """Variables that say to a template whether the model is to think, and how much; a template
    that has none of them leaves them where they are. An effort alone switches it on, and "none"
    off."""
    if switch is None and effort is not None:
        switch = effort != "none"
    found: dict[str, Any] = {}
    if switch is not None:
        found |= {"enable_thinking": switch, "thinking": switch}
    if switch and effort in EFFORTS:
        found["reasoning_effort"] = EFFORTS[effort]
    return found or None


def batch(messages: Any) -> list[Any] | None:
    """The conversations of a batch; None where there is one conversation."""
    if not arguments.is_sequence(messages):
        return None
    parts = list(messages)
    many = [isinstance(part, str) or arguments.is_sequence(part) for part in parts]
    if not any(many):
        return None
    if not all(many):
        raise ArgumentError(
            "messages: conversations and messages are mixed; give one conversation, a list of "
            "dicts, or a list of conversations"
        )
    return parts


def conversation(name: str, messages: Any) -> list[dict[str, Any]]:
    """The messages of one conversation, the contents in parts joined; a text is one of the user."""
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    if not arguments.is_sequence(messages):
        raise arguments.refused(name, messages, "must be a str, or a list of dicts")
    if not len(messages):
        raise ArgumentError(
            f'{name} = []: give at least one message, such as {{"role": "user", "content": "Hi"}}'
        )
    found = []
    for i, message in enumerate(messages):
        _native.go_on()
        found.append(_message(f"{name}[{i}]", message))
    return found


def _message(name: str, message: Any) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        expected = 'must be a dict, such as {"role": "user", "content": "Hi"}'
        raise arguments.refused(name, message, expected)
    found = dict(message)
    if "role" not in found:
        raise ArgumentError(f'{name}: has no "role": add one, such as "user"')
    arguments.text(f"{name} role", found["role"])
    for key in UNREAD:
        if found.get(key):
            raise ArgumentError(f"{name} {key}: {UNREADABLE}")
    content = found.get("content")
    if content is None:
        if needs_content(found):
            raise ArgumentError(f'{name}: has no "content": give a str')
        # A template joins it to other text.
        found["content"] = ""
    elif not isinstance(content, str):
        found["content"] = _joined(f"{name} content", content)
    if arguments.is_sequence(found.get("tool_calls")):
        found["tool_calls"] = [_call(call) for call in found["tool_calls"]]
    # No calls are none: templates ask whether there is a list.
    return {key: of for key, of in found.items() if of or key not in (*CALLS, *UNREAD)}


#: What calls of tools are under, and reasoning.
CALLS = ("tool_calls", "function_call")
REASONING = ("reasoning_content", "reasoning", "thinking")


def needs_content(message: Mapping[str, Any]) -> bool:
    """Whether a message must have a content: it has no place for calls, which may be none, and no
    reasoning, which the assistant's may be all of."""
    is_thought = message.get("role") == "assistant" and any(message.get(key) for key in REASONING)
    return not is_thought and all(key not in message for key in CALLS)


def _call(call: Any) -> Any:
    """A call with its arguments as a dict, as most templates want them: the OpenAI API has them as
    a text."""
    if isinstance(call, ToolCall):
        function = {"name": call.name, "arguments": call.arguments}
        return {"id": call.id, "type": "function", "function": function}
    described = call.get("function") if isinstance(call, Mapping) else None
    given = described.get("arguments") if isinstance(described, Mapping) else None
    if described is None or not isinstance(given, str):
        return call
    try:
        read = json.loads(given or "{}")
    except (ValueError, RecursionError):
        return call
    if not isinstance(read, dict):
        return call
    return {**call, "function": {**described, "arguments": read}}


def _with_texts(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same with the arguments of calls as texts."""

    def text(call: Any) -> Any:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), dict):
            return call
        said = json.dumps(function["arguments"], ensure_ascii=False)
        return {**call, "function": {**function, "arguments": said}}

    return [
        {**message, "tool_calls": [text(call) for call in message["tool_calls"]]}
        if has_calls([message])
        else message
        for message in messages
    ]


def has_calls(messages: list[dict[str, Any]]) -> bool:
    """Whether tools were called."""
    return any(isinstance(each.get("tool_calls"), list) and each["tool_calls"] for each in messages)


def _joined(name: str, content: Any) -> str:
    """The text of a content that is given in parts, as the OpenAI API has it."""
    if not arguments.is_sequence(content):
        raise arguments.refused(name, content, "must be a str, or a list of text parts")
    texts = []
    for i, part in enumerate(content):
        here = f"{name}[{i}]"
        if isinstance(part, str):
            texts.append(arguments.text(here, part))
            continue
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind is None:
            expected = 'must be a part such as {"type": "text", "text": "Hi"}'
            raise arguments.refused(here, part, expected)
        if kind != "text":
            raise arguments.refused(
                f"{here} type", kind, 'must be "text": onegraph only supports text'
            )
        texts.append(arguments.text(f"{here} text", part.get("text")))
    return "".join(texts)


def render(
    template: _native.ChatTemplate,
    messages: list[dict[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    variables: Mapping[str, Any],
    *,
    name: str,
    continues: bool,
    calls: _native.Reading | None = None,
) -> _native.Rendering:
    """The text of a conversation, open for an answer; where it `continues`, behind the last
    message, which is the assistant's. Where `calls` are given, they are written by that, for the
    template leaves them out."""
    if calls is not None:
        mark, marked, messages = _marked(messages)

    def made(shown: Sequence[Mapping[str, Any]] | None) -> _native.Rendering:
        if continues:
            return _open(template, messages, shown, variables, name)
        try:
            return template.rendering(messages, shown, True, **variables)
        except ModelError:
            if not has_calls(messages):
                raise
            try:
                return template.rendering(_with_texts(messages), shown, True, **variables)
            except ModelError:
                pass
            raise

    rendering = made(tools)
    if calls is not None:
        return _written(rendering, mark, marked, calls, name)
    # Asked anew for every conversation: whether a template shows tools may depend on its messages
    # and variables.
    if tools and rendering.text == made(None).text:
        raise ArgumentError(
            f"tools = {len(tools)} tools: the chat template has no place for them, so the model "
            "would not see them; leave them out, describe them in a message, or use a model "
            "trained to call tools"
        )
    return rendering


def _marked(
    messages: list[dict[str, Any]],
) -> tuple[str, list[list[Any]], list[dict[str, Any]]]:
    """A mark; the calls of each message that has some; and the messages with the mark and their
    number in the place of those."""
    mark = os.urandom(16).hex()
    marked: list[list[Any]] = []
    found = []
    for message in messages:
        if has_calls([message]):
            number = f"{len(marked):08d}"
            marked.append(message["tool_calls"])
            message = {**message, "content": message["content"] + mark + number}
            del message["tool_calls"]
        found.append(message)
    return mark, marked, found


def _written(
    rendering: _native.Rendering,
    mark: str,
    marked: list[list[Any]],
    calls: _native.Reading,
    name: str,
) -> _native.Rendering:
    """The rendering with calls in the places of their marks."""
    found = rendering.with_parts(mark, [_parts(asked, calls, name) for asked in marked])
    if found is None:
        raise ModelError(
            f"{name}: the chat template drops both the calls and the text of a message; pass "
            "the conversation without calls, or use another chat_template"
        )
    return found


def _parts(asked: list[Any], calls: _native.Reading, name: str) -> list[tuple[str, bool]]:
    """The calls of a message as the model writes them."""
    parts = []
    for call in asked:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise arguments.refused(f"{name} tool_calls", call, 'must have a "function"')
        given = function.get("arguments") or {}
        said = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
        parts += calls.written(function["name"], said)
    return parts


def _open(
    template: _native.ChatTemplate,
    messages: list[dict[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    variables: Mapping[str, Any],
    name: str,
) -> _native.Rendering:
    last = messages[-1]
    if last["role"] != "assistant":
        raise ArgumentError(
            f"continue_final_message = True: the last of {name} has role {last['role']!r}; it must "
            "be the assistant's"
        )
    if not last["content"]:
        raise ArgumentError(
            f"continue_final_message = True: the last of {name} is empty; leave it out"
        )
    # Where the content ends, whatever the template makes of it: a word that stands nowhere else.
    mark = os.urandom(16).hex()
    marked = {**last, "content": last["content"] + mark}
    rendering = template.rendering([*messages[:-1], marked], tools, False, **variables)
    found = rendering.before(mark)
    if found is None:
        raise ModelError(
            "chat template: changes the last message, so it cannot be continued; "
            "leave continue_final_message out, or use another chat_template"
        )
    return found
