"""Fixtures of the tests of the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from support.terminal import Terminal


@pytest.fixture
def terminal(command: list[str], tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    """`terminal("run", model)` at a terminal of 80 columns, with `output` for its standard output.

    What chats keep is kept in the folder `state` of the test."""
    opened = []

    def start(
        *args: object, output: Path | None = None, env: Mapping[str, str] = {}, columns: int = 80
    ) -> Terminal:
        to_file = ["bash", "-c", f'exec "$0" "$@" > "{output}"'] if output else []
        env = {"ONEGRAPH_STATE_DIR": str(tmp_path / "state"), **env}
        opened.append(Terminal([*to_file, *command, *map(str, args)], env, columns))
        return opened[-1]

    yield start
    for one in opened:
        one.close()
