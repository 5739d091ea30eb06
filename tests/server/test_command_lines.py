"""Programs for coding as npm has them, on the loopback alone: a turn with a call each."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from onegraph import LLM
from onegraph.server import asgi
from support import scripted
from support.serving import Served, serving

pytestmark = pytest.mark.thorough

#: Shows of tools the names, and of messages the beginning: the programs' are long. The answer is
#: that of the number of results, as a program may begin with answers of its own.
TEMPLATE = (
    (
        "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}"
        + scripted.HERMES[scripted.HERMES.index("{% for m in") :]
    )
    .replace("{{ m.content }}", "{{ m.content[:99] }}")
    .replace("'equalto', 'assistant'", "'equalto', 'tool'")
)

#: What the program is told to run, and the file that it makes.
SHELL, MADE = "echo 42 > made.txt", "made.txt"


def codex(folder: Path, home: Path, served: Served) -> tuple[list[str], dict[str, str]]:
    (home / "config.toml").write_text(f"""
model = "m"
model_provider = "here"
model_context_window = 32768
check_for_update_on_startup = false
[analytics]
enabled = false
[model_providers.here]
name = "here"
base_url = "{served.url}/v1"
wire_api = "responses"
env_key = "KEY"
""")
    words = [str(folder / "node_modules" / ".bin" / "codex"), "exec", "--json"]
    words += ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    return words, {"CODEX_HOME": str(home), "KEY": "any"}


def claude(folder: Path, home: Path, served: Served) -> tuple[list[str], dict[str, str]]:
    # The script that would put it under its own name is not run.
    (binary,) = (folder / "node_modules" / "@anthropic-ai").glob("claude-code-*/claude")
    words = [str(binary), "--output-format", "json", "--allowedTools", "Bash", "-p"]
    model = dict.fromkeys(["ANTHROPIC_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL"], "m")
    quiet = ["DISABLE_TELEMETRY", "DISABLE_ERROR_REPORTING", "DISABLE_AUTOUPDATER"]
    quiet += ["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"]
    there = {"ANTHROPIC_BASE_URL": served.url, "ANTHROPIC_AUTH_TOKEN": "any"}
    return words, model | dict.fromkeys(quiet, "1") | there


def opencode(folder: Path, home: Path, served: Served) -> tuple[list[str], dict[str, str]]:
    model = {"m": {"name": "m", "limit": {"context": 32768, "output": 4096}}}
    options = {"baseURL": f"{served.url}/v1", "apiKey": "any"}
    provider = {"npm": "@ai-sdk/openai-compatible", "options": options, "models": model}
    settings = {"provider": {"here": provider}, "share": "disabled", "autoupdate": False}
    (home / "opencode.json").write_text(json.dumps({**settings, "permission": "allow"}))
    binary = folder / "node_modules" / "opencode-linux-x64" / "bin" / "opencode"
    words = [str(binary), "run", "--model", "here/m"]
    quiet = ["OPENCODE_DISABLE_MODELS_FETCH", "OPENCODE_DISABLE_AUTOUPDATE"]
    quiet += ["OPENCODE_DISABLE_LSP_DOWNLOAD", "OPENCODE_DISABLE_DEFAULT_PLUGINS"]
    there = {"OPENCODE_CONFIG": str(home / "opencode.json")}
    return words, there | dict.fromkeys(quiet, "1")


def qwen(folder: Path, home: Path, served: Served) -> tuple[list[str], dict[str, str]]:
    words = [
        str(folder / "node_modules" / ".bin" / "qwen"),
        "--auth-type",
        "openai",
        "--yolo",
        "-p",
    ]
    there = {"OPENAI_BASE_URL": f"{served.url}/v1", "OPENAI_API_KEY": "any", "OPENAI_MODEL": "m"}
    (home / ".qwen").mkdir()
    quiet = {"usageStatisticsEnabled": False}
    settings = {"privacy": quiet, "telemetry": {"enabled": False}}
    (home / ".qwen" / "settings.json").write_text(json.dumps(settings))
    # It asks a proxy for the loopback too.
    return words, there | {"HTTP_PROXY": "", "HTTPS_PROXY": ""}


Program = Callable[[Path, Path, Served], tuple[list[str], dict[str, str]]]


#: Seconds that npm may take, and a program for its turn: ten times what an idle machine takes.
FETCHING, RUNNING = 90, 300


def installed(folder: Path, package: str) -> Path:
    """The folder with a program and all that it needs; none of their scripts is run."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm: a machine with Node.js has it")
    words = [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", package]
    try:
        done = subprocess.run(
            [*words, "--prefix", str(folder)], capture_output=True, text=True, timeout=FETCHING
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm did not have {package} within {FETCHING} s")
    if done.returncode != 0:
        pytest.skip(f"npm has no {package} for this machine: {done.stderr[-300:]}")
    return folder


@pytest.mark.parametrize(
    ("package", "program", "tool", "given"),
    [
        ("@openai/codex@0.171.0", codex, "exec_command", {"cmd": SHELL}),
        (
            "@anthropic-ai/claude-code@2.1.197",
            claude,
            "Bash",
            {"command": SHELL, "description": "Makes a file"},
        ),
        (
            "opencode-ai@1.18.33",
            opencode,
            "bash",
            {"command": SHELL, "description": "Makes a file"},
        ),
        (
            "@qwen-code/qwen-code@0.15.10",
            qwen,
            "run_shell_command",
            {"command": SHELL, "description": "Makes a file", "is_background": False},
        ),
    ],
)
def test_a_turn_with_a_call(
    package: str, program: Program, tool: str, given: dict[str, Any], tmp_path: Path
) -> None:
    folder = installed(tmp_path / "npm", package)
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    call = json.dumps({"name": tool, "arguments": given})
    answers = [f"I look.\n<tool_call>\n{call}\n</tool_call>", "It is done."]
    path = scripted.write(tmp_path / "m.gguf", answers, template=TEMPLATE, n_ctx=32768)
    statuses = []
    with LLM(path, device="cpu", max_batch=4) as llm:
        app = asgi({"m": llm})

        async def watched(scope: Any, receive: Any, send: Any) -> None:
            async def sent(message: Any) -> None:
                if message["type"] == "http.response.start":
                    statuses.append(message["status"])
                await send(message)

            await app(scope, receive, sent)

        with serving(watched) as served:  # type: ignore[arg-type]
            words, variables = program(folder, home, served)
            # Whatever looks further than the loopback finds nobody.
            nobody = dict.fromkeys(["HTTP_PROXY", "HTTPS_PROXY"], "http://127.0.0.1:9")
            nobody |= {"NO_PROXY": "127.0.0.1", "HOME": str(home), "TERM": "dumb"}
            done = subprocess.run(
                [*words, "Make a file."],
                cwd=work,
                env={"PATH": os.environ["PATH"]} | nobody | variables,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=RUNNING,
            )
    assert done.returncode == 0, done.stderr[-2000:]
    assert (work / MADE).read_text() == "42\n"
    assert "It is done." in done.stdout
    assert len(statuses) >= 2 and set(statuses) == {200}
