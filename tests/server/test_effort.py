"""How much a model is to think, in every dialect, and what of it a template is told."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from onegraph import LLM
from onegraph.server import asgi
from support import scripted
from support.calls import Recorded
from support.serving import Served, serving

TEMPLATE = (
    "{% for m in messages %}{{ m.content }}{% endfor %}<think>"
    "[{{ enable_thinking }}|{{ thinking }}|{{ reasoning_effort }}]</think>"
)
SAID: list[Any] = [{"role": "user", "content": "tea"}]


@pytest.fixture(scope="module")
def models(
    tmp_path_factory: pytest.TempPathFactory, tiny: Path
) -> Iterator[tuple[Recorded, Served]]:
    """One that thinks, and one that does not."""
    path = scripted.write(tmp_path_factory.mktemp("effort") / "hm.gguf", ["hm"], template=TEMPLATE)
    with Recorded(path, device="cpu") as llm, LLM(tiny, device="cpu") as plain:
        llm.prompts = []
        with serving(asgi({"thinks": llm, "plain": plain})) as served:
            yield llm, served


NOTHING = "[||]"
OFF = "[False|False|]"


def on(effort: str = "") -> str:
    return f"[True|True|{effort}]"


CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"


@pytest.mark.parametrize(
    ("path", "asked", "told"),
    [
        (CHAT, {}, NOTHING),
        (CHAT, {"reasoning_effort": "none"}, OFF),
        (CHAT, {"reasoning_effort": "minimal"}, on("low")),
        (CHAT, {"reasoning_effort": "medium"}, on("medium")),
        (CHAT, {"reasoning_effort": "xhigh"}, on("high")),
        (
            CHAT,
            {"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}},
            "[False|True|low]",
        ),
        (RESPONSES, {"reasoning": {"summary": "auto"}}, NOTHING),
        (RESPONSES, {"reasoning": {"effort": "none"}}, OFF),
        (RESPONSES, {"reasoning": {"effort": "high", "summary": "auto"}}, on("high")),
        (MESSAGES, {}, NOTHING),
        (MESSAGES, {"thinking": {"type": "adaptive"}}, NOTHING),
        (MESSAGES, {"thinking": {"type": "disabled"}}, OFF),
        (MESSAGES, {"thinking": {"type": "disabled"}, "output_config": {"effort": "low"}}, OFF),
        (MESSAGES, {"output_config": {"effort": "max"}}, "[||high]"),
        (
            MESSAGES,
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}},
            "[||low]",
        ),
        (MESSAGES, {"thinking": {"type": "enabled"}}, on()),
        (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 1024}}, on("low")),
        (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 4096}}, on("medium")),
        (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 31999}}, on("high")),
        (
            MESSAGES,
            {
                "thinking": {"type": "enabled", "budget_tokens": 31999},
                "output_config": {"effort": "low"},
            },
            on("low"),
        ),
        ("/api/chat", {"think": False}, OFF),
        ("/api/chat", {"think": True}, on()),
        ("/api/chat", {"think": "low"}, on("low")),
    ],
)
def test_a_template_is_told(
    path: str, asked: dict[str, Any], told: str, models: tuple[Recorded, Served]
) -> None:
    llm, served = models
    short = {"max_tokens": 1, "max_output_tokens": 1, "options": {"num_predict": 1}}
    said = {"input" if path == RESPONSES else "messages": SAID, "stream": False, **short}
    status, body = served.post(path, {"model": "thinks", **said, **asked})
    assert status == 200, body
    assert llm.detokenize(llm.prompts[-1], skip_special=False) == f"tea<think>{told}</think>"
    # Of no effect where the template has no such switch.
    if path != "/api/chat":
        status, body = served.post(path, {"model": "plain", **said, **asked})
        assert status == 200, body


@pytest.mark.parametrize(
    ("path", "asked", "field"),
    [
        (CHAT, {"reasoning_effort": "deep"}, "reasoning_effort"),
        (CHAT, {"reasoning_effort": 3}, "reasoning_effort"),
        (RESPONSES, {"reasoning": {"effort": "deep"}}, "reasoning.effort"),
        (RESPONSES, {"reasoning": "high"}, "reasoning"),
        (MESSAGES, {"output_config": {"effort": "deep"}}, "output_config.effort"),
        (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
    ],
)
def test_a_wrong_effort_is_named(
    path: str, asked: dict[str, Any], field: str, models: tuple[Recorded, Served]
) -> None:
    said = {"input" if path == RESPONSES else "messages": SAID, "max_tokens": 1}
    status, body = models[1].post(path, {"model": "thinks", **said, **asked})
    assert status == 400 and body["error"]["message"].startswith(f"{field} = ")


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_ollamas_clients_are_told_of_a_model_that_does_not_think(
    path: str, models: tuple[Recorded, Served]
) -> None:
    body = {"model": "plain", "messages": SAID, "prompt": "tea", "stream": False}
    short = {"options": {"num_predict": 1}}
    status, said = models[1].post(path, {**body, **short, "think": True})
    assert status == 400 and '"plain" does not support thinking' in said["error"]
    assert models[1].post(path, {**body, **short, "think": False})[0] == 200
