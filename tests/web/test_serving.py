"""Progress, cancellation, limits, lost workers, and how a server starts and stops."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from web_server import PATIENCE_S, PATIENT, Server, children, running, wait_for

EXPLAIN = {"model": "llama-3.1-8b", "on": "dgx-h100", "batch": 8, "context": "2k", "layout": "tp=1"}
# minutes of work, with progress in parts; nothing that is compiled first
LONG = {"model": "llama-3.1-8b", "on": "dgx-h100", "chips": 1, "rate": "5", "input": "1k", "output": "200",
        "requests": 900_000, "prefix_caching": True}  # fmt: skip


def events(response: httpx.Response) -> Iterator[tuple[str, Any]]:
    kind = ""
    for line in response.iter_lines():
        if line.startswith("event: "):
            kind = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield kind, json.loads(line.removeprefix("data: "))


@pytest.fixture(scope="module")
def single() -> Iterator[Server]:
    """A server with one worker and narrow limits."""
    limits = "answer_s=200.0, grace_s=60.0, waiting=2, quick_wait_s=0.5, long_wait_s=0.5, body_bytes=2**20"
    with running("--workers", "1", limits=limits) as found:
        wait_for(lambda: found.client.post("/api/v1/explain", json=EXPLAIN).status_code == 200)
        yield found


EVENTS = {"Accept": "text/event-stream"}


def test_a_connection_that_stays_open_does_not_wait_for_acknowledgements(server: Server) -> None:
    """Head and body of an answer are two packets: with Nagle's algorithm the second waits for 40 ms."""
    with httpx.Client(base_url=server.client.base_url) as client:
        took: list[float] = []
        while len(took) < 20 or (
            min(took[20:], default=1.0) >= 0.035 and len(took) < 1000
        ):  # the first are fast anyway
            start = time.perf_counter()
            client.get("/health").raise_for_status()
            took.append(time.perf_counter() - start)
    assert min(took[20:]) < 0.035


@contextmanager
def busy(server: Server) -> Iterator[None]:
    """Its worker works on a long question; one that waited in vain for a worker is asked again."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        with server.client.stream("POST", "/api/v1/simulate", json=LONG, headers=EVENTS) as response:
            for kind, told in events(response):
                if kind == "progress" and told["what"] != "waiting for a worker":
                    yield
                    return
    raise AssertionError("no worker became free")


def test_progress_comes_before_the_answer(client: httpx.Client) -> None:
    body = {**LONG, "requests": 20_000}
    with client.stream("POST", "/api/v1/simulate", json=body, headers=EVENTS) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        found = list(events(response))
    *told, (last, answer) = found
    assert last == "answer"
    assert told
    assert {kind for kind, _ in told} == {"progress"}
    counted = [one for _, one in told if one["done"] is not None]
    assert [one["done"] for one in counted] == sorted(one["done"] for one in counted)
    assert answer == client.post("/api/v1/simulate", json=body).json()


def test_a_refusal_instead_of_events_has_its_status(client: httpx.Client) -> None:
    for body in ({**EXPLAIN, "batch": "many"}, {**EXPLAIN, "model": "nothing"}):

        def kind(body: Mapping[str, Any] = body) -> tuple[int, str]:
            found = client.post("/api/v1/explain", json=body, headers=EVENTS)
            return found.status_code, found.headers["content-type"]

        # while no worker is free, the wait is told first, with the status of events
        wait_for(lambda kind=kind: kind() == (422, "application/problem+json"))


def test_who_leaves_frees_the_worker_which_lives_on(single: Server) -> None:
    before = single.workers()
    assert len(before) == 1
    for batch in (201, 202):  # answers that are kept would not show that the worker is free
        with busy(single):
            pass
        wait_for(lambda asked=batch: single.client.post("/api/v1/explain", json=EXPLAIN | {"batch": asked}).is_success)
    with pytest.raises(httpx.TimeoutException):
        single.client.post("/api/v1/simulate", json=LONG, timeout=1.0)
    wait_for(lambda: single.client.post("/api/v1/chips", json={"name": "b200-sxm"}).status_code == 200)
    assert single.workers() == before


def test_two_who_ask_the_same_share_the_work(server: Server) -> None:
    body = {**LONG, "requests": 30_001}
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: server.client.post("/api/v1/simulate", json=body), range(2)))
    assert both[0].status_code == both[1].status_code == 200
    assert both[0].content == both[1].content
    workers = server.workers()
    for worker in workers:
        os.kill(worker, signal.SIGSTOP)
    try:
        assert server.client.post("/api/v1/simulate", json=body).content == both[0].content  # kept
    finally:
        for worker in workers:
            os.kill(worker, signal.SIGCONT)


def test_a_killed_worker_is_said_and_the_next_answer_comes_from_another(server: Server) -> None:
    wait_for(lambda: len(server.workers()) == 2)
    said: list[tuple[str, Any]] = []

    def ask() -> None:
        with server.client.stream("POST", "/api/v1/simulate", json=LONG, headers=EVENTS) as response:
            for kind, data in events(response):
                said.append((kind, data))

    asking = threading.Thread(target=ask)
    asking.start()
    wait_for(lambda: any(kind == "progress" and data["what"] != "waiting for a worker" for kind, data in said))
    for worker in server.workers():
        os.kill(worker, signal.SIGKILL)
    asking.join(PATIENCE_S)
    assert not asking.is_alive()
    kind, problem = said[-1]
    assert kind == "problem"
    assert problem["type"] == "/problems/worker-lost"
    assert problem["retry"] is True
    wait_for(lambda: len(server.workers()) == 2)
    wait_for(lambda: server.client.post("/api/v1/explain", json=EXPLAIN | {"batch": 77}).status_code == 200)


def test_an_answer_that_takes_too_long_is_stopped() -> None:
    with running("--workers", "1", limits="answer_s=1.0, quick_wait_s=240.0, long_wait_s=240.0") as server:
        found = server.client.post("/api/v1/simulate", json=LONG)
        assert found.status_code == 503
        assert found.json()["type"] == "/problems/too-long"
        wait_for(lambda: server.client.post("/api/v1/chips", json={"name": "h200"}).status_code == 200)


def test_connections_that_begin_no_request_are_ended() -> None:
    started = (b"", b"GET / HT", b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
    with running("--workers", "1", limits="begun_s=2.0, quick_wait_s=240.0") as server, ExitStack() as stack:
        place = urlsplit(server.address)
        opened = [
            stack.enter_context(socket.create_connection((place.hostname, place.port), timeout=PATIENCE_S))
            for _ in started
        ]
        for one, sent in zip(opened, started, strict=True):
            one.sendall(sent)
        assert [one.recv(1) for one in opened] == [b""] * 3  # the server has closed them
        wait_for(lambda: server.client.get("/health").status_code == 200)


def test_an_answer_that_takes_too_much_memory_is_stopped(single: Server) -> None:
    wait_for(lambda: single.client.post("/api/v1/chips", json={"name": "h200"}).status_code == 200)
    body = {**LONG, "requests": 200_000_000}
    found = single.client.post("/api/v1/simulate", json=body)
    assert found.status_code in (422, 503), found.text
    assert found.json()["type"] in ("/problems/too-much-memory", "/problems/worker-lost", "/problems/bad-input")
    wait_for(lambda: single.client.post("/api/v1/chips", json={"name": "a100-sxm-80gb"}).status_code == 200)


def test_more_requests_than_may_wait_are_told_to_come_back(single: Server) -> None:
    with busy(single), ThreadPoolExecutor(6) as pool:
        bodies = [{**EXPLAIN, "batch": 100 + number} for number in range(6)]
        found = list(pool.map(lambda body: single.client.post("/api/v1/explain", json=body), bodies))
    assert {one.status_code for one in found} == {429}
    assert all(int(one.headers["retry-after"]) >= 1 for one in found)
    assert {one.json()["type"] for one in found} == {"/problems/too-busy"}


def test_a_body_may_be_as_large_as_the_limit_says(single: Server) -> None:
    body = {"name": "h100-sxm", "uploads": {"a.csv": "x" * 2**20}}
    assert single.client.post("/api/v1/chips", json=body).status_code == 413

    def parts() -> Iterator[bytes]:
        for _ in range(100):
            yield b" " * 2**16

    chunked = single.client.post("/api/v1/chips", content=parts(), headers={"Content-Type": "application/json"})
    assert chunked.status_code == 413


def test_an_interrupted_server_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with running("--workers", "1", limits=PATIENT) as server:
        assert server.client.post("/api/v1/chips", json={"name": "h200"}).status_code == 200
        assert list(tmp_path.glob("rackline-web-*"))
        family = [*children(server.process.pid), *server.workers()]
        assert len(family) >= 2
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(PATIENCE_S) == 130
        wait_for(lambda: not any(alive(one) for one in family))
        assert not list(tmp_path.glob("rackline-web-*"))


def test_workers_of_a_killed_server_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with running("--workers", "1", limits=PATIENT) as server:
        assert server.client.post("/api/v1/chips", json={"name": "h200"}).status_code == 200
        workers = server.workers()
        server.process.kill()
        wait_for(lambda: not any(alive(one) for one in workers))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def command(*words: str, before: str = "") -> subprocess.CompletedProcess[str]:
    code = f"{before}\nfrom rackline.cli.main import run; import sys; sys.exit(run(sys.argv[1:]))"
    return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=1200)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("web", "--port", "many"), "--port"),
        (("web", "--port", "70000"), "--port"),
        (("web", "--workers", "0"), "--workers"),
        (("web", "--host", "no such host"), "127.0.0.1"),
        (("web", "--host", "192.0.2.1", "--port", "0"), "--host"),
    ],
)
def test_bad_options_are_one_line(words: tuple[str, ...], said: str) -> None:
    done = command(*words, "--no-browser")
    assert done.returncode == 2
    assert done.stdout == ""
    *warnings, line = done.stderr.strip().splitlines()
    assert line.startswith("error: ")
    assert said in line
    assert all(one.startswith("warning: ") for one in warnings)


def test_a_port_that_is_taken_is_said(server: Server) -> None:
    port = httpx.URL(server.address).port
    done = command("web", "--port", str(port), "--no-browser")
    assert done.returncode == 2
    assert f"127.0.0.1:{port}" in done.stderr
    assert "--port 0" in done.stderr


def test_without_the_extra_one_line_says_how_to_get_it() -> None:
    done = command("web", before="import sys; sys.modules['fastapi'] = None")
    assert done.returncode == 2
    assert done.stderr.startswith("error: rackline web: got 'no fastapi in this environment', allowed: the extra web")
    assert done.stderr.count("\n") == 1


def test_another_host_is_warned_of() -> None:
    done = command("web", "--host", "0.0.0.0", "--port", "0", "--no-browser", before=_NO_RUN)
    assert done.stderr.startswith("warning: anyone who reaches 0.0.0.0")


_NO_RUN = "import rackline.web.app as s; s.serve = lambda settings, browser: None"


def test_other_commands_do_not_load_the_web() -> None:
    code = (
        "import sys; from rackline.cli.main import run; run(['chips', 'h100-sxm']); "
        "sys.exit(' '.join(name for name, one in sys.modules.items() if type(one).__name__ != '_LateModule'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=1200)
    loaded = set(done.stderr.split())
    assert "rackline.api.catalogue" in loaded
    assert not loaded & {"fastapi", "starlette", "uvicorn", "jinja2", "rackline.web"}
