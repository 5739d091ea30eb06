"""Completion of a command line, as a shell asks for it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onegraph
import pytest
from onegraph.cli import COMMANDS
from onegraph.cli.completion import SHELLS
from onegraph.cli.options import KV_TYPES
from support.terminal import Terminal

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with model files, and one with models of ollama."""
    root = tmp_path_factory.mktemp("completion")
    library = root / "ollama" / "manifests" / "registry.ollama.ai" / "library"
    for name in ["Smol-Chat/latest", "qwen2.5/1.5b"]:
        (library / name).parent.mkdir(parents=True, exist_ok=True)
        (library / name).write_text("{}")
    work = root / "work"
    (work / "models").mkdir(parents=True)
    for name in ["tiny.gguf", "tiny.txt", "models/big model.gguf", ".hidden.gguf"]:
        (work / name).touch()
    return root


@pytest.fixture(scope="module")
def env(place: Path) -> dict[str, str]:
    return {"OLLAMA_MODELS": str(place / "ollama"), "ONEGRAPH_CACHE_DIR": str(place / "cache")}


def asked(cli: Any, place: Path, env: dict[str, str], shell: str, *words: str) -> list[str]:
    """What a shell is given for the last of these words."""
    line = ["onegraph", *words]
    variables = {"COMP_WORDS": "\n".join(line), "COMP_CWORD": str(len(words))}
    if shell == "fish":
        typed = " ".join(shlex.quote(word) if word else "" for word in line)
        variables = {"COMP_WORDS": typed, "COMP_CWORD": words[-1]}
    variables["_ONEGRAPH_COMPLETE"] = f"{shell}_complete"
    done = cli(env=env | variables, cwd=place / "work")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.strip("\n").splitlines()
    if shell == "zsh":
        kinds, values = lines[0::3], [value.replace("\\:", ":") for value in lines[1::3]]
    else:
        pairs = [line.partition(",") for line in lines if line]
        kinds, values = [p[0] for p in pairs], [p[2].partition("\t")[0] for p in pairs]
    return [v for kind, v in zip(kinds, values, strict=True) if kind == "plain"]


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_is_given_what_a_word_may_become(
    shell: str, cli: Any, place: Path, env: dict[str, str]
) -> None:
    def words(*typed: str) -> list[str]:
        return asked(cli, place, env, shell, *typed)

    assert words("ru") == ["run"]
    assert words("run", "llama3.2") == ["llama3.2", "llama3.2:1b", "llama3.2:3b"]
    models = words("run", "")
    assert {"smollm2", "tiny.gguf", "ollama:Smol-Chat", "ollama:qwen2.5:1.5b"} <= set(models)
    assert not {"tiny.txt", ".hidden.gguf"} & set(models)
    assert words("bench", "tiny.") == words("compare", "tiny.") == ["tiny.gguf"]
    assert words("run", "models/") == ["models/big model.gguf"]
    assert words("run", "smollm2", "--device", "c")[:2] == ["cpu", "cuda"]
    assert words("run", "smollm2", "--kv-type", "q") == ["q8_0"]
    assert words("run", "smollm2", "--temper") == ["--temperature"]
    assert words("run", "smollm2", "a prompt") == []
    assert words("rm", "") == []
    assert words("help", "spee") == ["speed"] and words("help", "ru") == ["run"]
    # What is refused by name is offered by none.
    assert words("run", "--n-pre") == []


def test_every_shell_gets_a_script(cli: Any) -> None:
    for shell in SHELLS:
        done = cli(env={"_ONEGRAPH_COMPLETE": f"{shell}_source"})
        assert (done.returncode, done.stderr) == (0, "")
        assert f"_ONEGRAPH_COMPLETE={shell}_complete" in done.stdout
        assert f"{shell}_source" in cli("--help").stdout
    done = cli(env={"_ONEGRAPH_COMPLETE": "tcsh_source"})
    assert (done.returncode, done.stdout) == (2, "")
    assert "must be one of bash_source, zsh_source, fish_source" in done.stderr


def test_the_types_that_are_offered_are_types(smollm2: Path) -> None:
    for kv_type in KV_TYPES:
        onegraph.LLM(smollm2, device="cpu", max_batch=1, n_ctx=8, kv_type=kv_type).close()


@pytest.fixture
def bash(
    command: list[str], place: Path, env: dict[str, str], tmp_path: Path
) -> Iterator[Terminal]:
    """bash with completion set up, as a line in ~/.bashrc does it."""
    script = tmp_path / "onegraph"
    script.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    script.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    shell = ["bash", "--norc", "--noprofile", "-i"]
    opened = Terminal(shell, env | {"PATH": path, "PS1": "$ ", "HISTFILE": ""}, columns=200)
    opened.read_until("$ ")
    for line in [
        f"cd {shlex.quote(str(place / 'work'))}",
        'eval "$(_ONEGRAPH_COMPLETE=bash_source onegraph)"',
    ]:
        opened.type(f"{line}\r")
        opened.read_until("\n")
        opened.read_until("$ ")
    yield opened
    opened.close()


def test_the_tab_key_of_bash_completes(bash: Terminal) -> None:
    for typed, passed in [
        ("ru\t", "run"),
        ("run smo\t", "run smollm2"),
        ("run ollama:qw\t", "run ollama:qwen2.5:1.5b"),
        ("run ollama:qwen2.5:\t", "run ollama:qwen2.5:1.5b"),
        ("info ollama:S\t", "info ollama:Smol-Chat"),
        ("run tiny.\t", "run tiny.gguf"),
        ("run mod\tb\t", "run models/big model.gguf"),
        ("run models/big\\ m\t", "run models/big model.gguf"),
        ("run smollm2 --kv-t\tq\t", "run smollm2 --kv-type q8_0"),
        ("run smollm2 --kv-type=q\t", "run smollm2 --kv-type=q8_0"),
        ("run smollm2 --device cp\t-- Hi", "run smollm2 --device cpu -- Hi"),
        ("bench -m smo\t", "bench -m smollm2"),
        ("bench smollm2 -ctk q\t", "bench smollm2 -ctk q8_0"),
    ]:
        # To the begin of the line: the shell says what it would have passed.
        bash.type(f"onegraph {typed}\x01echo =\r")
        bash.read_until("\n")
        assert bash.read_until("$ ").strip() == f"=onegraph {passed}", typed


def test_every_command_can_be_completed(cli: Any, place: Path, env: dict[str, str]) -> None:
    assert asked(cli, place, env, "bash", "") == list(COMMANDS)
    for name in COMMANDS:
        assert "--help" in asked(cli, place, env, "bash", name, "--h")
