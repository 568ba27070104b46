"""A server on loopback that speaks OpenAI's streams, and breaks them in every way that a live server does.

What it does to a request depends on the length of the prompt: `BEHAVIOURS[length]`.
"""

from __future__ import annotations

import json
import socket
import socketserver
import struct
import threading
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any

BEHAVIOURS = {
    1: "well",
    2: "stalls",
    3: "resets",
    4: "bytes that are no HTTP",
    5: "events that are no JSON",
    6: "429 once",
    7: "429 always",
    8: "500",
    9: "closes before the end",
    10: "no usage",
    11: "an error in the stream",
    12: "a page instead of a stream",
    13: "never answers",
    14: "404",
    15: "closes without an answer",
    16: "an endless line",
    17: "trickles longer than it may",
    18: "503 with a date",
    19: "429 until much later",
    20: "echoes the key",
    21: "two tokens an event",
    22: "escape sequences",
    23: "usage beyond belief",
}
EXPECTED = {
    "well": "finished", "stalls": "stalled", "resets": "cut", "bytes that are no HTTP": "garbage",
    "events that are no JSON": "garbage", "429 once": "finished", "429 always": "rate_limited", "500": "server_error",
    "closes before the end": "cut", "no usage": "finished", "an error in the stream": "server_error",
    "a page instead of a stream": "garbage", "never answers": "stalled", "404": "refused",
    "closes without an answer": "cut", "an endless line": "garbage", "trickles longer than it may": "timeout",
    "503 with a date": "finished", "429 until much later": "rate_limited", "echoes the key": "refused",
    "two tokens an event": "finished", "escape sequences": "server_error", "usage beyond belief": "finished",
}  # fmt: skip
"""What a client should make of each."""
LONG_S = 120.0  # longer than any client waits
STREAM = "200 OK\r\nContent-Type: text/event-stream"


def event(text: str = " word", reason: str | None = None) -> bytes:
    data = {"choices": [{"index": 0, "text": text, "finish_reason": reason}]}
    return b"data: " + json.dumps(data).encode() + b"\n\n"


class Handler(socketserver.StreamRequestHandler):
    """One request a connection."""

    server: Server

    def handle(self) -> None:
        with suppress(OSError, ValueError):  # the client has gone, perhaps before its body came
            self.answer()

    def answer(self) -> None:
        first = self.rfile.readline()
        length, key = 0, ""
        while line := self.rfile.readline().strip():
            name, _, value = line.decode().partition(": ")
            length = int(value) if name.lower() == "content-length" else length
            key = value if name.lower() == "authorization" else key
        if first.startswith(b"GET"):
            self.models()
            return
        asked = json.loads(self.rfile.read(length))
        what = BEHAVIOURS[len(asked["prompt"])]
        with self.server.lock:
            self.server.seen[what] += 1
            self.server.tried[str(asked["prompt"])] += 1
            times = self.server.tried[str(asked["prompt"])]
        self.behave(what, times, asked, key)

    def behave(self, what: str, times: int, asked: dict[str, Any], key: str) -> None:
        count = asked["max_tokens"]
        match what:
            case "well" | "no usage" | "two tokens an event" | "usage beyond belief":
                said = 10**30 if what == "usage beyond belief" else count
                self.well(count, usage=what != "no usage", each=2 if what == "two tokens an event" else 1, said=said)
            case "escape sequences":
                self.whole("500 Oops", {"error": {"message": "\x1b[31mred\x07\u202e"}})
            case "stalls":
                self.head(STREAM)
                self.send(event())
                self.server.over.wait(LONG_S)
            case "resets":
                self.head(STREAM)
                self.send(event())
                self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            case "bytes that are no HTTP":
                self.send(bytes(range(256)) * 4)
            case "events that are no JSON":
                self.head(STREAM)
                self.send(b'data: {not json\n\ndata: \xff\xfe\n\nnonsense\n\ndata: [1]\n\ndata: {"choices": 3}\n\n')
            case "429 once":
                if times == 1:
                    self.whole("429 Too Many Requests\r\nRetry-After: 0.05", {"error": {"message": "slow down"}})
                else:
                    self.well(count)
            case "429 always":
                self.whole("429 Too Many Requests\r\nRetry-After: 0", {"error": {"message": "slow down"}})
            case "429 until much later":
                self.whole("429 Too Many Requests\r\nRetry-After: 86400", {"error": {"message": "tomorrow"}})
            case "503 with a date":
                if times == 1:
                    self.whole("503 Busy\r\nRetry-After: Wed, 21 Oct 2015 07:28:00 GMT", {})
                else:
                    self.well(count)
            case "500":
                self.whole("500 Oops", {"error": {"message": "out of memory"}})
            case "404":
                self.whole("404 Not Found", {"detail": "no such model"})
            case "echoes the key":
                self.whole("401 Unauthorized", {"error": {"message": f"wrong key {key}"}})
            case "closes before the end":
                self.head(STREAM)
                self.send(event())
            case "an error in the stream":
                self.head(STREAM)
                self.send(event() + b'data: {"error": {"message": "the engine has died"}}\n\ndata: [DONE]\n\n')
            case "a page instead of a stream":
                self.head("200 OK\r\nContent-Type: text/html")
                self.send(b"<html>please log in</html>")
            case "never answers":
                self.server.over.wait(LONG_S)
            case "an endless line":
                self.head(STREAM)
                self.send(b"data: " + b"x" * 3_000_000)
            case "trickles longer than it may":
                self.head(STREAM)
                while not self.server.over.wait(0.05):
                    self.send(event())

    def models(self) -> None:
        with self.server.lock:
            data = self.server.models
        if data is not None:
            self.whole("200 OK", {"data": data})
            return
        self.head("200 OK")
        while not self.server.over.is_set():  # without end
            self.send(b" " * 2**16)

    def well(self, count: int, *, usage: bool = True, each: int = 1, said: int | None = None) -> None:
        self.head(STREAM)
        for number in range(0, count, each):
            time.sleep(0.005)
            self.send(event(reason="length" if number + each >= count else None))
        if usage:
            told = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": count if said is None else said}}
            self.send(b": a comment\n\ndata: " + json.dumps(told).encode() + b"\n\n")
        self.send(b"data: [DONE]\n\n")

    def head(self, status: str) -> None:
        self.send(f"HTTP/1.1 {status}\r\nConnection: close\r\n\r\n".encode())

    def whole(self, status: str, data: object) -> None:
        text = json.dumps(data).encode()
        self.send(f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text)

    def send(self, data: bytes) -> None:
        self.wfile.write(data)
        self.wfile.flush()


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 256

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = threading.Lock()
        self.models: list[dict[str, str]] | None = [{"id": "hostile"}]  # that it lists; None for a list without end
        self.over = threading.Event()
        self.seen: Counter[str] = Counter()  # requests by what is done to them
        self.tried: Counter[str] = Counter()  # and by prompt

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def hostile_server() -> Generator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        server.server_close()
        thread.join()
