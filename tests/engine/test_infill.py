"""What stands between two texts, by the model's own tokens for that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onegraph
import pytest
from onegraph.server import asgi
from support import scripted
from support.serving import Served, events, serving

GAP = "return a + b"
BEFORE, BEHIND = "def add(a, b):\n    ", "\n\nprint(add(1, 2))\n"
SPELLED = [
    ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
    ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
]


def coder(folder: Path, spelled: list[str], further: tuple[str, ...] = ()) -> Path:
    """A model that fills a gap with `GAP`, whatever stands around it."""
    return scripted.write(
        folder / "coder.gguf", [GAP], markers=[*spelled[:2], *further], begins=[spelled[2]]
    )


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[onegraph.LLM]:
    path = coder(tmp_path_factory.mktemp("coder"), SPELLED[0], ("<|file_sep|>",))
    with onegraph.LLM(path, device="cpu", max_batch=4) as llm:
        yield llm


@pytest.fixture(scope="module")
def served(llm: onegraph.LLM, tiny: Path) -> Iterator[Served]:
    with (
        onegraph.LLM(tiny, device="cpu") as plain,
        serving(asgi({"coder": llm, "plain": plain})) as served,
    ):
        yield served


@pytest.mark.parametrize("spelled", SPELLED)
def test_the_files_own_tokens_stand_around_both_texts(spelled: list[str], tmp_path: Path) -> None:
    with onegraph.LLM(coder(tmp_path, spelled), device="cpu") as llm:
        ids = [llm.tokenize(marker, parse_special=True)[-1] for marker in spelled]
        assert llm.tokenizer.infill_ids == tuple(ids)
        texts = [llm.tokenizer.encode(text, add_special=False) for text in (BEFORE, BEHIND)]
        wanted = [ids[0], *texts[0], ids[1], *texts[1], ids[2]]
        assert llm._around(BEFORE, BEHIND) == wanted
        found = llm.generate(BEFORE, suffix=BEHIND, temperature=0.0)
        assert (found.text, found.usage.prompt_tokens) == (GAP, len(wanted))


def test_files_stand_in_front_each_behind_its_mark(llm: onegraph.LLM) -> None:
    mark = llm.tokenize("<|file_sep|>", parse_special=True)[-1]
    assert llm.tokenizer.file_id == mark
    named = llm.tokenizer.encode("a.py\nx = 1\n", add_special=False)
    alone = llm._around(BEFORE, BEHIND)
    begun = llm.tokenizer.encode("ret", add_special=False)
    found = llm._around(BEFORE, BEHIND, [("a.py", "x = 1")], "ret")
    assert found == [mark, *named, *alone, *begun]


def test_without_such_tokens_it_is_refused(tiny: Path) -> None:
    with onegraph.LLM(tiny, device="cpu") as llm:
        if llm.tokenizer.infill_ids is not None:
            pytest.skip("the tiny vocabulary has tokens for it")
        with pytest.raises(onegraph.ArgumentError, match="no fill-in-the-middle tokens"):
            llm.generate("a", suffix="b")


def test_spelled_control_tokens_of_the_texts_are_text(llm: onegraph.LLM) -> None:
    middle = llm._around("", "")[-1]
    ids = llm._around("<|fim_middle|>", "<|fim_prefix|>")
    assert ids.count(middle) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_editors_ask_llama_servers_infill(served: Served, stream: bool) -> None:
    body = {
        "model": "coder",
        "input_prefix": BEFORE,
        "input_suffix": BEHIND,
        "input_extra": [{"filename": "a.py", "text": "x = 1"}],
        "prompt": "",
        "n_predict": 32,
        "temperature": 0.0,
        "stream": stream,
        "cache_prompt": True,
        "samplers": ["top_k"],
    }
    if not stream:
        status, found = served.post("/infill", body)
        assert status == 200 and found["content"] == GAP
        assert (found["stop_type"], found["stop"]) == ("eos", True)
        assert found["tokens_predicted"] == found["timings"]["predicted_n"] > 0
        fields = ["content", "timings/predicted_n", "tokens_cached", "no/such"]
        _, picked = served.post("/infill", body | {"response_fields": fields})
        assert list(picked) == fields[:3] and picked["content"] == GAP
        _, cut = served.post("/infill", body | {"n_predict": 1})
        assert cut["stop_type"] == "limit"
        _, word = served.post("/infill", body | {"stop": [" + "]})
        assert (word["stop_type"], word["stopping_word"]) == ("word", " + ")
        return
    _, raw = served.post("/infill", body)
    frames = events(raw)
    assert "".join(frame["content"] for frame in frames) == GAP
    assert [frame["stop"] for frame in frames] == [False] * (len(frames) - 1) + [True]


def test_other_dialects_fill_a_gap_too(served: Served) -> None:
    asked: dict[str, Any] = {"prompt": BEFORE, "suffix": BEHIND, "model": "coder"}
    _, found = served.post("/v1/completions", asked | {"temperature": 0, "max_tokens": 32})
    assert found["choices"][0]["text"] == GAP
    options = {"temperature": 0.0}
    _, found = served.post("/api/generate", asked | {"stream": False, "options": options})
    assert found["response"] == GAP
    _, shown = served.post("/api/show", {"model": "coder"})
    assert "insert" in shown["capabilities"]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/infill", {"input_prefix": "a"}, "input_suffix"),
        ("/infill", {"input_prefix": "a", "input_suffix": "b"}, "input_suffix"),
        ("/infill", {"input_prefix": "a", "input_suffix": 3}, "input_suffix"),
        ("/v1/completions", {"prompt": "a", "suffix": "b"}, "suffix"),
        ("/v1/completions", {"prompt": [1], "suffix": "b"}, "prompt"),
        ("/api/generate", {"prompt": "a", "suffix": "b"}, "suffix"),
    ],
)
def test_what_cannot_be_filled_is_refused_by_name(
    path: str, body: dict[str, Any], field: str, served: Served
) -> None:
    model = "coder" if body.get("prompt") == [1] else "plain"
    status, found = served.post(path, {"model": model, **body})
    said = found["error"]
    message = said if isinstance(said, str) else said["message"]
    assert status == 400 and field in message, found
