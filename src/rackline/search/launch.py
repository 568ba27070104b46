"""The chosen deployment as command lines of vLLM, SGLang and TensorRT-LLM.

Options of vLLM 0.12 to 0.33 and SGLang 0.5.6 to 0.5.23 as their own argument parsers take them (`bench/engine_flags.py`
gives the commands to the parsers), and of TensorRT-LLM 1.2 as documented (trtllm-serve, LLM arguments), read on
2026-11-22. What an engine cannot express is stated in a note with the command, never omitted silently.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, assert_never

from rackline.arch import AppliedAdapter, Model
from rackline.hardware import Cluster
from rackline.parallel import Layout, Precision, precision
from rackline.search.choice import Choice
from rackline.search.launch_adapters import adapter_words
from rackline.search.launch_rules import Role, launch_rules
from rackline.search.plan import Plan
from rackline.search.pool_pair import Pool
from rackline.serving.workload import Mode, Workload

STACKS = ("vllm", "sglang", "trtllm")
_OPTIONS_FILE = ("--extra_llm_api_options", "options.yaml")
HOST = "HOST"
"""Placeholder for the address of a replica's first host."""
_ATTENTION_DP_OPTION = (0, 5, 23)  # first SGLang that was read with --attn-dp-size; --dp-size meant it before
_FP4_WHILE_LOADING = {"vllm": ((0, 33), "nvfp4_per_token"), "sglang": ((0, 5, 23), "nvfp4_online")}  # first read


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchCommand:
    """One replica's command.

    Args:
        stack: "vllm", "sglang" or "trtllm".
        role: what the replica does.
        words: the command and its arguments.
        version: of the stack, whose options these are.
        options_file: lines of a YAML file that the command reads, empty for none.
        notes: settings that differ in the stack, and commands for other hosts.
        lacks: parts of the plan that the stack cannot express.
        replicas: number of times that it is started [count].
        chips_per_replica: [count].
        num_hosts: hosts of one replica [count].
    """

    stack: str
    role: Role
    words: tuple[str, ...]
    version: str = ""
    options_file: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    replicas: int = 1
    chips_per_replica: int = 1
    num_hosts: int = 1


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
class Replica:
    """A replica to be launched.

    Args:
        model_id: Hugging Face id or path.
        quantise_to: data type to which the engine converts the weights while it loads them; empty for none.
        sequences_per_rank: that one attention-dp rank holds over all pipeline micro-batches [sequences].
        chips_per_host: [count].
        num_experts: routed experts of a layer, 0 without [count].
        adapter: low-rank adapters that requests use; None without.
    """

    model_id: str
    layout: Layout
    precision: Precision
    mode: Mode
    sequences_per_rank: int
    workload: Workload
    memory_fraction: float = 0.9
    role: Role = "both"
    chips_per_host: int = 8
    num_experts: int = 0
    quantise_to: str = ""
    adapter: AppliedAdapter | None = None

    @property
    def prefills(self) -> bool:
        """Whether it runs prefill."""
        return self.role in ("both", "prefill")

    @property
    def decodes(self) -> bool:
        """Whether it generates tokens beyond the first."""
        return self.role in ("both", "decode")

    @property
    def is_pool(self) -> bool:
        """Whether another replica runs the other phase."""
        return not (self.prefills and self.decodes)

    @property
    def max_tokens(self) -> int:
        """Longest request [tokens]."""
        return math.ceil(self.workload.longest_context)

    @property
    def num_hosts(self) -> int:
        """Hosts of one replica [count]."""
        return math.ceil(self.layout.chips_per_replica / self.chips_per_host)

    @property
    def redundant_experts(self) -> int:
        """Experts with a second copy, so that every rank has the same number [count]."""
        return -self.num_experts % self.layout.ep

    @property
    def pass_tokens(self) -> int:
        """Tokens of a pass of one rank [tokens]."""
        match self.role:
            case "decode":
                return max(self.sequences_per_rank, 1)
            case "both" | "prefill":
                return max(self.mode.max_batched_tokens, self.sequences_per_rank)
            case _:
                assert_never(self.role)

    @property
    def running(self) -> int:
        """Running sequences of one rank; for a prefill replica those of one pass and the next [sequences]."""
        match self.role:
            case "prefill":
                return 2 * math.ceil(self.mode.max_batched_tokens / self.workload.new_tokens)
            case "both" | "decode":
                return self.sequences_per_rank
            case _:
                assert_never(self.role)


def launch_command(stack: str, replica: Replica, version: str = "") -> LaunchCommand:
    """The command line of a replica.

    Args:
        stack: one of STACKS; any other name is taken as vLLM.
        version: such as "0.5.6"; the newest that was read when it is empty.
    """
    layout = replica.layout
    match stack:
        case "sglang":
            command = _sglang(replica, version)
        case "trtllm":
            command = _trtllm(replica)
        case _:
            command = _vllm(replica, version)
    if replica.adapter is not None:
        command = _with_adapters(command, replica.adapter)
    return replace(
        command,
        version=version or launch_rules(command.stack).version,
        replicas=layout.dp,
        chips_per_replica=layout.chips_per_replica,
        num_hosts=replica.num_hosts,
    )


def _with_adapters(command: LaunchCommand, adapter: AppliedAdapter) -> LaunchCommand:
    more = adapter_words(command.stack, adapter)
    words = command.words
    if more.file and not command.options_file:
        words = (*words, *_OPTIONS_FILE)
    return replace(
        command,
        words=(*words, *more.words),
        options_file=(*command.options_file, *more.file),
        notes=(*command.notes, *more.notes),
        lacks=(*command.lacks, *more.lacks),
    )


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


def _conversion(stack: str, replica: Replica, version: str, lacks: list[str]) -> list[str]:
    """Options that convert the weights while they are loaded."""
    if replica.quantise_to != "fp4":
        return ["--quantization", replica.quantise_to] if replica.quantise_to else []
    since, method = _FP4_WHILE_LOADING[stack]
    if version and _numbers(version) < since:
        lacks.append(f"{stack} {version} does not convert to fp4: a checkpoint in fp4 is needed")
        return []
    return ["--quantization", method]


def _vllm(replica: Replica, version: str) -> LaunchCommand:
    layout, notes, lacks = replica.layout, list[str](), list[str]()
    words = ["vllm", "serve", replica.model_id, "--tensor-parallel-size", str(layout.tp)]
    if layout.pp > 1:
        words += ["--pipeline-parallel-size", str(layout.pp)]
    if layout.attention_dp > 1:
        words += ["--data-parallel-size", str(layout.attention_dp)]
    if layout.cp > 1 and not replica.decodes:
        words += ["--prefill-context-parallel-size", str(layout.cp)]
    elif layout.cp > 1:
        lacks.append(f"cp={layout.cp} adds chips that share a context; --decode-context-parallel-size cannot")
    if layout.ep > 1:
        words.append("--enable-expert-parallel")
        if layout.moe_tp > 1:
            lacks.append(f"ep={layout.ep} with moe_tp={layout.moe_tp} cannot be set: experts go to all chips or none")
        if layout.attention_dp > 1:
            kind = "high_throughput" if not replica.decodes else "low_latency"
            words += ["--all2all-backend", f"deepep_{kind}"]
        if replica.redundant_experts and layout.attention_dp > 1:
            words += ["--enable-eplb", "--eplb-config", _json({"num_redundant_experts": replica.redundant_experts})]
    if replica.mode.two_batch_overlap:
        words.append("--enable-dbo")
    words += ["--max-num-seqs", str(replica.running), "--max-num-batched-tokens", str(replica.pass_tokens)]
    words += ["--max-model-len", str(replica.max_tokens), "--gpu-memory-utilization", f"{replica.memory_fraction:g}"]
    words += _conversion("vllm", replica, version, lacks)
    if replica.precision.kv_cache == "fp8":
        words += ["--kv-cache-dtype", "fp8"]
    if replica.is_pool:
        words += ["--kv-transfer-config", _json({"kv_connector": "NixlConnector", "kv_role": "kv_both"})]
    words += _vllm_hosts(replica, notes)
    if replica.mode.admission != "chunked" and not replica.is_pool:
        lacks.append("prompts are mixed with decodes: vLLM has no passes of prompts alone")
    return LaunchCommand(stack="vllm", role=replica.role, words=tuple(words), notes=tuple(notes), lacks=tuple(lacks))


def _vllm_hosts(replica: Replica, notes: list[str]) -> list[str]:
    """Options of a replica on several hosts: its attention-dp ranks, or all its ranks, are spread over them."""
    if replica.num_hosts == 1:
        return []
    layout = replica.layout
    ranks = layout.attention_dp
    if ranks % replica.num_hosts == 0:
        local = ranks // replica.num_hosts
        start = ["--data-parallel-size-local", str(local), "--data-parallel-address", HOST]
        notes.append(f"on host h of {replica.num_hosts}: --headless --data-parallel-start-rank h*{local}")
        return start
    notes.append(f"on the other hosts: --headless --node-rank 1 to {replica.num_hosts - 1}")
    return ["--nnodes", str(replica.num_hosts), "--node-rank", "0", "--master-addr", HOST]


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _sglang(replica: Replica, version: str) -> LaunchCommand:
    layout, notes, lacks = replica.layout, list[str](), list[str]()
    ranks = layout.attention_dp
    # --tp-size counts all chips of a pipeline stage; attention-dp groups among them hold other sequences
    words = ["python", "-m", "sglang.launch_server", "--model-path", replica.model_id]
    words += ["--tp-size", str(layout.tp * ranks)]
    if layout.pp > 1:
        words += ["--pp-size", str(layout.pp)]
    if ranks > 1 and version and _numbers(version) < _ATTENTION_DP_OPTION:
        words += ["--dp-size", str(ranks), "--enable-dp-attention"]
    elif ranks > 1:
        words += ["--attn-dp-size", str(ranks)]
    if layout.cp > 1:
        lacks.append(f"cp={layout.cp} cannot be set for this model")
    if layout.ep > 1:
        words += ["--ep-size", str(layout.ep)]
        if ranks > 1 and layout.moe_tp == 1:
            words += ["--moe-a2a-backend", "deepep"]
        if replica.redundant_experts:
            words += ["--ep-num-redundant-experts", str(replica.redundant_experts), "--enable-eplb"]
    if replica.mode.two_batch_overlap:
        words.append("--enable-two-batch-overlap")
    if replica.prefills:
        # the option counts the tokens of all attention-dp ranks together
        words += ["--chunked-prefill-size", str(replica.mode.max_batched_tokens * ranks)]
        if replica.mode.admission == "chunked" and replica.decodes:
            words.append("--enable-mixed-chunk")
    words += ["--max-running-requests", str(replica.running * ranks)]
    words += ["--context-length", str(replica.max_tokens), "--mem-fraction-static", f"{replica.memory_fraction:g}"]
    words += _conversion("sglang", replica, version, lacks)
    if replica.precision.kv_cache == "fp8":
        words += ["--kv-cache-dtype", "fp8_e4m3"]
    if replica.is_pool:
        backend = "mooncake" if layout.pp > 1 else "nixl"  # stages of a prefill pool: mooncake only
        words += ["--disaggregation-mode", replica.role, "--disaggregation-transfer-backend", backend]
    if replica.num_hosts > 1:
        words += ["--nnodes", str(replica.num_hosts), "--node-rank", "0", "--dist-init-addr", f"{HOST}:5000"]
        notes.append(f"on the other hosts: --node-rank 1 to {replica.num_hosts - 1}")
    return LaunchCommand(stack="sglang", role=replica.role, words=tuple(words), notes=tuple(notes), lacks=tuple(lacks))


def _trtllm(replica: Replica) -> LaunchCommand:
    layout, lacks = replica.layout, list[str]()
    words = ["trtllm-serve", replica.model_id, "--tp_size", str(layout.tp * layout.attention_dp)]
    if layout.pp > 1:
        words += ["--pp_size", str(layout.pp)]
    if replica.num_experts:
        words += ["--ep_size", str(layout.ep)]
    if layout.tp > 1 and layout.attention_dp > 1:
        lacks.append(f"attention is either cut over all chips or not at all: tp={layout.tp} a rank becomes 1")
    words += ["--max_batch_size", str(replica.running), "--max_num_tokens", str(replica.pass_tokens)]
    words += ["--max_seq_len", str(replica.max_tokens)]
    words += ["--kv_cache_free_gpu_memory_fraction", f"{replica.memory_fraction:g}"]
    options: list[str] = []
    if layout.attention_dp > 1:
        options.append("enable_attention_dp: true")
    if replica.mode.admission == "chunked" and not replica.is_pool:
        options.append("enable_chunked_prefill: true")
    if replica.redundant_experts:
        slots = replica.num_experts + replica.redundant_experts
        options += ["moe_config:", "  load_balancer:", f"    num_slots: {slots}"]
    if replica.precision.kv_cache == "fp8":
        options += ["kv_cache_config:", "  dtype: fp8"]
    if replica.quantise_to:
        options += ["quant_config:", f"  quant_algo: {'FP8' if replica.quantise_to == 'fp8' else 'NVFP4'}"]
    if replica.is_pool:
        options += ["cache_transceiver_config:", "  backend: NIXL"]
    if options:
        words += _OPTIONS_FILE
    if replica.mode.two_batch_overlap:
        lacks.append("no option splits the batch to overlap the exchange of tokens")
    return LaunchCommand(
        stack="trtllm", role=replica.role, words=tuple(words), options_file=tuple(options), lacks=tuple(lacks)
    )


def plan_commands(
    plan: Plan,
    found: Checkpoints,
    stack: str,
    version: str = "",
    prefill_on: Cluster | None = None,
    *,
    leftover: bool = False,
) -> list[LaunchCommand]:
    """Commands of a plan's cheapest deployment: one for an engine that does both, two for pools; none without answer.

    Args:
        found: what can be loaded.
        stack: "vllm", "sglang", "trtllm"; the calibration's own stack is the usual choice.
        version: of the stack; the newest that was read when it is empty.
        prefill_on: cluster of the prefill pool, where that is another one.
        leftover: one more for the engine on paid chips that these leave free.
    """
    best = plan.best
    if best is None:
        return []
    roles: list[tuple[Role, Choice | Pool]] = [("both", best)]
    if best.prefill_pool is not None and best.decode_pool is not None:
        roles = [("prefill", best.prefill_pool), ("decode", best.decode_pool)]
    commands: list[LaunchCommand] = []
    for role, what in roles:
        on = prefill_on if role == "prefill" and prefill_on is not None else plan.cluster
        commands.append(_role_command(plan, best, on, found, role, what, stack, version))
    if leftover and best.leftover is not None:
        beside = best.leftover.choice
        commands.append(_role_command(plan, beside, plan.cluster, found, "both", beside, stack, version))
    return commands


def _role_command(
    plan: Plan,
    best: Choice,
    on: Cluster,
    found: Checkpoints,
    role: Role,
    what: Choice | Pool,
    stack: str,
    version: str,
) -> LaunchCommand:
    model = plan.model
    moe = model.moe() if isinstance(model, Model) else None
    loaded = checkpoint(found, what.precision, precision("native", model, on.chip))
    command = launch_command(
        stack,
        Replica(
            adapter=model.adapter if isinstance(model, Model) else None,
            model_id=loaded.model_id,
            quantise_to=loaded.quantise_to,
            layout=what.layout,
            precision=what.precision,
            mode=what.mode,
            sequences_per_rank=best.max_num_seqs * what.layout.pp,
            workload=plan.workload,
            memory_fraction=plan.constraints.memory_fraction,
            role=role,
            chips_per_host=on.host_chips,
            num_experts=moe.num_experts if moe else 0,
        ),
        version,
    )
    return replace(
        command,
        notes=(*command.notes, *([loaded.note] if loaded.note else [])),
        lacks=(*command.lacks, *([loaded.lack] if loaded.lack else [])),
    )
