"""The real lm-eval, on a task of its own, against the server."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from onegraph import LLM
from support.serving import Served

pytestmark = pytest.mark.thorough

TASK = """
task: places
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list: [{metric: acc}]
"""

DOCS: list[dict[str, Any]] = [
    {"question": "The capital of France is", "choices": ["Paris", "Lyon"], "answer": 0},
    {"question": "Two and two are", "choices": ["five", "four", "no number"], "answer": 1},
    {"question": "Water is", "choices": ["dry \u2603", "wet"], "answer": 1},
    {"question": "", "choices": ["The sky is blue.", "Sky the blue is."], "answer": 0},
]


def test_scores_are_the_engines(smol: LLM, smol_served: Served, tmp_path: Path) -> None:
    if importlib.util.find_spec("lm_eval") is None:
        pytest.skip("no lm_eval: `pip install .[thorough]` brings it")
    docs = tmp_path / "docs.jsonl"
    docs.write_text("".join(json.dumps(doc) + "\n" for doc in DOCS))
    (tmp_path / "places.yaml").write_text(TASK.replace("FILE", str(docs)))
    words = [sys.executable, "-m", "lm_eval", "run", "--model", "local-completions"]
    words += ["--tasks", "places", "--include_path", str(tmp_path), "--log_samples"]
    base = f"base_url={smol_served.url}/v1/completions"
    words += ["--model_args", f"model=smollm2,{base},max_length=1024,num_concurrent=4"]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    done = subprocess.run(
        [*words, "--output_path", str(tmp_path / "out")],
        env=os.environ | offline | {"NO_PROXY": "*"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (file,) = (tmp_path / "out").rglob("samples_places_*.jsonl")
    samples = sorted(map(json.loads, file.read_text().splitlines()), key=lambda s: s["doc_id"])
    assert len(samples) == len(DOCS)
    bos = smol.tokenizer.bos_id
    assert bos is not None and bos != smol.tokenizer.eos_id
    for doc, sample in zip(DOCS, samples, strict=True):
        for choice, ((logprob, is_greedy),) in zip(doc["choices"], sample["resps"], strict=True):
            before = smol.tokenize(doc["question"], add_special=False)
            ids = smol.tokenize(f"{doc['question']} {choice}", add_special=False)
            if not before:  # of no text, what begins one stands there
                before, ids = [bos], [bos, *ids]
            scored = smol.score(ids)[len(before) :]
            assert float(logprob) == sum(each.logprob for each in scored if each.logprob)
            assert str(is_greedy) == str(all(each.rank == 1 for each in scored))
