"""A hub on the loopback, in the place of Hugging Face's."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import json
import os
import re
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

REPO = "user/Tiny-GGUF"


class FakeHub(http.server.ThreadingHTTPServer):
    """What huggingface_hub asks for: lists of files, and files with their hash and commit."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        #: Files of each commit, and the commit of each branch and tag.
        self.commits: dict[str, dict[str, bytes]] = {}
        self.refs: dict[str, str] = {}
        self.made = 0
        #: Sent in the place of a file with this content.
        self.instead: dict[bytes, bytes] = {}
        #: Of a file, how many bytes are sent before nothing more comes.
        self.stops: int | None = None
        #: The parts of files that were asked for.
        self.ranges: list[str] = []
        #: Methods and paths of what was asked.
        self.asked: list[tuple[str, str]] = []
        #: What requests said of who sends them.
        self.tokens: set[str] = set()

    def commit(self, files: dict[str, bytes], *refs: str) -> str:
        """A new commit, which `refs` then name."""
        self.made += 1
        name = hashlib.sha1(f"{self.made}".encode()).hexdigest()
        self.commits[name] = files
        self.refs |= dict.fromkeys(refs, name)
        return name

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def environment(self, folder: Path) -> dict[str, str]:
        """Of a process that has no other hub, and keeps all in a folder."""
        return os.environ | {
            "HF_ENDPOINT": self.endpoint,
            "HF_HUB_CACHE": str(folder / "hf"),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_TOKEN_PATH": str(folder / "no-token"),
            "ONEGRAPH_CACHE_DIR": str(folder / "onegraph"),
            "NO_PROXY": "*",
        }


class Answer(http.server.BaseHTTPRequestHandler):
    server: FakeHub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        hub, path = self.server, urllib.parse.urlsplit(self.path).path
        hub.asked.append((self.command, path))
        hub.tokens |= {self.headers["authorization"]} - {None}
        listed = re.fullmatch(rf"/api/models/{REPO}(?:/(?:revision|tree)/([^/]+))?", path)
        file = re.fullmatch(rf"/{REPO}/resolve/([^/]+)/(.+)", path)
        revision = urllib.parse.unquote((listed or file or [None, ""])[1] or "main")
        commit = hub.refs.get(revision, revision)
        files = hub.commits.get(commit)
        if files is None or not (listed or file):
            self._send(404, {"X-Error-Code": "RevisionNotFound"}, b"", body)
        elif listed and "/tree/" in path:
            rows = [{"type": "file", "path": n, "oid": "0", "size": len(files[n])} for n in files]
            self._send(200, {}, json.dumps(rows).encode(), body)
        elif listed:
            info = {"id": REPO, "sha": commit, "siblings": [{"rfilename": n} for n in files]}
            self._send(200, {}, json.dumps(info).encode(), body)
        elif (name := urllib.parse.unquote(file[2])) not in files:
            self._send(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit}, b"", body)
        else:
            sha256 = hashlib.sha256(files[name]).hexdigest()
            headers = {"X-Repo-Commit": commit, "ETag": f'"{sha256}"'}
            headers |= {"X-Linked-Etag": f'"{sha256}"', "X-Linked-Size": str(len(files[name]))}
            content = hub.instead.get(files[name], files[name])
            code, asked = 200, self.headers["range"]
            if asked and (part := re.fullmatch(r"bytes=(\d+)-", asked)):
                hub.ranges.append(asked)
                first = int(part[1])
                headers["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
                code, content = 206, content[first:]
            self._send(code, headers, content, body)

    def _send(self, code: int, headers: dict[str, str], content: bytes, body: bool) -> None:
        self.send_response(code)
        for name, text in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, text)
        self.end_headers()
        if body:
            self.wfile.write(content[: self.server.stops])
        if body and self.server.stops is not None and len(content) > self.server.stops:
            with contextlib.suppress(OSError):
                self.rfile.read(1)  # until the other side leaves

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def running() -> Iterator[FakeHub]:
    """One that answers."""
    server = FakeHub()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()
