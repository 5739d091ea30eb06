"""The page of errors: it names every class, and shows messages as they are printed."""

import datetime
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import numpy as np
import onegraph
import pytest
from onegraph import _native, errors, nvrtc

PAGE = Path(onegraph.__file__).parent / "pages" / "errors.md"
ERROR_RS = Path(__file__).resolve().parents[1] / "rust/engine/src/error.rs"

HI = [{"role": "user", "content": "hi"}]


def sections() -> dict[str, str]:
    """Text of each class' part of the page."""
    parts = re.split(r"^## ", PAGE.read_text(), flags=re.M)[1:]
    named = {part.partition("\n")[0].strip("`"): part for part in parts}
    return {name: part for name, part in named.items() if name in errors.__all__}


def examples() -> list[tuple[str, str]]:
    """Class and message of each example, on one line."""
    return [
        (name, " ".join(block.split()))
        for name, part in sections().items()
        for block in re.findall(r"```text\n(.*?)```", part, re.S)
    ]


def plain(said: str) -> str:
    """A message without what another machine has otherwise: sizes, processes, vector units."""
    said = re.sub(r"[\d.]+ [KMG]iB", "N", said)
    said = re.sub(r"(by process|its fork) \d+", r"\1 N", said)
    return re.sub(r'device "cpu \(.*?\)"', 'device "cpu"', said)


def as_argument(llm: onegraph.LLM, model: Path) -> None:
    llm.generate("x", max_tokens="5")  # type: ignore[call-overload]


def in_fork(llm: onegraph.LLM, model: Path) -> None:
    """Raises what the fork says: its other threads are not there, so nothing else runs in it."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            llm.generate("x")
        except onegraph.Error as e:
            os.write(write, f"{type(e).__name__}: {e}".encode())
        os._exit(0)
    os.waitpid(child, 0)
    kind, _, said = os.read(read, 1 << 12).decode().partition(": ")
    raise getattr(onegraph, kind)(said)


def cut(llm: onegraph.LLM, model: Path) -> None:
    Path("cut.gguf").write_bytes(model.read_bytes()[:50_000_000])
    onegraph.LLM("cut.gguf")


def no_model(llm: onegraph.LLM, model: Path) -> None:
    Path("text.gguf").write_text("hello, this is a text")
    onegraph.LLM("text.gguf")


def of_another_architecture(llm: onegraph.LLM, model: Path) -> None:
    length = (5).to_bytes(8, "little")
    raw = model.read_bytes()
    assert raw.count(length + b"llama") >= 1
    Path("arch.gguf").write_bytes(raw.replace(length + b"llama", length + b"mamba", 1))
    onegraph.LLM("arch.gguf")


def of_no_numbers(llm: onegraph.LLM, model: Path) -> None:
    shutil.copyfile(model, "nan.gguf")
    (norm,) = (
        t for t in gguf.GGUFReader("nan.gguf", "r+").tensors if t.name == "blk.0.attn_norm.weight"
    )
    norm.data[7] = np.nan
    norm.data.base.flush()
    onegraph.LLM("nan.gguf", device="cpu")


def broken_off(llm: onegraph.LLM, model: Path) -> None:
    loading = _native.Engine.load(
        model,
        nvrtc_folders=nvrtc.folders(),
        speculate="auto",
        draft=None,
        device="cpu",
        n_ctx=None,
        max_batch=1,
        kv_type="i16",
        kv_tokens=None,
        kv_host_bytes=None,
        cuda_graph="full",
        graph_batch_sizes=None,
        graph_max_batch=None,
        graph_padding=True,
        warmup=False,
        pdl=None,
        threads=None,
        prefill_chunk=512,
        prefix_cache=True,
        prefix_host_bytes=None,
        cache_dir=None,
        cache_dir_bytes=0,
    )
    loading.cancel()
    while not isinstance(loading.next(), _native.Engine):
        pass


def closed(llm: onegraph.LLM, model: Path) -> None:
    with onegraph.LLM(model, device="cpu", n_ctx=64) as one:
        pass
    one.generate("x")


def short(llm: onegraph.LLM, model: Path) -> None:
    with onegraph.LLM(model, device="cpu", n_ctx=64) as one:
        one.generate(["hi", "word " * 80])


def long_text(llm: onegraph.LLM, model: Path) -> None:
    with onegraph.LLM(model, device="cpu", n_ctx=64) as one:
        one.embed(["hi", "word " * 80])


def out_of_memory(llm: onegraph.LLM, model: Path) -> None:
    """In a process that may have 6 GB."""
    program = (
        "import onegraph, sys\n"
        "try: onegraph.LLM(sys.argv[1], device='cpu', max_batch=64, threads=2)\n"
        "except onegraph.Error as e: print(type(e).__name__, e, sep=': ')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(model)],
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (6_000_000_000,) * 2),
    )
    kind, _, said = done.stdout.strip().partition(": ")
    raise getattr(onegraph, kind)(said)


def when(day: datetime.date) -> None:
    """A tool that cannot be described."""


Provoke = Callable[[onegraph.LLM, Path], object]

#: How each example of the page comes about, by how its message begins.
PROVOKED: dict[str, Provoke] = {
    "tensor blk.0.attn_norm.weight": of_no_numbers,
    "max_tokens = '5'": as_argument,
    "temperature = -1": lambda llm, _: llm.generate("x", temperature=-1),
    "n_ctx = 100000": lambda _, model: onegraph.LLM(model, n_ctx=100000),
    "kv_tokens = 100": lambda _, model: onegraph.LLM(model, n_ctx=200, kv_tokens=100),
    "messages = 7": lambda llm, _: llm.chat(7),  # type: ignore[call-overload]
    "tools = 1 tools": lambda llm, _: llm.chat(HI, [{"name": "f"}]),
    "chat template: does not write calls": lambda llm, _: llm.chat(
        HI, [{"name": "f"}], chat_template="{{ tools | tojson }}{{ messages[0].content }}"
    ),
    "tools[0] when(day)": lambda llm, _: llm.chat(HI, [when]),
    "tools = f: multipleOf": lambda llm, _: llm.chat(
        HI,
        [{"name": "f", "parameters": {"properties": {"n": {"multipleOf": 2}}}}],
        tool_choice="required",
        tool_format="qwen_xml",
        chat_template="{{ tools | tojson }}{{ messages[0].content }}",
    ),
    'schema = {"not": {}}': lambda llm, _: llm.generate("x", schema={"not": {}}),
    "unknown model 'smolm2'": lambda *_: onegraph.LLM("smolm2"),
    "prompt[1]: the prompt has 81": short,
    "text[1]: the text has 81": long_text,
    "the prompt has 9001 tokens": lambda llm, _: llm.generate("word " * 9000),
    "invalid GGUF: cut.gguf": cut,
    "invalid GGUF: text.gguf": no_model,
    'architecture "mamba"': of_another_architecture,
    "chat template: roles": lambda llm, _: llm.chat(
        HI, chat_template="{{ raise_exception('roles must alternate') }}"
    ),
    "there is no file missing.gguf": lambda *_: onegraph.LLM("missing.gguf"),
    "ollama has no model llama3.2": lambda *_: onegraph.LLM("ollama:llama3.2"),
    "out of memory: needs": out_of_memory,
    'device "cuda"': lambda _, model: onegraph.LLM(model, device="cuda"),
    'device "cpu': lambda llm, _: llm.verify_graph(),
    "the model is closed": closed,
    "the model was loaded by process": in_fork,
    "cancelled": broken_off,
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty current folder, in which ollama's store would be."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OLLAMA_MODELS", "store")


@pytest.fixture(scope="module")
def llm(smollm2: Path) -> Iterator[onegraph.LLM]:
    with onegraph.LLM(smollm2, device="cpu") as loaded:
        yield loaded


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        # Copies a model and reads it by another program.
        pytest.param(*each, marks=[pytest.mark.thorough] if each[1].startswith("tensor ") else [])
        for each in examples()
    ],
    ids=lambda text: text[:30],
)
def test_an_example_of_the_page_is_what_is_raised(
    kind: str, shown: str, llm: onegraph.LLM, smollm2: Path
) -> None:
    if shown.startswith('device "cuda"') and Path("/dev/nvidia0").exists():
        pytest.skip("this machine has a card")
    (provoke,) = [act for begin, act in PROVOKED.items() if shown.startswith(begin)]
    with pytest.raises(getattr(onegraph, kind)) as raised:
        provoke(llm, smollm2)
    assert type(raised.value).__name__ == kind
    assert plain(str(raised.value)) == plain(shown)


def test_every_class_of_error_is_on_the_page_with_what_it_is_a_subclass_of() -> None:
    classes = [name for name in errors.__all__ if name != "Error"]
    assert sorted(sections()) == sorted(classes)
    rows = re.findall(r"^\| `(\w+)` \| (?:`(\w+)`)? ?\| ", PAGE.read_text(), re.M)
    assert sorted(name for name, _ in rows) == sorted(classes)
    for name, builtin in rows:
        bases = [base.__name__ for base in getattr(onegraph, name).__bases__]
        assert bases == ["Error", *filter(None, [builtin])]


def test_every_class_but_that_of_bugs_has_an_example() -> None:
    assert {name for name, _ in examples()} == sections().keys() - {"InternalError"}
    (said,) = re.findall(r'error\("internal error: \{0\}; (.*)"\)', ERROR_RS.read_text())
    assert f'ends with "{said}"' in sections()["InternalError"].replace("\n", " ")


def test_what_is_no_error_of_onegraph_is_as_the_page_says(llm: onegraph.LLM) -> None:
    with pytest.raises(TypeError, match=r"'temprature'; sampling takes max_tokens, ") as raised:
        llm.generate("x", temprature=1)  # type: ignore[call-overload]
    assert not isinstance(raised.value, onegraph.Error)
