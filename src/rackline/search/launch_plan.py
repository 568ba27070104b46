"""The launch commands of a plan: which checkpoint, how long a context, and which replicas."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from rackline.arch import AnyModel, Model
from rackline.hardware import Cluster
from rackline.parallel import Layout, Precision, precision
from rackline.parallel.memory import MemoryUse, kv_size
from rackline.search.candidate import Pool
from rackline.search.choice import Choice
from rackline.search.launch import Drafts, Replica, check_stack, launch_command
from rackline.search.launch_commands import LaunchCommand, placed
from rackline.search.launch_rules import Role
from rackline.search.plan import Plan
from rackline.serving.workload import Mode, Workload

# Longest request over the mean one where lengths are typical ones. Public traces, rounded up: 3.8 (Azure 2023, code),
# 10.3 (Azure 2023, conversation), 10.2 (Mooncake, conversation), 12.4 (Mooncake, synthetic).
LONGEST_OVER_MEAN = 13
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
    kinds = [_kind("both", best, best, plan.system.cluster, best.inside.memory)]
    first, then = best.prefill_inside, best.decode_inside
    if first is not None and then is not None:
        prefill_on = options.prefill_on or plan.system.cluster
        kinds = [
            _kind("prefill", first.pool, best, prefill_on, first.memory),
            _kind("decode", then.pool, best, plan.system.cluster, then.memory),
        ]
    if leftover and best.leftover is not None:
        beside = best.leftover.choice
        kinds.append(_kind("both", beside, beside, plan.system.cluster, beside.inside.memory))
    return commands_of(
        kinds,
        plan.system.model,
        plan.demand.workload,
        found,
        options,
        memory_fraction=plan.system.stack.memory.memory_fraction,
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
    if options.drafts is not None and options.stack == "sglang" and stages > 1:
        options = replace(options, drafts=None)
        notes.append("drafts would pay, but SGLang has no pipeline stages with them")
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
            transfer="mooncake" if stages > 1 else "nixl",  # Mooncake alone moves those of a prefill pool with stages
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
