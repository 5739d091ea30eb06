"""Programs that others build on, as they come."""

import asyncio
import json
import os
from typing import Any

import anthropic
import ollama
import openai
import pytest
from onegraph import LLM
from onegraph.server import asgi
from support.calls import ADD, Scripted
from support.calls import ASKED as SUM
from support.serving import Served, serving

# It would ask the net for prices.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

pytestmark = [pytest.mark.thorough, pytest.mark.filterwarnings("ignore::UserWarning:pydantic")]


def thorough(name: str) -> Any:
    """A package that only these tests need."""
    return pytest.importorskip(name, reason=f"no {name}: `pip install .[thorough]` brings it")


SAID: list[Any] = [{"role": "user", "content": "Why is the sky blue?"}]


@pytest.fixture(scope="module")
def text(smol: LLM) -> str:
    return smol.chat(SAID, temperature=0.0, max_tokens=12).text


@pytest.mark.parametrize("prefix", ["openai", "ollama_chat", "anthropic"])
def test_litellm(prefix: str, smol_served: Served, text: str) -> None:
    litellm = thorough("litellm")
    base = smol_served.url + ("/v1" if prefix == "openai" else "")
    ask: dict[str, Any] = {
        "model": f"{prefix}/smollm2",
        "messages": SAID,
        "api_base": base,
        "api_key": "any",
        "temperature": 0.0,
        "max_tokens": 12,
        "num_retries": 0,
    }
    made = litellm.completion(**ask)
    assert made.choices[0].message.content == text
    assert made.usage.completion_tokens == 12
    chunks = litellm.completion(**ask, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text


def test_langchain(smol_served: Served, text: str) -> None:
    langchain_openai = thorough("langchain_openai")
    model = langchain_openai.ChatOpenAI(
        model="smollm2",
        base_url=f"{smol_served.url}/v1",
        api_key="any",  # type: ignore[arg-type]
        temperature=0.0,
        max_tokens=12,  # type: ignore[call-arg]
        max_retries=0,
    )
    made = model.invoke([("user", SAID[0]["content"])])
    assert made.content == text
    assert made.usage_metadata is not None and made.usage_metadata["output_tokens"] == 12
    pieces = model.stream([("user", SAID[0]["content"])])
    assert "".join(str(piece.content) for piece in pieces) == text


def test_event_loops_of_clients_share_a_server(smol_served: Served, text: str) -> None:
    """All three clients at once, on one loop."""

    async def run() -> list[str]:
        by_openai = openai.AsyncOpenAI(base_url=f"{smol_served.url}/v1", api_key="any")
        by_anthropic = anthropic.AsyncAnthropic(base_url=smol_served.url, api_key="any")
        by_ollama = ollama.AsyncClient(smol_served.url)
        chat = by_openai.chat.completions.create(
            model="smollm2", messages=SAID, temperature=0.0, max_tokens=12
        )
        message = by_anthropic.messages.create(
            model="smollm2", messages=SAID, max_tokens=12, extra_body={"temperature": 0.0}
        )
        line = by_ollama.chat("smollm2", SAID, options={"temperature": 0, "num_predict": 12})
        one, two, three = await asyncio.gather(chat, message, line)
        return [
            one.choices[0].message.content or "",
            two.content[0].text,  # type: ignore[union-attr]
            three.message.content or "",
        ]

    assert asyncio.run(run()) == [text] * 3


def test_a_client_tries_again_when_it_is_told_to(llm: LLM) -> None:
    """The queue is full at first: the client waits as long as it is told, and is served then."""
    with serving(asgi({"tiny": llm}, max_queue=0)) as served:
        running = [llm.generate("tea", stream=True, max_tokens=3) for _ in range(llm.max_batch)]
        line = served.app.state.service.models.find(None).line
        line.inside += llm.max_batch

        def free() -> None:
            line.inside -= llm.max_batch

        client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="any", max_retries=3)

        async def ask() -> str:
            asking = asyncio.to_thread(
                client.chat.completions.create,
                model="tiny",
                messages=[{"role": "user", "content": "tea"}],
                max_tokens=2,
            )
            task = asyncio.create_task(asking)
            await asyncio.sleep(0.3)
            assert not task.done()
            free()
            return (await task).choices[0].finish_reason

        assert asyncio.run(ask()) in ("length", "stop")
        for stream in running:
            stream.close()


@pytest.mark.parametrize("prefix", ["openai", "ollama_chat", "anthropic"])
def test_litellm_calls_a_tool(prefix: str, adder: Scripted) -> None:
    litellm = thorough("litellm")
    ask: dict[str, Any] = {
        "model": f"{prefix}/adder",
        "tools": [ADD],
        "api_base": adder.served.url + ("/v1" if prefix == "openai" else ""),
        "api_key": "any",
        "max_tokens": 200,
        "num_retries": 0,
    }
    made = litellm.completion(messages=SUM, **ask)
    message = made.choices[0].message
    assert made.choices[0].finish_reason == "tool_calls"
    assert (message.content, message.reasoning_content) == ("I add.", "so")
    (call,) = message.tool_calls
    assert json.loads(call.function.arguments) == {"a": 31, "b": 8}
    result = {"role": "tool", "tool_call_id": call.id, "name": "add", "content": "39"}
    again = litellm.completion(messages=[*SUM, message.model_dump(), result], **ask)
    assert again.choices[0].message.content == "31 plus 8 is 39."


def test_an_agent_of_langchain_calls_a_tool_and_uses_its_answer(adder: Scripted) -> None:
    langchain_openai = thorough("langchain_openai")

    def add(a: int, b: int) -> int:
        """Adds two numbers."""
        return a + b

    model = langchain_openai.ChatOpenAI(
        model="adder",
        base_url=f"{adder.served.url}/v1",
        api_key="any",  # type: ignore[arg-type]
        max_retries=0,
    ).bind_tools([add])
    messages: list[Any] = [("user", SUM[0]["content"])]
    while (made := model.invoke(messages)).tool_calls:
        messages.append(made)
        for call in made.tool_calls:
            result = str(add(**call["args"]))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    assert made.content == "31 plus 8 is 39." and len(messages) == 3
