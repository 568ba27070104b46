"""The launch commands of a plan: which checkpoint, how long a context, where each replica runs, and its router.

The routers of the engines themselves, whose options `bench/engine_flags.py` reads from their own parsers:

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

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rackline.arch import AnyModel, Model
from rackline.hardware import Cluster
from rackline.parallel import Layout, Precision, precision
from rackline.parallel.memory import MemoryUse, kv_size
from rackline.search.candidate import Pool
from rackline.search.choice import Choice
from rackline.search.launch import (
    LaunchCommand,
    Replica,
    check_stack,
    launch_command,
    transfer_library,
)
from rackline.search.launch_options import Drafts, drafts_refusal
from rackline.search.launch_places import ROUTER_PORT, Start, Wanted, starts_of
from rackline.search.launch_rules import Role
from rackline.search.plan import Plan
from rackline.serving.workload import Mode, Workload

_STARTS_WITHIN_S = 7200  # loading weights and compiling, as the probes of the manifests allow
_REQUEST_WITHIN_S = 3600


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
    hosts = {start.host + more for command in commands for start in command.starts for more in range(start.num_hosts)}
    pools = any(command.role != "both" for command in commands)
    first = commands[0]
    lines: list[str] = []
    name = ""

    def of_host(start: Start) -> str:
        return f"{'localhost' if len(hosts) == 1 else f'$HOST{start.host}'}:{start.port}"

    address = address or of_host
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


LONGEST_OVER_MEAN = 13
"""Longest request over the mean one where lengths are typical ones.

Public traces, rounded up: 3.8 (Azure 2023, code), 10.3 (Azure 2023, conversation), 10.2 (Mooncake, conversation), 12.4
(Mooncake, synthetic).
"""
# of the room that the cache is estimated to have: vLLM does not start where one longest request does not fit
_SURE_OF_ROOM = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """Checkpoints that can be loaded.

    Args:
        released: Hugging Face id or path of the checkpoint as released.
        others: ids of checkpoints in other data types, by data type of the weights.
    """

    released: str
    others: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The checkpoint that an engine loads for a precision.

    Args:
        model_id: Hugging Face id or path.
        quantise_to: data type to which the engine converts the weights while it loads them; empty for none.
        note: remark; empty for none.
        lack: what is missing; empty where the weights are those of the plan.
    """

    model_id: str
    quantise_to: str = ""
    note: str = ""
    lack: str = ""


def checkpoint(found: Checkpoints, chosen: Precision, native: Precision) -> Loaded:
    """Find the checkpoint to load for a precision.

    Args:
        native: precision of the released checkpoint.
    """
    wanted = (chosen.linear_weights, chosen.expert_weights)
    if wanted == (native.linear_weights, native.expert_weights):
        return Loaded(model_id=found.released)
    narrow = min(wanted, key=_width)
    base = narrow.removesuffix("_block")
    other = found.others.get(base)
    if other is not None:
        return Loaded(model_id=other)
    if _width(narrow) > _width(native.expert_weights):
        note = f"the engine must load the weights as {narrow}, wider than they were released"
        return Loaded(model_id=found.released, note=note)
    if base in ("fp8", "fp4") and native.linear_weights in ("bf16", "fp16"):
        note = f"converted to {base} while loading: a checkpoint in {base} loads faster"
        return Loaded(model_id=found.released, quantise_to=base, note=note)
    lack = f"a checkpoint in {narrow} is needed, none is known: name its id or path instead"
    return Loaded(model_id=found.released, lack=lack)


def _width(dtype: str) -> int:
    return {"fp32": 4, "bf16": 3, "fp16": 3}.get(dtype, 1 if dtype in ("fp4", "mxfp4", "int4", "q4_k_m") else 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """What the engines of a plan are told beside their layout and scheduler.

    Args:
        stack: one of `launch.STACKS`.
        version: of the stack; the newest that was read when it is empty.
        prefill_on: cluster of the prefill pool, where that is another one.
        drafts: speculative decoding that pays; None without.
        host_cache_bytes: memory of the host that keeps prefixes, for each chip [bytes].
        notes: remarks for every replica.
    """

    stack: str
    version: str = ""
    prefill_on: Cluster | None = None
    drafts: Drafts | None = None
    host_cache_bytes: float = 0.0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaKind:
    """A kind of replica of a deployment.

    Args:
        layout: of a replica, dp is the number of replicas.
        max_num_seqs: most running sequences of one rank and micro-batch [sequences].
        on: the cluster.
        memory: of the fullest chip; None where it is not known.
    """

    role: Role
    layout: Layout
    precision: Precision
    mode: Mode
    max_num_seqs: int
    on: Cluster
    memory: MemoryUse | None = None


def plan_commands(
    plan: Plan, found: Checkpoints, options: LaunchOptions, *, leftover: bool = False
) -> list[LaunchCommand]:
    """Commands of a plan's cheapest deployment: one for an engine that does both, two for pools; none without answer.

    Args:
        found: what can be loaded.
        leftover: one more for the engine on paid chips that these leave free.

    Raises:
        InputError: an engine whose options were not read.
    """
    check_stack(options.stack)
    best = plan.best
    if best is None:
        return []
    kinds = [_kind("both", best, best, plan.system.cluster, best.memory)]
    first, then = best.prefill_inside, best.decode_inside
    if first is not None and then is not None:
        prefill_on = options.prefill_on or plan.system.cluster
        kinds = [
            _kind("prefill", first.pool, best, prefill_on, first.memory),
            _kind("decode", then.pool, best, plan.system.cluster, then.memory),
        ]
    if leftover and best.leftover is not None:
        beside = best.leftover.choice
        kinds.append(_kind("both", beside, beside, plan.system.cluster, beside.memory))
    return commands_of(
        kinds,
        plan.system.model,
        plan.demand.workload,
        found,
        options,
        memory_fraction=plan.system.stack.memory_fraction,
    )


def _kind(role: Role, what: Choice | Pool, choice: Choice, on: Cluster, memory: MemoryUse | None) -> ReplicaKind:
    return ReplicaKind(
        role=role,
        layout=what.layout,
        precision=what.precision,
        mode=what.mode,
        max_num_seqs=choice.max_num_seqs,
        on=on,
        memory=memory,
    )


def commands_of(
    kinds: Sequence[ReplicaKind],
    model: AnyModel,
    workload: Workload,
    found: Checkpoints,
    options: LaunchOptions,
    *,
    memory_fraction: float = 0.9,
) -> list[LaunchCommand]:
    """The command of each kind of replica, with a host, chips and a port for each replica.

    Args:
        found: what can be loaded.
        memory_fraction: of the chip's memory that the engine uses [1].

    Raises:
        InputError: an engine whose options were not read.
    """
    longest, why = longest_request(kinds, model, workload)
    notes = [f"requests of up to {longest:,} tokens, prompt and answer: {why}", *options.notes]
    stages = max(kind.layout.pp for kind in kinds)
    refused = drafts_refusal(options.stack, stages)
    if options.drafts is not None and refused:
        options = replace(options, drafts=None)
        notes.append(f"drafts would pay, but {refused}")
    moe = model.moe() if isinstance(model, Model) else None
    commands: list[LaunchCommand] = []
    for kind in kinds:
        loaded = checkpoint(found, kind.precision, precision("native", model, kind.on.chip))
        replica = Replica(
            adapter=model.adapter if isinstance(model, Model) else None,
            model_id=loaded.model_id,
            quantise_to=loaded.quantise_to,
            layout=kind.layout,
            precision=kind.precision,
            mode=kind.mode,
            sequences_per_rank=kind.max_num_seqs * kind.layout.pp,
            workload=workload,
            memory_fraction=memory_fraction,
            role=kind.role,
            chips_per_host=kind.on.host_chips,
            num_experts=moe.num_experts if moe else 0,
            drafts=options.drafts,
            max_tokens=longest,
            transfer=transfer_library(stages),
            host_cache_bytes=options.host_cache_bytes,
            vendor=kind.on.chip.vendor,
            cores=(kind.on.chip.cores or 0) if kind.on.chip.generation == "cpu" else 0,
        )
        command = launch_command(options.stack, replica, options.version)
        more = [*notes, loaded.note] if loaded.note else notes
        lacks = (*command.lacks, loaded.lack) if loaded.lack else command.lacks
        commands.append(replace(command, notes=(*command.notes, *more), lacks=lacks))
        notes = []
    return placed(commands, [kind.on for kind in kinds])


def longest_request(kinds: Sequence[ReplicaKind], model: AnyModel, workload: Workload) -> tuple[int, str]:
    """Prompt and answer of the longest request that a deployment takes [tokens], and what bounds it.

    That of the workload where all its lengths are known. Typical lengths get room for longer ones, as much as the
    model and the cache of every replica take.
    """
    longest = math.ceil(workload.longest_context)
    if workload.mixture is not None or workload.equal_lengths:
        return longest, "the longest of the workload"
    limits = {
        f"{LONGEST_OVER_MEAN} times the typical one, as in public traces": float(LONGEST_OVER_MEAN * longest),
    }
    if isinstance(model, Model) and model.max_context_len is not None:
        limits["what the model takes"] = float(model.max_context_len)
    for kind in kinds:
        name = "replica" if kind.role == "both" else f"{kind.role} replica"
        limits.setdefault(f"what the cache of a {name} surely holds", _room_tokens(model, kind))
    why = min(limits, key=lambda name: limits[name])
    return max(int(limits[why]), longest), why


def _room_tokens(model: AnyModel, kind: ReplicaKind) -> float:
    """Tokens of one request for which the cache of a chip surely has room [tokens]."""
    if kind.memory is None:
        return math.inf
    size = kv_size(model, replace(kind.layout, cp=1), kind.precision)
    room, each = _SURE_OF_ROOM * float(kind.memory.kv_room) - float(size.fixed_bytes), float(size.bytes_per_token)
    return room / each if each > 0 else math.inf


def placed(commands: Sequence[LaunchCommand], places: Sequence[Cluster]) -> list[LaunchCommand]:
    """The commands with a host, chips and a port for each replica.

    Args:
        places: the cluster of each command.
    """
    starts = starts_of(
        [
            Wanted(replicas=one.replicas, chips=one.chips_per_replica, num_hosts=one.num_hosts, on=on)
            for one, on in zip(commands, places, strict=True)
        ]
    )
    found: list[LaunchCommand] = []
    for command, on, where in zip(commands, places, starts, strict=True):
        lacks = command.lacks
        if not command.chips_variable and any(start.chips for start in where):
            lacks = (
                *lacks,
                f"which chips of a host a replica takes: no variable is known for those of {on.chip.vendor}",
            )
        found.append(replace(command, starts=where, lacks=lacks))
    return found


def deployment_commands(commands: Sequence[LaunchCommand], *, kept_prefixes: bool = False) -> list[LaunchCommand]:
    """The commands of replicas, and of the router in front where there are several."""
    router = router_command(commands, kept_prefixes=kept_prefixes)
    return [*commands, *([router] if router is not None else [])]
