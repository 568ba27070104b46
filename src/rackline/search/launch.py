"""One replica as a command line of vLLM, SGLang, TensorRT-LLM or llama.cpp.

Options of vLLM 0.12 to 0.33 and SGLang 0.5.6 to 0.5.23 as their own argument parsers take them (`bench/engine_flags.py`
gives the commands to the parsers), and of TensorRT-LLM 1.2 as documented (trtllm-serve, LLM arguments), read on
2026-11-22; llama-server of llama.cpp as documented, which a test starts with them. What an engine cannot express is
stated in a note with the command, never omitted silently.

Words name what differs between hosts as variables of a shell: $HOST is the address of a replica's first host, $RANK the
number of a host within its replica, $HOST_SLOTS the addresses of its hosts with the chips of each for mpirun.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, assert_never

from rackline.arch import AppliedAdapter
from rackline.errors import InputError, nearest_names
from rackline.parallel import Layout, Precision
from rackline.search.launch_options import (
    Drafts,
    MoreWords,
    adapter_words,
    alignment_words,
    sglang_drafts,
    trtllm_drafts,
    vllm_drafts,
)
from rackline.search.launch_places import Start
from rackline.search.launch_rules import Role, launch_rules
from rackline.serving.workload import Mode, Workload

STACKS = ("vllm", "sglang", "trtllm", "llama-cpp")
HOST, RANK = "$HOST", "$RANK"
# variables that name the chips of a process: CUDA programming guide, environment variables; ROCm, GPU isolation
_CHIPS_OF = {"NVIDIA": "CUDA_VISIBLE_DEVICES", "AMD": "HIP_VISIBLE_DEVICES"}
_ATTENTION_DP_OPTION = (0, 5, 23)  # first SGLang that was read with --attn-dp-size; --dp-size meant it before
_GRAPH_TOKENS = 8192  # of the largest pass with prompts that TensorRT-LLM captures, as its stack has it
_FP4_WHILE_LOADING = {"vllm": ((0, 33), "nvfp4_per_token"), "sglang": ((0, 5, 23), "nvfp4_online")}  # first read


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
        drafts: speculative decoding; None without.
        max_tokens: prompt and answer of the longest request that it takes; that of the workload when 0 [tokens].
        transfer: library that moves KV caches between the pools of SGLang: the same on both sides.
        host_cache_bytes: memory of the host that keeps prefixes, for each chip [bytes].
        vendor: of the chips.
        cores: of a processor that is the chip, 0 for other chips [count].
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
    drafts: Drafts | None = None
    max_tokens: int = 0
    transfer: str = "nixl"
    host_cache_bytes: float = 0.0
    vendor: str = "NVIDIA"
    cores: int = 0

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
    def longest_request(self) -> int:
        """Prompt and answer of the longest request that it takes [tokens]."""
        return self.max_tokens or math.ceil(self.workload.longest_context)

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
        stack: one of STACKS.
        version: such as "0.5.6"; the newest that was read when it is empty.

    Raises:
        InputError: an engine whose options were not read.
    """
    layout = replica.layout
    match check_stack(stack):
        case "sglang":
            command = _sglang(replica, version)
        case "trtllm":
            command = _trtllm(replica)
        case "llama-cpp":
            command = _llama_cpp(replica)
        case _:
            command = _vllm(replica, version)
    if replica.adapter is not None:
        command = _with(command, adapter_words(command.stack, replica.adapter))
    if replica.mode.alignment is not None and replica.role == "both":
        command = _with(command, alignment_words(command.stack, version, replica.mode.alignment))
    if command.options_file:
        name = f"{replica.role}.yaml" if replica.is_pool else "options.yaml"
        words = (*command.words, "--extra_llm_api_options", name)
        command = replace(command, words=words, options_name=name)
    return replace(
        command,
        chips_variable=_CHIPS_OF.get(replica.vendor, ""),
        version=version or launch_rules(command.stack).version,
        replicas=layout.dp,
        chips_per_replica=layout.chips_per_replica,
        num_hosts=replica.num_hosts,
    )


def check_stack(stack: str) -> str:
    """The name of an engine with launch commands.

    Raises:
        InputError: another name, such as that of a calibration that describes no engine.
    """
    if stack in STACKS:
        return stack
    near = nearest_names(stack, STACKS, 1)
    allowed = f"{', '.join(STACKS)}: the options of others were not read"
    raise InputError(what="launch", given=stack, allowed=allowed, nearest=near[0] if near else STACKS[0])


def transfer_library(stages: int) -> str:
    """The library that moves KV caches between the pools of SGLang, on both sides.

    Mooncake alone moves those of a prefill pool with pipeline stages.

    Args:
        stages: of the pool with the most [count].
    """
    return "mooncake" if stages > 1 else "nixl"


def _with(command: LaunchCommand, more: MoreWords) -> LaunchCommand:
    return replace(
        command,
        words=(*command.words, *more.words),
        other_words=(*command.other_words, *more.words) if command.other_words else (),
        options_file=(*command.options_file, *more.file),
        notes=(*command.notes, *more.notes),
        lacks=(*command.lacks, *more.lacks),
    )


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
    layout, lacks = replica.layout, list[str]()
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
    words += [
        "--max-model-len",
        str(replica.longest_request),
        "--gpu-memory-utilization",
        f"{replica.memory_fraction:g}",
    ]
    words += _conversion("vllm", replica, version, lacks)
    if replica.precision.kv_cache == "fp8":
        words += ["--kv-cache-dtype", "fp8"]
    if replica.is_pool:
        words += ["--kv-transfer-config", _json({"kv_connector": "NixlConnector", "kv_role": "kv_both"})]
    if replica.drafts is not None:
        words += ["--speculative-config", _json(vllm_drafts(replica.drafts))]
    if replica.host_cache_bytes and replica.is_pool:
        lacks.append("a connector for the other pool and one for the memory of the host")
    elif replica.host_cache_bytes:
        # counted over the tensor-parallel and pipeline ranks of an attention-dp rank, in GiB (vllm/config/cache.py)
        size = replica.host_cache_bytes * layout.tp * layout.pp / 2**30
        words += ["--kv-offloading-size", f"{size:.4g}", "--kv-offloading-backend", "native"]
    if replica.mode.admission != "chunked" and not replica.is_pool:
        lacks.append("prompts are mixed with decodes: vLLM has no passes of prompts alone")
    first, others = _vllm_hosts(replica)
    return LaunchCommand(
        stack="vllm",
        role=replica.role,
        words=(*words, *first),
        other_words=(*words, *others) if others else (),
        lacks=tuple(lacks),
    )


def _vllm_hosts(replica: Replica) -> tuple[list[str], list[str]]:
    """Options on the first host and on the others: they share the attention-dp ranks, or else all ranks."""
    if replica.num_hosts == 1:
        return [], []
    ranks = replica.layout.attention_dp
    if ranks % replica.num_hosts == 0:
        local = ranks // replica.num_hosts
        start = ["--data-parallel-size-local", str(local), "--data-parallel-address", HOST]
        return start, [*start, "--headless", "--data-parallel-start-rank", f"$((RANK * {local}))"]
    start = ["--nnodes", str(replica.num_hosts), "--master-addr", HOST, "--node-rank"]
    return [*start, "0"], [*start, RANK, "--headless"]


def _json(value: Mapping[str, Any] | Sequence[int]) -> str:
    return json.dumps(value)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _sglang(replica: Replica, version: str) -> LaunchCommand:
    layout, lacks = replica.layout, list[str]()
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
    words += ["--context-length", str(replica.longest_request), "--mem-fraction-static", f"{replica.memory_fraction:g}"]
    words += _conversion("sglang", replica, version, lacks)
    if replica.precision.kv_cache == "fp8":
        words += ["--kv-cache-dtype", "fp8_e4m3"]
    if replica.is_pool:
        words += ["--disaggregation-mode", replica.role, "--disaggregation-transfer-backend", replica.transfer]
    if replica.drafts is not None:
        words += sglang_drafts(replica.drafts)
    if replica.host_cache_bytes:
        # a rank's share in GB (sglang/srt/mem_cache, HostKVCache)
        size = max(int(replica.host_cache_bytes / 1e9), 1)
        words += ["--enable-hierarchical-cache", "--hicache-size", str(size)]
    others: list[str] = []
    if replica.num_hosts > 1:
        words += ["--nnodes", str(replica.num_hosts), "--dist-init-addr", f"{HOST}:5000", "--node-rank", RANK]
        others = words
    return LaunchCommand(
        stack="sglang", role=replica.role, words=tuple(words), other_words=tuple(others), lacks=tuple(lacks)
    )


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
    words += ["--max_seq_len", str(replica.longest_request)]
    words += ["--kv_cache_free_gpu_memory_fraction", f"{replica.memory_fraction:g}"]
    options: list[str] = []
    if layout.attention_dp > 1:
        options.append("enable_attention_dp: true")
    if replica.prefills:
        options.append("enable_chunked_prefill: true")  # else a prompt longer than a pass is refused
        # off by default; the tokens of a pass are padded to the next of these
        sizes = [2**power for power in range(8)] + list(range(256, min(replica.pass_tokens, _GRAPH_TOKENS) + 1, 256))
        options += ["torch_compile_config:", "  enable_piecewise_cuda_graph: true", "  enable_userbuffers: false"]
        options.append(f"  capture_num_tokens: {_json(sizes)}")
    if replica.role == "prefill":
        options.append("disable_overlap_scheduler: true")  # workers that only prefill do not have it
    if replica.redundant_experts:
        slots = replica.num_experts + replica.redundant_experts
        options += ["moe_config:", "  load_balancer:", f"    num_slots: {slots}"]
    cache = ["  dtype: fp8"] if replica.precision.kv_cache == "fp8" else []
    if replica.host_cache_bytes:
        cache.append(f"  host_cache_size: {int(replica.host_cache_bytes)}")
    if cache:
        # the table of the file stands in place of the option
        options += ["kv_cache_config:", *cache, f"  free_gpu_memory_fraction: {replica.memory_fraction:g}"]
    if replica.quantise_to:
        options += ["quant_config:", f"  quant_algo: {'FP8' if replica.quantise_to == 'fp8' else 'NVFP4'}"]
    if replica.is_pool:
        options += ["cache_transceiver_config:", "  backend: NIXL"]
    if replica.drafts is not None:
        options += trtllm_drafts(replica.drafts)
    if replica.mode.two_batch_overlap:
        lacks.append("no option splits the batch to overlap the exchange of tokens")
    before = ("mpirun", "-n", str(layout.chips_per_replica), "--host", "$HOST_SLOTS", "trtllm-llmapi-launch")
    return LaunchCommand(
        stack="trtllm",
        role=replica.role,
        words=tuple(words),
        before=before if replica.num_hosts > 1 else (),
        options_file=tuple(options),
        lacks=tuple(lacks),
    )


_GGUF_TYPES = {"fp32": "f32", "bf16": "bf16", "fp16": "f16", "int8": "q8_0"}  # of the cache, by data type


def _llama_cpp(replica: Replica) -> LaunchCommand:
    """llama-server: slots with a part of the context each, all of whose prompts and tokens share a batch."""
    layout, lacks = replica.layout, list[str]()
    slots, longest = replica.running, replica.longest_request
    model_id = replica.model_id
    local = model_id.startswith(("/", "."))
    words = ["llama-server", "--model" if local else "--hf-repo"]
    words.append(f"{model_id}/model.gguf" if local and not model_id.endswith(".gguf") else model_id)
    words += ["--ctx-size", str(slots * longest), "--parallel", str(slots)]
    words += ["--batch-size", str(replica.pass_tokens), "--ubatch-size", str(replica.pass_tokens)]
    kind = _GGUF_TYPES.get(replica.precision.kv_cache)
    if kind is None:
        lacks.append(f"a cache in {replica.precision.kv_cache}: --cache-type-k takes {', '.join(_GGUF_TYPES)}")
    else:
        words += ["--cache-type-k", kind, "--cache-type-v", kind]
    words += ["--cache-ram", str(round(replica.host_cache_bytes * layout.chips_per_replica / 2**20))]  # in MiB; 0: none
    if replica.cores:
        words += ["--threads", str(replica.cores)]
    if layout.chips_per_replica > layout.pp:
        lacks.append(f"{layout.label()} cannot be set: layers are split over chips, --split-mode layer")
    if replica.is_pool:
        lacks.append("separate pools for prefill and decode")
    if replica.drafts is not None:
        lacks.append("drafts: its options were not read")
    if replica.quantise_to:
        lacks.append(f"weights converted to {replica.quantise_to} while loading: a GGUF file in that type is needed")
    note = "the weights are a GGUF file in the plan's data types" + (
        ", written by convert_hf_to_gguf.py" if local else ""
    )
    return LaunchCommand(stack="llama-cpp", role=replica.role, words=tuple(words), notes=(note,), lacks=tuple(lacks))
