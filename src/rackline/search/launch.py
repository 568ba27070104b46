"""The chosen deployment as command lines of vLLM, SGLang and TensorRT-LLM.

Options as documented by vLLM 0.12 (expert parallel deployment, NixlConnector), SGLang (server arguments, expert
parallelism, PD disaggregation) and TensorRT-LLM 1.x (trtllm-serve, LLM arguments), read on 2026-11-21. What an engine
cannot express is a note beside the command, never left out silently.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, assert_never

from rackline.arch import Model
from rackline.parallel import Layout, Precision
from rackline.search.plan import Plan
from rackline.search.pool_pair import Pool
from rackline.serving.workload import Mode, Workload

Role = Literal["both", "prefill", "decode"]
STACKS = ("vllm", "sglang", "trtllm")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchCommand:
    """One replica's command.

    Args:
        stack: "vllm", "sglang" or "trtllm".
        role: what the replica does.
        words: the command and its arguments.
        options_file: lines of a YAML file that the command reads, empty for none.
        notes: what the stack cannot express, or sets otherwise.
    """

    stack: str
    role: Role
    words: tuple[str, ...]
    options_file: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """What a command needs to know.

    Args:
        model_id: Hugging Face id or path.
        sequences_per_rank: that one attention-dp rank holds over all pipeline micro-batches [sequences].
        chips_per_node: chips of one host [count].
    """

    model_id: str
    layout: Layout
    precision: Precision
    mode: Mode
    sequences_per_rank: int
    workload: Workload
    memory_fraction: float = 0.9
    role: Role = "both"
    chips_per_node: int = 8
    is_moe: bool = False

    @property
    def max_tokens(self) -> int:
        """Longest request [tokens]."""
        return math.ceil(self.workload.input_len + self.workload.output_len)

    @property
    def num_nodes(self) -> int:
        """Hosts of one replica [count]."""
        return math.ceil(self.layout.chips_per_replica / self.chips_per_node)

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
        """Sequences of one rank; a prefill replica holds those of one pass and the next [sequences]."""
        match self.role:
            case "prefill":
                return 2 * math.ceil(self.mode.max_batched_tokens / self.workload.new_tokens)
            case "both" | "decode":
                return self.sequences_per_rank
            case _:
                assert_never(self.role)


def launch_command(stack: str, replica: Replica) -> LaunchCommand:
    """The command line of a replica.

    Args:
        stack: one of STACKS; any other name is taken as vLLM.
    """
    command = {"sglang": _sglang, "trtllm": _trtllm}.get(stack, _vllm)(replica)
    if replica.precision.label.split(",")[0] == "native":
        return command
    weights = replica.precision.short().partition(",")[0]
    note = f"the checkpoint must hold its weights in {weights}; the released one does not"
    return replace(command, notes=(*command.notes, note))


def _mixed_experts(layout: Layout, notes: list[str], allowed: str) -> None:
    if layout.ep > 1 and layout.moe_tp > 1:
        notes.append(f"ep={layout.ep} with moe_tp={layout.moe_tp} cannot be set: {allowed}")


def _kv_transfer(role: str) -> list[str]:
    return ["--kv-transfer-config", f'{{"kv_connector": "NixlConnector", "kv_role": "{role}"}}']


def _vllm(replica: Replica) -> LaunchCommand:
    layout, notes = replica.layout, list[str]()
    words = ["vllm", "serve", replica.model_id, "--tensor-parallel-size", str(layout.tp)]
    if layout.pp > 1:
        words += ["--pipeline-parallel-size", str(layout.pp)]
    if layout.attention_dp > 1:
        words += ["--data-parallel-size", str(layout.attention_dp)]
    if layout.cp > 1:
        words += ["--decode-context-parallel-size", str(layout.cp)]
    if layout.ep > 1:
        words.append("--enable-expert-parallel")
        _mixed_experts(layout, notes, "experts are spread over all chips of the replica")
        if layout.attention_dp > 1:
            match replica.role:
                case "both":
                    pass
                case "decode":
                    words += ["--all2all-backend", "deepep_low_latency"]
                case "prefill":
                    words += ["--all2all-backend", "deepep_high_throughput"]
                case _:
                    assert_never(replica.role)
    if replica.mode.two_batch_overlap:
        words.append("--enable-dbo")
    words += ["--max-num-seqs", str(replica.running), "--max-num-batched-tokens", str(replica.pass_tokens)]
    words += ["--max-model-len", str(replica.max_tokens), "--gpu-memory-utilization", f"{replica.memory_fraction:g}"]
    if replica.precision.kv_cache == "fp8":
        words += ["--kv-cache-dtype", "fp8"]
    match replica.role:
        case "both":
            pass
        case "prefill":
            words += _kv_transfer("kv_producer")
        case "decode":
            words += _kv_transfer("kv_consumer")
        case _:
            assert_never(replica.role)
    if replica.num_nodes > 1:
        notes.append(f"{replica.num_nodes} hosts: start one a host with --data-parallel-size-local and its address")
    return LaunchCommand(stack="vllm", role=replica.role, words=tuple(words), notes=tuple(notes))


def _sglang(replica: Replica) -> LaunchCommand:
    layout, notes = replica.layout, list[str]()
    ranks = layout.attention_dp
    # --tp-size counts all chips of a pipeline stage, --dp-size the groups among them that hold other sequences
    words = ["python", "-m", "sglang.launch_server", "--model-path", replica.model_id]
    words += ["--tp-size", str(layout.tp * ranks)]
    match replica.role:
        case "both":
            prefills, decodes = True, True
        case "prefill":
            prefills, decodes = True, False
        case "decode":
            prefills, decodes = False, True
        case _:
            assert_never(replica.role)
    if layout.pp > 1:
        words += ["--pp-size", str(layout.pp)]
    if ranks > 1:
        words += ["--dp-size", str(ranks), "--enable-dp-attention"]
    if layout.ep > 1:
        words += ["--ep-size", str(layout.ep)]
        if ranks > 1 and layout.moe_tp == 1:
            words += ["--moe-a2a-backend", "deepep"]
    if replica.mode.two_batch_overlap:
        words.append("--enable-two-batch-overlap")
    if prefills:
        # the option counts the tokens of all attention-dp ranks together
        words += ["--chunked-prefill-size", str(replica.mode.max_batched_tokens * ranks)]
        if replica.mode.admission == "chunked" and decodes:
            words.append("--enable-mixed-chunk")
    words += ["--max-running-requests", str(replica.running * ranks)]
    words += ["--context-length", str(replica.max_tokens), "--mem-fraction-static", f"{replica.memory_fraction:g}"]
    if replica.precision.kv_cache == "fp8":
        words += ["--kv-cache-dtype", "fp8_e4m3"]
    if not (prefills and decodes):
        words += ["--disaggregation-mode", replica.role]
    if replica.num_nodes > 1:
        words += ["--nnodes", str(replica.num_nodes), "--node-rank", "RANK", "--dist-init-addr", "HOST:PORT"]
    return LaunchCommand(stack="sglang", role=replica.role, words=tuple(words), notes=tuple(notes))


def _trtllm(replica: Replica) -> LaunchCommand:
    layout, notes = replica.layout, list[str]()
    words = ["trtllm-serve", replica.model_id, "--tp_size", str(layout.tp * layout.attention_dp)]
    if layout.pp > 1:
        words += ["--pp_size", str(layout.pp)]
    if replica.is_moe:
        words += ["--ep_size", str(layout.ep)]
    if layout.tp > 1 and layout.attention_dp > 1:
        notes.append(f"attention is either cut over all chips or not at all: tp={layout.tp} a rank becomes 1")
    words += ["--max_batch_size", str(replica.running), "--max_num_tokens", str(replica.pass_tokens)]
    words += ["--max_seq_len", str(replica.max_tokens)]
    words += ["--kv_cache_free_gpu_memory_fraction", f"{replica.memory_fraction:g}"]
    options: list[str] = []
    if layout.attention_dp > 1:
        options.append("enable_attention_dp: true")
    if replica.mode.admission == "chunked" and replica.role == "both":
        options.append("enable_chunked_prefill: true")
    if replica.precision.kv_cache == "fp8":
        options += ["kv_cache_config:", "  dtype: fp8"]
    if replica.role != "both":
        options += ["cache_transceiver_config:", "  backend: NIXL"]
    if options:
        words += ["--extra_llm_api_options", "options.yaml"]
    if replica.mode.two_batch_overlap:
        notes.append("no option splits the batch to overlap the exchange of tokens")
    return LaunchCommand(
        stack="trtllm", role=replica.role, words=tuple(words), options_file=tuple(options), notes=tuple(notes)
    )


def plan_commands(plan: Plan, model_id: str, stack: str) -> list[LaunchCommand]:
    """Commands of a plan's cheapest deployment: one for an engine that does both, two for pools; none without answer.

    Args:
        stack: "vllm", "sglang", "trtllm"; the calibration's own stack is the usual choice.
    """
    is_moe = isinstance(plan.model, Model) and plan.model.is_moe
    # a host holds at most 8 chips; a tray of a rack-size domain holds 4
    node = plan.cluster.scale_up.size if plan.cluster.scale_up.size <= 8 else 4
    common: dict[str, Any] = {
        "model_id": model_id,
        "workload": plan.workload,
        "memory_fraction": plan.constraints.memory_fraction,
        "chips_per_node": node,
        "is_moe": is_moe,
    }
    best = plan.best
    if best is None:
        return []
    if best.prefill_pool is not None and best.decode_pool is not None:
        roles: list[tuple[Role, Pool]] = [("prefill", best.prefill_pool), ("decode", best.decode_pool)]
        return [
            launch_command(
                stack,
                Replica(
                    layout=pool.layout,
                    precision=pool.precision,
                    mode=pool.mode,
                    sequences_per_rank=best.max_num_seqs * pool.layout.pp,
                    role=role,
                    **common,
                ),
            )
            for role, pool in roles
        ]
    replica = Replica(
        layout=best.layout,
        precision=best.precision,
        mode=best.mode,
        sequences_per_rank=best.max_num_seqs * best.layout.pp,
        **common,
    )
    return [launch_command(stack, replica)]
