"""The Compose file of an engine that runs on a processor, started as a process: it answers a request."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rackline.arch import model
from rackline.hardware import Cluster, cluster
from rackline.parallel import Layout, precision
from rackline.search.containers import compose_file
from rackline.search.launch import Replica, launch_command
from rackline.search.launch_commands import placed
from rackline.serving.workload import Mode, Workload

pytest.importorskip("xllamacpp", reason="the server of llama.cpp is not installed: uv sync --group dev")

WORKERS = Path(__file__).resolve().parents[2] / "src" / "rackline" / "lab" / "workers"
BENCH = Path(__file__).resolve().parents[2] / "bench"
MACHINE = Path(__file__).resolve().parents[2] / "docs" / "measured" / "machine-llama-cpp-fp32.toml"
SHAPE = {
    "num_layers": 2, "d_model": 128, "num_q_heads": 4, "num_kv_heads": 2, "head_dim": 32, "d_ff": 256,
    "vocab_size": 1024,
}  # fmt: skip
SLOTS, LONGEST = 4, 64


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The only service of a file for a model with random weights, which lies on the host."""
    folder = tmp_path_factory.mktemp("model")
    code = "import json, sys; from pathlib import Path; from run_llama_cpp import write_model; "
    code += f"write_model(Path(sys.argv[1]), json.loads(sys.argv[2]), 'fp32', {LONGEST}, 0)"
    words = [sys.executable, "-c", code, str(folder / "model.gguf"), json.dumps(SHAPE)]
    subprocess.run(words, cwd=WORKERS, check=True, timeout=60)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 128, "intermediate_size": 256,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1024,
        "torch_dtype": "float32", "tie_word_embeddings": False,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    read = model(str(folder / "config.json"))
    on: Cluster = cluster(str(MACHINE))
    command = launch_command(
        "llama-cpp",
        Replica(
            model_id=str(folder), layout=Layout(tp=1), precision=precision("native", read, on.chip),
            mode=Mode(admission="chunked", max_batched_tokens=64), sequences_per_rank=SLOTS,
            workload=Workload(input_len=48, output_len=16), chips_per_host=1, vendor=on.chip.vendor,
            cores=on.chip.cores or 0,
        ),
    )  # fmt: skip
    assert command.lacks == ()
    (one,) = compose_file(placed([command], [on]), [on], "random on this")["services"].values()
    return one


@contextmanager
def started(service: dict[str, Any], port: int) -> Iterator[str]:
    """The service's command as a process on a port of this machine; the address of its server."""
    assert service["entrypoint"] == ["/app/llama-server"]
    words = list(service["command"])
    words[words.index("--port") + 1] = str(port)
    words[words.index("--host") + 1] = "127.0.0.1"
    with running(words, port) as url:
        yield url


@contextmanager
def running(words: list[str], port: int) -> Iterator[str]:
    """llama.cpp's server with these words as a process; its address, once it is healthy."""
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen(
        [sys.executable, str(BENCH / "llama_server.py"), *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            until = time.monotonic() + 60.0
            while not _healthy(url):
                assert process.poll() is None, "the server ended"
                assert time.monotonic() < until, "the server did not start within a minute"
                time.sleep(0.1)
            yield url
        finally:
            process.terminate()


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=1.0) as found:
            return bool(found.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def posted(url: str, body: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30.0) as found:
        answer: dict[str, Any] = json.loads(found.read())
    return answer


@pytest.mark.slow
def test_the_file_starts_a_server_that_answers(service: dict[str, Any]) -> None:
    with started(service, free_port()) as url:
        answer = posted(f"{url}/v1/completions", {"prompt": "w3 w4 w5", "max_tokens": 5, "temperature": 0})
        assert answer["usage"]["completion_tokens"] == 5
        again = posted(f"{url}/v1/completions", {"prompt": "w3 w4 w5", "max_tokens": 5, "temperature": 0})
        assert again["choices"][0]["text"] == answer["choices"][0]["text"]
        with urllib.request.urlopen(f"{url}/props", timeout=10.0) as found:
            props = json.loads(found.read())
        assert props["total_slots"] == SLOTS
        assert props["default_generation_settings"]["n_ctx"] >= LONGEST


def test_nothing_is_reserved_for_a_processor(service: dict[str, Any]) -> None:
    assert "deploy" not in service
    assert "devices" not in service
    assert service["image"].startswith("ghcr.io/ggml-org/llama.cpp:server-b")
    (model,) = service["volumes"][1:]
    assert model.endswith("model.gguf:ro")
