"""What holds for every command: help, versions, exit codes, and where errors go."""

import importlib
import subprocess
import sys
from pathlib import Path

import onegraph
import pytest
from onegraph.cli import COMMANDS


def test_help_lists_every_command(cli) -> None:
    done = cli("--help")
    assert (done.returncode, done.stderr) == (0, "")
    for name, row in COMMANDS.items():
        assert f"  {name} " in done.stdout
        assert row.summary in done.stdout
    assert "hf:user/repo/file.gguf" in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str, cli) -> None:
    done = cli(name, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Usage: onegraph {name} [OPTIONS]")
    options = [p for p in importlib.import_module(COMMANDS[name].module).command.params]
    undocumented = [p.name for p in options if p.param_type_name == "option" and not p.help]
    assert undocumented == []


def test_a_program_may_call_the_command_line_again_and_again() -> None:
    """A command's module, once imported, is a name of the package: `list` would be one there."""
    code = "from onegraph.cli import COMMANDS, main\n"
    code += "print([main([name, '--help']) for name in [*COMMANDS, *COMMANDS]])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str([0] * 2 * len(COMMANDS))


def test_help_loads_little() -> None:
    """What makes help quick, counted: how long it takes depends on the machine."""
    code = "import sys; from onegraph.cli import main; main(['--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.rsplit("\n", 2)[-2].split())
    assert "onegraph.cli" in loaded
    assert not loaded & {"numpy", "rich", "asyncio", "http.client", "huggingface_hub", "ssl"}
    assert not loaded & {row.module for row in COMMANDS.values()}
    # 179 were seen, by Python 3.11: what it starts with, click, and what the package needs.
    assert len(loaded) < 250, sorted(loaded)


def test_version(cli) -> None:
    done = cli("--version")
    assert (done.returncode, done.stdout) == (0, f"onegraph {onegraph.__version__}\n")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["frobnicate"], "No such command 'frobnicate'"),
        (["info"], "Missing argument 'MODEL'"),
        (["info", "--no-such-option", "m"], "No such option"),
        (["info", "smolm2"], "did you mean 'smollm2'?"),
        (["info", "--plan", "--devices"], "cannot be combined"),
        (["info", "smollm2", "--devices"], "--devices takes no MODEL"),
        (["info", "smollm2", "--n-ctx", "many"], "'many' is not a valid integer"),
        (["pull", "ollama:../x"], "is not the name of an ollama model"),
    ],
)
def test_wrong_use_is_two(args: list[str], said: str, cli) -> None:
    done = cli(*args)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_number_out_of_range_is_wrong_use(cli, smollm2: Path) -> None:
    done = cli("info", smollm2, "--n-ctx", 0)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--n-ctx 0:" in done.stderr and "must be from 2 to 8192" in done.stderr


def test_a_bad_file_is_one_with_one_message(cli, tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("this is a text\n" * 10)
    (tmp_path / "empty.gguf").touch()
    for name in ["missing.gguf", "text.gguf", "empty.gguf", "."]:
        done = cli("info", tmp_path / name)
        assert (done.returncode, done.stdout) == (1, ""), name
        assert done.stderr.startswith("error: "), done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_debug_shows_the_traceback(cli) -> None:
    for args in [["--debug", "info", "missing.gguf"], ["info", "missing.gguf", "--debug"]]:
        done = cli(*args)
        assert done.returncode == 1
        assert "Traceback (most recent call last)" in done.stderr
        assert done.stderr.rstrip().splitlines()[-1].startswith("error: there is no file missing")


def test_a_name_cannot_steer_the_terminal(cli) -> None:
    done = cli("info", "\x1b[31mred\x07.gguf")
    assert done.returncode == 1
    assert "\x1b" not in done.stderr and "\x07" not in done.stderr
    assert "␛[31mred␇.gguf" in done.stderr


def test_a_reader_that_leaves_is_no_error(command: list[str], smollm2: Path) -> None:
    line = f"'{command[0]}' {' '.join(command[1:])} info --plan '{smollm2}' | head -n 1"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line}"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 1


def test_a_full_disk_is_an_error(cli, smollm2: Path) -> None:
    with open("/dev/full", "w") as full:
        done = cli("info", smollm2, stdout=full, stderr=subprocess.PIPE, capture_output=False)
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_closed_output_is_no_error(command: list[str]) -> None:
    for closed in [">&-", "2>&-", ">&- 2>&-"]:
        line = f"'{command[0]}' {' '.join(command[1:])} info --devices {closed}"
        assert subprocess.run(["bash", "-c", line], timeout=300).returncode == 0


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "onegraph", "--version"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, f"onegraph {onegraph.__version__}\n")
