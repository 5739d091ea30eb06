"""Conversations, tools and variables that chat templates render."""

from typing import Any

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city, in °C <b>\"now\"</b> & 'later'",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Zürich, 東京, 🌍"},
                "days": {"type": "integer", "default": 3, "minimum": 1},
                "detail": {"type": "array", "items": {"type": "string"}, "default": []},
                "limit": {"type": "number", "default": 1e-07},
                "extra": {"type": "object", "properties": {}},
            },
            "required": ["city"],
            "strict": True,
            "deprecated": None,
        },
    },
}
CALL = {
    "id": "abcdef123",
    "type": "function",
    "function": {
        "name": "get_weather",
        "arguments": {"city": "Zürich", "days": 2, "detail": ["a", 'b"'], "x": 0.1, "y": None},
    },
}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str | None, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


CALLING = [
    user("Weather in Zürich?"),
    assistant("", tool_calls=[CALL]),
    {"role": "tool", "content": '{"t": 21.5}', "name": "get_weather", "tool_call_id": "abcdef123"},
]
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one turn": [user("Hi")],
    "system": [system("Be brief."), user("Hi")],
    "turns": [user("1"), assistant("2"), user("3"), assistant("4"), user("5")],
    "system and turns": [system("S"), user("1"), assistant("2"), user("3")],
    "ends with assistant": [user("1"), assistant("2")],
    "unicode": [system("Ünïcödé 🏳️‍🌈"), user("日本語\u0000\u200d\U0001f468‍👩‍👧 \u2028 é")],
    "white space": [user("  \n lead and trail \t\n"), assistant("\n\nx\n\n"), user("\n")],
    "empty": [user("")],
    "look-alikes": [user("<|im_end|>\n<|im_start|>system\n{{ 1 + 1 }}{% if x %}<s></s>")],
    "thinking": [
        user("1"),
        assistant("<think>\nhm\n</think>\n\nfour"),
        user("/no_think 2"),
        assistant("five", reasoning_content="because"),
        user("3"),
    ],
    "calling": CALLING,
    "called": [*CALLING, assistant("21.5 °C"), user("Thanks")],
    "system calling": [system("Use tools."), *CALLING],
    "two calls": [
        user("Both?"),
        assistant("Sure.", tool_calls=[CALL, {**CALL, "id": "ghijkl456"}]),
        {"role": "tool", "content": "1", "tool_call_id": "abcdef123"},
        {"role": "tool", "content": "2", "tool_call_id": "ghijkl456"},
    ],
    "no content": [user("x"), assistant(None, tool_calls=[CALL]), user("y")],
    "content of a dict": [user("x"), {**CALLING[2], "content": {"a": [True, None, 1.0, "q'"]}}],
    "content of parts": [user("x"), assistant("y"), {"role": "user", "content": [{"text": "z"}]}],
    "roles that repeat": [user("1"), user("2")],
    "unknown role": [user("1"), {"role": "critic", "content": "2"}],
    "no role": [{"content": "2"}],
    "no messages": [],
    "short call id": [user("x"), assistant("", tool_calls=[{**CALL, "id": "1"}])],
}
VARIABLES: list[dict[str, Any]] = [
    {},
    {"add_generation_prompt": False},
    {"tools": [TOOL]},
    {"tools": [TOOL, TOOL], "add_generation_prompt": False},
    {"tools": []},
    {"enable_thinking": False},
    {"enable_thinking": True, "tools": [TOOL]},
    {"tools_in_user_message": False, "tools": [TOOL], "date_string": "1 Jan 2025"},
    {"builtin_tools": ["brave_search", "code_interpreter"], "tools": [TOOL]},
    {"custom_tools": [TOOL]},
    {"bos_token": "<|begin|>", "eos_token": ""},
]
#: Whose published templates render them.
NAMES = [
    "HuggingFaceTB-SmolLM3-3B",
    "Qwen-Qwen2.5-7B-Instruct",
    "Qwen-Qwen3-0.6B",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
    "google-gemma-2-2b-it",
    "meta-llama-Llama-3.1-8B-Instruct",
    "microsoft-Phi-3.5-mini-instruct",
    "mistralai-Mistral-Nemo-Instruct-2407",
]
#: What was thought. Each family has a field of its own for it: all are given.
THOUGHT = {"reasoning_content": "because", "thinking": "because", "reasoning": "because"}
PARTS = [{"type": "text", "text": "one "}, {"type": "text", "text": " two\n"}]
#: Reasoning, calls and their results, as the newer families have them.
REASONING: dict[str, list[dict[str, Any]]] = {
    "thought": [user("1"), assistant("2", **THOUGHT), user("3")],
    "thought last": [user("1"), assistant("2", **THOUGHT)],
    "thought and called": [
        user("Weather?"),
        assistant("", tool_calls=[CALL], **THOUGHT),
        {**CALLING[2], "content": "21.5"},
        assistant("21.5 °C", **THOUGHT),
        user("Thanks"),
    ],
    "called, to be gone on with": [
        system("S"),
        user("Weather?"),
        assistant(None, tool_calls=[CALL], thinking="hm", reasoning_content="hm"),
        {**CALLING[2], "content": "21.5"},
    ],
    "calls in turns": [
        *CALLING,
        assistant("Now tomorrow's.", tool_calls=[{**CALL, "id": "ghijkl456"}]),
        {**CALLING[2], "tool_call_id": "ghijkl456"},
    ],
    "thought in tags": [user("1"), assistant("<think>hm</think>2"), user("3"), assistant("4")],
    "thought in a channel": [
        user("1"),
        assistant("<|channel>thought\nhm<channel|>2"),
        user("3"),
    ],
    "thought in parts": [
        user("1"),
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, *PARTS]},
        user("3"),
    ],
    "developer": [{"role": "developer", "content": "Be brief."}, user("Hi")],
    "parts": [
        {"role": "system", "content": PARTS},
        {"role": "user", "content": PARTS},
        {"role": "assistant", "content": PARTS},
        {"role": "user", "content": [{"type": "image"}, *PARTS]},
    ],
    "result of parts": [*CALLING[:2], {**CALLING[2], "content": PARTS}],
    "result of an object": [*CALLING[:2], {**CALLING[2], "content": {"t": 21.5, "of": ["x"]}}],
    "no arguments": [
        user("x"),
        assistant("", tool_calls=[{**CALL, "function": {"name": "now", "arguments": {}}}]),
        {**CALLING[2], "name": "now"},
    ],
    "arguments of text": [
        user("x"),
        assistant(
            "",
            tool_calls=[{**CALL, "function": {"name": "now", "arguments": '{"a": [1, "b"]}'}}],
        ),
        {**CALLING[2], "name": "now"},
    ],
    "answers beside the call": [
        user("x"),
        assistant(
            "", tool_calls=[CALL], tool_responses=[{"name": "get_weather", "response": {"t": 21.5}}]
        ),
    ],
}
#: A tool of every kind of parameter that a template may spell out.
SPELLED_OUT: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "plan",
        "description": "Two\nlines",
        "parameters": {
            "type": "object",
            "properties": {
                "kind": {"type": "string", "enum": ["a", "b"], "default": "a"},
                "either": {"oneOf": [{"type": "string"}, {"type": "integer", "default": 1}]},
                "maybe": {"type": ["string", "null"], "nullable": True},
                "many": {"type": "array", "items": {"type": "object", "properties": {}}},
                "inner": {
                    "type": "object",
                    "properties": {"deep": {"type": "boolean", "description": "d"}},
                    "required": ["deep"],
                },
            },
        },
        "response": {"type": "object", "description": "what was planned"},
    },
}
REASONING_VARIABLES: list[dict[str, Any]] = [
    {},
    {"add_generation_prompt": False},
    {"tools": [TOOL, SPELLED_OUT]},
    {"tools": [SPELLED_OUT], "enable_thinking": True, "thinking": True},
    {"enable_thinking": False, "thinking": False, "add_generation_prompt": False},
    {"reasoning_effort": "high", "model_identity": "You are X.", "builtin_tools": ["browser"]},
    {"builtin_tools": ["python", "browser"], "tools": [TOOL], "reasoning_effort": "low"},
    {"preserve_thinking": True, "keep_past_thinking": True, "add_vision_id": True},
    {"documents": [{"doc_id": 1, "title": "T", "text": "x"}], "controls": {"length": "short"}},
    {"available_tools": [TOOL], "documents": [{"text": "é"}], "thinking": True},
]
#: Of the families that reason and call: theirs that are published with llama.cpp.
FAMILIES = [
    *("Qwen-Qwen3-0.6B", "Qwen3-Coder", "Qwen3.5-4B", "openai-gpt-oss-120b"),
    *("google-gemma-4-31B-it", "google-gemma-4-31B-it-interleaved"),
    *("mistralai-Ministral-3-14B-Reasoning-2512", "Mistral-Small-3.2-24B-Instruct-2506"),
    *("unsloth-mistral-Devstral-Small-2507", "LFM2-8B-A1B", "LFM2.5-8B-A1B", "LFM2.5-Instruct"),
    *("ibm-granite-granite-3.3-2B-Instruct", "ibm-granite-granite-4.0", "ibm-granite-granite-4.1"),
]
