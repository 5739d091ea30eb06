"""OpenAI's dialect, spoken by its own client, and what it refuses."""

from typing import Any

import openai
import pytest
from onegraph import LLM
from support.serving import Served, events

SAID: list[Any] = [{"role": "user", "content": "Why is the sky blue?"}]
GREEDY: dict[str, Any] = {"model": "smollm2", "temperature": 0.0, "max_tokens": 12}


@pytest.fixture(scope="module")
def client(smol_served: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{smol_served.url}/v1", api_key="any", max_retries=0)


def test_a_chat_is_what_the_model_says(client: openai.OpenAI, smol: LLM) -> None:
    made = client.chat.completions.create(messages=SAID, **GREEDY)
    plain = smol.chat(SAID, temperature=0.0, max_tokens=12)
    (choice,) = made.choices
    assert choice.message.content == plain.text and choice.finish_reason == "length"
    assert made.object == "chat.completion" and made.model == "smollm2"
    assert made.usage is not None and made.usage.prompt_tokens_details is not None
    assert made.usage.prompt_tokens == plain.usage.prompt_tokens
    assert made.usage.completion_tokens == 12
    assert made.usage.total_tokens == plain.usage.prompt_tokens + 12
    again = client.chat.completions.create(messages=SAID, **GREEDY)
    assert again.usage is not None and again.usage.prompt_tokens_details is not None
    cached = again.usage.prompt_tokens_details.cached_tokens
    assert cached is not None and 0 < cached < plain.usage.prompt_tokens


def test_a_stream_is_the_same_in_pieces(client: openai.OpenAI, smol: LLM) -> None:
    plain = smol.chat(SAID, temperature=0.0, max_tokens=12)
    asked = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(client.chat.completions.create(messages=SAID, **GREEDY, **asked))
    *told, last = chunks
    deltas = [chunk.choices[0].delta for chunk in told]
    assert deltas[0].role == "assistant" and len(deltas) > 6
    assert "".join(delta.content or "" for delta in deltas) == plain.text
    assert [c.choices[0].finish_reason for c in told] == [None] * (len(told) - 1) + ["length"]
    assert all(chunk.usage is None for chunk in told)
    assert last.choices == [] and last.usage is not None
    assert last.usage.completion_tokens == 12
    assert len({chunk.id for chunk in chunks}) == 1
    without = client.chat.completions.create(messages=SAID, stream=True, **GREEDY)
    assert all(chunk.choices for chunk in without)


def test_stop_seed_and_sampling_are_the_engines(client: openai.OpenAI, smol: LLM) -> None:
    asked: dict[str, Any] = {"temperature": 0.9, "top_p": 0.9, "max_tokens": 10, "seed": 7}
    plain = smol.chat(SAID, **asked, presence_penalty=0.5, top_k=20)
    made = client.chat.completions.create(
        model="smollm2", messages=SAID, presence_penalty=0.5, extra_body={"top_k": 20}, **asked
    )
    assert made.choices[0].message.content == plain.text
    word = plain.text.split()[2]
    for stop in (word, ["nowhere at all", word]):
        made = client.chat.completions.create(
            model="smollm2",
            messages=SAID,
            presence_penalty=0.5,
            stop=stop,
            extra_body={"top_k": 20},
            **asked,
        )
        assert made.choices[0].message.content == plain.text.partition(word)[0]
        assert made.choices[0].finish_reason == "stop"


def test_logprobs_are_the_engines(client: openai.OpenAI, smol: LLM) -> None:
    plain = smol.chat(SAID, temperature=0.0, max_tokens=3, logprobs=2).to_openai()
    asked: dict[str, Any] = {**GREEDY, "max_tokens": 3, "logprobs": True, "top_logprobs": 2}
    made = client.chat.completions.create(messages=SAID, **asked)
    assert made.choices[0].logprobs is not None
    assert made.choices[0].logprobs.model_dump() == plain["choices"][0]["logprobs"]
    streamed = client.chat.completions.create(messages=SAID, stream=True, **asked)
    tokens = [
        each.model_dump()
        for chunk in streamed
        if chunk.choices[0].logprobs
        for each in chunk.choices[0].logprobs.content or []
    ]
    assert tokens == plain["choices"][0]["logprobs"]["content"]


def test_completions_take_prompts_of_every_form(client: openai.OpenAI, smol: LLM) -> None:
    text = "The capital of France is"
    plain = smol.generate(text, temperature=0.0, max_tokens=5, logprobs=1)
    asked: dict[str, Any] = {**GREEDY, "max_tokens": 5}
    made = client.completions.create(prompt=text, logprobs=1, **asked)
    assert made.choices[0].text == plain.text
    logprobs = made.choices[0].logprobs
    assert logprobs is not None and plain.logprobs is not None
    assert logprobs.token_logprobs == [each.logprob for each in plain.logprobs]
    assert logprobs.text_offset is not None and logprobs.text_offset[0] == 0
    many = client.completions.create(prompt=[text, text], **asked)
    assert [choice.text for choice in many.choices] == [plain.text] * 2
    assert [choice.index for choice in many.choices] == [0, 1]
    ids = client.completions.create(prompt=smol.tokenize(text), echo=True, **asked)
    assert ids.choices[0].text == text + plain.text
    chunks = client.completions.create(prompt=text, stream=True, **asked)
    assert "".join(chunk.choices[0].text for chunk in chunks) == plain.text
    assert client.completions.create(model="smollm2", prompt=text).usage.completion_tokens <= 16  # type: ignore[union-attr]


def test_models_are_listed_by_name(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["smollm2"]
    assert client.models.retrieve("smollm2").owned_by == "onegraph"
    with pytest.raises(openai.NotFoundError, match=r"model = 'smolm2'.*did you mean 'smollm2'"):
        client.chat.completions.create(model="smolm2", messages=SAID)


def test_a_message_goes_on_where_that_is_asked(client: openai.OpenAI, smol: LLM) -> None:
    begun = [*SAID, {"role": "assistant", "content": "Because"}]
    plain = smol.chat(begun, continue_final_message=True, temperature=0.0, max_tokens=12)
    extra = {"continue_final_message": True}
    made = client.chat.completions.create(messages=begun, extra_body=extra, **GREEDY)
    assert made.choices[0].message.content == plain.text


CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "tea"}], "max_tokens": 2}


@pytest.mark.parametrize(
    ("field", "wrong", "said"),
    [
        ("temperature", 500, "must be"),
        ("temperature", "hot", "must be a number"),
        ("temperature", True, "must be a number"),
        ("top_p", -1, "must be"),
        ("top_k", 1.5, "must be an integer"),
        ("max_tokens", "many", "must be an integer"),
        ("max_completion_tokens", -5, "must be"),
        ("repetition_penalty", 1000, "must be"),
        ("seed", 2**70, "at most"),
        ("stop", 5, "must be a string or a list of strings"),
        ("stop[1]", ["a", 5], "must be a string"),
        ("logit_bias", {"tea": 1}, "ids of tokens"),
        ("logit_bias.5", {"5": "x"}, "must be a number"),
        ("logit_bias", {"99999": 1}, "vocabulary"),
        ("logit_bias.5", {"5": 10**400}, "out of range"),
        ("logit_bias[1]", [[5, 1], [5]], "must be the id of a token and a number"),
        ("stop_token_ids[0]", ["x"], "id of a token"),
        ("top_logprobs", 5, "needs logprobs"),
        ("n", 129, "at most 128"),
        ("stream", "yes", "must be true or false"),
        ("stream_options", [], "must be an object"),
        ("model", 5, "must be a string"),
        ("tools[0].function", [{"type": "function"}], "missing"),
        ("tools[0].type", [{"type": "x"}], 'must be "function"'),
        ("tools[0].function.name", [{"type": "function", "function": {}}], "missing"),
        (
            "tools[0].function.strict",
            [{"type": "function", "function": {"name": "x", "strict": 5}}],
            "must be true or false",
        ),
        ("tools", [{"type": "function", "function": {"name": "x"}}], "no place for them"),
        ("functions", [{"name": "x"}], "as `tools`"),
        ("tool_choice", "maybe", 'must be "auto"'),
        ("tool_choice.function", {"type": "function"}, "missing"),
        ("response_format.type", {"type": "xml"}, 'must be "text"'),
        ("modalities", ["audio"], 'must be ["text"]'),
        ("audio", {"voice": "x"}, "only text"),
        ("messages", None, "missing"),
        ("messages", "tea", "must be a list"),
        ("messages", [], "at least one"),
        ("messages[0]", ["tea"], "must be an object"),
        ("messages[0].role", [{"content": "tea"}], "missing"),
        ("messages[0].content", [{"role": "user"}], "missing"),
        ("messages[0].content", [{"role": "user", "content": 5}], "must be a string"),
        ("messages[0].content", [{"role": "user", "content": "\ud800"}], "surrogate"),
        (
            "messages[0].content[0].type",
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
            "only text is supported",
        ),
        (
            "messages[0].content[1].text",
            [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text"}]}],
            "missing",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_wrong_field_is_named(
    field: str, wrong: Any, said: str, stream: bool, served: Served
) -> None:
    name = field.partition(".")[0].partition("[")[0]
    status, body = served.post("/v1/chat/completions", {**CHAT, "stream": stream, name: wrong})
    assert status == 400
    assert body["error"]["type"] == "invalid_request_error"
    assert body["error"]["param"] == field
    assert body["error"]["message"].startswith(field)
    assert said in body["error"]["message"]


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("prompt", None),
        ("prompt", {"a": 1}),
        ("prompt", []),
        ("prompt", ["a", 5]),
        ("suffix", "end"),
        ("tools", [{"type": "function"}]),
        ("best_of", 3),
        ("logprobs", -1),
    ],
)
def test_a_wrong_field_of_a_completion_is_named(field: str, wrong: Any, served: Served) -> None:
    status, body = served.post("/v1/completions", {"prompt": "tea", field: wrong})
    assert (status, body["error"]["param"]) == (400, field)


def test_what_is_not_known_is_ignored_and_null_is_nothing(served: Served) -> None:
    asked = {**CHAT, "seed": None, "stop": None, "user": "me", "metadata": {"a": 1}, "frob": [1]}
    asked |= {"n": 1, "tools": [], "tool_choice": "none", "response_format": {"type": "text"}}
    asked["messages"] = [{"role": "developer", "content": [{"type": "text", "text": "tea"}]}]
    status, body = served.post("/v1/chat/completions", asked)
    assert status == 200 and body["usage"]["completion_tokens"] <= 2


def test_a_prompt_that_does_not_fit_says_both_numbers(served: Served) -> None:
    long = {"messages": [{"role": "user", "content": "tea " * 600}]}
    for stream in (False, True):
        status, body = served.post("/v1/chat/completions", {**long, "stream": stream})
        assert (status, body["error"]["code"]) == (400, "context_length_exceeded")
        assert "the context holds 512" in body["error"]["message"]


def test_what_clients_of_other_servers_write_is_read(client: openai.OpenAI, smol: LLM) -> None:
    plain = smol.chat(SAID, temperature=0.0, max_tokens=3)
    first = plain.token_ids[0]
    for biases in ([[first, False]], [[first, -100.0]], {str(first): -100}):
        made = client.chat.completions.create(
            messages=SAID, extra_body={"logit_bias": biases, "top_k": -1}, **GREEDY
        )
        assert made.choices[0].message.content != plain.text
    stop = plain.text.split()[-1]
    whole = client.chat.completions.create(
        model="smollm2", messages=SAID, temperature=0.0, max_tokens=-1, stop=stop
    )
    assert whole.choices[0].message.content == plain.text.partition(stop)[0]


def test_several_outputs_are_the_engines(client: openai.OpenAI, smol: LLM) -> None:
    asked: dict[str, Any] = {"temperature": 0.9, "max_tokens": 6, "seed": 3}
    plain = [result.text for result in smol.chat(SAID, n=3, **asked)]
    assert len(set(plain)) > 1
    made = client.chat.completions.create(model="smollm2", messages=SAID, n=3, **asked)
    assert [choice.message.content for choice in made.choices] == plain
    assert [choice.index for choice in made.choices] == [0, 1, 2]
    usage = made.usage
    assert usage is not None and usage.completion_tokens == 18
    assert usage.prompt_tokens == smol.chat(SAID, **GREEDY_TOKEN).usage.prompt_tokens
    counted: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    texts, ends, roles = [""] * 3, [], []
    *told, last = client.chat.completions.create(
        model="smollm2", messages=SAID, n=3, **asked, **counted
    )
    for chunk in told:
        (choice,) = chunk.choices
        texts[choice.index] += choice.delta.content or ""
        roles += [choice.index] if choice.delta.role else []
        ends += [choice.index] if choice.finish_reason else []
    assert texts == plain and roles == [0, 1, 2] and sorted(ends) == [0, 1, 2]
    assert last.usage is not None and last.choices == []
    assert last.usage.model_dump() == usage.model_dump() | {
        "prompt_tokens_details": last.usage.model_dump()["prompt_tokens_details"]
    }


GREEDY_TOKEN: dict[str, Any] = {"temperature": 0.0, "max_tokens": 1}


def test_several_prompts_are_streamed_by_index(client: openai.OpenAI, smol: LLM) -> None:
    prompts = ["Tea is", "Toast is"]
    asked: dict[str, Any] = {"temperature": 0.8, "max_tokens": 4, "seed": 1}
    plain = [each.text for of in smol.generate(prompts, n=2, **asked) for each in of]
    made = client.completions.create(model="smollm2", prompt=prompts, n=2, **asked)
    assert [choice.text for choice in made.choices] == plain
    texts = [""] * 4
    for chunk in client.completions.create(
        model="smollm2", prompt=prompts, n=2, stream=True, **asked
    ):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == plain


def test_prompts_are_scored(client: openai.OpenAI, smol: LLM) -> None:
    text = "The capital of France is Paris"
    scored = smol.score(text, top=1)
    # As lm-eval asks: a token is made, and those of the prompt stand before it.
    asked: dict[str, Any] = {"model": "smollm2", "temperature": 0.0, "echo": True}
    made = client.completions.create(prompt=[text, text], max_tokens=1, logprobs=1, **asked)
    plain = smol.generate(text, max_tokens=1, temperature=0.0, logprobs=1)
    assert plain.logprobs is not None
    for choice in made.choices:
        assert choice.text == text + plain.text and choice.logprobs is not None
        found = choice.logprobs
        expected = [each.logprob for each in [*scored, *plain.logprobs]]
        assert found.token_logprobs == expected and expected[0] is None
        assert found.tokens == [each.text for each in [*scored, *plain.logprobs]]
        assert found.top_logprobs is not None and found.text_offset is not None
        assert found.top_logprobs[1] == {scored[1].top[0].text: scored[1].top[0].logprob}
        for token, at in zip(found.tokens or [], found.text_offset, strict=True):
            assert choice.text[at : at + len(token)] == token
    ids = smol.tokenize(text)
    none = client.completions.create(prompt=ids, max_tokens=0, logprobs=0, **asked)
    assert none.choices[0].text == text and none.usage is not None
    assert none.usage.completion_tokens == 0 and none.choices[0].finish_reason == "length"
    assert none.choices[0].logprobs is not None
    assert none.choices[0].logprobs.token_logprobs == [each.logprob for each in scored]


def test_prompts_are_scored_as_vllm_has_it(smol_served: Served, smol: LLM) -> None:
    text = "The capital of France is Paris"
    scored = smol.score(text, top=2)
    asked = {"prompt": text, "max_tokens": 0, "prompt_logprobs": 2}
    status, body = smol_served.post("/v1/completions", asked)
    first, *others = body["choices"][0]["prompt_logprobs"]
    assert status == 200 and first is None and body["choices"][0]["text"] == ""
    for found, expected in zip(others, scored[1:], strict=True):
        own = found[str(expected.token_id)]
        assert own["logprob"] == expected.logprob and own["rank"] == expected.rank
        assert own["decoded_token"] == expected.text
        assert [found[str(t.token_id)]["rank"] for t in expected.top] == [1, 2]
    asked = {"messages": SAID, "max_tokens": 1, "prompt_logprobs": 0}
    status, body = smol_served.post("/v1/chat/completions", asked)
    assert status == 200 and len(body["prompt_logprobs"]) == body["usage"]["prompt_tokens"]
    for path, more in (
        ("chat/completions", {"messages": SAID}),
        ("completions", {"prompt": "tea"}),
    ):
        asked = {**more, "prompt_logprobs": 1, "stream": True}
        status, body = smol_served.post(f"/v1/{path}", asked)
        assert (status, body["error"]["param"]) == (400, "stream")
    status, body = smol_served.post("/v1/completions", {"prompt": "tea", "max_tokens": 0})
    assert (status, body["error"]["param"]) == (400, "max_tokens")


def test_outputs_of_all_prompts_together_are_bounded(served: Served) -> None:
    asked = {"prompt": ["tea"] * 100, "n": 128}
    status, body = served.post("/v1/completions", asked)
    assert (status, body["error"]["param"]) == (400, "n")
    assert "makes 12800 outputs" in body["error"]["message"]


def test_what_is_not_made_here_says_so(served: Served) -> None:
    status, body = served.post("/v1/nothing", {})
    assert status == 404 and "POST /v1/nothing" in body["error"]["message"]
    status, body = served.get("/v1/chat/completions")
    assert status == 405


def test_every_text_comes_through_a_frame_as_it_is(served: Served, llm: LLM) -> None:
    """The text of a random model is what no tokenizer of a real one would write."""
    for seed in range(8):
        asked = {"prompt": "tea", "max_tokens": 40, "seed": seed, "temperature": 2.0}
        plain = llm.generate("tea", max_tokens=40, seed=seed, temperature=2.0)
        status, raw = served.post("/v1/completions", {**asked, "stream": True})
        assert status == 200
        assert "".join(e["choices"][0]["text"] for e in events(raw)) == plain.text
        status, body = served.post("/v1/completions", asked)
        assert body["choices"][0]["text"] == plain.text
