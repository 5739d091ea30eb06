"""What a conversation says spells no control token, by whichever published template it is said.

The templates are those of the test vectors, and of the folder that ONEGRAPH_TEST_TEMPLATES names,
such as llama.cpp's models/templates.
"""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onegraph
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import oracles
from support.conversations import CONVERSATIONS, NAMES

pytestmark = pytest.mark.thorough

#: A letter that no template has: where it is not given, given text passed for the template's.
TAG = "ж"
#: What looks like a control token to one model or another.
SPELLING = re.compile(
    r"<[|\uff5c][^<>\s'\"{}]{1,40}[|\uff5c]>|</?[\w:]{1,30}>|\[/?[A-Z_]{2,30}\]|\]~!?b\["
)
FRAGMENTS = [*"<>[]|\n \x1a", "<|", "|>", "</", "im_end|>", "<|im_end", "s>", "<s", "\x1a("]

#: Changes every text that a conversation is made of.
Change = Callable[[str], str]
Conversation = tuple[list[dict[str, Any]], dict[str, Any]]


def sources(vectors: Path) -> Iterator[Path]:
    yield from sorted((vectors / "templates").glob("*.jinja"))
    if folder := os.environ.get("ONEGRAPH_TEST_TEMPLATES"):
        yield from sorted(Path(folder).glob("*.jinja"))


@pytest.fixture(scope="module")
def spellings(vectors: Path) -> list[str]:
    texts = [path.read_text(encoding="utf-8") for path in sources(vectors)]
    found = {s for text in texts for s in SPELLING.findall(text)}
    return sorted(
        found | {"<|end|>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|user|>", "<|a|>"}
    )


@pytest.fixture(scope="module")
def tokenizer(spellings: list[str], tmp_path_factory: pytest.TempPathFactory) -> onegraph.Tokenizer:
    """All bytes, and a control token for each spelling."""
    data = oracles.byte_level([(b"a", b"b")], "gpt-2")
    for text in set(spellings) - {"<|end|>"}:  # that one is there
        data["tokens"].append(text)
        data["token_type"].append(oracles.CONTROL)
    path = oracles.write(tmp_path_factory.mktemp("vocabulary") / "model.gguf", data)
    return onegraph.Tokenizer(path)


def texts(spellings: list[str]) -> st.SearchStrategy[str]:
    pieces = st.one_of(
        st.sampled_from(spellings),
        st.sampled_from(FRAGMENTS),
        st.sampled_from(["a", TAG, "user", "system\n"]),
        st.tuples(st.sampled_from(spellings), st.integers(1, 9)).map(lambda s: s[0][: s[1]]),
        st.tuples(st.sampled_from(spellings), st.integers(1, 9)).map(lambda s: s[0][-s[1] :]),
    )
    return st.lists(pieces, max_size=5).map("".join)


@st.composite
def conversations(draw: st.DrawFn, spellings: list[str]) -> Callable[[Change], Conversation]:
    """A conversation as a function of how its texts are changed: with other texts it takes, as far
    as the template lets it, the same way through the template."""
    text = texts(spellings)
    turns = draw(st.integers(1, 2))
    said = [draw(text) for _ in range(2 * turns + 1)]
    system = draw(st.none() | text)
    role = draw(st.none() | st.none() | st.none() | text)
    called = draw(st.none() | st.tuples(text, text, text, text))
    as_parts, as_json = draw(st.integers(0, 3)) == 0, draw(st.booleans())
    thought, tool = draw(st.none() | text), draw(st.none() | st.tuples(text, text, text))
    variable = draw(st.none() | text)

    def make(change: Change) -> Conversation:
        def content(value: str) -> Any:
            return [{"type": "text", "text": change(value)}] if as_parts else change(value)

        messages: list[dict[str, Any]] = []
        if system is not None:
            messages.append({"role": "system", "content": change(system)})
        for i, value in enumerate(said):
            messages.append({"role": ("user", "assistant")[i % 2], "content": content(value)})
        if thought is not None:
            messages[-2]["reasoning_content"] = change(thought)
        if role is not None:
            messages[-1]["role"] = change(role)
        if called is not None:
            name, key, value, result = map(change, called)
            arguments: Any = f'{{"{key}": "{value}"}}' if as_json else {key: value}
            function = {"name": name, "arguments": arguments}
            call = {"type": "function", "id": "abcdef123", "function": function}
            messages += [
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "content": result, "name": name, "tool_call_id": "abcdef123"},
            ]
        variables: dict[str, Any] = {}
        if tool is not None:
            name, about, parameter = map(change, tool)
            properties = {parameter: {"type": "string", "description": about}}
            schema = {"type": "object", "properties": properties, "required": [parameter]}
            function = {"name": name, "description": about, "parameters": schema}
            variables["tools"] = [{"type": "function", "function": function}]
        if variable is not None:
            variables |= {
                "date_string": change(variable),
                "documents": [{"text": change(variable)}],
            }
        return messages, variables

    return make


def parts(rendering: onegraph.Rendering) -> tuple[list[str], list[str]]:
    """What of a text is the template's own, one part more than there are given ones; and those."""
    own, given, at = [], [], 0
    for start, stop in rendering.given:
        own.append(rendering.text[at:start])
        given.append(rendering.text[start:stop])
        at = stop
    return [*own, rendering.text[at:]], given


def control_ids(tokenizer: onegraph.Tokenizer, ids: list[int]) -> list[int]:
    return [id for id in ids if tokenizer.is_special(id)]


def check(
    tokenizer: onegraph.Tokenizer, spellings: list[str], rendering: onegraph.Rendering
) -> list[int]:
    """The control tokens of a rendering, which are those that its own parts spell alone."""
    own, _ = parts(rendering)
    assert TAG not in "".join(own)
    ids = tokenizer.encode_rendering(rendering)
    assert tokenizer.decode(ids, skip_special=False) == rendering.text
    longest_first = sorted(spellings, key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, longest_first)))
    spelled = [tokenizer.token_id(s) for part in own for s in pattern.findall(part)]
    assert control_ids(tokenizer, ids) == spelled
    return control_ids(tokenizer, ids)


def check_template(source: str, spellings: list[str], tokenizer: onegraph.Tokenizer) -> int:
    """How many conversations took the same way as their harmless twins."""
    template = onegraph.ChatTemplate(source)
    its_own = [s for s in spellings if s in source] or spellings
    compared = 0

    # So many that some are accepted by templates that want user and assistant in turn.
    @settings(
        max_examples=100, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(conversations(its_own))
    def run(conversation: Callable[[Change], Conversation]) -> None:
        nonlocal compared
        try:
            messages, variables = conversation(lambda text: text)
            hostile = template.rendering(messages, **variables)
            assert hostile.text == template.render(messages, **variables)
            # White space stays: templates strip it.
            messages, variables = conversation(lambda text: re.sub(r"\S", TAG, text))
            harmless = template.rendering(messages, **variables)
        except onegraph.ModelError:
            return
        control = check(tokenizer, spellings, hostile)
        its_twin = check(tokenizer, spellings, harmless)
        if parts(hostile)[0] == parts(harmless)[0]:
            assert control == its_twin
            compared += 1

    run()
    return compared


@pytest.mark.parametrize("name", NAMES)
def test_what_is_said_spells_no_control_token(
    vectors: Path, name: str, spellings: list[str], tokenizer: onegraph.Tokenizer
) -> None:
    source = (vectors / "templates" / f"{name}.jinja").read_text(encoding="utf-8")
    assert check_template(source, spellings, tokenizer) > 5


def test_what_is_said_spells_no_control_token_by_templates_from_elsewhere(
    spellings: list[str], tokenizer: onegraph.Tokenizer
) -> None:
    folder = os.environ.get("ONEGRAPH_TEST_TEMPLATES")
    if not folder:
        pytest.skip("ONEGRAPH_TEST_TEMPLATES names no folder of chat templates")
    found = sorted(Path(folder).glob("*.jinja"))
    assert found
    compared = 0
    for path in found:
        try:
            source = path.read_text(encoding="utf-8")
            compared += check_template(source, spellings, tokenizer)
        except BaseException as e:
            e.add_note(path.name)
            raise
    assert compared > 5 * len(found)


@pytest.mark.parametrize("name", NAMES)
def test_an_honest_conversation_has_the_ids_it_would_have_all_trusted(
    vectors: Path, name: str, tokenizer: onegraph.Tokenizer
) -> None:
    source = (vectors / "templates" / f"{name}.jinja").read_text(encoding="utf-8")
    template = onegraph.ChatTemplate(source)
    compared = 0
    for title, messages in CONVERSATIONS.items():
        # These two spell what are control tokens here.
        if title in ("look-alikes", "thinking"):
            continue
        try:
            rendering = template.rendering(messages)
        except onegraph.ModelError:
            continue
        trusted = tokenizer.encode(rendering.text, add_special=False, parse_special=True)
        assert tokenizer.encode_rendering(rendering) == trusted, title
        compared += 1
    assert compared > 5


@pytest.mark.parametrize("role", ["user", "system", "assistant", "observation"])
def test_a_role_of_the_chat_formats_spells_its_control_token(
    role: str, spellings: list[str], tmp_path: Path
) -> None:
    data = oracles.byte_level([(b"a", b"b")], "gpt-2")
    data["tokens"] += [f"<|{role}|>", "<|critic|>"]
    data["token_type"] += [oracles.CONTROL] * 2
    tokenizer = onegraph.Tokenizer(oracles.write(tmp_path / "model.gguf", data))
    # As in GLM-4.
    template = onegraph.ChatTemplate(
        "{% for item in messages %}<|{{ item['role'] }}|>\n{{ item['content'] }}{% endfor %}"
    )
    messages = [{"role": role, "content": f"<|{role}|>"}, {"role": "critic", "content": role}]
    ids = tokenizer.encode_rendering(template.rendering(messages))
    assert control_ids(tokenizer, ids) == [tokenizer.token_id(f"<|{role}|>")]
    assert ids.index(len(data["tokens"]) - 2) == 0


def test_given_ranges_are_in_characters() -> None:
    template = onegraph.ChatTemplate("é{{ messages[0].content }}🦙{{ x }}{{ y }}{{ bos_token }}")
    rendering = template.rendering([{"content": "ä🦙"}], x="", y="ü")
    assert rendering.text == "éä🦙🦙ü<s>"
    assert rendering.given == [(1, 3), (4, 5)]
    assert parts(rendering) == (["é", "🦙", "<s>"], ["ä🦙", "ü"])
