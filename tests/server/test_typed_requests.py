"""Any request that the types of the clients can build is answered, or refused by name."""

from __future__ import annotations

import functools
import inspect
import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import hypothesis.strategies as st
import ollama
import onegraph
import pydantic
import pytest
import typing_extensions
from anthropic.types.message_count_tokens_params import MessageCountTokensParams
from anthropic.types.message_create_params import MessageCreateParamsBase
from hypothesis import HealthCheck, given, settings
from onegraph import LLM
from onegraph.server import asgi
from openai.types.chat.completion_create_params import (
    CompletionCreateParamsBase as ChatCreateParams,
)
from openai.types.completion_create_params import CompletionCreateParamsBase
from openai.types.embedding_create_params import EmbeddingCreateParams
from openai.types.responses.response_create_params import ResponseCreateParamsBase
from support import calls, scripted
from support.serving import Served, serving

TYPES: dict[str, Any] = {
    "/v1/chat/completions": ChatCreateParams,
    "/v1/completions": CompletionCreateParamsBase,
    "/v1/embeddings": EmbeddingCreateParams,
    "/v1/responses": ResponseCreateParamsBase,
    "/v1/messages": MessageCreateParamsBase,
    "/v1/messages/count_tokens": MessageCountTokensParams,
    "/api/chat": ollama._types.ChatRequest,
    "/api/generate": ollama._types.GenerateRequest,
    "/api/embed": ollama._types.EmbedRequest,
}

#: Fields that no answer here depends on, so that nobody looks at them.
HARMLESS = {
    *("metadata", "user", "user_profile_id", "workspace_id", "safety_identifier", "diagnostics"),
    # Of how long a prefix is kept, and of drafts: what is kept and drafted changes no token.
    *("cache_control", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),
    "prediction",
    # Of where and when, or of the tools of others' servers.
    *("service_tier", "inference_geo", "speed", "access_programs", "background_options"),
    *("container", "max_tool_calls", "context_management"),
    # A wish that no template has a place for; of functions, which are refused; of pictures.
    *("verbosity", "function_call", "width", "height", "steps"),
    # Nothing is stored; of streams, what hides their lengths.
    *("store", "stream_options"),
}

TEXT = st.sampled_from(["", "tea", "user", "assistant", "add", "\u2603", "a" * 40])
NUMBER = st.sampled_from([0, 1, 2, 3, 7, 20, -1, 2**40])
REAL = st.sampled_from([0.0, 0.1, 0.5, 1.0, 0, 1, -1.0, 3.5])
LEAF: st.SearchStrategy[Any] = st.none() | st.booleans() | NUMBER | TEXT | REAL
REQUIRED = (typing.Required, typing_extensions.Required)
MARKS = (*REQUIRED, typing.NotRequired, typing_extensions.NotRequired, typing.Annotated)
#: How deep objects go, and fields of one that need not be there.
DEPTH, MORE = 6, 3


@functools.cache
def built(hint: Any, depth: int = DEPTH) -> st.SearchStrategy[Any] | None:
    """JSON of a type; None where it has none that is not too deep."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in MARKS:
        return built(args[0], depth)
    if origin in (typing.Union, types.UnionType):
        found = [each for arg in args if (each := built(arg, depth)) is not None]
        # What people send most is a text.
        return st.one_of([*found, *[TEXT] * (len(found) * (str in args))]) if found else None
    if origin is Literal:
        return st.sampled_from(args)
    simple = {str: TEXT, int: NUMBER, float: REAL, bool: st.booleans(), type(None): st.none()}
    if hint in simple:
        return simple[hint]
    if hint in (Any, object):
        return LEAF
    if origin is not None and issubclass(origin, typing.Mapping):
        return st.dictionaries(
            TEXT, LEAF if (each := built(args[1], depth - 1)) is None else each, max_size=2
        )
    if origin is not None and issubclass(origin, typing.Iterable):
        each = built(args[0], depth - 1) if depth else None
        return st.just([]) if each is None else st.lists(each, min_size=1, max_size=2)
    if isinstance(hint, type) and (
        typing_extensions.is_typeddict(hint) or issubclass(hint, pydantic.BaseModel)
    ):
        return of_object(hint, depth) if depth else None
    return None  # a file, a time


@functools.cache
def fields_of(kind: Any) -> dict[str, tuple[Any, bool]]:
    """Of each field its type, and whether it has to be there."""
    if typing_extensions.is_typeddict(kind):
        hints = typing_extensions.get_type_hints(kind, include_extras=True)
        # Of annotations that are texts, the class itself knows none that is required.
        return {k: (hint, get_origin(hint) in REQUIRED) for k, hint in hints.items()}
    return {k: (f.annotation, f.is_required()) for k, f in kind.model_fields.items()}


@functools.cache
def of_object(kind: Any, depth: int) -> st.SearchStrategy[Any] | None:
    fields = fields_of(kind)

    @st.composite
    def made(draw: st.DrawFn) -> dict[str, Any]:
        # Without an input, which the type allows, nothing else is looked at.
        needed = [k for k, (_, is_needed) in fields.items() if is_needed or k == "input"]
        free = [k for k in fields if k not in needed]
        chosen = draw(st.lists(st.sampled_from(free), max_size=MORE)) if free else []
        found = {}
        for key in dict.fromkeys([*needed, *chosen]):
            each = built(fields[key][0], depth - 1)
            if each is not None:
                found[key] = draw(each)
        return found

    return made()


@pytest.fixture(scope="module")
def bounded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A model that may call tools, of which no request has more than a few tokens."""
    path = tmp_path_factory.mktemp("typed") / "adder.gguf"
    scripted.write(path, calls.ANSWERS, template=calls.TEMPLATE)
    with LLM(path, device="cpu") as llm, serving(asgi(llm, max_tokens_limit=2)) as served:
        yield served


#: A field as an error spells it, what is wrong with it, and more of it.
NAMED = re.compile(r"[\w.]+(\[\d+\][\w.\[\]]*)*:? (= .*: |\S).{5,}", re.S)


@pytest.mark.parametrize("path", TYPES)
def test_a_request_is_answered_or_refused_by_name(path: str, bounded: Served) -> None:
    seen = set()

    @settings(
        max_examples=60,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=[*HealthCheck],
    )
    @given(built(TYPES[path]))
    def ask(body: dict[str, Any]) -> None:
        status, said = bounded.post(path, {**body, "model": "adder"})
        seen.add(status)
        if status == 200:
            return
        error = said["error"]
        message = error if isinstance(error, str) else error["message"]
        assert status == 400 and NAMED.match(message), (status, message, body)

    ask()
    assert seen == {200, 400}


@pytest.mark.parametrize("path", TYPES)
def test_no_field_that_would_change_the_answer_is_passed_over(path: str) -> None:
    folder = Path(inspect.getfile(onegraph)).parent
    files = [*(folder / "server").glob("*.py"), folder / "conversations.py"]
    source = "".join(file.read_text() for file in files)
    assert {k for k in fields_of(TYPES[path]) if f'"{k}"' not in source} <= HARMLESS
