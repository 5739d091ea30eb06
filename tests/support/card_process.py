"""Processes that run lines of Python on a card, simulated or real."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shapes import Shape

#: Runs lines of Python with `onegraph`, `path` and `given`; what they put into `out` comes back.
OnCard = Callable[..., dict[str, Any]]

#: Runs lines of Python with `card` open; what became of the process comes back.
Script = Callable[..., subprocess.CompletedProcess[str]]

PRELUDE = """
import json, sys
import numpy as np
import onegraph
path, given, out = sys.argv[1], json.loads(sys.argv[2]), {}
"""


def few_layers(shape: Shape) -> Shape:
    """The shape with two layers, one of each kind, where it has kinds that alternate: the simulated
    card takes its time for each layer. That the others come in their order is held on the CPU."""
    if shape.window_heads or shape.latent or shape.arch == "granitehybrid":
        return dataclasses.replace(shape, n_layer=2)
    if shape.is_nemotron_h:
        return dataclasses.replace(shape, n_layer=3)
    if shape.n_layer_shared_kv or shape.n_layer_dense:
        return shape
    if shape.arch in ("gemma3", "gemma4", "muse-glimmer", "exaone4", "cohere2"):
        return dataclasses.replace(shape, n_layer=2, window_pattern=2)
    if shape.arch == "smollm3":
        return dataclasses.replace(shape, n_layer=4)
    if shape.ngrams:
        # Prompts go past what attention chooses.
        streams = {**shape.streams, "top_k": 16}
        shape = dataclasses.replace(shape, ngrams={**shape.ngrams, "layer": 0}, streams=streams)
    if shape.delta:
        return dataclasses.replace(shape, n_layer=2, delta={**shape.delta, "interval": 2})
    if shape.conv:
        return dataclasses.replace(shape, n_layer=2, attend=(1,))
    return shape


def run_on(path: Path, environment: dict[str, str], body: str, **given: Any) -> dict[str, Any]:
    """Runs `body` in a process of its own: the driver that it finds first is the one it keeps."""
    code = PRELUDE + textwrap.dedent(body) + "\nprint(json.dumps(out))\n"
    done = subprocess.run(
        [sys.executable, "-c", code, str(path), json.dumps(given)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
