"""The lab's small transformer behind HTTP, until Ctrl-C: something to observe where there is no other server.

    uv run --extra lab python bench/lab_server.py [PORT] [FOLDER]

It prints its address, and writes the model's config.json to FOLDER. It speaks as OpenAI's API does, with streaming. One
thread runs the passes of the lab's engine, first come, first served. Each connection has a thread of its own that sends
the tokens of its answer as they come. Tokens are ids; their text is the id in words. Only loopback addresses are
listened on.
"""

from __future__ import annotations

import contextlib
import json
import queue
import sys
import threading
from collections.abc import Generator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import numpy as np

from rackline.lab.experiment import start_jax
from rackline.simulation import POLICIES

start_jax()
from rackline.lab.jax_engine import JaxEngine, Job, Passes  # noqa: E402
from rackline.lab.serve import SERVED_LIMITS, SERVED_SHAPE as SHAPE, served_engine  # noqa: E402

NAME = "rackline-lab"
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": SHAPE.num_layers,
    "hidden_size": SHAPE.d_model,
    "num_attention_heads": SHAPE.num_q_heads,
    "num_key_value_heads": SHAPE.num_kv_heads,
    "head_dim": SHAPE.head_dim,
    "intermediate_size": SHAPE.d_ff,
    "vocab_size": SHAPE.vocab_size,
    "max_position_embeddings": SERVED_LIMITS.context_len + 1,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}
"""The model as a config.json describes it."""
PROMPT, CAPACITY = SERVED_LIMITS.prompt_tokens, SERVED_LIMITS.context_len + 1
_END = -1


@dataclass(slots=True, kw_only=True, eq=False)
class Asked(Job):
    """A request that waits or decodes; its prompt has at most PROMPT ids.

    Args:
        wanted: tokens of the answer [tokens].
        tokens: ids as they are found, then -1.
        gone: whether nobody reads them any more.
    """

    wanted: int
    tokens: queue.SimpleQueue[int] = field(default_factory=queue.SimpleQueue[int])
    gone: bool = False

    @property
    def is_over(self) -> bool:
        """Whether it has all its tokens, or nobody reads them."""
        return self.left <= 0 or self.gone


class EngineThread(threading.Thread):
    """Runs passes of an engine as long as there are requests, and waits where there are none."""

    def __init__(self, engine: JaxEngine) -> None:
        super().__init__(name="engine", daemon=True)
        self.arrived: queue.SimpleQueue[Asked | None] = queue.SimpleQueue()
        self._passes: Passes = Passes(engine=engine, policy=POLICIES.find("fcfs"))
        engine.ready([PROMPT])

    def run(self) -> None:
        """Passes until `stop`."""
        while self._take():
            for asked, token in self._passes.run_pass()[1]:
                asked.tokens.put(token)
                if asked.is_over:
                    asked.tokens.put(_END)
        for asked in (*self._passes.running, *self._passes.waiting):
            asked.tokens.put(_END)

    def _take(self) -> bool:
        """Take what has arrived, at least one request where there is nothing to compute; False at the end."""
        while True:
            try:
                asked = self.arrived.get(block=self._passes.is_idle)
            except queue.Empty:
                return True
            if asked is None:
                return False
            self._passes.waiting.append(asked)

    def stop(self) -> None:
        """End the thread; answers under way are cut."""
        self.arrived.put(None)


class Server(ThreadingHTTPServer):
    """The server with its engine."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, port: int = 0, seed: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.engine = EngineThread(served_engine(seed))
        self.engine.start()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    """GET /v1/models and POST /v1/completions or /v1/chat/completions."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:
        """Keep quiet."""

    def do_GET(self) -> None:
        """The list of models."""
        if self.path != "/v1/models":
            self._json(404, {"error": {"message": f"no {self.path}"}})
            return
        self._json(200, {"object": "list", "data": [{"id": NAME, "object": "model"}]})

    def do_POST(self) -> None:
        """An answer, streamed or whole."""
        chat = self.path == "/v1/chat/completions"
        if not chat and self.path != "/v1/completions":
            self._json(404, {"error": {"message": f"no {self.path}"}})
            return
        try:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
            asked = _asked(body, chat=chat)
        except (ValueError, KeyError, TypeError) as error:
            self._json(400, {"error": {"message": str(error)}})
            return
        cast("Server", self.server).engine.arrived.put(asked)
        try:
            if body.get("stream"):
                self._stream(asked, body, chat=chat)
            else:
                tokens = list(iter(asked.tokens.get, _END))
                choice = _choice("".join(map(_text, tokens)), chat=chat, delta=False, ended=True)
                self._json(200, {"object": "completion", "choices": [choice], "usage": _usage(asked, len(tokens))})
        except OSError:  # the client has gone
            asked.gone = True
            self.close_connection = True

    def _stream(self, asked: Asked, body: dict[str, Any], *, chat: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        count = 0
        for token in iter(asked.tokens.get, _END):
            count += 1
            self._event({"choices": [_choice(_text(token), chat=chat, delta=True, ended=count == asked.wanted)]})
        options = cast("dict[str, Any]", body.get("stream_options") or {})
        if options.get("include_usage"):
            self._event({"choices": [], "usage": _usage(asked, count)})
        self._chunk(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, data: dict[str, Any]) -> None:
        self._chunk(b"data: " + json.dumps({"model": NAME, **data}).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _json(self, status: int, data: dict[str, Any]) -> None:
        text = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


def _asked(body: dict[str, Any], *, chat: bool) -> Asked:
    """The request of a body.

    Raises:
        ValueError, KeyError, TypeError: it is not what the engine can serve.
    """
    given: Any = body["messages"][-1]["content"] if chat else body["prompt"]
    if isinstance(given, str):
        given = [sum(word.encode()) % SHAPE.vocab_size for word in given.split()]
    prompt = np.asarray(given, dtype=np.int64)
    left = int(body.get("max_tokens") or 16)
    if prompt.ndim != 1 or not 1 <= prompt.size <= PROMPT or not 0 <= prompt.min() <= prompt.max() < SHAPE.vocab_size:
        raise ValueError(f"a prompt is 1 to {PROMPT} ids below {SHAPE.vocab_size}")
    if not 1 <= left <= CAPACITY - prompt.size:
        raise ValueError(f"prompt and answer have at most {CAPACITY} tokens")
    return Asked(prompt=prompt.astype(np.int32), wanted=left, left=left)


def _text(token: int) -> str:
    return f" {token}"


def _choice(text: str, *, chat: bool, delta: bool, ended: bool) -> dict[str, Any]:
    said = {"delta" if delta else "message": {"role": "assistant", "content": text}} if chat else {"text": text}
    return {"index": 0, **said, "finish_reason": "length" if ended else None}


def _usage(asked: Asked, count: int) -> dict[str, int]:
    size = int(asked.prompt.size)
    return {"prompt_tokens": size, "completion_tokens": count, "total_tokens": size + count}


@contextlib.contextmanager
def lab_server(seed: int = 0) -> Generator[Server]:
    """A server of this process, on a free port of loopback, until the block ends.

    Args:
        seed: of the weights.
    """
    server = Server(seed=seed)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.engine.stop()
        server.shutdown()
        server.server_close()
        thread.join()
        server.engine.join()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        (Path(sys.argv[2]) / "config.json").write_text(json.dumps(CONFIG))
    server = Server(port=int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    print(server.url, flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()
    server.engine.stop()
