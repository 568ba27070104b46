"""Launch commands of replicas, where each replica runs, and the router in front of several.

Replicas on one host take chips of their own, and ports that they do not share. The routers are those of the engines
themselves, whose options `bench/engine_flags.py` reads from their own parsers:

- vLLM: vllm-router 0.1.17 (PyPI; vllm-project/router), `--worker-urls`, or `--vllm-pd-disaggregation` with the URLs of
  both pools, which is how it leads requests between servers with NixlConnector.
- SGLang: sglang-router 0.3.2 (PyPI), `python -m sglang_router.launch_router`, `--worker-urls`, or
  `--pd-disaggregation` with the URL and bootstrap port of prefill servers (SGLang documentation, PD disaggregation).
- llama.cpp: nginx, as below.
- TensorRT-LLM: `trtllm-serve disaggregated -c FILE` with `context_servers` and `generation_servers`
  (tensorrt_llm/commands/serve.py; examples/disaggregated/README.md). It has no router of replicas that do both: nginx
  with the fewest connections first, as the documentation of vLLM has it (deployment/nginx).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Literal

from rackline.arch import AppliedAdapter
from rackline.catalog import launch_rules_record
from rackline.hardware import Cluster
from rackline.search.launch_rules import Role
from rackline.serving.alignment import Alignment
from rackline.serving.stack import stack as engine_stack

PORT = 8000
ROUTER_PORT = 30000  # where the routers of SGLang and vLLM listen by default
# Engines open ports beside that of their server: SGLang with attention data parallelism at 233 after it and on for its
# own messages (sglang, srt/server_args.py, ZMQ_TCP_PORT_DELTA), vLLM's NixlConnector at VLLM_NIXL_SIDE_CHANNEL_PORT and
# on, one or two a rank. Servers a hundred apart, and the side channel 80 after its server, keep those of one host's
# replicas apart.
_PORTS_APART, _SIDE = 100, 80
_LIST = "{modules}"
_STARTS_WITHIN_S = 7200  # loading weights and compiling, as the probes of the manifests allow
_REQUEST_WITHIN_S = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where one replica starts.

    Args:
        host: its first host, counted from 0 [index].
        num_hosts: hosts that it spans [count].
        chips: those of each host that it takes, by number; empty for all of them.
        port: of its server on the first host.
    """

    host: int
    num_hosts: int = 1
    chips: tuple[int, ...] = ()
    port: int = PORT

    @property
    def side_port(self) -> int:
        """Port on which prefill and decode replicas agree on the transfer of a KV cache."""
        return self.port + _SIDE


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchCommand:
    """The command of one replica, or of the router in front of several.

    Args:
        stack: one of STACKS.
        role: what it does.
        words: the command and its arguments; on the first host where a replica spans several. Without the address of
            its server, see `server_words`.
        other_words: the command on the other hosts of a replica; empty where they need none.
        before: what starts the command on all hosts of a replica at once; empty for none.
        env: names and values of environment variables.
        chips_variable: environment variable that names the chips of a process; empty where none is known.
        version: of the stack, whose options these are.
        options_file: lines of a file that the command reads, empty for none.
        options_name: of that file.
        notes: settings that differ in the stack.
        lacks: parts of the plan that the stack cannot express.
        replicas: number of times that it is started [count].
        chips_per_replica: [count].
        num_hosts: hosts of one replica [count].
        starts: where each replica runs; empty until that is chosen.
    """

    stack: str
    role: Role | Literal["router"]
    words: tuple[str, ...]
    other_words: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    chips_variable: str = ""
    version: str = ""
    options_file: tuple[str, ...] = ()
    options_name: str = ""
    notes: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    replicas: int = 1
    chips_per_replica: int = 1
    num_hosts: int = 1
    starts: tuple[Start, ...] = ()

    @property
    def is_pool(self) -> bool:
        """Whether other replicas run the other phase."""
        return self.role in ("prefill", "decode")

    @property
    def needs_side_port(self) -> bool:
        """Whether its server listens on a second port, for the transfer of KV caches."""
        return (self.stack == "vllm" and self.is_pool) or (self.stack == "sglang" and self.role == "prefill")

    def told(self, more: MoreWords) -> LaunchCommand:
        """The same with further options."""
        return replace(
            self,
            words=(*self.words, *more.words),
            other_words=(*self.other_words, *more.words) if self.other_words else (),
            options_file=(*self.options_file, *more.file),
            notes=(*self.notes, *more.notes),
            lacks=(*self.lacks, *more.lacks),
        )

    def in_folder(self, folder: str) -> list[str]:
        """The words with its file of options in a folder."""
        file = self.options_name if self.options_file else None
        return [f"{folder}/{word}" if word == file else word for word in self.words]

    def server_words(self, port: str, side_port: str) -> tuple[str, ...]:
        """Arguments for the address of its server.

        Args:
            port: of the server, as text or a shell expression.
            side_port: of the transfer of KV caches, see `needs_side_port`.
        """
        side = ("--disaggregation-bootstrap-port", side_port)
        return (
            "--host",
            "0.0.0.0",
            "--port",
            port,
            *(side if self.stack == "sglang" and self.role == "prefill" else ()),
        )

    def server_env(self, side_port: str, address: str) -> tuple[tuple[str, str], ...]:
        """Names and values of the environment variables for its address.

        Args:
            side_port: as of `server_words`.
            address: of its host, for the replicas of the other pool.
        """
        if self.stack != "vllm" or not self.is_pool:
            return ()
        return (("VLLM_NIXL_SIDE_CHANNEL_HOST", address), ("VLLM_NIXL_SIDE_CHANNEL_PORT", side_port))


def chosen(*rows: tuple[object, ...]) -> list[str]:
    """Words of the rows that apply: (whether it does, word, ...)."""
    return [str(word) for applies, *words in rows if applies for word in words]


@dataclass(frozen=True, slots=True, kw_only=True)
class MoreWords:
    """What an engine is told besides its layout.

    Args:
        words: options of the command.
        file: lines of its options file.
        notes: what else to do.
        lacks: what the engine cannot take.
    """

    words: tuple[str, ...] = ()
    file: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()


def adapter_words(engine: str, adapter: AppliedAdapter) -> MoreWords:
    """Options for adapters of one shape.

    Args:
        engine: with launch rules.
        adapter: their shape and how many there are.
    """
    options = launch_rules_record(engine).adapters
    if options is None:
        return MoreWords(lacks=("options for adapters are not known",))
    rank = max(module.rank for module in adapter.modules)
    wider = [one for one in options.ranks or (rank,) if one >= rank]
    names = list(dict.fromkeys(module.name.rpartition(".")[2] for module in adapter.modules))
    known = options.modules
    unknown = [] if known is None else [name for name in names if name not in known]
    lacks = (
        (not wider, f"adapters of rank {rank}: {max(options.ranks or (rank,))} is the most"),
        (adapter.whole_params, "modules that are stored whole beside the adapter are not loaded with it"),
        (unknown, f"adapters on {', '.join(unknown)} have no name in its options"),
    )
    modules = names if known is None else [known[name] for name in names if name in known]
    values = {
        "name": adapter.name.rstrip("/").rpartition("/")[2],
        "path": _path(adapter),
        "rank": str(min(wider, default=rank)),
        "resident": str(adapter.resident),
        "number": str(adapter.number),
        "modules": ", ".join(modules),
    }
    waiting = options.waiting if adapter.resident < adapter.number else ()
    return MoreWords(
        words=tuple(
            filled
            for word in (*options.words, *waiting)
            for filled in (modules if word == _LIST else [word.format(**values)])
        ),
        file=tuple(line.format(**values) for line in options.file),
        notes=(f"{adapter.number:,} adapters: {options.later}",) if adapter.number > 1 else (),
        lacks=tuple(chosen(*lacks)),
    )


def _path(adapter: AppliedAdapter) -> str:
    """Folder or repository from which an engine loads it, which knows no revision."""
    if not adapter.where:
        return adapter.name
    folder = PurePath(adapter.where)
    return str(folder.parent) if folder.suffix == ".json" else adapter.where.partition("@")[0]


def alignment_words(engine: str, version: str, alignment: Alignment) -> MoreWords:
    """Options by which attention-dp ranks wait for each other's prompts."""
    if alignment.name not in engine_stack(engine, version=version).scheduler.alignments:
        return MoreWords(
            lacks=(f"prompts of all attention-dp ranks at once ({alignment.label()}) cannot be asked for",)
        )
    words = tuple(alignment.words)
    return MoreWords(words=words) if words[0].startswith("-") else MoreWords(file=words)


def hosts_of(commands: Sequence[LaunchCommand]) -> set[int]:
    """Numbers of the hosts on which replicas run."""
    return {start.host + more for command in commands for start in command.starts for more in range(start.num_hosts)}


def starts_of(commands: Sequence[LaunchCommand], places: Sequence[Cluster]) -> list[tuple[Start, ...]]:
    """Where each replica starts, by kind: the widest first, each on the first hosts with enough free chips.

    Hosts are counted over all clusters, in the order in which they are first needed.

    Args:
        places: the cluster of each kind.
    """
    of_host: list[str] = []  # cluster of each host
    used: list[int] = []  # chips of each host that are taken
    servers: list[int] = []  # replicas of each host
    found: list[list[Start]] = [[] for _ in commands]
    for index in sorted(range(len(commands)), key=lambda at: -commands[at].chips_per_replica):
        kind, on = commands[index], places[index]
        size, each = on.host_chips, -(-kind.chips_per_replica // kind.num_hosts)
        for _ in range(kind.replicas):
            free = (at for at, name in enumerate(of_host) if name == on.name and used[at] + each <= size)
            first = next(free, len(of_host)) if kind.num_hosts == 1 else len(of_host)
            if first == len(of_host):
                of_host += [on.name] * kind.num_hosts
                used += [0] * kind.num_hosts
                servers += [0] * kind.num_hosts
            chips = () if each == size else tuple(range(used[first], used[first] + each))
            port = PORT + _PORTS_APART * servers[first]
            found[index].append(Start(host=first, num_hosts=kind.num_hosts, chips=chips, port=port))
            for host in range(first, first + kind.num_hosts):
                used[host] += each
                servers[host] += 1
    return [tuple(kind) for kind in found]


def placed(commands: Sequence[LaunchCommand], places: Sequence[Cluster]) -> list[LaunchCommand]:
    """The commands with a host, chips and a port for each replica.

    Args:
        places: the cluster of each command.
    """
    return [
        replace(
            command,
            starts=where,
            lacks=(
                *command.lacks,
                f"which chips of a host a replica takes: no variable is known for those of {on.chip.vendor}",
            )
            if not command.chips_variable and any(start.chips for start in where)
            else command.lacks,
        )
        for command, on, where in zip(commands, places, starts_of(commands, places), strict=True)
    ]


def router_command(
    commands: Sequence[LaunchCommand],
    *,
    kept_prefixes: bool = False,
    address: Callable[[Start], str] | None = None,
) -> LaunchCommand | None:
    """The router in front of a deployment, on its first host; None for a single replica.

    Args:
        commands: the replicas, with their places.
        kept_prefixes: whether a request should go where its prefix is cached.
        address: of a replica, as host:port; None for hosts by their numbers.
    """
    if sum(len(command.starts) for command in commands) < 2:
        return None
    hosts = hosts_of(commands)
    pools = any(command.role != "both" for command in commands)
    first = commands[0]
    lines: list[str] = []
    name = ""

    def of_host(start: Start) -> str:
        return f"{'localhost' if len(hosts) == 1 else f'$HOST{start.host}'}:{start.port}"

    address = address or of_host
    urls = [f"http://{address(start)}" for command in commands for start in command.starts]
    match first.stack:
        case "trtllm" if pools:
            lines, name = _disaggregated(commands, address), "router.yaml"
            words = ["trtllm-serve", "disaggregated", "-c", name]
            words += ["-t", str(_STARTS_WITHIN_S), "-r", str(_REQUEST_WITHIN_S)]
        case "trtllm" | "llama-cpp":
            lines, name = _nginx(commands, address), "router.conf"
            words = ["nginx", "-p", ".", "-c", name, "-g", "daemon off;"]
        case stack:
            words = ["vllm-router"] if stack == "vllm" else ["python", "-m", "sglang_router.launch_router"]
            words += _replicas(commands, address) if pools else ["--worker-urls", *urls]
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


def _replicas(commands: Sequence[LaunchCommand], address: Callable[[Start], str]) -> list[str]:
    """The servers of both pools; SGLang's prefill servers with the port at which decode servers meet them."""
    sglang = commands[0].stack == "sglang"
    words = ["--pd-disaggregation" if sglang else "--vllm-pd-disaggregation"]
    for command in commands:
        for start in command.starts:
            words += [f"--{command.role}", f"http://{address(start)}"]
            words += [str(start.side_port)] if sglang and command.role == "prefill" else []
    return words


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


def deployment_commands(commands: Sequence[LaunchCommand], *, kept_prefixes: bool = False) -> list[LaunchCommand]:
    """The commands of replicas, and of the router in front where there are several."""
    router = router_command(commands, kept_prefixes=kept_prefixes)
    return [*commands, *([router] if router is not None else [])]
