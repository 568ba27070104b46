"""A server on loopback that speaks the Hub's protocol from files, and can fail as the Hub does."""

from __future__ import annotations

import hashlib
import json
import re
import struct
import threading
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

TOKEN = "hf_test"


def header(tensors: Mapping[str, tuple[str, list[int]]]) -> bytes:
    """A safetensors file whose tensors have no data behind their header: reading further would find nothing."""
    table = {name: {"dtype": dtype, "shape": shape, "data_offsets": [0, 0]} for name, (dtype, shape) in tensors.items()}
    text = json.dumps(table).encode()
    return struct.pack("<Q", len(text)) + text


@dataclass
class Repo:
    """Files of a repository by revision, and how it misbehaves.

    Args:
        files: content by name.
        refs: commits by branch or tag; all have the same files.
        gated, private, disabled: what it wants.
        moved_to: its new name.
        safetensors: elements by data type, as the Hub's page states them.
    """

    files: dict[str, bytes]
    refs: dict[str, str] = field(default_factory=lambda: {"main": "a" * 40})
    gated: bool = False
    private: bool = False
    moved_to: str = ""
    safetensors: dict[str, int] | None = None


@dataclass
class Hub:
    """Repositories, and failures that are still to come.

    Args:
        repos: by name.
        failures: (pattern of a path, status, how often); status 0 cuts the body.
        redirects: whether files come from another path, as from the Hub's storage.
        ignores_range: whether whole files are sent where a part was asked for.
        requests: paths that were asked for, with their method.
        sent_bytes: of bodies.
    """

    repos: dict[str, Repo] = field(default_factory=dict)
    failures: list[list[Any]] = field(default_factory=list)
    redirects: bool = False
    ignores_range: bool = False
    requests: list[str] = field(default_factory=list)
    sent_bytes: int = 0
    address: str = ""

    def fail(self, pattern: str, status: int, times: int = 1) -> None:
        """Answer the next requests of a path with a status; 0 cuts their body off."""
        self.failures.append([re.compile(pattern), status, times])

    def next_failure(self, path: str) -> int | None:
        """The failure that is due for a path."""
        for entry in self.failures:
            if entry[2] > 0 and entry[0].search(path):
                entry[2] -= 1
                return int(entry[1])
        return None

    def counts(self) -> Counter[str]:
        """How often each path was asked for."""
        return Counter(self.requests)


@contextmanager
def serving(hub: Hub) -> Generator[str]:  # noqa: C901
    """Serve on a free port of loopback; yields the address for HF_ENDPOINT."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, *, body: bool) -> None:
            path = urlsplit(self.path).path
            hub.requests.append(f"{self.command} {path}")
            failure = hub.next_failure(f"{self.command} {path}")
            if failure:
                extra = {"Retry-After": "0"} if failure == 429 else {}
                self._send(failure, b'{"error":"told to fail"}', extra, body=body)
                return
            if found := re.match(r"^/api/models/([^/]+/[^/]+)(?:/revision/(.+))?$", path):
                self._page(found[1], found[2] or "main", body=body)
            elif found := re.match(r"^/(?:storage/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)$", path):
                self._file(found[1], found[2], found[3], body=body, cut=failure == 0)
            else:
                self._send(404, b"{}", {}, body=body)

        def _repo(self, name: str, *, body: bool, reads: bool) -> Repo | None:
            repo = hub.repos.get(name)
            allowed = self.headers.get("authorization") == f"Bearer {TOKEN}"
            if repo is None or (repo.private and not allowed):
                code = {"X-Error-Code": "RepoNotFound"} if allowed else {}
                message = (
                    b'{"error":"Repository not found"}' if allowed else b'{"error":"Invalid username or password."}'
                )
                self._send(404 if allowed else 401, message, code, body=body)
                return None
            if reads and repo.gated and not allowed:
                self._send(401, b'{"error":"gated"}', {"X-Error-Code": "GatedRepo"}, body=body)
                return None
            if repo.moved_to:
                target = self.path.replace(name, repo.moved_to, 1)
                self._send(307, b"", {"Location": target}, body=body)
                return None
            return repo

        def _commit(self, repo: Repo, revision: str, *, body: bool) -> str | None:
            commit = repo.refs.get(revision, revision if revision in repo.refs.values() else "")
            if not commit:
                self._send(404, b'{"error":"no revision"}', {"X-Error-Code": "RevisionNotFound"}, body=body)
                return None
            return commit

        def _page(self, name: str, revision: str, *, body: bool) -> None:
            repo = self._repo(name, body=body, reads=False)
            commit = self._commit(repo, revision, body=body) if repo else None
            if repo is None or commit is None:
                return
            page: dict[str, Any] = {"_id": "1", "id": name, "sha": commit}
            if repo.safetensors is not None:
                page["safetensors"] = {"parameters": repo.safetensors, "total": sum(repo.safetensors.values())}
            self._send(200, json.dumps(page).encode(), {"Content-Type": "application/json"}, body=body)

        def _file(self, name: str, revision: str, file: str, *, body: bool, cut: bool) -> None:
            repo = self._repo(name, body=body, reads=True)
            commit = self._commit(repo, revision, body=body) if repo else None
            if repo is None or commit is None:
                return
            content = repo.files.get(file)
            known = {"X-Repo-Commit": commit}
            if content is None:
                self._send(404, b"", {**known, "X-Error-Code": "EntryNotFound"}, body=body)
                return
            known["ETag"] = f'"{hashlib.sha1(content).hexdigest()}"'
            if hub.redirects and not self.path.startswith("/storage/"):
                linked = {"X-Linked-Size": str(len(content)), "X-Linked-Etag": known["ETag"]}
                self._send(302, b"", {**known, **linked, "Location": f"/storage{self.path}"}, body=body)
                return
            status, part = 200, content
            if (wanted := self.headers.get("range")) and not hub.ignores_range:
                first, _, last = wanted.removeprefix("bytes=").partition("-")
                part = content[int(first) : int(last) + 1]
                known["Content-Range"] = f"bytes {first}-{int(first) + len(part) - 1}/{len(content)}"
                status = 206
            self._send(status, part, known, body=body, cut=cut)

        def _send(self, status: int, content: bytes, headers: dict[str, str], *, body: bool, cut: bool = False) -> None:
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if body:
                kept = content[: len(content) // 2] if cut else content
                hub.sent_bytes += len(kept)
                try:
                    self.wfile.write(kept)
                except OSError:  # the reader has what it wants
                    self.close_connection = True
            if cut:
                self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub.address
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
