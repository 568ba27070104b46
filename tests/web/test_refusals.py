"""What the server refuses, and how it says so: bad input, paths of its disk, other sites, other hosts."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from rackline.api.question import options
from rackline.api.verbs import entries
from rackline.web.asked import (
    Limits,
    ProblemError,
    Settings,
    asked_by_body,
    asked_by_params,
    offered_names,
    read_json,
    taken,
)
from rackline.web.endpoints import Endpoints

EXPLAIN = {"model": "llama-3.1-8b", "on": "dgx-h100", "batch": 8, "context": "2k", "layout": "tp=1"}
_NEW = '[[questions]]\nask = "new"\nkind = "chip"\nname = "mine"\n'
_OUTPUT = '[[questions]]\nask = "calibrate"\ntables = ["a.csv"]\noutput = "b.toml"\n'
PATHS = (
    "/etc/passwd", "../secrets.toml", "./secrets.toml", "..", "~/model.toml", "a/../../b.toml", "C:\\model.toml",
    "x=/etc/passwd", "x=../y.toml", "model@/etc/hosts", "tp=8,on=/etc/hosts", "a\x00b", "\\\\host\\share", "c:/x.toml",
)  # fmt: skip
OFFERED = offered_names()
EXAMPLES = {name: one.request for name, one in entries().items()}
PARAMETERS = [
    (name, key) for name in OFFERED for key, one in taken(name).items() if one.kind in ("text", "object", "settings")
]


def refusal(name: str, data: dict[str, Any]) -> ProblemError:
    with pytest.raises(ProblemError) as caught:
        asked_by_body(name, "answer", data, Limits())
    return caught.value


@pytest.mark.parametrize(("name", "key"), PARAMETERS)
def test_no_option_takes_a_path_of_the_server(name: str, key: str) -> None:
    for path in PATHS:
        for value in (path, [path], {"key": path}, {path: "value"}):
            error = refusal(name, {**EXAMPLES[name], key: value})
            assert error.status == 422
            assert error.more["what"] == key
        if "uploads" not in EXAMPLES[name]:
            with pytest.raises(ProblemError):
                asked_by_params(name, "answer", [(key, path)])


@pytest.mark.parametrize("name", OFFERED)
def test_no_option_writes_a_file(name: str) -> None:
    known = options_that_write(name)
    writing = {"calibrate": ["output", "release", "chip", "catalogue"], "validate": ["write_stacks", "output"]}
    assert known == writing.get(name, [])
    for key in known:
        assert "writes no files" in refusal(name, {**EXAMPLES[name], key: "out.toml"}).detail


def options_that_write(name: str) -> list[str]:
    from rackline.api.answer import find_verb

    return [key for key in options(find_verb(name).question) if key not in taken(name)]


@pytest.mark.parametrize(
    "text",
    [
        'chip = "/etc/passwd"',
        'chip = "../up.toml"',
        'chip = "\\u002fetc/passwd"',
        '[[levels]]\nname = "~/x.toml"',
    ],
)
def test_uploaded_files_name_no_paths_either(text: str) -> None:
    error = refusal("clusters", {"name": "mine.toml", "uploads": {"mine.toml": text}})
    assert error.more["what"] == "uploads mine.toml"


@pytest.mark.parametrize("name", ["../x.toml", "a/b.toml", ".hidden", "", "x" * 200, "a b", "ü.toml"])
def test_names_of_uploads_have_no_folders(name: str) -> None:
    assert refusal("chips", {"name": "h100-sxm", "uploads": {name: ""}}).more["what"] == "uploads"


@pytest.mark.parametrize("uploads", [[], "text", 1, {"a.toml": 1}, {f"{n}.toml": "" for n in range(17)}])
def test_uploads_are_a_few_texts_by_name(uploads: Any) -> None:
    assert refusal("chips", {"name": "h100-sxm", "uploads": uploads}).status == 422


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"1", b'"text"', b"{", b'{"a": 1, "a": 2}', b'{"a": NaN}', b'{"a": Infinity}', b"\xff\xfe",
        b"[" * 100_000, b'{"a":' * 100_000, b'{"a": ' + b"9" * 5000 + b"}",
    ],
)  # fmt: skip
def test_a_body_is_strict_json(body: bytes) -> None:
    with pytest.raises(ProblemError) as caught:
        read_json(body)
    assert caught.value.kind == "bad-json"


@pytest.mark.parametrize("text", ["", "yes", "1", "True"])
def test_a_switch_is_true_or_false(text: str) -> None:
    with pytest.raises(ProblemError) as refused:
        asked_by_params("infer-prices", "answer", [("all", text)])
    assert refused.value.to_dict()["allowed"] == "true or false"
    with pytest.raises(ProblemError):
        asked_by_body("infer-prices", "answer", {"all": None}, Limits())
    assert asked_by_params("infer-prices", "answer", [("all", "true")]).question["all"] is True


def test_bad_input_is_a_problem_with_what_was_given_and_what_is_allowed(client: httpx.Client) -> None:
    found = client.post("/api/v1/explain", json={**EXPLAIN, "model": "llama-3.1-8c"})
    assert found.status_code == 422
    assert found.headers["content-type"] == "application/problem+json"
    said = found.json()
    assert said["type"] == "/problems/bad-input"
    assert said["status"] == 422
    assert said["what"] == "model"
    assert "llama-3.1-8c" in said["given"]
    assert "catalogue names" in said["allowed"]
    assert said["nearest"].startswith("llama-3.1-8b")


@pytest.mark.parametrize(
    ("method", "path", "how", "status"),
    [
        ("POST", "/api/v1/explain", {"content": b"{}", "headers": {"Content-Type": "text/plain"}}, 415),
        ("POST", "/api/v1/explain", {"content": b"{}"}, 415),
        ("POST", "/api/v1/explain", {"content": b"{", "headers": {"Content-Type": "application/json"}}, 400),
        ("POST", "/api/v1/explain", {"json": {}}, 422),
        ("POST", "/api/v1/explain", {"json": {**EXPLAIN, "bach": 1}}, 422),
        ("POST", "/api/v1/explain", {"json": {**EXPLAIN, "ask": "plan"}}, 422),
        ("POST", "/api/v1/explain", {"json": {**EXPLAIN, "layout": "x" * 300_000}}, 413),
        ("POST", "/api/v1/explain", {"json": {**EXPLAIN, "uploads": {"a.csv": "x" * 17_000_000}}}, 413),
        ("POST", "/api/v1/explain", {"json": {**EXPLAIN, "model": "org/name"}}, 422),
        ("POST", "/api/v1/sweep", {"json": {}}, 404),
        ("POST", "/api/v1/explian", {"json": {}}, 404),
        ("GET", "/api/v1/new?kind=chip&name=x", {}, 404),
        ("GET", "/api/v1/explain?model=a&model=b", {}, 422),
        ("POST", "/api/v1/ask", {"json": {"file": "q.toml", "uploads": {"q.toml": _NEW}}}, 404),
        ("POST", "/api/v1/ask", {"json": {"file": "q.toml", "uploads": {"q.toml": _OUTPUT}}}, 422),
        ("GET", "/nothing", {}, 404),
        ("GET", "/static/../settings.py", {}, 404),
        ("GET", "/static/%2e%2e/settings.py", {}, 404),
        ("DELETE", "/api/v1/explain", {}, 405),
        ("PUT", "/", {}, 405),
    ],
)
def test_refusals_are_problems(client: httpx.Client, method: str, path: str, how: dict[str, Any], status: int) -> None:
    found = client.request(method, path, **how)
    assert found.status_code == status, found.text
    said = found.json()
    assert found.headers["content-type"] == "application/problem+json"
    assert said["status"] == status
    assert said["detail"]


def test_a_model_of_the_hub_is_not_fetched(client: httpx.Client) -> None:
    said = client.post("/api/v1/explain", json={**EXPLAIN, "model": "some-lab/some-model"}).json()
    assert "uploads" in said["allowed"]
    assert "/" not in said["allowed"]  # no folder of the server is told


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "[bad", ""])
def test_other_hosts_are_refused(client: httpx.Client, host: str) -> None:
    found = client.get("/", headers={"Host": host})
    assert found.status_code == 400


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1:9", "[::1]:9", "192.168.0.7"])
def test_own_names_and_addresses_in_numbers_are_served(client: httpx.Client, host: str) -> None:
    assert client.get("/health", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://localhost:1"},
    ],
)
def test_other_sites_are_refused(client: httpx.Client, headers: dict[str, str]) -> None:
    assert client.post("/api/v1/explain", json=EXPLAIN, headers=headers).status_code == 403
    assert client.get("/api/v1/chips", params={"name": "h100-sxm"}, headers=headers).status_code == 403  # nor compute
    assert client.get("/", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 200  # a link leads to the page


@pytest.mark.parametrize("path", ["/", "/health", "/api/v1/openapi.json", "/nothing", "/api/v1/chips?name=h100-sxm"])
def test_every_response_has_the_strict_headers(client: httpx.Client, path: str) -> None:
    found = client.get(path, headers={"Origin": "https://evil.example"})
    policy = found.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "*" not in policy
    assert found.headers["x-content-type-options"] == "nosniff"
    for absent in ("set-cookie", "server", "access-control-allow-origin", "access-control-allow-credentials"):
        assert absent not in found.headers


def test_own_files_are_used_and_never_those_of_another_request(client: httpx.Client, tmp_path: Path) -> None:
    config = {
        "model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 8,
        "num_attention_heads": 16, "num_key_value_heads": 8, "vocab_size": 32000, "torch_dtype": "bfloat16",
    }  # fmt: skip
    seen: dict[int, set[float]] = {}
    asked: list[int] = [0]
    for layers in (8, 16, 8):
        text = json.dumps({**config, "num_hidden_layers": layers})
        for _ in range(3):  # both workers: each question differs, so that none is kept
            context = 1024 * len(asked)
            asked.append(layers)
            body = {"model": "mine.json", "on": "dgx-h100", "uploads": {"mine.json": text}, "context": context}
            answer = client.post("/api/v1/fit", json={**body, "layout": "tp=1,pp=1"})
            assert answer.status_code == 200, answer.text
            seen.setdefault(layers, set()).add(answer.json()["rows"][0]["kv_bytes_per_sequence"] / context / layers)
    assert set(seen) == {8, 16}
    assert len(set.union(*seen.values())) == 1
    gone = client.post("/api/v1/fit", json={"model": "mine.json", "on": "dgx-h100"})
    assert gone.status_code == 422


SANDBOX = """
import os, pathlib, socket, subprocess, sys, tempfile
outside = pathlib.Path(tempfile.mkdtemp()) / "outside.toml"
outside.write_text("secret")
inside = pathlib.Path(tempfile.mkdtemp())
(inside / "link.toml").symlink_to(outside)
os.chdir(inside)
from rackline.errors import InputError
from rackline.web.worker import Sandbox
Sandbox(inside).close()
pathlib.Path("own.toml").write_text("mine")
assert pathlib.Path("own.toml").read_text() == "mine"
attempts = {
    "read": lambda: outside.read_text(),
    "link": lambda: open("link.toml").read(),
    "up": lambda: open(f"../{outside.parent.name}/outside.toml").read(),
    "bytes": lambda: os.open(os.fsencode(outside), os.O_RDONLY),
    "environ": lambda: open("/proc/self/environ").read(),
    "write": lambda: (outside.parent / "new").write_text("x"),
    "append": lambda: open(outside, "a"),
    "list": lambda: os.listdir(outside.parent),
    "remove": lambda: outside.unlink(),
    "move": lambda: os.rename(outside, "mine"),
    "program": lambda: subprocess.run(["true"]),
    "shell": lambda: os.system("true"),
    "fork": lambda: os.fork(),
    "connect": lambda: socket.create_connection(("127.0.0.1", 9)),
    "name": lambda: socket.getaddrinfo("localhost", 80),
}
for name, attempt in attempts.items():
    try:
        attempt()
    except (InputError, PermissionError) as error:
        assert "secret" not in str(error)
        continue
    print(name, "was allowed")
assert outside.exists
"""


def test_the_sandbox_locks_files_network_and_programs() -> None:
    done = subprocess.run([sys.executable, "-c", SANDBOX], capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""


class _Posted:
    """A request whose body comes in parts."""

    def __init__(self, parts: int) -> None:
        self.headers = {"content-type": "application/json"}
        self._parts = parts

    async def stream(self) -> AsyncIterator[bytes]:
        for _ in range(self._parts):
            yield b" " * 2**20


def test_four_of_the_largest_bodies_are_read_at_a_time() -> None:
    """A server keeps what it reads until it is answered: with the usual limits 64 MiB, then others have to wait."""
    endpoints = Endpoints(Settings())

    async def read(mebibytes: int) -> int:
        return len(await endpoints._body(cast(Any, _Posted(mebibytes)), Settings().limits))

    async def session() -> None:
        for _ in range(4):
            assert await read(16) == 16 * 2**20
        for _ in range(2):  # what was refused is not counted
            with pytest.raises(ProblemError, match="too many large requests"):
                await read(1)
        endpoints._bodies_bytes -= 2**20  # one of them is answered
        assert await read(1) == 2**20
        with pytest.raises(ProblemError, match="more than 16,777,216 bytes"):
            await Endpoints(Settings())._body(cast(Any, _Posted(17)), Settings().limits)

    asyncio.run(session())
