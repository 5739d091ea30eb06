"""Each script beside this file writes hostile files and commands; here the commands are run."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.terminal import drained

pytestmark = pytest.mark.thorough

HERE = Path(__file__)
SCRIPTS = sorted(set(HERE.parent.glob("*.py")) - {HERE, HERE.with_name("command_lines.py")})


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.stem)
def test_no_command_comes_to_harm(script: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, script, tmp_path], check=True, stdout=subprocess.DEVNULL)
    commands = json.loads((tmp_path / "commands.json").read_text())
    assert commands
    for command in commands:
        code, said = run(command, tmp_path)
        assert code == command["code"], (command["name"], said)
        assert re.search(command["expect"], said), (command["name"], said)
        for text in command["never"]:
            assert text not in said, (command["name"], said)
        for name in command["absent"]:
            assert not (tmp_path / name).exists(), (command["name"], said)
        for name, text in command["kept"].items():
            assert (tmp_path / name).read_text() == text, (command["name"], said)


def run(command: dict[str, Any], folder: Path) -> tuple[int, str]:
    """The exit code and what was printed; at a terminal where it matters what reaches one."""
    argv = [sys.executable, *command["argv"]]
    options: dict[str, Any] = {
        "cwd": folder,
        "env": os.environ | {"PYTHONUTF8": "1", "COLUMNS": "500"} | command["env"],
        "stdin": subprocess.DEVNULL,
    }
    if not command["never"]:
        # A command that waits for good is ended; no other takes so long.
        done = subprocess.run(argv, capture_output=True, timeout=300, **options)
        return done.returncode, (done.stdout + done.stderr).decode()
    leader, follower = pty.openpty()
    with subprocess.Popen(argv, stdout=follower, stderr=follower, **options) as process:
        os.close(follower)
        said = drained(leader)
    return process.returncode, said.decode()
