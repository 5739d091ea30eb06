"""ollama's dialect, spoken by its own client."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ollama
import pytest
from onegraph import LLM
from onegraph.server.app import build
from onegraph.server.limits import Limits
from onegraph.server.models import Models
from onegraph.server.ollama import _behind
from onegraph.server.service import Service
from onegraph.streams import Ask, Job
from support.serving import Served, serving, until

SAID = [{"role": "user", "content": "Why is the sky blue?"}]
GREEDY = {"temperature": 0.0, "num_predict": 12}


@pytest.fixture(scope="module")
def client(smol_served: Served) -> ollama.Client:
    return ollama.Client(smol_served.url)


def test_a_chat_is_what_the_model_says(client: ollama.Client, smol: LLM) -> None:
    plain = smol.chat(SAID, temperature=0.0, max_tokens=12)
    made = client.chat("smollm2", SAID, options=GREEDY)
    assert made.message.content == plain.text and made.message.role == "assistant"
    assert (made.done, made.done_reason) == (True, "length")
    assert made.model == "smollm2:latest"
    assert made.prompt_eval_count == plain.usage.prompt_tokens and made.eval_count == 12
    assert made.total_duration and made.eval_duration and made.prompt_eval_duration
    assert made.total_duration >= made.eval_duration > 1000 * 1000  # nanoseconds
    *pieces, last = client.chat("smollm2:latest", SAID, options=GREEDY, stream=True)
    assert "".join(piece.message.content or "" for piece in pieces) == plain.text
    assert len(pieces) > 6 and not any(piece.done for piece in pieces)
    assert last.done and last.eval_count == 12 and last.message.content == ""


def test_generate_uses_the_template_or_not(client: ollama.Client, smol: LLM) -> None:
    question = SAID[0]["content"]
    plain = smol.chat(
        [{"role": "system", "content": "Be brief."}, *SAID], temperature=0.0, max_tokens=12
    )
    made = client.generate("smollm2", question, system="Be brief.", options=GREEDY)
    assert made.response == plain.text and made.done_reason == "length"
    raw = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    ids = smol.tokenize(raw, parse_special=True)
    spelled = smol.generate(ids, temperature=0.0, max_tokens=12)
    made = client.generate("smollm2", raw, raw=True, options=GREEDY)
    assert made.response == spelled.text and made.prompt_eval_count == len(ids)
    pieces = list(client.generate("smollm2", raw, raw=True, options=GREEDY, stream=True))
    assert "".join(piece.response for piece in pieces) == spelled.text


def test_options_are_the_engines(client: ollama.Client, smol: LLM) -> None:
    same: dict[str, Any] = {"temperature": 0.9, "top_k": 30, "top_p": 0.9, "min_p": 0.01}
    same |= {"seed": 7, "repeat_penalty": 1.2, "repeat_last_n": 20, "presence_penalty": 0.1}
    plain = smol.chat(SAID, max_tokens=12, **same)
    made = client.chat("smollm2", SAID, options={**same, "num_predict": 12, "num_ctx": 4096})
    assert made.message.content == plain.text
    word = plain.text.split()[2]
    made = client.chat("smollm2", SAID, options={**same, "num_predict": 12, "stop": [word]})
    assert made.message.content == plain.text.partition(word)[0] and made.done_reason == "stop"
    drawn = {client.chat("smollm2", SAID, options={"seed": -1, "num_predict": 8}).message.content}
    for _ in range(5):
        options = {"seed": -1, "num_predict": 8, "temperature": 2.0}
        drawn.add(client.chat("smollm2", SAID, options=options).message.content)
    assert len(drawn) > 1


def test_models_are_listed_and_shown(client: ollama.Client, smol: LLM) -> None:
    (model,) = client.list().models
    assert model.model == "smollm2:latest" and model.size == smol.path.stat().st_size
    assert model.details is not None and model.details.family == "llama"
    assert model.details.quantization_level == "Q4_1"
    assert model.details.parameter_size == "134.5M"
    shown = client.show("smollm2")
    assert shown.template == smol.chat_template.source  # type: ignore[union-attr]
    assert shown.modelinfo is not None
    assert shown.modelinfo["general.architecture"] == "llama"
    # The file says 8192; there is room for fewer.
    assert shown.modelinfo["llama.context_length"] == 1024
    assert shown.parameters == "num_ctx 1024"
    assert shown.capabilities == ["completion"]
    (running,) = client.ps().models
    assert running.model == "smollm2:latest" and running.size_vram == 0
    assert running.context_length == 1024


def test_asking_for_a_model_to_be_there_is_answered(client: ollama.Client) -> None:
    loaded = client.generate("smollm2", "")
    assert (loaded.done, loaded.done_reason, loaded.response) == (True, "load", "")
    assert client.chat("smollm2", []).done_reason == "load"


def test_a_model_of_a_folder_comes_and_goes_when_it_is_asked_to(llm: LLM, tiny: Path) -> None:
    loads = []

    def load() -> LLM:
        loads.append("more")
        return LLM(tiny, device="cpu")

    models = Models({"tiny": llm}, max_queue=8, folder={"more": (tiny, load)})
    with serving(build(Service(models, Limits()))) as served:
        client = ollama.Client(served.url)

        def there() -> list[str | None]:
            return [each.model for each in client.ps().models]

        assert client.generate("more", keep_alive=0).done_reason == "unload" and loads == []
        for asks in (client.generate, client.chat):
            assert asks("more").done_reason == "load"
            assert there() == ["tiny:latest", "more:latest"]
            assert asks("more", keep_alive="5m").done_reason == "load"
            for nothing in (0, "0", "0s", "-0h0.0m0s"):
                assert asks("more", keep_alive=nothing).done_reason == "unload"
                assert there() == ["tiny:latest"]
        assert loads == ["more", "more"]
        # One that was given stays, and so does one in use.
        assert client.generate("tiny", keep_alive=0).done_reason == "unload"
        client.generate("more")
        models.find("more").users += 1
        assert client.generate("more", keep_alive=0).done_reason == "unload"
        assert there() == ["tiny:latest", "more:latest"]
        models.find("more").users -= 1
        status, body = served.post("/api/generate", {"model": "more", "keep_alive": []})
        assert status == 400 and body["error"].startswith("keep_alive")
        hostile = {"model": "more", "keep_alive": "0" * 100_000 + "x"}
        status, body = served.post("/api/generate", hostile)
        assert status == 400 and len(body["error"]) < 200
        client.generate("more", keep_alive=0)


def test_a_model_goes_when_nobody_has_used_it_for_so_long(llm: LLM, tiny: Path) -> None:
    def load() -> LLM:
        return LLM(tiny, device="cpu")

    models = Models({"tiny": llm}, max_queue=8, folder={"more": (tiny, load)})
    with serving(build(Service(models, Limits()))) as served:
        more = models.find("more")

        def asked(**kept: Any) -> None:
            options = {"num_predict": 1}
            body = {"model": "more", "prompt": "tea", "options": options, "stream": False, **kept}
            assert served.post("/api/generate", body)[1]["done"]

        def expires() -> str:
            (listed,) = (
                m for m in served.get("/api/ps")[1]["models"] if m["name"] == "more:latest"
            )
            return str(listed["expires_at"])

        for stays in ({}, {"keep_alive": -1}, {"keep_alive": "-1m"}):
            asked(**stays)
            assert more.keep is None and expires() == "2318-01-01T00:00:00Z"
        asked(keep_alive="1h30m")
        assert more.keep == 5400 and more.llm is not None and expires() < "2318"
        asked(keep_alive="1.5s")
        assert more.keep == 1.5
        asked(keep_alive=0.01)
        until(lambda: more.llm is None)
        # It is there again for the next to ask, and stays, as nothing is said of it.
        asked()
        assert more.llm is not None and more.keep is None
        asked(keep_alive=0)
        until(lambda: more.llm is None)
        for wrong in ("5 minutes", "m", "--1s", "1x", "1.2.3", "", "inf", True):
            status, body = served.post("/api/generate", {"model": "more", "keep_alive": wrong})
            assert status == 400 and body["error"].startswith("keep_alive")


def test_what_ollama_does_with_files_says_what_to_do_here(
    client: ollama.Client, served: Served
) -> None:
    for call, said in [
        (lambda: client.pull("x"), "onegraph pull"),
        (lambda: client.create("x", from_="y"), "path of a .gguf file"),
        (lambda: client.push("x"), "publishes nothing"),
        (lambda: client.copy("x", "y"), "--alias"),
        (lambda: client.delete("x"), "onegraph rm"),
    ]:
        with pytest.raises(ollama.ResponseError, match=said) as refused:
            call()
        assert refused.value.status_code == 501
    with pytest.raises(ollama.ResponseError, match="not on this server") as missing:
        client.chat("llama3", SAID)
    assert missing.value.status_code == 404


def test_it_is_found_by_programs_that_look_for_ollama(served: Served) -> None:
    assert served.get("/") == (200, "Ollama is running")
    assert served.send("HEAD", "/", None)[0] == 200
    status, body = served.get("/api/version")
    assert status == 200 and tuple(map(int, body["version"].split("."))) >= (0, 6, 4)


ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "tea"}]}


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("options.temperature", {"temperature": "x"}),
        ("options.temperature", {"temperature": 1000}),
        ("options.num_predict", {"num_predict": 1.5}),
        ("options.seed", {"seed": "x"}),
        ("options.stop", {"stop": 5}),
        ("options", []),
        ("stream", "no"),
        ("format", "xml"),
        ("format", {"type": "tree"}),
        ("tools[0].function", [{"type": "function"}]),
        ("tools", [{"type": "function", "function": {"name": "x"}}]),
        ("messages[0].tool_calls[0].function", [{"role": "assistant", "tool_calls": [{}]}]),
        ("think", "hard"),
        ("messages[0].images", [{"role": "user", "content": "x", "images": ["aGk="]}]),
        ("messages[0].content", [{"role": "user"}]),
        ("messages[0].content", [{"role": "user", "content": [1]}]),
    ],
)
def test_a_wrong_field_is_named(field: str, wrong: Any, served: Served) -> None:
    name = field.partition(".")[0].partition("[")[0]
    status, body = served.post("/api/chat", {**ASKED, name: wrong})
    assert status == 400 and list(body) == ["error"]
    assert body["error"].startswith(field)


@pytest.mark.parametrize("field", ["images", "videos", "template"])
def test_what_generate_does_not_do_is_named(field: str, served: Served) -> None:
    status, body = served.post("/api/generate", {"prompt": "tea", field: ["x"]})
    assert status == 400 and body["error"].startswith(f"{field}: ")


def test_a_model_without_thinking_is_not_asked_to_think(served: Served) -> None:
    for think in (True, "low"):
        for stream in (True, False):
            asked = {**ASKED, "think": think, "stream": stream, "options": {"num_predict": 2}}
            assert served.post("/api/chat", asked) == (
                400,
                {"error": '"tiny" does not support thinking; leave `think` out'},
            )
    asked = {**ASKED, "think": False, "stream": False, "options": {"num_predict": 2}}
    assert served.post("/api/chat", asked)[0] == 200


def test_numbers_are_read_as_ollama_reads_them(client: ollama.Client, smol: LLM) -> None:
    plain = smol.chat(SAID, temperature=0.0, max_tokens=2).text
    options: Any = {"temperature": 0, "num_predict": 2.0, "top_k": -1, "seed": 3.0}
    assert client.chat("smollm2", SAID, options=options).message.content == plain
    stop = plain.split()[-1]
    # 0 tokens are as many as there is room for.
    made = client.chat(
        "smollm2", SAID, options={"temperature": 0, "num_predict": 0, "stop": [stop]}
    )
    assert made.done_reason == "stop" and made.message.content == plain.partition(stop)[0]
    room = made.prompt_eval_count + 1
    made = client.chat("smollm2", SAID, options={"temperature": 0, "num_ctx": room})
    assert (made.eval_count, made.done_reason) == (1, "length")
    with pytest.raises(
        ollama.ResponseError, match=rf"options.num_ctx = {room - 1}: the prompt has"
    ):
        client.chat("smollm2", SAID, options={"num_ctx": room - 1})


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_are_the_engines(client: ollama.Client, smol: LLM, stream: bool) -> None:
    plain = smol.chat(SAID, temperature=0.0, max_tokens=3, logprobs=2)
    assert plain.logprobs is not None
    asked: Any = {"options": {**GREEDY, "num_predict": 3}, "logprobs": True, "top_logprobs": 2}
    made = client.chat("smollm2", SAID, stream=stream, **asked)
    parts = [*made] if stream else [made]
    found = [each for part in parts for each in part.logprobs or []]
    assert [each.logprob for each in found] == [each.logprob for each in plain.logprobs]
    assert [each.token for each in found] == [each.text for each in plain.logprobs]
    assert [[t.token for t in each.top_logprobs or []] for each in found] == [
        [t.text for t in each.top] for each in plain.logprobs
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_a_context_is_gone_on_from(client: ollama.Client, smol: LLM, stream: bool) -> None:
    """A turn whose answer came to its end, then one more: nothing is read again."""
    asked: Any = {"system": "Be brief.", "format": {"enum": ["tea"]}, "options": GREEDY}
    made = client.generate("smollm2", "A drink?", stream=stream, **asked)
    last = [*made][-1] if stream else made
    said = [{"role": "user", "content": "A drink?"}, {"role": "assistant", "content": '"tea"'}]
    whole = smol._rendered([{"role": "system", "content": "Be brief."}, *said], None, False, None)
    ids = smol.tokenize(whole, parse_special=True)
    assert last.context is not None and last.context == ids[: len(last.context)]
    again: Any = client.generate(
        "smollm2", "Hot?", context=last.context, system="Yes.", options=GREEDY
    )
    turn = [{"role": "system", "content": "Yes."}, {"role": "user", "content": "Hot?"}]
    more = smol.tokenize(smol._rendered(turn, None, False, None), parse_special=True)
    plain = smol.generate([*last.context, *more], temperature=0.0, max_tokens=12)
    assert (again.response, again.prompt_eval_count) == (plain.text, plain.usage.prompt_tokens)
    assert client.generate("smollm2", "tea", raw=True, options=GREEDY).context is None


def test_a_text_begins_once() -> None:
    """The token that begins texts stands in front of no later turn, unless turns begin with it."""
    tokenizer = SimpleNamespace(n_vocab=9, bos_id=1)
    model: Any = SimpleNamespace(tokenizer=tokenizer, _engine=SimpleNamespace(check_room=id))
    for given, left in (([1, 5], [5]), ([1, 5, 1], [1, 5, 1]), ([5], [5])):
        job = Job([Ask(given, {}, "prompt", "", is_chat=True)], False, None)
        assert _behind(model, [1, 2], job).asks[0].ids == [1, 2, *left]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([1, "a"], "context[1] = 'a': must be the id of a token"),
        ([1, 2**70], "context[1] = 1180591620717411303424: must be from 0 to 511"),
        ([-1], "context[0] = -1: must be from 0 to 511"),
        ([1] * 600, "the prompt has 6"),
        ("tea", "context = 'tea': must be a list"),
    ],
)
def test_a_wrong_context_is_named(served: Served, given: Any, said: str) -> None:
    status, body = served.post("/api/generate", {"prompt": "tea", "context": given})
    assert status == 400 and said in body["error"], body


@pytest.mark.parametrize("truncate", [False, True])
def test_a_prompt_is_never_cut(served: Served, truncate: bool) -> None:
    body = {"prompt": "x" * 9000, "messages": [{"role": "user", "content": "x" * 9000}]}
    for path in ("chat", "generate"):
        status, said = served.post(f"/api/{path}", {**body, "truncate": truncate})
        assert status == 400 and "the context holds 512" in said["error"]
        status, said = served.post(f"/api/{path}", {**body, "truncate": "yes"})
        assert status == 400 and said["error"].startswith("truncate = 'yes': must be")


def test_nobody_is_signed_in(served: Served) -> None:
    status, body = served.post("/api/me", {})
    assert status == 401 and "no accounts" in body["error"]


def test_every_line_is_an_object(served: Served, llm: LLM) -> None:
    asked = {"prompt": "tea", "options": {"num_predict": 30, "seed": 3, "temperature": 2.0}}
    plain = llm.chat([{"role": "user", "content": "tea"}], max_tokens=30, seed=3, temperature=2.0)
    status, raw = served.post("/api/generate", asked)
    assert status == 200
    lines = [json.loads(line) for line in raw.split("\n") if line]
    assert "".join(line["response"] for line in lines) == plain.text
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
