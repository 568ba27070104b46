"""What shares requests among replicas, and leads a request through a prefill and a decode pool.

The routers of the engines themselves, whose options `bench/engine_flags.py` reads from their own parsers:

- vLLM: vllm-router 0.1.17 (PyPI; vllm-project/router), `--worker-urls`, or `--vllm-pd-disaggregation` with the URLs of
  both pools, which is how it leads requests between servers with NixlConnector.
- SGLang: sglang-router 0.3.2 (PyPI), `python -m sglang_router.launch_router`, `--worker-urls`, or
  `--pd-disaggregation` with the URL and bootstrap port of prefill servers (SGLang documentation, PD disaggregation).
- TensorRT-LLM: `trtllm-serve disaggregated -c FILE` with `context_servers` and `generation_servers`
  (tensorrt_llm/commands/serve.py; examples/disaggregated/README.md). It has no router of replicas that do both: nginx
  with the fewest connections first, as the documentation of vLLM has it (deployment/nginx).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rackline.search.launch import LaunchCommand
from rackline.search.launch_places import ROUTER_PORT, Start

_STARTS_WITHIN_S = 7200  # loading weights and compiling, as the probes of the manifests allow
_REQUEST_WITHIN_S = 3600


def router_command(commands: Sequence[LaunchCommand], *, kept_prefixes: bool = False) -> LaunchCommand | None:
    """The router in front of a deployment, on its first host; None for a single replica.

    Args:
        commands: the replicas, with their places.
        kept_prefixes: whether a request should go where its prefix is cached.
    """
    if sum(len(command.starts) for command in commands) < 2:
        return None
    hosts = {start.host + more for command in commands for start in command.starts for more in range(start.num_hosts)}
    pools = any(command.role != "both" for command in commands)
    first = commands[0]
    lines: list[str] = []
    name = ""

    def address(start: Start) -> str:
        return f"{'localhost' if len(hosts) == 1 else f'$HOST{start.host}'}:{start.port}"

    match first.stack:
        case "trtllm" if pools:
            lines, name = _disaggregated(commands, address), "router.yaml"
            words = ["trtllm-serve", "disaggregated", "-c", name]
            words += ["-t", str(_STARTS_WITHIN_S), "-r", str(_REQUEST_WITHIN_S)]
        case "trtllm":
            lines, name = _nginx(commands, address), "router.conf"
            words = ["nginx", "-p", ".", "-c", name, "-g", "daemon off;"]
        case stack:
            words = ["vllm-router"] if stack == "vllm" else ["python", "-m", "sglang_router.launch_router"]
            words += _replicas(commands, address) if pools else ["--worker-urls", *_urls(commands, address)]
            words += ["--policy", "cache_aware" if kept_prefixes else "power_of_two"]
            words += ["--worker-startup-timeout-secs", str(_STARTS_WITHIN_S)]
            words += ["--host", "0.0.0.0", "--port", str(ROUTER_PORT)]
    return LaunchCommand(
        stack=first.stack,
        role="router",
        words=tuple(words),
        version=first.version,
        options_file=tuple(lines),
        options_name=name,
        chips_per_replica=0,
    )


def _urls(commands: Sequence[LaunchCommand], address: Callable[[Start], str]) -> list[str]:
    return [f"http://{address(start)}" for command in commands for start in command.starts]


def _replicas(commands: Sequence[LaunchCommand], address: Callable[[Start], str]) -> list[str]:
    """The servers of both pools; SGLang's prefill servers with the port at which decode servers meet them."""
    sglang = commands[0].stack == "sglang"
    words = ["--pd-disaggregation" if sglang else "--vllm-pd-disaggregation"]
    for command in commands:
        for start in command.starts:
            words += [f"--{command.role}", f"http://{address(start)}"]
            words += [str(start.side_port)] if sglang and command.role == "prefill" else []
    return words


def router_name(stack: str) -> str:
    """The router of an engine's pools, as it is called on the command line."""
    return {"sglang": "python -m sglang_router.launch_router --pd-disaggregation", "vllm": "vllm-router"}.get(
        stack, "trtllm-serve disaggregated"
    )


def _disaggregated(commands: Sequence[LaunchCommand], address: Callable[[Start], str]) -> list[str]:
    """The file of `trtllm-serve disaggregated`."""
    lines = ["hostname: 0.0.0.0", f"port: {ROUTER_PORT}", "backend: pytorch"]
    for role, key in (("prefill", "context_servers"), ("decode", "generation_servers")):
        urls = [address(start) for command in commands if command.role == role for start in command.starts]
        lines += [f"{key}:", f"  num_instances: {len(urls)}", "  urls:", *(f'    - "{url}"' for url in urls)]
    return lines


def _nginx(commands: Sequence[LaunchCommand], address: Callable[[Start], str]) -> list[str]:
    """A configuration of nginx that sends a request to the replica with the fewest."""
    servers = [f"    server {address(start)};" for command in commands for start in command.starts]
    return [
        "pid router.pid;",
        "error_log stderr;",
        "events {}",
        "http {",
        "  access_log off;",
        "  upstream replicas {",
        "    least_conn;",
        *servers,
        "  }",
        "  server {",
        f"    listen {ROUTER_PORT};",
        "    location / {",
        "      proxy_pass http://replicas;",
        "      proxy_buffering off;",
        f"      proxy_read_timeout {_REQUEST_WITHIN_S}s;",
        "    }",
        "  }",
        "}",
    ]
