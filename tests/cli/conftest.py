"""The real command, as a process."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def command() -> list[str]:
    """The installed script; the module where there is none (a source tree on PYTHONPATH)."""
    script = Path(sys.executable).with_name("onegraph")
    return [str(script)] if script.exists() else [sys.executable, "-m", "onegraph"]


@pytest.fixture(scope="session")
def cli(command: list[str]) -> Run:
    """`cli("run", model, "prompt", input=...)`; standard input is empty unless given."""

    def run(*args: object, **kwargs: object) -> subprocess.CompletedProcess[str]:
        env = os.environ | {"COLUMNS": "80", "NO_COLOR": "1"} | dict(kwargs.pop("env", {}))
        options = {"capture_output": True, "text": True, "timeout": 300, "encoding": "utf-8"}
        options |= kwargs
        if "input" not in options and "stdin" not in options:
            options["stdin"] = subprocess.DEVNULL
        return subprocess.run([*command, *map(str, args)], env=env, **options)

    return run
