"""The page of the cache: its commands run, in a home folder of their own."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import onegraph
import pytest
from onegraph import hub
from support.backends import EXHAUSTIVE

pytestmark = pytest.mark.thorough

PAGE = Path(onegraph.__file__).parent / "pages" / "cache.md"

Done = subprocess.CompletedProcess[str]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.S)


def commands() -> list[str]:
    """Each line of the page's shell blocks; a block that sets a variable is one."""
    found = []
    for block in blocks("sh"):
        found += [block] if "export" in block else block.splitlines()
    return found


class Home:
    """A home folder with the model in its cache, and `onegraph` on the path."""

    def __init__(self, folder: Path, model: Path, command: list[str]) -> None:
        self.folder, self.model = folder, model
        (folder / "bin").mkdir()
        script = folder / "bin" / "onegraph"
        script.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        script.chmod(0o755)
        path = f"{folder / 'bin'}:{os.environ['PATH']}"
        self.environment = {**os.environ, "HOME": str(folder), "PATH": path, "COLUMNS": "80"}
        for name in ["ONEGRAPH_CACHE_DIR", "XDG_CACHE_HOME", "ONEGRAPH_STATE_DIR"]:
            self.environment.pop(name, None)
        self.cache = folder / ".cache" / "onegraph"
        self.keep(self.cache)

    def keep(self, cache: Path) -> Path:
        """Puts the model in a cache, as `onegraph pull` would."""
        (cache / "models").mkdir(parents=True)
        kept = cache / "models" / hub.known_models()["smollm2"].path.name
        shutil.copy2(self.model, kept)
        return kept

    def run(self, line: str, *front: str) -> Done:
        return subprocess.run(
            [*front, "bash", "-ec", line],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=300,
        )


@pytest.fixture
def home(tmp_path: Path, smollm2: Path, command: list[str]) -> Home:
    return Home(tmp_path, smollm2, command)


def shown(begin: str) -> str:
    """The message of the page that begins so, on one line."""
    (found,) = [text for text in blocks("text") if text.startswith(begin)]
    return " ".join(found.split())


@pytest.mark.parametrize("line", commands())
def test_a_command_of_the_page_runs(line: str, home: Home) -> None:
    if "--compile" in line and not EXHAUSTIVE:
        line = re.sub(r"--compile \S+", "--verify", line)  # compiling takes a minute
    (home.cache / "kernels").mkdir()
    home.keep(home.folder / "carried")
    done = home.run(line)
    assert done.returncode == 0, done.stderr
    kept = home.cache / "models" / hub.known_models()["smollm2"].path.name
    if line.startswith("onegraph pull"):
        assert done.stdout == f"{kept}\n"
    if "export" in line:
        assert set(done.stdout.split()) == {str(home.folder / "carried" / "models" / kept.name)}
    if line.startswith("onegraph list"):
        assert "smollm2" in done.stdout
    if line.startswith("onegraph info"):
        assert str(home.cache / "kernels") in "".join(done.stdout.split("\n"))
    if line.startswith("onegraph rm"):
        assert not kept.exists()
    if line.startswith("rm "):
        assert not (home.cache / "kernels").exists() and kept.exists()


def test_the_page_has_these_commands() -> None:
    typed = re.findall(r"^onegraph (\w+)", "\n".join(blocks("sh")), re.M)
    assert set(typed) == {"list", "info", "pull", "rm"}


def test_a_damaged_file_is_told_of_as_the_page_says(home: Home) -> None:
    kept = home.cache / "models" / hub.known_models()["smollm2"].path.name
    os.truncate(kept, 90_000_000)
    done = home.run("onegraph run smollm2 hi")
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        done.stderr == shown("error: smollm2 is damaged").replace("CACHE/", f"{home.cache}/") + "\n"
    )


def test_a_read_only_cache_runs_what_it_has_and_says_what_it_lacks(home: Home) -> None:
    root = os.geteuid() == 0  # whom no permission keeps from anything
    if root and not shutil.which("setpriv"):
        pytest.skip("runs as root, and there is no setpriv to do without its rights")
    caps = "-dac_override,-dac_read_search"
    front = ["setpriv", f"--bounding-set={caps}", f"--inh-caps={caps}"] if root else []
    models = home.cache / "models"
    models.chmod(0o555)
    home.cache.chmod(0o555)
    try:
        done = home.run("onegraph run smollm2 hi --device cpu --max-tokens 2", *front)
        assert done.returncode == 0 and done.stdout.strip(), done.stderr
        done = home.run("onegraph pull smollm2 --compile sm_90", *front)
        assert done.returncode == 1 and "cannot write the kernel cache" in done.stderr
        models.chmod(0o755)
        (models / hub.known_models()["smollm2"].path.name).unlink()
        models.chmod(0o555)
        done = home.run("onegraph pull smollm2", *front)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == shown("error: cannot save").replace("CACHE/", f"{home.cache}/") + "\n"
    finally:
        models.chmod(0o755)
        home.cache.chmod(0o755)


def test_the_lines_of_the_dockerfile_are_commands_of_the_page(home: Home) -> None:
    (text,) = blocks("dockerfile")
    environment, run = text.splitlines()
    name, _, folder = environment.removeprefix("ENV ").partition("=")
    assert (name, folder) == ("ONEGRAPH_CACHE_DIR", "/cache")
    home.keep(home.folder / "image")
    line = run.removeprefix("RUN ").replace("--compile sm_90", "--verify")
    done = home.run(f"export {name}={home.folder}/image; {line}")
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == {str(next((home.folder / "image").rglob("*.gguf")))}


def test_the_folders_are_where_the_page_says(home: Home) -> None:
    def folder(**environment: str) -> tuple[str, str]:
        said = home.environment | environment
        done = subprocess.run(
            [str(home.folder / "bin" / "onegraph"), "list"],
            env=said,
            capture_output=True,
            text=True,
            timeout=60,
        )
        kernels = subprocess.run(
            [str(home.folder / "bin" / "onegraph"), "info", "--devices", "--json"],
            env=said,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.stdout + done.stderr, kernels.stdout

    for variables, cache in [
        ({}, home.cache),
        ({"XDG_CACHE_HOME": f"{home.folder}/x"}, home.folder / "x" / "onegraph"),
        ({"XDG_CACHE_HOME": "x", "ONEGRAPH_CACHE_DIR": f"{home.folder}/o"}, home.folder / "o"),
    ]:
        if not (cache / "models").exists():
            home.keep(cache)
        models, kernels = folder(**variables)
        assert str(cache / "models") in models.replace("\n", "")
        assert f'"{cache / "kernels"}"' in kernels
