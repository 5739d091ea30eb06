"""What who runs a server asks it."""

import json
import logging
import re
import time
from pathlib import Path

import pytest
from onegraph import LLM, ArgumentError, DeviceError
from onegraph.server import asgi
from onegraph.server.metrics import Histogram
from onegraph.stats import Stats
from starlette.applications import Starlette
from starlette.routing import Mount
from support.serving import Served, serving, until


def figures(text: str) -> dict[str, float]:
    """The samples of Prometheus' text, by name and labels."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, _, number = line.rpartition(" ")
            assert name not in found
            found[name] = float(number)
    return found


def test_health_and_readiness(served: Served) -> None:
    assert served.get("/health") == (200, {"status": "ok"})
    assert served.get("/ready") == (200, {"status": "ready"})
    served.app.state.service.draining = True
    assert served.get("/ready") == (503, {"status": "draining"})
    assert served.get("/health")[0] == 200
    served.app.state.service.draining = False


@pytest.mark.parametrize("where", ["/ai", "/v1", "/v1/chat"])
def test_it_is_mounted_in_another_app(where: str, llm: LLM) -> None:
    asked = {"prompt": "tea", "max_tokens": 2}
    with serving(Starlette(routes=[Mount(where, asgi({"tiny": llm}))])) as served:
        assert served.post(f"{where}/v1/completions", asked)[0] == 200
        for path in ("/completions", "/chat/completions", "/embeddings"):
            assert served.post(path, asked)[0] == 404


def test_where_it_is_mounted_refusals_keep_their_dialect(llm: LLM) -> None:
    with serving(Starlette(routes=[Mount("/ai", asgi({"tiny": llm}))])) as served:
        for refused in (served.get, lambda path: served.post(path, {"model": "none"})):
            assert set(refused("/ai/v1/completions")[1]["error"]) > {"message", "type"}
            assert set(refused("/ai/v1/messages")[1]) == {"type", "error"}
            assert isinstance(refused("/ai/api/chat")[1]["error"], str)


def test_a_model_whose_engine_has_ended_is_neither_healthy_nor_ready(
    tiny: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with LLM(tiny, device="cpu") as ended, serving(asgi({"tiny": ended})) as served:
        assert served.get("/health")[0] == served.get("/ready")[0] == 200
        ended.close()
        for path in ("/health", "/ready"):
            assert served.get(path) == (503, {"status": "failed", "model": "tiny"})
        assert "tiny has stopped answering: the model is closed" in caplog.text


def test_an_engine_that_failed_hides_no_figures_of_others(
    tiny: Path, llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Stats:
        raise DeviceError("the card is gone")

    with (
        LLM(tiny, device="cpu") as failed,
        serving(asgi({"failed": failed, "tiny": llm})) as served,
    ):
        monkeypatch.setattr(failed, "stats", fail)
        assert served.get("/health")[0] == 503
        status, text = served.get("/metrics")
    assert status == 200
    assert figures(text)['onegraph:slots{model_name="tiny"}'] == llm.max_batch
    assert 'model_name="failed"' not in text


def test_metrics_count_what_was_done(llm: LLM) -> None:
    with serving(asgi({"tiny": llm})) as served:
        before = figures(served.get("/metrics")[1])
        for stream in (False, True):
            asked = {"prompt": "tea", "max_tokens": 6, "ignore_eos": True, "stream": stream}
            assert served.post("/v1/completions", asked)[0] == 200
        assert served.post("/v1/completions", {})[0] == 400
        text = served.get("/metrics")[1]
        after = figures(text)
    model = 'model_name="tiny"'
    made = f"onegraph:generated_tokens_total{{{model}}}"
    assert after[made] - before[made] == 12
    for name in ("vllm:num_requests_waiting", "vllm:num_requests_running"):
        assert after[f"{name}{{{model}}}"] == 0
    assert 0 <= after[f"vllm:kv_cache_usage_perc{{{model}}}"] <= 1
    assert any(name.startswith('vllm:cache_config_info{model_name="tiny",block') for name in after)
    for name in ("time_to_first_token", "time_per_output_token", "request_queue", "request"):
        assert after[f"onegraph:{name}_seconds_count{{{model}}}"] == 2
        assert after[f'onegraph:{name}_seconds_bucket{{{model},le="+Inf"}}'] == 2
    posts = 'onegraph:responses_total{method="POST",status="%d"}'
    assert (after[posts % 200], after[posts % 400]) == (2, 1)
    # Every sample belongs to a metric that was named before, with its kind.
    kinds = dict(re.findall(r"^# TYPE (\S+) (\w+)$", text, flags=re.M))
    for name in after:
        plain = name.partition("{")[0]
        base = re.sub(r"_(bucket|sum|count)$", "", plain)
        assert plain in kinds or kinds[base] == "histogram"


def test_a_histogram_counts_what_is_below_each_end() -> None:
    histogram = Histogram()
    for seconds in (0.001, 0.0011, 0.3, 1000.0):
        histogram.observe(seconds)
    found = figures("\n".join(histogram.lines("h", 'a="b"')))
    assert found['h_bucket{a="b",le="0.001"}'] == 1
    assert found['h_bucket{a="b",le="0.0025"}'] == 2
    assert found['h_bucket{a="b",le="0.5"}'] == 3
    assert found['h_bucket{a="b",le="60.0"}'] == 3
    assert found['h_bucket{a="b",le="+Inf"}'] == found['h_count{a="b"}'] == 4
    assert abs(found['h_sum{a="b"}'] - 1000.3021) < 1e-4


def test_text_to_tokens_and_back(served: Served, llm: LLM) -> None:
    ids = llm.tokenize("tea and toast")
    for name in ("prompt", "content"):
        status, body = served.post("/tokenize", {name: "tea and toast"})
        assert (status, body) == (200, {"tokens": ids, "count": len(ids), "max_model_len": 512})
    plain = served.post("/tokenize", {"prompt": "tea", "add_special": False})[1]["tokens"]
    assert plain == llm.tokenize("tea", add_special=False)
    text = "te\u00e9\u2603"  # no token of the model has these
    _, body = served.post("/tokenize", {"content": text, "add_special": False, "with_pieces": True})
    said = [each["piece"] for each in body["tokens"]]
    assert b"".join(p.encode() if isinstance(p, str) else bytes(p) for p in said).decode() == text
    assert {type(piece) for piece in said} == {str, list}
    assert [each["id"] for each in body["tokens"]] == llm.tokenize(text, add_special=False)
    status, told = served.get("/tokenizer_info")
    assert status == 200 and told["chat_template"] == llm.chat_template.source
    for name, id in (("bos_token", llm.tokenizer.bos_id), ("eos_token", llm.tokenizer.eos_id)):
        asked = {"prompt": told[name], "add_special_tokens": False}
        assert served.post("/tokenize", asked)[1]["tokens"] == [id]
        asked["prompt"] += "x"
        assert served.post("/tokenize", asked)[1]["tokens"] != [id]
    status, body = served.post("/detokenize", {"tokens": ids})
    assert status == 200 and body["content"] == body["prompt"] == llm.detokenize(ids)
    said = [{"role": "user", "content": "tea"}]
    count = served.post("/tokenize", {"messages": said})[1]["count"]
    asked = {"messages": said, "max_tokens": 1}
    usage = served.post("/v1/chat/completions", asked)[1]["usage"]
    assert count == usage["prompt_tokens"]
    for path, wrong in [
        ("/tokenize", {}),
        ("/tokenize", {"prompt": 5}),
        ("/tokenize", {"prompt": "a", "content": "b"}),
        ("/detokenize", {}),
        ("/detokenize", {"tokens": ["a"]}),
        ("/detokenize", {"tokens": [10**9]}),
        ("/detokenize", {"tokens": [-1]}),
    ]:
        status, body = served.post(path, wrong)
        assert status == 400, (path, wrong, body)


def test_a_line_is_logged_of_each_request_and_nothing_of_what_it_says(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "marzipan"
    time.sleep(0.2)  # a line comes behind the answer: those of the tests before are out
    with caplog.at_level(logging.INFO, "onegraph.server"):
        asked = {"messages": [{"role": "user", "content": secret}], "max_tokens": 3, "user": secret}
        served.post("/v1/chat/completions", asked)
        served.post("/v1/chat/completions", {**asked, "stream": True})
        served.post("/v1/chat/completions", {**asked, "temperature": secret})
        served.post("/v1/chat/completions", {**asked, "model": secret})
        served.get("/v1/models", authorization=f"Bearer {secret}")
        until(lambda: len(caplog.records) == 5)
    lines = [json.loads(record.getMessage()) for record in caplog.records]
    assert [line["status"] for line in lines] == [200, 200, 400, 404, 200]
    assert secret not in caplog.text
    whole, stream, *_ = lines
    assert whole["prompt_tokens"] == stream["prompt_tokens"] > 0
    assert (whole["stream"], stream["stream"]) == (False, True)
    assert whole["model"] == "tiny" and whole["completion_tokens"] <= 3
    assert 0 < stream["first_token_seconds"] <= stream["seconds"]
    assert len({line["request"] for line in lines}) == 5


def test_the_line_of_several_prompts_has_all_of_them(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    asked = {"prompt": ["tea and cake and more", "x"], "max_tokens": 3, "ignore_eos": True}
    with caplog.at_level(logging.INFO, "onegraph.server"):
        usage = served.post("/v1/completions", asked)[1]["usage"]
        until(lambda: any("completion_tokens" in each.getMessage() for each in caplog.records))
    line = json.loads(caplog.records[-1].getMessage())
    for name in ("prompt_tokens", "completion_tokens"):
        assert line[name] == usage[name]
    assert line["completion_tokens"] == 6 and line["finish"] == "length"


def test_several_models_are_told_apart(llm: LLM, smol: LLM) -> None:
    with serving(asgi({"tiny": llm, "smollm2": smol})) as served:
        said = {"prompt": "The capital of France is", "max_tokens": 3, "temperature": 0}
        assert served.post("/v1/completions", {**said, "model": "smollm2"})[1]["choices"][0][
            "text"
        ] == (" Paris.\n")
        for name in ("tiny", None, "tiny:latest"):
            assert served.post("/v1/completions", {**said, "model": name})[1]["model"] == "tiny"
        assert [each["id"] for each in served.get("/v1/models")[1]["data"]] == ["tiny", "smollm2"]


@pytest.mark.parametrize(
    ("option", "wrong"),
    [
        ("max_queue", -1),
        ("max_tokens_limit", 0),
        ("timeout", 0),
        ("timeout", float("nan")),
        ("max_body", 0),
        ("api_keys", [5]),
    ],
)
def test_an_option_out_of_range_is_named(option: str, wrong: object, llm: LLM) -> None:
    with pytest.raises(ArgumentError, match=rf"^{option} = "):
        asgi(llm, **{option: wrong})  # type: ignore[arg-type]


def test_a_server_without_a_model_is_refused() -> None:
    with pytest.raises(ArgumentError, match="give at least one model"):
        asgi({})
