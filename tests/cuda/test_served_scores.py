"""Log-probabilities over HTTP: the bits of `LLM.score`, on the CPU and on a card."""

import os
from pathlib import Path

from support.card_process import OnCard, run_on

BODY = """
from concurrent.futures import ThreadPoolExecutor
from starlette.testclient import TestClient

texts = ["tea", "some toast", "tea and toast, and more of both", "milk"]
drawn = {"max_tokens": 6, "seed": 7, "temperature": 1.0, "ignore_eos": True}
with onegraph.LLM(path, device=given["device"], n_ctx=256, max_batch=4) as llm:
    client = TestClient(onegraph.asgi({"m": llm}))

    def asked(prompt, **more):
        found = client.post("/v1/completions", json={"prompt": prompt, "logprobs": 0, **more})
        return [choice["logprobs"]["token_logprobs"] for choice in found.json()["choices"]]

    def read(prompt):
        return asked(prompt, max_tokens=0, echo=True)

    out["scored"] = [[each.logprob for each in scored] for scored in llm.score(texts)]
    out["alone"] = [scores for text in texts for scores in read(text)]
    out["together"] = read(texts)
    with ThreadPoolExecutor(4) as pool:
        out["beside"] = [scores for found in pool.map(read, texts) for scores in found]
    made = [(llm.tokenize(each), llm.generate(each, **drawn).token_ids) for each in texts]
    out["made"] = [
        [each.logprob for each in llm.score(ids + more)[len(ids):]] for ids, more in made
    ]
    out["made_alone"] = [scores for text in texts for scores in asked(text, **drawn)]
    out["made_beside"] = [
        scores
        for found in ThreadPoolExecutor(4).map(lambda text: asked(text, **drawn), texts)
        for scores in found
    ]
"""


def test_scores_are_those_of_the_engine_and_of_every_device(
    simulated: OnCard, tiny_llama: Path
) -> None:
    cpu = run_on(tiny_llama, dict(os.environ), BODY, device="cpu")
    assert [scores[0] for scores in cpu["scored"]] == [None] * 4 and len(cpu["scored"][2]) > 9
    for found in (cpu, simulated(BODY, device="cuda")):
        for batched in ("alone", "together", "beside"):
            assert found[batched] == cpu["scored"], batched
        for batched in ("made", "made_alone", "made_beside"):
            assert found[batched] == cpu["made"], batched
