"""What llama.cpp's server has beside OpenAI's dialect."""

from pathlib import Path
from typing import Any

import pytest
from onegraph import LLM, Sampling
from onegraph.server import asgi
from onegraph.server.app import build
from onegraph.server.limits import Limits
from onegraph.server.models import Models
from onegraph.server.service import Service
from support.serving import Served, serving

SAID: list[dict[str, Any]] = [{"role": "user", "content": "Why is the sky blue?"}]


def test_props_say_what_the_model_is(smol_served: Served, smol: LLM) -> None:
    status, props = smol_served.get("/props")
    assert status == 200 and props["model_alias"] == "smollm2"
    settings = props["default_generation_settings"]
    assert settings["n_ctx"] == smol.n_ctx
    plain = Sampling()
    assert settings["params"] == {name: getattr(plain, name) for name in settings["params"]}
    assert {"temperature", "top_k", "top_p", "min_p", "repeat_penalty"} <= settings["params"].keys()
    assert props["total_slots"] == smol.max_batch
    assert smol.chat_template is not None and props["chat_template"] == smol.chat_template.source
    assert props["eos_token"] == "<|im_end|>"
    assert props["modalities"] == {"vision": False, "audio": False}
    assert not props["chat_template_caps"]["supports_tools"] and not props["is_sleeping"]
    # Where a file lies is nobody's affair.
    assert "/" not in props["model_path"] and props["model_path"].endswith(".gguf")
    status, body = smol_served.get("/props?model=none")
    assert (status, body["error"]["code"]) == (404, "model_not_found")


def test_slots_are_sequences_that_run_together(smol_served: Served, smol: LLM) -> None:
    status, slots = smol_served.get("/slots")
    assert status == 200 and [slot["id"] for slot in slots] == [*range(smol.max_batch)]
    assert not any(slot["is_processing"] for slot in slots)
    assert smol_served.get("/slots?fail_on_no_slot=1")[0] == 200


def test_a_template_is_applied_and_its_tokens_are_counted(smol_served: Served, smol: LLM) -> None:
    asked = {"messages": SAID}
    assert smol.chat_template is not None
    status, body = smol_served.post("/apply-template", asked)
    assert status == 200 and body["prompt"] == smol.chat_template.render(SAID)
    status, counted = smol_served.post("/v1/chat/completions/input_tokens", asked)
    _, answer = smol_served.post("/v1/chat/completions", {**asked, "max_tokens": 1})
    assert counted["object"] == "response.input_tokens"
    assert counted["input_tokens"] == answer["usage"]["prompt_tokens"]
    begun = [*SAID, {"role": "assistant", "content": "Because"}]
    asked = {"messages": begun, "continue_final_message": True}
    assert smol_served.post("/apply-template", asked)[1]["prompt"].endswith("Because")
    status, body = smol_served.post("/apply-template", {"messages": []})
    assert (status, body["error"]["param"]) == (400, "messages")


def test_paths_do_without_v1(smol_served: Served) -> None:
    asked = {"messages": SAID, "max_tokens": 2, "temperature": 0}
    one, other = (smol_served.post(at + "/chat/completions", asked)[1] for at in ("", "/v1"))
    assert one["choices"] == other["choices"]
    assert smol_served.get("/models")[1] == smol_served.get("/v1/models")[1]
    assert smol_served.post("/completions", {"prompt": "tea", "max_tokens": 1})[0] == 200


def test_there_are_no_adapters(served: Served) -> None:
    assert served.get("/lora-adapters") == (200, [])
    status, body = served.post("/lora-adapters", {})
    assert status == 501 and "merge them" in body["error"]["message"]


def test_models_of_a_folder_are_loaded_and_unloaded(tiny: Path, llm: LLM) -> None:
    def load() -> LLM:
        return LLM(tiny, device="cpu", n_ctx=128)

    models = Models({"kept": llm}, max_queue=8, folder={"lent": (tiny, load)})
    with serving(build(Service(models, Limits()))) as served:
        assert served.get("/props?model=lent")[1]["is_sleeping"]
        assert served.post("/models/load", {"model": "lent"}) == (200, {"success": True})
        props = served.get("/props?model=lent")[1]
        assert props["default_generation_settings"]["n_ctx"] == 128 and not props["is_sleeping"]
        assert served.post("/models/unload", {"model": "lent"}) == (200, {"success": True})
        assert served.get("/props?model=lent")[1]["is_sleeping"]
        status, body = served.post("/models/unload", {"model": "kept"})
        assert status == 400 and "loaded at startup" in body["error"]["message"]
        status, body = served.post("/models/load", {})
        assert (status, body["error"]["param"]) == (400, "model")


@pytest.mark.parametrize("path", ["/props", "/slots", "/lora-adapters", "/models"])
def test_they_ask_for_the_key(path: str, llm: LLM) -> None:
    with serving(asgi({"tiny": llm}, api_keys=["right"])) as served:
        assert served.get(path)[0] == 401
