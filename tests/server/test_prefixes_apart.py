"""What was read for one key is not found by another, in any dialect, unless that is asked for."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from onegraph import LLM
from onegraph.server import asgi
from support.serving import Served, serving

KEYS = ["alice", "mallory", "ключ"]

#: A text whose tokens fill pages.
SECRET = "a secret of many words, " * 12

#: By path what is asked, and the tokens that were kept.
DIALECTS: dict[str, Any] = {
    "/v1/completions": (
        {"prompt": SECRET, "max_tokens": 1},
        lambda body: body["usage"]["prompt_tokens_details"]["cached_tokens"],
    ),
    "/v1/chat/completions": (
        {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 1},
        lambda body: body["usage"]["prompt_tokens_details"]["cached_tokens"],
    ),
    "/v1/responses": (
        {"input": SECRET, "max_output_tokens": 1},
        lambda body: body["usage"]["input_tokens_details"]["cached_tokens"],
    ),
    "/v1/messages": (
        {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 1},
        lambda body: body["usage"]["cache_read_input_tokens"],
    ),
}
OLLAMA = ("/api/generate", {"prompt": SECRET, "raw": True, "stream": False})


@contextlib.contextmanager
def fresh(llm: LLM, **options: Any) -> Iterator[Served]:
    """A server of a model that has kept nothing."""
    with (
        LLM(llm.path, device="cpu", max_batch=2, chat_template=TEMPLATE) as other,
        serving(asgi(other, **options)) as served,
    ):
        yield served


TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


def cached(served: Served, path: str, key: str = "alice", **more: Any) -> int:
    asked, read = DIALECTS[path]
    status, body = served.post(path, {**asked, **more}, x_api_key=key.encode().decode("latin-1"))
    assert status == 200, body
    found: int = read(body)
    return found


@pytest.mark.parametrize("path", DIALECTS)
def test_a_key_finds_nothing_of_another(path: str, llm: LLM) -> None:
    with fresh(llm, api_keys=KEYS) as served:
        assert cached(served, path, "alice") == 0
        for key in ("mallory", "ключ"):
            assert cached(served, path, key) == 0
        # Each finds its own.
        for key in KEYS:
            assert cached(served, path, key) >= 64
        # A salt that another key is named by is another one still.
        assert cached(served, path, "mallory", cache_salt="alice") == 0


@pytest.mark.parametrize(
    "options", [{}, {"api_keys": ["alice"]}, {"api_keys": KEYS, "share_prefixes": True}]
)
def test_requests_of_one_key_or_none_share_prefixes(options: dict[str, Any], llm: LLM) -> None:
    with fresh(llm, **options) as served:
        assert cached(served, "/v1/completions", "alice") == 0
        other = options.get("api_keys", ["alice"])[-1]
        assert cached(served, "/v1/completions", other) >= 64


@pytest.mark.parametrize("path", DIALECTS)
def test_a_salt_keeps_what_was_read_apart(path: str, llm: LLM) -> None:
    with fresh(llm) as served:
        assert cached(served, path, cache_salt="one") == 0
        assert cached(served, path, cache_salt="two") == 0
        assert cached(served, path) == 0
        assert cached(served, path, cache_salt="one") >= 64
        # None is what all share who give none.
        assert cached(served, path, cache_salt="") >= 64
        assert cached(served, path, cache_salt=None) >= 64


def test_ollamas_dialect_takes_a_salt_too(llm: LLM) -> None:
    path, asked = OLLAMA
    with fresh(llm) as served:
        for salt, read in (("one", 0), ("two", 0), ("one", 1), (None, 0)):
            before = served.get("/metrics")[1]
            assert served.post(path, {**asked, "cache_salt": salt})[0] == 200
            after = served.get("/metrics")[1]
            hits = [
                int(line.rpartition(" ")[2])
                for text in (before, after)
                for line in text.splitlines()
                if line.startswith("onegraph:prefix_hits_total{")
            ]
            assert hits[1] - hits[0] == read, salt


@pytest.mark.parametrize("path", [*DIALECTS, OLLAMA[0]])
@pytest.mark.parametrize(
    ("salt", "said"),
    [
        (5, "cache_salt = 5: must be a string"),
        (["a"], "cache_salt = a value of type list: must be a string"),
        ("x" * 1025, "cache_salt = a text of 1025 bytes: at most 1024 bytes are allowed"),
    ],
)
def test_a_salt_is_a_text_of_bounded_length(
    path: str, salt: Any, said: str, served: Served
) -> None:
    asked = OLLAMA[1] if path == OLLAMA[0] else DIALECTS[path][0]
    status, body = served.post(path, {**asked, "cache_salt": salt})
    assert status == 400 and said in str(body)
