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
