"""Keys, pages of the web, and the names a server is called by."""

import pytest
from onegraph import LLM
from onegraph.server import asgi
from onegraph.server.app import build
from onegraph.server.models import Models
from onegraph.server.service import Service
from starlette.applications import Starlette
from starlette.routing import Mount
from support.serving import Served, http, rest, serving

KEYS = ["correct horse", "battery staple"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer correct horse"}, 200),
        ({"authorization": "bearer battery staple"}, 200),
        ({"x_api_key": "battery staple"}, 200),
        ({"authorization": "Bearer correct hors"}, 401),
        ({"authorization": "Bearer correct horse2"}, 401),
        ({"authorization": "Bearer "}, 401),
        ({"authorization": "Basic correct horse"}, 401),
        ({"authorization": "correct horse"}, 401),
        ({"x_api_key": "wrong"}, 401),
    ],
)
def test_a_key_is_asked_for(headers: dict[str, str], status: int, llm: LLM) -> None:
    with serving(asgi(llm, api_keys=KEYS)) as served:
        found, body = served.get("/v1/models", **headers)
        assert found == status
        if status == 401:
            assert body["error"]["type"] == "authentication_error"
            assert "correct horse" not in str(body)
        assert served.post("/v1/completions", {"prompt": "tea", "max_tokens": 1}, **headers)[0] == (
            status
        )
        assert served.get("/metrics", **headers)[0] == status
        # Whether it is there may be known without a key.
        assert served.get("/health")[0] == served.get("/ready")[0] == 200


@pytest.mark.parametrize(
    "kind", ["x-api-key: ", "Authorization: Bearer ", "AUTHORIZATION: BEARER "]
)
def test_a_key_is_taken_in_utf_8(kind: str, llm: LLM) -> None:
    keys = ["schlüssel", "ключ 鍵", "Ã¼"]
    # Python's own client and others spell a header in Latin-1 where that can.
    sent = [(key, key.encode()) for key in keys] + [("schlüssel", "schlüssel".encode("latin-1"))]
    wrong = ["schlüsse", "ключ 鍵".encode("utf-16-le"), b"\xff\xfe", "klюч", "ü", "Ã"]
    with serving(asgi(llm, api_keys=keys)) as served:
        for key in [*sent, *wrong]:
            given = key[1] if isinstance(key, tuple) else key
            raw = given.encode() if isinstance(given, str) else given
            if b"\0" in raw:
                continue
            head = b"GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
            with served.connect() as connection:
                connection.sendall(head + kind.encode() + raw + b"\r\n\r\n")
                expected = b"200" if isinstance(key, tuple) else b"401"
                assert rest(connection).startswith(b"HTTP/1.1 " + expected), key


@pytest.mark.parametrize("host", ["x", "x/?", "x/health?", "x/health#", "x/ready?", ""])
def test_no_host_opens_what_needs_a_key(host: str, llm: LLM) -> None:
    """Starlette before 1.0.1 takes a URL's path from it."""
    asked = http("/v1/completions", {"prompt": "tea"}, connection="close")
    with serving(asgi(llm, api_keys=KEYS)) as served, served.connect() as connection:
        connection.sendall(asked.replace(b"host: localhost", b"host: " + host.encode()))
        assert rest(connection).startswith(b"HTTP/1.1 401")


def test_where_it_is_mounted_does_not_change_what_needs_a_key(llm: LLM) -> None:
    app = asgi(llm, api_keys=KEYS)
    with serving(Starlette(routes=[Mount("/llm", app), Mount("/health", app)])) as served:
        for path in ("/llm/health", "/llm/ready", "/llm/", "/health/health"):
            assert served.get(path)[0] == 200
        for path in ("/llm/v1/models", "/llm/metrics", "/llm/healthy", "/health/v1/models"):
            assert served.get(path)[0] == 401


def test_pages_of_others_may_not_use_it(served: Served) -> None:
    for origin in ("http://evil.example", "null", f"http://evil.example:{served.port}"):
        status, body = served.get("/v1/models", origin=origin)
        assert status == 403 and "--cors-origin" in body["error"]["message"]
    assert served.get("/v1/models", origin=served.url)[0] == 200
    assert served.get("/v1/models", origin=served.url.upper())[0] == 200
    named = {"origin": "http://Tea.example", "host": "tea.EXAMPLE"}
    assert served.get("/v1/models", **named)[0] == 200
    status, _ = served.send("OPTIONS", "/v1/models", None, origin="http://evil.example")
    assert status == 403


def test_pages_that_are_named_may(llm: LLM) -> None:
    with serving(asgi(llm, cors_origins=["https://Chat.example"], api_keys=KEYS)) as served:
        ask = {"origin": "https://chat.example", "access_control_request_method": "POST"}
        # A browser asks without the key whether it may send one.
        assert served.send("OPTIONS", "/v1/chat/completions", None, **ask)[0] == 200
        key = {"x_api_key": KEYS[0]}
        assert served.get("/v1/models", origin="https://chat.example", **key)[0] == 200
        assert served.get("/v1/models", origin="HTTPS://Chat.Example", **key)[0] == 200
        assert served.get("/v1/models", origin="https://other.example", **key)[0] == 403


def test_a_name_that_is_not_this_machines_is_refused(llm: LLM) -> None:
    """As a page does whose own name was pointed at this machine."""
    service = Service(Models({"tiny": llm}, max_queue=1), asgi(llm).state.service.limits)
    with serving(build(service, hosts=["localhost", "127.0.0.1", "[::1]"])) as served:
        for host in ("localhost", f"localhost:{served.port}", "127.0.0.1:1", "[::1]:80", "[::1]"):
            for spelled in (host, host.upper(), host.title()):
                assert served.get("/v1/models", host=spelled)[0] == 200
        for host in ("evil.example", "evil.example:80", "localhost.evil.example", ""):
            status, body = served.get("/v1/models", host=host)
            assert status == 403 and "--api-key" in body["error"]["message"]
