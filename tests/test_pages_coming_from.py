"""The page for those who come from elsewhere: what it says of onegraph is there and is so."""

import dataclasses
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import onegraph
import pytest
from onegraph.cli import COMMANDS, foreign, slash
from onegraph.cli import cli as commands
from onegraph.cli.run import command as RUN
from onegraph.sampling import DEFAULTS, resolve
from onegraph.server import asgi
from support.serving import Served, serving

PAGE = Path(onegraph.__file__).parent / "pages" / "coming-from.md"

#: Headings of columns that say what onegraph has.
OURS = {"onegraph", "on the command line", "`onegraph run`"}

#: What is no name: values, and stand-ins for what the reader types.
VALUES = re.compile(r'None|"\w+"|ID=B|hf:USER/REPO:Q4_K_M|ollama:')


def tables() -> Iterator[tuple[list[str], list[list[str]]]]:
    for block in re.findall(r"^(?:\|.*\n)+", PAGE.read_text(), re.M):
        rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in block.splitlines()]
        yield rows[0], rows[2:]


def ours() -> list[str]:
    """Each name in a column of ours."""
    return [
        name
        for head, rows in tables()
        for row in rows
        for title, cell in zip(head, row, strict=True)
        if title in OURS
        for name in re.findall(r"`([^`]+)`", cell)
    ]


def options(command: click.Command) -> set[str]:
    """Spellings of the options that a command has for itself."""
    own = [param for param in command.params if not getattr(param, "hidden", False)]
    return {spelling for param in own for spelling in param.opts}


def own_options(name: str) -> set[str] | None:
    """The same by the command's name; None where there is no such one."""
    found = commands.get_command(click.Context(commands), name)
    return None if found is None else options(found)


def keywords(*methods: object) -> dict[str, object]:
    """Names and defaults."""
    named = [p for method in methods for p in inspect.signature(method).parameters.values()]
    return {p.name: p.default for p in named}


CALLED = {**keywords(onegraph.LLM.generate, onegraph.LLM.chat), **DEFAULTS}
LOADED = keywords(onegraph.LLM)


def has(name: str, given: dict[str, object]) -> bool:
    """Whether `name=`, or `name=default`, is a keyword with that default."""
    key, _, value = name.partition("=")
    return key in given and (not value or repr(given[key]) == value)


def exists(name: str) -> bool:
    if VALUES.fullmatch(name):
        return True
    if name.startswith("onegraph "):
        _, called, *rest = name.split()
        own = own_options(called)
        return own is not None and {word for word in rest if word.startswith("-")} <= own
    if name.startswith("--"):
        return name in options(RUN)
    if name.startswith("/"):
        return name.split()[0] in slash.COMMANDS
    if found := re.fullmatch(r"LLM\((.*)\)", name):
        inside = found[1]
        return inside == "FILE" or inside.startswith('"hf:') or has(inside, LOADED)
    if found := re.fullmatch(r"(llm|Result|Piece)\.(\w+)", name):
        of = {"llm": onegraph.LLM, "Result": onegraph.Result, "Piece": onegraph.Piece}[found[1]]
        fields = [] if of is onegraph.LLM else [field.name for field in dataclasses.fields(of)]
        return hasattr(of, found[2]) or found[2] in fields
    if found := re.fullmatch(r"(\w+)\(\.\.\.\)", name):
        return hasattr(onegraph, found[1])
    return "=" in name and has(name, CALLED)


@pytest.mark.parametrize("name", sorted(set(ours())))
def test_what_the_page_says_that_onegraph_has_is_there(name: str) -> None:
    assert exists(name), f"{name} is none of onegraph's"


@pytest.mark.parametrize(
    "wrong",
    [
        *["onegraph vectors", "onegraph run NAME --format json", "--num-predict", "/bye-bye"],
        *["LLM(num_ctx=)", "LLM(max_batch=9)", "llm.create", "Result.response", "Params(...)"],
        *["num_predict=", "top_k=41", "top_k"],
    ],
)
def test_a_name_that_is_not_there_is_found_out(wrong: str) -> None:
    assert not exists(wrong)


def test_what_onegraph_is_said_not_to_have_it_has_not() -> None:
    rows = [row for head, rows in tables() if head[1] in OURS for row in rows]
    without = [row[0] for row in rows if row[1].startswith("none")]
    assert len(without) > 8
    for name in re.findall(r"`([^`]+)`", " ".join(without)):
        if name.startswith("ollama "):
            called, *rest = name.split()[1:]
            assert called not in COMMANDS or rest
        elif name.startswith("-"):
            assert name.split()[0] not in options(RUN)
        else:
            assert re.split(r"\W", name)[0] not in {**CALLED, **LOADED}


def test_each_option_of_llama_cli_is_ours_or_is_refused_with_what_the_page_says() -> None:
    (rows,) = [rows for head, rows in tables() if head[0] == "`llama-cli`"]
    refused = {spelling: row for row in foreign.OPTIONS for spelling in row.spellings}
    own = options(RUN)
    for theirs, here in rows:
        for spelling in re.findall(r"`(-[\w-]+)", theirs):
            if spelling in own:
                assert f"`{spelling}`" in here
                continue
            row = refused[spelling]
            same = [max(p.opts, key=len) for p in RUN.params if p.name in row.ours]
            for option in [name for name in same if name.startswith("--")]:
                assert f"`{option}`" in here, (spelling, option, here)


def test_each_command_of_ollama_is_ours_or_is_refused() -> None:
    typed = [
        name.split()[1]
        for head, rows in tables()
        if head[0] == "ollama"
        for row in rows
        for name in re.findall(r"`(ollama \w+)", row[0])
    ]
    assert {"run", "ls", "create", "serve"} <= set(typed)
    assert [name for name in typed if name not in {*COMMANDS, *foreign.COMMANDS}] == []


def elsewhere() -> Iterator[tuple[str, str]]:
    """Each name of other programs in Python, and what is said of it."""
    for head, rows in tables():
        if head[1] == "onegraph":
            for row in rows:
                yield from ((name, row[1]) for name in re.findall(r"`([^`]+)`", row[0]))


def test_a_keyword_from_elsewhere_is_told_what_the_page_says() -> None:
    names: dict[str, set[str]] = {}
    for written, said in elsewhere():
        for found in re.findall(r"(\w+)=|^(\w+)$", written):
            names.setdefault("".join(found), set()).add(f"is {said} here")
    assert {"model_path", "n_gpu_layers", "num_predict", "tensor_parallel_size"} <= set(names)
    assert {"max_new_tokens", "guided_json", "mmproj", "json_schema", "n_predict"} <= set(names)
    assert {"embedding", "do_sample"} <= set(names)
    for name, said in names.items():
        if name not in LOADED:
            with pytest.raises(TypeError, match=r"coming-from`|to a request") as caught:
                onegraph.LLM("no-such-model", **{name: 1})
            assert repr(name) in str(caught.value)
            assert name in CALLED or any(text in str(caught.value) for text in said)
        if name not in CALLED:
            for called in (resolve, lambda given: onegraph.Sampling(**given)):
                with pytest.raises(TypeError, match="onegraph help coming-from") as caught:
                    called({name: 1})
                assert any(text in str(caught.value) for text in said)
    with pytest.raises(TypeError, match=r"`Llama\(model_path=FILE\)` is `LLM\(FILE\)` here"):
        onegraph.LLM(model_path="tiny.gguf")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'n_layers'$"):
        onegraph.LLM("no-such-model", n_layers=1)  # type: ignore[call-arg]


def test_a_class_from_elsewhere_is_told_what_the_page_says() -> None:
    for name, said in (("Llama", r"`LLM\(FILE\)`"), ("SamplingParams", r"`Sampling\(\.\.\.\)`")):
        with pytest.raises(AttributeError, match=f"no attribute '{name}'.* is {said}"):
            getattr(onegraph, name)
    with pytest.raises(AttributeError, match=r"^module 'onegraph' has no attribute 'no_such'$"):
        onegraph.no_such  # noqa: B018


def test_a_method_from_elsewhere_is_told_what_the_page_says(smollm2: Path) -> None:
    with onegraph.LLM(smollm2, device="cpu", n_ctx=64) as llm:
        for name in ("create_completion", "create_chat_completion", "create_embedding", "scores"):
            (said,) = {s for written, s in elsewhere() if re.search(rf"\b{name}$", written)}
            for of in (llm, onegraph.LLM):
                with pytest.raises(AttributeError, match=re.escape(f"is {said} here")):
                    getattr(of, name)
                assert not hasattr(of, name)
        with pytest.raises(AttributeError, match=r"from_pretrained.* is `LLM\(\"hf:REPO/FILE"):
            onegraph.LLM.from_pretrained  # noqa: B018
        with pytest.raises(AttributeError, match=r"^LLM has no attribute 'no_such'$"):
            llm.no_such  # noqa: B018
        with pytest.raises(TypeError, match=r"not callable: llm\.gen.*`llm\(PROMPT\)` is"):
            llm("Hi")
        # Types know nothing of this: they refuse what is not there.
        assert set(dir(llm)) >= {"generate", "chat"} and "scores" not in dir(llm)


def test_the_defaults_of_llama_cpp_are_those_of_its_package() -> None:
    xllamacpp = pytest.importorskip("xllamacpp")
    params = xllamacpp.CommonParams()
    theirs = params.sampling
    text = " ".join(PAGE.read_text().split())
    assert params.n_predict == -1 and "| `-n` | -1, no limit |" in text
    assert theirs.penalty_last_n == 64 and "| `--repeat-last-n` | 64 |" in text
    assert f"`{theirs.samplers}`" in text
    assert "Temperature 0.8, top-k 40, top-p 0.95, min-p 0.05 and a repeat penalty of 1.0" in text
    same = {
        "temperature": theirs.temp,
        "top_k": theirs.top_k,
        "top_p": theirs.top_p,
        "min_p": theirs.min_p,
        "repeat_penalty": theirs.penalty_repeat,
    }
    stated = [0.8, 40, 0.95, 0.05, 1.0]
    assert list(same.values()) == pytest.approx(stated)
    assert [DEFAULTS[name] for name in same] == pytest.approx(stated)


def test_the_program_of_the_page_runs(smollm2: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    with onegraph.LLM(smollm2, device="cpu", n_ctx=64) as llm:
        exec(program, {"onegraph": onegraph, "llm": llm})
    assert len(capsys.readouterr().out) > 10


def test_tables_are_narrow() -> None:
    for line in PAGE.read_text().splitlines():
        if line.startswith("|"):
            assert len(line) <= 80 and line.count("|") <= 4, line


#: Of fields of other servers, values by which they would show.
FIELDS: dict[str, Any] = {
    **{"json_schema": {"type": "integer"}, "guided_json": {"type": "integer"}},
    **{"grammar": 'root ::= "ab"', "guided_grammar": 'root ::= "ab"'},
    **{"guided_regex": "ab", "guided_choice": ["ab"], "structured_outputs": {"regex": "ab"}},
    **{"repeat_penalty": 1.9, "repetition_penalty": 1.9, "ignore_eos": True, "min_p": 0.5},
    **{"logit_bias": [[0, 9.0]], "stop_token_ids": [0], "top_k": -1, "max_tokens": -1},
    **{"prompt_logprobs": 1, "cache_salt": "x", "chat_template_kwargs": {"x": 1}},
    **{"thinking_budget_tokens": 3, "model": "gpt-4o", "n_predict": 1, "n_probs": 2},
    **{"cache_prompt": False, "id_slot": 0, "mirostat": 2, "typical_p": 0.1, "min_keep": 1},
    **{"dynatemp_range": 0.5, "xtc_probability": 0.9, "dry_multiplier": 0.8, "samplers": ["top_k"]},
    **{"repeat_last_n": 0, "min_tokens": 9, "best_of": 2, "bad_words": ["Yes"]},
    **{"allowed_token_ids": [5], "skip_special_tokens": False, "include_stop_str_in_output": True},
    **{"use_beam_search": True, "length_penalty": 2.0, "truncate_prompt_tokens": 2, "priority": 1},
    "chat_template": "{{ 1 }}",
}

#: Those of which the answer below tells that they were read.
TELLING = {
    *("json_schema", "guided_json", "grammar", "guided_grammar", "guided_regex", "guided_choice"),
    *("structured_outputs", "repeat_penalty", "repetition_penalty", "ignore_eos"),
}


@pytest.fixture(scope="module")
def served(smollm2: Path) -> Iterator[Served]:
    with (
        onegraph.LLM(smollm2, device="cpu", n_ctx=256) as llm,
        serving(asgi({"smollm2": llm})) as served,
    ):
        yield served


def of_servers(kind: str) -> Iterator[tuple[str, str]]:
    """Of the tables of paths, or of fields, each name and what is said of it."""
    for head, rows in tables():
        if head[0].startswith(f"{kind} of "):
            for theirs, here in rows:
                yield from ((name, here) for name in re.findall(r"`([^`]+)`", theirs))


def test_a_path_of_another_server_is_what_the_page_says(served: Served) -> None:
    def status(name: str) -> int:
        method, path = name.split()
        return served.send(method, path, None if method == "GET" else {})[0]

    found = dict(of_servers("path"))
    assert len(found) > 35
    for name, here in found.items():
        if here.startswith("the same"):
            assert status(name) not in (404, 405, 501), name
        else:
            assert status(name) in (404, 405, 501), name
            for ours in re.findall(r"`([^`]+)`", here):
                assert status(ours) not in (404, 405, 501), ours


@pytest.mark.thorough
def test_a_field_of_another_server_is_what_the_page_says(served: Served) -> None:
    body = {"messages": [{"role": "user", "content": "Say yes or no"}], "max_tokens": 12}

    def asked(**more: Any) -> tuple[int, Any]:
        given = {**body, "temperature": 0, **more}
        status, answer = served.post("/v1/chat/completions", given)
        return status, answer.get("choices", [{}])[0].get("message")

    plain = asked()
    assert plain[0] == 200
    fields = dict(of_servers("field"))
    assert {name for name in fields if name != "logprobs"} == FIELDS.keys()
    for name, here in fields.items():
        status, message = asked(**{name: FIELDS[name]})
        if here.startswith(("400", "404")):
            assert status == int(here[:3]), name
        elif here.startswith("ignored"):
            assert (status, message) == plain, name
        else:
            assert here.startswith("the same") and status == 200, name
            assert name not in TELLING or message != plain[1], name


def test_each_option_of_other_servers_is_ours_or_is_refused() -> None:
    own = own_options("serve")
    assert own is not None
    refused = {spelling: row for row in foreign.OPTIONS for spelling in row.spellings}
    rows = [row for head, rows in tables() if head[1] == "`onegraph serve`" for row in rows]
    assert len(rows) > 20
    for theirs, here in rows:
        for option in re.findall(r"`(--[\w-]+)", here):
            assert option in own, option
        for spelling in re.findall(r"`(--?[\w-]+)", theirs):
            assert (spelling in own and f"`{spelling}`" in here) or spelling in refused, spelling
