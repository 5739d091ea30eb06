"""The page on deploying: its container file is followed step by step where there is no container,
and what it says to Kubernetes is what the server does."""

from __future__ import annotations

import glob
import importlib.metadata
import json
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from onegraph import LLM
from onegraph.cli import cli as program
from onegraph.cli.help import pages
from onegraph.server import asgi
from starlette.routing import Route
from support.serving import http, rest, until

pytestmark = pytest.mark.thorough

PAGE = pages()["deploying"].path.read_text()


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, flags=re.M | re.S)


def steps(text: str) -> list[tuple[str, str]]:
    """The instructions of a container file, in order."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ").splitlines()
    return [
        (word, rest.strip()) for word, _, rest in (line.partition(" ") for line in joined) if word
    ]


@dataclass
class Image:
    """What the instructions leave: a folder in place of the file system, and how it is started."""

    folder: Path
    env: dict[str, str]
    entry: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    told: dict[str, str] = field(default_factory=dict)


def packed(folder: Path) -> Path:
    """The package that is installed here, as the wheel that it came from."""
    distribution = importlib.metadata.distribution("onegraph")
    tag = re.search(r"^Tag: (.+)$", distribution.read_text("WHEEL") or "", flags=re.M)
    assert tag
    wheel = folder / f"onegraph-{distribution.version}-{tag[1]}.whl"
    folder.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        for file in distribution.files or []:
            if ".." not in file.parts and file.suffix != ".pyc":
                archive.write(distribution.locate_file(file), str(file))
    return wheel


def environment(folder: Path) -> Path:
    """A virtual environment with all that is installed here but the package itself: nothing is
    fetched."""
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    others = folder / "others"
    others.mkdir()
    for place in importlib.metadata.distribution("pip"), importlib.metadata.distribution("click"):
        for path in Path(str(place.locate_file(""))).iterdir():
            link = others / path.name
            if "onegraph" not in path.name and not link.exists():
                link.symlink_to(path)
    (site,) = (folder / "venv" / "lib").glob("python3.*/site-packages")
    (site / "others.pth").write_text(str(others))
    return folder / "venv" / "bin"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """The container file, followed."""
    try:
        importlib.metadata.distribution("onegraph")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the package is not installed, so there is no wheel of it")
    scratch = tmp_path_factory.mktemp("deploying")
    packed(scratch / "dist")
    programs = environment(scratch)
    made = Image(
        scratch,
        {
            "PATH": f"{programs}:/usr/bin:/bin",
            "PIP_NO_INDEX": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "HOME": str(scratch),
        },
    )
    (text,) = blocks("dockerfile")
    for word, given in steps(text):
        if word == "WORKDIR":
            made.folder = scratch / given.lstrip("/")
            made.folder.mkdir(parents=True)
        elif word == "COPY":
            source, target = given.split()
            found = glob.glob(str(scratch / source))
            assert found, f"{source}: the commands of the page do not make it"
            for path in found:
                shutil.copy(path, made.folder / target)
        elif word == "RUN":
            done = subprocess.run(
                ["sh", "-c", given], cwd=made.folder, env=made.env, capture_output=True, text=True
            )
            assert done.returncode == 0, done.stdout + done.stderr
        elif word == "ENV":
            made.env |= dict(pair.split("=", 1) for pair in shlex.split(given))
        elif word == "ENTRYPOINT":
            made.entry = json.loads(given)
        elif word == "CMD":
            made.words = json.loads(given)
        else:
            made.told[word] = given
    return made


def test_the_image_has_the_wheel_and_keeps_no_copy_of_it(image: Image) -> None:
    assert image.told == {
        "FROM": "docker.io/library/python:3.12-slim-bookworm",
        "USER": "1000",
        "EXPOSE": "8080",
        "STOPSIGNAL": "SIGTERM",
    }
    assert sorted(path.name for path in image.folder.iterdir()) == ["cache", "models"]
    where = subprocess.run(
        ["python", "-c", "import onegraph; print(onegraph.__file__)"],
        cwd=image.folder,
        env=image.env,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert where.startswith(image.env["PATH"].partition("/bin")[0])


class Container:
    """What the image starts, without a container around it: on this machine alone."""

    def __init__(self, image: Image, words: list[str], **env: str) -> None:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port = found.getsockname()[1]
        here = ["--host", "127.0.0.1", "--port", str(self.port), "--device", "cpu"]
        self.process = subprocess.Popen(
            [*image.entry, *words, *here],
            cwd=image.folder,
            env=image.env | env,
            stderr=subprocess.PIPE,
            text=True,
        )

    def get(self, path: str, body: Any = None, **headers: str) -> int:
        """The status of a request; 0 where nobody listens."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return int(response.status)
        except urllib.error.HTTPError as e:
            return e.code
        except urllib.error.URLError:
            return 0


@pytest.fixture
def container(image: Image, tiny: Path, interruptible: None) -> Iterator[Container]:
    shutil.copy(tiny, image.folder / "models" / "my-model.gguf")
    made = Container(image, ["models/my-model.gguf"], ONEGRAPH_API_KEY="sesame")
    try:
        until(lambda: made.get("/ready") == 200 or made.process.poll() is not None, 60)
        yield made
    finally:
        made.process.kill()
        made.process.communicate()


def test_what_the_image_starts_is_healthy_asks_for_its_key_and_drains(container: Container) -> None:
    assert container.get("/health") == container.get("/ready") == 200
    key = {"authorization": "Bearer sesame"}
    asked = {"model": "my-model", "prompt": "tea", "max_tokens": 2}
    assert container.get("/v1/completions", asked) == 401
    assert container.get("/v1/completions", asked, **key) == 200
    assert (container.get("/metrics"), container.get("/metrics", **key)) == (401, 200)
    long = {**asked, "max_tokens": 400, "ignore_eos": True, "stream": True}
    with socket.create_connection(("127.0.0.1", container.port), timeout=60) as running:
        running.sendall(http("/v1/completions", long, **key))
        begun = running.recv(4096)
        assert signal.Signals[PAGE.split("STOPSIGNAL ")[1].split()[0]] == signal.SIGTERM
        container.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        assert container.get("/ready") == 0
        assert b"[DONE]" in begun + rest(running)
    assert container.process.wait(30) == 0


def test_the_image_by_itself_serves_its_folder_of_models(image: Image, tiny: Path) -> None:
    shutil.copy(tiny, image.folder / "models" / "my-model.gguf")
    started = Container(image, image.words, ONEGRAPH_API_KEY="sesame")
    try:
        until(lambda: started.get("/ready") == 200 or started.process.poll() is not None, 60)
        asked = {"model": "my-model", "prompt": "tea", "max_tokens": 2}
        assert started.get("/v1/completions", asked, authorization="Bearer sesame") == 200
    finally:
        started.process.kill()
        started.process.communicate()
    # Beyond the machine, which a container always is, nobody is let in by mistake.
    done = subprocess.run(
        [*image.entry, *image.words],
        cwd=image.folder,
        env=image.env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and "give --api-key" in done.stderr


def documents() -> dict[str, dict[str, Any]]:
    """What the page gives to Kubernetes, by kind."""
    found = [each for text in blocks("yaml") for each in yaml.safe_load_all(text)]
    return {each["kind"]: each for each in found if "kind" in each}


def parsed(words: list[str]) -> dict[str, Any]:
    """The options that `onegraph serve` takes these words for."""
    with program.make_context("onegraph", ["serve", *words]) as above:
        name, command, rest = program.resolve_command(above, ["serve", *words])
        assert command is not None
        made: click.Context = command.make_context(name, rest, parent=above)
    return made.params


def test_kubernetes_asks_what_there_is_and_waits_long_enough(llm: LLM) -> None:
    kinds = documents()
    spec = kinds["Deployment"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 1}
    paths = {route.path for route in asgi({"tiny": llm}).routes if isinstance(route, Route)}
    probes = {
        name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")
    }
    assert {name: probe["path"] for name, probe in probes.items()} == {
        "startup": "/ready",
        "readiness": "/ready",
        "liveness": "/health",
    }
    assert {probe["path"] for probe in probes.values()} <= paths and "/metrics" in paths
    assert {probe["port"] for probe in probes.values()} == {"http"}
    (text,) = blocks("dockerfile")
    told = dict(steps(text))
    (port,) = container["ports"]
    assert str(port["containerPort"]) == told["EXPOSE"] and port["name"] == "http"
    options = parsed([*json.loads(told["ENTRYPOINT"])[2:], *container["args"], "--api-key", "k"])
    assert options["port"] == port["containerPort"] and options["models"]
    slept = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert spec["terminationGracePeriodSeconds"] > slept + options["drain"]
    mounted = {each["mountPath"] for each in container["volumeMounts"]}
    assert mounted == {f"{told['WORKDIR']}/{name}" for name in ("models", "cache")}
    assert kinds["Service"]["spec"]["selector"] == spec_labels(kinds)
    assert kinds["Service"]["spec"]["ports"][0]["targetPort"] == "http"


def spec_labels(kinds: dict[str, dict[str, Any]]) -> dict[str, str]:
    found: dict[str, str] = kinds["Deployment"]["spec"]["template"]["metadata"]["labels"]
    return found
