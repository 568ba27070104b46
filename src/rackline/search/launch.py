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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rackline.arch import AppliedAdapter
from rackline.errors import InputError, nearest_names
from rackline.parallel import Layout, Precision
from rackline.search.launch_commands import LaunchCommand, adapter_words, alignment_words, chosen
from rackline.search.launch_rules import Role, launch_rules, version_numbers
from rackline.serving.workload import Mode, Workload

STACKS = ("vllm", "sglang", "trtllm", "llama-cpp")
HOST, RANK = "$HOST", "$RANK"
# variables that name the chips of a process: CUDA programming guide, environment variables; ROCm, GPU isolation
_CHIPS_OF = {"NVIDIA": "CUDA_VISIBLE_DEVICES", "AMD": "HIP_VISIBLE_DEVICES"}
_ATTENTION_DP_OPTION = (0, 5, 23)  # first SGLang that was read with --attn-dp-size; --dp-size meant it before
_GRAPH_TOKENS = 8192  # of the largest pass with prompts that TensorRT-LLM captures, as its stack has it
_FP4_WHILE_LOADING = {"vllm": ((0, 33), "nvfp4_per_token"), "sglang": ((0, 5, 23), "nvfp4_online")}  # first read
_GGUF_TYPES = {"fp32": "f32", "bf16": "bf16", "fp16": "f16", "int8": "q8_0"}  # of the cache, by data type


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafts:
    """Speculative decoding of a replica.

    Args:
        tokens: drafts of a step [tokens].
        model_id: Hugging Face id or path of the draft model; empty for the model's own layer.
        is_head: whether the draft model is a head of one layer (EAGLE), not a model of its own.
    """

    tokens: int
    model_id: str = ""
    is_head: bool = False


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
        return max(1 if self.role == "decode" else self.mode.max_batched_tokens, self.sequences_per_rank)

    @property
    def running(self) -> int:
        """Running sequences of one rank; for a prefill replica those of one pass and the next [sequences]."""
        if self.role == "prefill":
            return 2 * math.ceil(self.mode.max_batched_tokens / self.workload.new_tokens)
        return self.sequences_per_rank


def launch_command(stack: str, replica: Replica, version: str = "") -> LaunchCommand:
    """The command line of a replica.

    Args:
        stack: one of STACKS.
        version: such as "0.5.6"; the newest that was read when it is empty.

    Raises:
        InputError: an engine whose options were not read.
    """
    layout, command = replica.layout, _ENGINES[check_stack(stack)](replica, version)
    if replica.adapter is not None:
        command = command.told(adapter_words(command.stack, replica.adapter))
    if replica.mode.alignment is not None and replica.role == "both":
        command = command.told(alignment_words(command.stack, version, replica.mode.alignment))
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


def _conversion(stack: str, replica: Replica, version: str) -> tuple[str, str]:
    """How the weights are converted while they are loaded, and what the version lacks for it; empty for neither."""
    if replica.quantise_to != "fp4":
        return replica.quantise_to, ""
    since, method = _FP4_WHILE_LOADING[stack]
    if version and version_numbers(version) < since:
        return "", f"{stack} {version} does not convert to fp4: a checkpoint in fp4 is needed"
    return method, ""


def _vllm(replica: Replica, version: str) -> LaunchCommand:
    layout, spread = replica.layout, replica.layout.attention_dp > 1
    (first, others), (method, missing) = _vllm_hosts(replica), _conversion("vllm", replica, version)
    exchange = "low_latency" if replica.decodes else "high_throughput"
    copies = json.dumps({"num_redundant_experts": replica.redundant_experts})
    transfer = json.dumps({"kv_connector": "NixlConnector", "kv_role": "kv_both"})
    drafts = json.dumps(replica.drafts and vllm_drafts(replica.drafts))
    # counted over the tensor-parallel and pipeline ranks of an attention-dp rank, in GiB (vllm/config/cache.py)
    kept_gib = replica.host_cache_bytes * layout.tp * layout.pp / 2**30
    words = chosen(
        (True, "vllm", "serve", replica.model_id, "--tensor-parallel-size", layout.tp),
        (layout.pp > 1, "--pipeline-parallel-size", layout.pp),
        (spread, "--data-parallel-size", layout.attention_dp),
        (layout.cp > 1 and not replica.decodes, "--prefill-context-parallel-size", layout.cp),
        (layout.ep > 1, "--enable-expert-parallel"),
        (layout.ep > 1 and spread, "--all2all-backend", f"deepep_{exchange}"),
        (replica.redundant_experts and spread, "--enable-eplb", "--eplb-config", copies),
        (replica.mode.two_batch_overlap, "--enable-dbo"),
        (True, "--max-num-seqs", replica.running, "--max-num-batched-tokens", replica.pass_tokens),
        (True, "--max-model-len", replica.longest_request),
        (True, "--gpu-memory-utilization", f"{replica.memory_fraction:g}"),
        (method, "--quantization", method),
        (replica.precision.kv_cache == "fp8", "--kv-cache-dtype", "fp8"),
        (replica.is_pool, "--kv-transfer-config", transfer),
        (replica.drafts, "--speculative-config", drafts),
        (kept_gib and not replica.is_pool, "--kv-offloading-size", f"{kept_gib:.4g}"),
        (kept_gib and not replica.is_pool, "--kv-offloading-backend", "native"),
    )
    lacks = chosen(
        (
            layout.cp > 1 and replica.decodes,
            f"cp={layout.cp} adds chips that share a context; --decode-context-parallel-size cannot",
        ),
        (
            layout.ep > 1 and layout.moe_tp > 1,
            f"ep={layout.ep} with moe_tp={layout.moe_tp} cannot be set: experts go to all chips or none",
        ),
        (missing, missing),
        (kept_gib and replica.is_pool, "a connector for the other pool and one for the memory of the host"),
        (
            replica.mode.admission != "chunked" and not replica.is_pool,
            "prompts are mixed with decodes: vLLM has no passes of prompts alone",
        ),
    )
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


def _sglang(replica: Replica, version: str) -> LaunchCommand:
    layout, ranks = replica.layout, replica.layout.attention_dp
    method, missing = _conversion("sglang", replica, version)
    option = bool(version) and version_numbers(version) < _ATTENTION_DP_OPTION
    mixed = replica.mode.admission == "chunked" and replica.decodes
    words = chosen(
        (True, "python", "-m", "sglang.launch_server", "--model-path", replica.model_id),
        # it counts all chips of a pipeline stage; attention-dp groups among them hold other sequences
        (True, "--tp-size", layout.tp * ranks),
        (layout.pp > 1, "--pp-size", layout.pp),
        (ranks > 1 and option, "--dp-size", ranks, "--enable-dp-attention"),
        (ranks > 1 and not option, "--attn-dp-size", ranks),
        (layout.ep > 1, "--ep-size", layout.ep),
        (layout.ep > 1 and ranks > 1 and layout.moe_tp == 1, "--moe-a2a-backend", "deepep"),
        (replica.redundant_experts, "--ep-num-redundant-experts", replica.redundant_experts, "--enable-eplb"),
        (replica.mode.two_batch_overlap, "--enable-two-batch-overlap"),
        # the option counts the tokens of all attention-dp ranks together
        (replica.prefills, "--chunked-prefill-size", replica.mode.max_batched_tokens * ranks),
        (replica.prefills and mixed, "--enable-mixed-chunk"),
        (True, "--max-running-requests", replica.running * ranks),
        (True, "--context-length", replica.longest_request, "--mem-fraction-static", f"{replica.memory_fraction:g}"),
        (method, "--quantization", method),
        (replica.precision.kv_cache == "fp8", "--kv-cache-dtype", "fp8_e4m3"),
        (replica.is_pool, "--disaggregation-mode", replica.role),
        (replica.is_pool, "--disaggregation-transfer-backend", replica.transfer),
        (replica.drafts, *(sglang_drafts(replica.drafts) if replica.drafts else ())),
        # a rank's share in GB (sglang/srt/mem_cache, HostKVCache)
        (replica.host_cache_bytes, "--enable-hierarchical-cache"),
        (replica.host_cache_bytes, "--hicache-size", max(int(replica.host_cache_bytes / 1e9), 1)),
        (replica.num_hosts > 1, "--nnodes", replica.num_hosts, "--dist-init-addr", f"{HOST}:5000"),
        (replica.num_hosts > 1, "--node-rank", RANK),
    )
    lacks = chosen((layout.cp > 1, f"cp={layout.cp} cannot be set for this model"), (missing, missing))
    return LaunchCommand(
        stack="sglang",
        role=replica.role,
        words=tuple(words),
        other_words=tuple(words) if replica.num_hosts > 1 else (),
        lacks=tuple(lacks),
    )


def _trtllm(replica: Replica, version: str) -> LaunchCommand:
    layout, spread = replica.layout, replica.layout.attention_dp > 1
    eight_bits, kept = replica.precision.kv_cache == "fp8", int(replica.host_cache_bytes)
    words = chosen(
        (True, "trtllm-serve", replica.model_id, "--tp_size", layout.tp * layout.attention_dp),
        (layout.pp > 1, "--pp_size", layout.pp),
        (replica.num_experts, "--ep_size", layout.ep),
        (True, "--max_batch_size", replica.running, "--max_num_tokens", replica.pass_tokens),
        (True, "--max_seq_len", replica.longest_request),
        (True, "--kv_cache_free_gpu_memory_fraction", f"{replica.memory_fraction:g}"),
    )
    # off by default; the tokens of a pass are padded to the next of these
    sizes = [2**power for power in range(8)] + list(range(256, min(replica.pass_tokens, _GRAPH_TOKENS) + 1, 256))
    slots = replica.num_experts + replica.redundant_experts
    options = chosen(
        (spread, "enable_attention_dp: true"),
        (replica.prefills, "enable_chunked_prefill: true"),  # else a prompt longer than a pass is refused
        (replica.prefills, "torch_compile_config:", "  enable_piecewise_cuda_graph: true"),
        (replica.prefills, "  enable_userbuffers: false", f"  capture_num_tokens: {json.dumps(sizes)}"),
        (replica.role == "prefill", "disable_overlap_scheduler: true"),  # workers that only prefill do not have it
        (replica.redundant_experts, "moe_config:", "  load_balancer:", f"    num_slots: {slots}"),
        # the table of the file stands in place of the option
        (eight_bits or kept, "kv_cache_config:"),
        (eight_bits, "  dtype: fp8"),
        (kept, f"  host_cache_size: {kept}"),
        (eight_bits or kept, f"  free_gpu_memory_fraction: {replica.memory_fraction:g}"),
        (replica.quantise_to, "quant_config:"),
        (replica.quantise_to, f"  quant_algo: {'FP8' if replica.quantise_to == 'fp8' else 'NVFP4'}"),
        (replica.is_pool, "cache_transceiver_config:", "  backend: NIXL"),
        (replica.drafts, *(trtllm_drafts(replica.drafts) if replica.drafts else ())),
    )
    lacks = chosen(
        (
            layout.tp > 1 and spread,
            f"attention is either cut over all chips or not at all: tp={layout.tp} a rank becomes 1",
        ),
        (replica.mode.two_batch_overlap, "no option splits the batch to overlap the exchange of tokens"),
    )
    before = ("mpirun", "-n", str(layout.chips_per_replica), "--host", "$HOST_SLOTS", "trtllm-llmapi-launch")
    return LaunchCommand(
        stack="trtllm",
        role=replica.role,
        words=tuple(words),
        before=before if replica.num_hosts > 1 else (),
        options_file=tuple(options),
        lacks=tuple(lacks),
    )


def _llama_cpp(replica: Replica, version: str) -> LaunchCommand:
    """llama-server: slots with a part of the context each, all of whose prompts and tokens share a batch."""
    layout, model_id, cache = replica.layout, replica.model_id, replica.precision.kv_cache
    local, kind = model_id.startswith(("/", ".")), _GGUF_TYPES.get(cache)
    file = f"{model_id}/model.gguf" if local and not model_id.endswith(".gguf") else model_id
    kept_mib = round(replica.host_cache_bytes * layout.chips_per_replica / 2**20)  # 0: none
    words = chosen(
        (True, "llama-server", "--model" if local else "--hf-repo", file),
        (True, "--ctx-size", replica.running * replica.longest_request, "--parallel", replica.running),
        (True, "--batch-size", replica.pass_tokens, "--ubatch-size", replica.pass_tokens),
        (kind, "--cache-type-k", kind, "--cache-type-v", kind),
        (True, "--cache-ram", kept_mib),
        (replica.cores, "--threads", replica.cores),
    )
    lacks = chosen(
        (kind is None, f"a cache in {cache}: --cache-type-k takes {', '.join(_GGUF_TYPES)}"),
        (
            layout.chips_per_replica > layout.pp,
            f"{layout.label()} cannot be set: layers are split over chips, --split-mode layer",
        ),
        (replica.is_pool, "separate pools for prefill and decode"),
        (replica.drafts, "drafts: its options were not read"),
        (
            replica.quantise_to,
            f"weights converted to {replica.quantise_to} while loading: a GGUF file in that type is needed",
        ),
    )
    note = "the weights are a GGUF file in the plan's data types" + (
        ", written by convert_hf_to_gguf.py" if local else ""
    )
    return LaunchCommand(stack="llama-cpp", role=replica.role, words=tuple(words), notes=(note,), lacks=tuple(lacks))


_ENGINES: Mapping[str, Callable[[Replica, str], LaunchCommand]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "trtllm": _trtllm,
    "llama-cpp": _llama_cpp,
}


def vllm_drafts(drafts: Drafts) -> Mapping[str, Any]:
    """The value of --speculative-config (vllm/config/speculative.py)."""
    count = {"num_speculative_tokens": drafts.tokens}
    if not drafts.model_id:
        return {"method": "mtp", **count}
    return {"method": _eagle(drafts) if drafts.is_head else "draft_model", "model": drafts.model_id, **count}


def _eagle(drafts: Drafts) -> str:
    """Which EAGLE a head is, by its name, as vLLM tells them apart."""
    return "eagle3" if "eagle3" in drafts.model_id.lower().replace("-", "") else "eagle"


def sglang_drafts(drafts: Drafts) -> list[str]:
    """Options of speculative decoding: one draft after another, without a tree (SGLang, speculative decoding)."""
    chain = ["--speculative-num-steps", str(drafts.tokens), "--speculative-eagle-topk", "1"]
    chain += ["--speculative-num-draft-tokens", str(drafts.tokens + 1)]
    if not drafts.model_id:
        return ["--speculative-algorithm", "EAGLE", *chain]  # the model's own layer, which NEXTN is another name of
    kind = _eagle(drafts).upper() if drafts.is_head else "STANDALONE"
    return ["--speculative-algorithm", kind, "--speculative-draft-model-path", drafts.model_id, *chain]


def trtllm_drafts(drafts: Drafts) -> list[str]:
    """Lines of speculative decoding (tensorrt_llm/llmapi/llm_args.py)."""
    if not drafts.model_id:
        return ["speculative_config:", "  decoding_type: MTP", f"  num_nextn_predict_layers: {drafts.tokens}"]
    kind = "Eagle" if drafts.is_head else "DraftTarget"
    where = f"  speculative_model_dir: {json.dumps(drafts.model_id)}"
    return ["speculative_config:", f"  decoding_type: {kind}", f"  max_draft_len: {drafts.tokens}", where]
