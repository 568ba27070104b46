"""Serving stacks: what an engine does around its kernels, and the defaults of its scheduler."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import inf
from typing import Annotated, Literal

from pydantic import Field

from rackline.catalog import names
from rackline.catalog.base import (
    CatalogueObject,
    Count,
    CountOrZero,
    Fraction,
    NonNegative,
    Positive,
    Record,
    Text,
    changed_keys,
    not_in_files,
    stated,
    varying,
)
from rackline.catalog.load import read_object
from rackline.hardware import Chip
from rackline.parallel.deployment import Routing
from rackline.parallel.memory import SERVER, FractionOf, ServerMemory
from rackline.passes import Calibration
from rackline.passes.features import FloatLike
from rackline.serving.workload import Admission, Mode, Workload, Workloads


class Variation(Record):
    """Numbers of a stack that hold for some of its versions, or on some chips.

    Args:
        before: Versions below this one, such as "0.8"; all when it is missing.
        since: This version and newer ones; all when it is missing.
        hbm_from_bytes: Chips with at least so much memory [bytes].
        hbm_below_bytes: Chips with less memory [bytes].
        chip_names: Parts of the names of chips, of which one must occur, as engines look for "a100" in the name of the
            device; all chips when it is missing.
    """

    before: str | None = Field(default=None, pattern=r"^\d+(\.\d+)*$")
    since: str | None = Field(default=None, pattern=r"^\d+(\.\d+)*$")
    hbm_from_bytes: Positive | None = None
    hbm_below_bytes: Positive | None = None
    chip_names: tuple[Text, ...] = ()

    def holds(self, version: tuple[int, ...], chip: Chip | None) -> bool:
        """Whether it is about this version, () for the newest, on a chip."""
        if self.before is not None and not (version and version < version_numbers(self.before)):
            return False
        if self.since is not None and version and version < version_numbers(self.since):
            return False
        if self.hbm_from_bytes is None and self.hbm_below_bytes is None and not self.chip_names:
            return True
        if chip is None:
            return False
        least, below = self.hbm_from_bytes or 0.0, self.hbm_below_bytes or inf
        named = not self.chip_names or any(part in chip.name for part in self.chip_names)
        return least <= chip.hbm_bytes < below and named


@dataclass(frozen=True, slots=True, kw_only=True)
class StackScheduler:
    """The scheduler of a stack: how requests enter passes, and the limits of a pass.

    Args:
        admission: How prompts enter: "chunked", "prefill_first" or "decode_first".
        max_batched_tokens: Tokens of a pass of one rank (vLLM: max_num_batched_tokens) [tokens].
        offline_batched_tokens: The same where the engine's class for offline use is called instead of its server;
            max_batched_tokens if missing [tokens].
        max_num_seqs: Sequences that one rank decodes at most; a plan sets its own [sequences].
        reserve: Cache that must be free for a request to start: "chunk" (of its next pass) or "final" (of the whole
            request, so that none is ever put back).
        alignments: Policies by which attention-dp ranks can be made to wait for each other's prompts; off by default.
        batch_wait_steps: Steps that a prompt waits for others to join its pass, where the operator sets such a limit
            [steps].
        neighbour_passes: Whether only sequences of neighbouring slots share a pass, as in llama.cpp with a cache for
            each sequence; the simulator knows it, closed forms do not.
    """

    admission: Admission = stated("chunked")
    max_batched_tokens: Count = stated(8192)
    offline_batched_tokens: Count | None = None
    max_num_seqs: Count = stated(2048)
    reserve: Literal["chunk", "final"] = "chunk"
    alignments: tuple[Text, ...] = ()
    batch_wait_steps: CountOrZero = 0
    neighbour_passes: bool = False

    def offline(self) -> StackScheduler:
        """Return the scheduler of the engine's class for offline use: with a token budget of its own if it has one."""
        return replace(self, max_batched_tokens=self.offline_batched_tokens or self.max_batched_tokens)

    def mode(self) -> Mode:
        """Return the scheduler's default mode."""
        return Mode(admission=self.admission, max_batched_tokens=self.max_batched_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class StackMemory:
    """The memory of a chip that a stack's server uses, and what it needs besides weights and cache.

    Args:
        memory_fraction: Share of HBM that the server uses (vLLM: gpu_memory_utilization) [fraction].
        fraction_of: What memory_fraction is of: "memory" (all that the server holds), "free" (the cache, of what the
            rest leaves) or "static" (weights and cache).
        context_bytes: Memory of the process before weights are loaded (CUDA context), which the fraction of "free" and
            "static" does not reach [bytes].
        runtime_bytes: Loaded kernels and workspaces [bytes].
        communication_bytes: Buffers of the collectives, for each chip of the group [bytes].
        graph_bytes: Captured CUDA graphs, where the stack counts them before it sizes the cache [bytes].
        logit_bytes: Memory of one logit while tokens of max_num_seqs sequences are drawn [bytes].
    """

    memory_fraction: Annotated[float, Field(gt=0.0, le=1.0)] = stated(0.9)
    fraction_of: FractionOf = "memory"
    context_bytes: NonNegative = 0.0
    runtime_bytes: NonNegative = 0.0
    communication_bytes: NonNegative = 0.0
    graph_bytes: NonNegative = 0.0
    logit_bytes: NonNegative = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StackGraphs:
    """The passes that a stack runs from CUDA graphs, and what the other passes cost.

    Args:
        captured_tokens: Tokens of the largest pass that CUDA graphs hold, with prompts or without; where it is 0,
            graphs hold decode steps of any size and no pass with prompts [tokens].
        captured_prompt_tokens: Tokens of the largest pass with prompts that CUDA graphs hold in pieces, where decode
            steps have graphs of their own [tokens].
        need_all_ranks: Whether these hold a pass only if every attention-dp rank that has work runs prompts.
        prefill_slowdown: Time of prompt work over that of the kernels alone [ratio].
        eager_s_per_layer: Least time of a layer in a pass with prompts, which no CUDA graph covers [s].
        eager_decode: Whether decode steps run without CUDA graphs as well, so that the same least time holds for them.
    """

    captured_tokens: CountOrZero = 0
    captured_prompt_tokens: CountOrZero = 0
    need_all_ranks: bool = False
    prefill_slowdown: Annotated[float, Field(ge=1.0)] = 1.0
    eager_s_per_layer: NonNegative = 0.0
    eager_decode: bool = False

    @property
    def held_tokens(self) -> int:
        """Return the tokens of the largest pass with prompts that CUDA graphs hold; 0 where they hold none."""
        return max(self.captured_tokens, self.captured_prompt_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class StackHost:
    """The time that the host of a stack adds to passes.

    Args:
        s_per_step: Time of the host in each step that the chip waits for [s].
        s_per_sequence: Time of the host for each sequence in a step (sampling, detokenising, streaming), which hides
            behind the chip as far as it is shorter [s].
        gap_s_per_layer: Time that the chip waits between the kernels of each layer, in any pass [s].
        ray_s_per_step, ray_s_per_sequence: The first two where Ray drives the processes of an engine, whose executor
            does not prepare a step while another runs [s].
    """

    s_per_step: NonNegative = 0.0
    s_per_sequence: NonNegative = 0.0
    gap_s_per_layer: NonNegative = 0.0
    ray_s_per_step: NonNegative = 0.0
    ray_s_per_sequence: NonNegative = 0.0

    def under_ray(self) -> StackHost:
        """Return the host where Ray drives the processes of an engine."""
        return replace(
            self,
            s_per_step=max(self.s_per_step, self.ray_s_per_step),
            s_per_sequence=max(self.s_per_sequence, self.ray_s_per_sequence),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StackArrivals:
    """What a request waits for under a stack besides its own passes.

    Args:
        first_token_s: Time to first token beyond the passes: tokenizer, scheduling, network [s].
        first_token_equal_s: The same where a benchmark's requests all have one length [s]; first_token_s if missing.
        burst_share: Share of the other requests' prompts that a request waits for in a closed loop [fraction].
        burst_equal_share: The same where a benchmark's requests all have one length, which keep in step where prompts
            have passes of their own [fraction]; burst_share if missing.
        synchrony: Share of prompts that arrive together when their cohort has ended, not between decode steps
            [fraction].
        handover_s: Time to first token between a prefill and a decode worker beyond the transfer of the KV cache: two
            more queues, the router, connections [s].
        pool_burst_share: Share of the other requests' prompts that a request waits for in a closed loop of pools
            [fraction].
    """

    first_token_s: NonNegative = 0.0
    first_token_equal_s: NonNegative | None = None
    burst_share: Fraction = 0.0
    burst_equal_share: Fraction | None = None
    synchrony: Fraction = 0.0
    handover_s: NonNegative = 0.0
    pool_burst_share: Fraction = 0.0

    def beyond_passes_s(self, workload: Workload | Workloads) -> float:
        """Return the time to first token outside of all passes, which depends on whether lengths are equal [s]."""
        equal = self.first_token_equal_s if workload.equal_lengths else None
        return self.first_token_s if equal is None else equal

    def share_of_burst(self, workload: Workload | Workloads) -> float:
        """Return the share of the other requests' prompts that a request waits for, which depends on whether lengths
        are equal [fraction]."""
        equal = self.burst_equal_share if workload.equal_lengths else None
        return self.burst_share if equal is None else equal

    def of_prefill_pool(self) -> StackArrivals:
        """Return the waits in a pool of prefill workers, which hand each request over to a decode worker."""
        equal = self.first_token_equal_s
        return replace(
            self,
            first_token_s=self.first_token_s + self.handover_s,
            first_token_equal_s=None if equal is None else equal + self.handover_s,
            burst_share=self.pool_burst_share,
            burst_equal_share=None,
            handover_s=0.0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StackKernels:
    """The kernels of a stack that differ from those of other stacks.

    Args:
        rank_skew_s: Time that ranks wait for each other at an all-reduce, per log2 of their number [s].
        graph_all_reduce: Implementation of the custom all-reduce that the stack captures in CUDA graphs, as the
            tables name it; empty without one.
        reduces_in_host: Whether its own all-reduce kernels need all ranks in one host; else a scale-up domain will do.
        fused_all_reduce: Whether servers are launched with an all-reduce fused into the norm, so that tables of the
            custom one of older versions do not describe them; the newest version's stands in.
        separate_quantise: Data types of products whose activations the stack quantises in a kernel of its own; the
            other stacks fuse it into the kernel before.
        sample_bytes_per_logit: Memory traffic of a logit while a token is drawn by top-p from all of them; greedy
            decoding has none [bytes].
    """

    rank_skew_s: NonNegative = 0.0
    graph_all_reduce: str = ""
    reduces_in_host: bool = False
    fused_all_reduce: bool = False
    separate_quantise: tuple[Text, ...] = ()
    sample_bytes_per_logit: NonNegative = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StackExperts:
    """How a stack places and runs the experts of a mixture.

    Args:
        popular: Whether some experts are chosen more often than others, as measured; files do not say.
        rearranged_from_ep: Expert-parallel ranks from which the stack's published launch commands rearrange experts by
            popularity; none where they do not [count].
        redundant: Copies of popular experts where they are rearranged [count].
        untuned: Chip generation and data type of experts whose kernels have no tuned configuration.
        untuned_slowdown: How many times as long such kernels take as the tuned ones in the tables [ratio].
        padded: Chip generation and data type of experts whose kernel pads each expert of a rank to whole tiles, chosen
            or not.
        padded_below_tp: Chips that share an expert from which another kernel runs; none where it always does [chips].
        padded_eta_compute: Share of the peak that the padding kernel reaches [1].
    """

    popular: bool = not_in_files(True)
    rearranged_from_ep: Count | None = None
    redundant: CountOrZero = 0
    untuned: tuple[Text, ...] = ()
    untuned_slowdown: Annotated[float, Field(ge=1.0)] = 1.0
    padded: tuple[Text, ...] = ()
    padded_below_tp: Count | None = None
    padded_eta_compute: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0

    @property
    def routing(self) -> Routing:
        """Return the routing of tokens to experts by default: as measured, with experts rearranged if the stack does
        so."""
        if not self.popular:
            return Routing(law="uniform")
        return Routing(
            law="log_normal",
            rearranged_from_ep=self.rearranged_from_ep,
            redundant_experts=self.redundant,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack(CatalogueObject):
    """A serving stack: what an engine does around its kernels, and the defaults of its scheduler.

    Each record is a table of the stack's file.

    Args:
        fallback_rank: Place among the stacks whose kernels were measured, which stand in for one another; none for a
            stack without measured kernels.
        default_rank: Place among the engines that are taken where none is named; none for one that has to be named or
            measured.
        default_vendors: Vendors of the chips on which it is taken where none is named.
        static_batch_version: Version that drove single batches step by step where a source states none; empty for the
            newest.
        newest_version: Newest version whose defaults these are; what is launched where nothing else is said.
        version_error: Median and 90th percentile of the error in time per output token on versions left out of its
            fit in turn [fraction].
        scheduler: How requests enter passes, and the limits of a pass.
        memory: What the server uses and needs of a chip's memory.
        graphs: Passes that run from CUDA graphs, and what the others cost.
        host: Time that the host adds to passes.
        arrivals: What a request waits for besides its own passes.
        kernels: Kernels that differ from those of other stacks.
        experts: How the experts of a mixture are placed and run.
        defaults: What differs in some versions or on some chips; later entries win.
    """

    fallback_rank: Count | None = None
    default_rank: Count | None = None
    default_vendors: tuple[str, ...] = ()
    static_batch_version: str = ""
    newest_version: str = ""
    version_error: tuple[Fraction, ...] = ()
    scheduler: StackScheduler = stated(StackScheduler())
    memory: StackMemory = stated(StackMemory())
    graphs: StackGraphs = StackGraphs()
    host: StackHost = StackHost()
    arrivals: StackArrivals = StackArrivals()
    kernels: StackKernels = StackKernels()
    experts: StackExperts = StackExperts()
    defaults: tuple[Variation, ...] = varying(Variation)

    def calibrated(self, numbers: Calibration, generation: str, num_layers: int = 0) -> Calibration:
        """Kernel calibration, adjusted for what this version of the stack adds.

        The host time per step and the gaps of all layers are added; experts without a tuned configuration take
        `experts.untuned_slowdown` times as long.

        Args:
            numbers: calibration of the stack's kernels.
            generation: chip generation.
            num_layers: layers of the model [count].
        """
        host, experts, in_host = self.host, self.experts, self.kernels.reduces_in_host
        added_s = host.s_per_step + host.gap_s_per_layer * num_layers
        if numbers.is_unit or not (added_s or experts.untuned or experts.padded or in_host):
            return numbers
        slower = 1.0 / experts.untuned_slowdown
        operations = dict(numbers.operations)
        for of in experts.untuned:
            chips, _, dtype = of.partition(" ")
            if chips == generation:
                found = numbers.lookup("moe", dtype)
                operations["moe", dtype] = replace(
                    found,
                    overhead_s=found.overhead_s / slower,
                    eta_compute=found.eta_compute * slower,
                    eta_memory=found.eta_memory * slower,
                    tile_s=found.tile_s / slower,
                    permute=found.permute / slower,
                    evidence="derived",
                    origin=f"{found.origin}, × {experts.untuned_slowdown:g}: no tuned configuration in this version",
                )
        padded: dict[str, float] = {}
        for of in experts.padded:
            chips, _, dtype = of.partition(" ")
            if chips == generation:
                padded[dtype] = experts.padded_below_tp or inf
                operations["padded_moe", dtype] = replace(
                    numbers.lookup("moe", dtype),
                    eta_compute=experts.padded_eta_compute,
                    evidence="derived",
                    origin="every expert padded to whole tiles in this version",
                )
        return replace(
            numbers,
            host_s_per_step=numbers.host_s_per_step + added_s,
            operations=operations,
            padded_experts=padded,
            reduces_in_host=in_host,
        )

    def on(self, version: str, chip: Chip | None) -> Stack:
        """Return the stack in a version on a chip.

        Args:
            version: such as "0.6.3.post1"; the newest if empty or not a number.
            chip: whose memory and name some defaults depend on.
        """
        numbers, stack = version_numbers(version), self
        for entry in self.defaults:
            if entry.holds(numbers, chip):
                stack = stack.with_values(changed_keys(entry, Variation))
        return stack

    def prefill_pool(self) -> Stack:
        """Return the stack of prefill-only workers: as fast as the kernels, with a handover to a decode worker."""
        graphs = replace(self.graphs, prefill_slowdown=1.0)
        return replace(self, graphs=graphs, arrivals=self.arrivals.of_prefill_pool())

    def server_memory(self, batched_tokens: FloatLike | None = None) -> ServerMemory:
        """Return the memory of a chip that the server keeps besides weights and cache.

        Args:
            batched_tokens: token budget of a pass on one rank; the stack's by default [tokens].
        """
        budget = float(self.scheduler.max_batched_tokens) if batched_tokens is None else batched_tokens
        return ServerMemory(
            memory_fraction=self.memory.memory_fraction,
            fraction_of=self.memory.fraction_of,
            batched_tokens=budget,
            max_num_seqs=float(self.scheduler.max_num_seqs),
            context_bytes=self.memory.context_bytes,
            runtime_bytes=self.memory.runtime_bytes,
            communication_bytes=self.memory.communication_bytes,
            graph_bytes=self.memory.graph_bytes,
            logit_bytes=self.memory.logit_bytes,
        )


IDEAL = Stack(
    name="ideal",
    memory=StackMemory(
        context_bytes=SERVER.context_bytes,
        runtime_bytes=SERVER.runtime_bytes,
        communication_bytes=SERVER.communication_bytes,
        graph_bytes=SERVER.graph_bytes,
        logit_bytes=SERVER.logit_bytes,
    ),
    experts=StackExperts(popular=False),
)


def stack(name: str, *, version: str = "", chip: Chip | None = None) -> Stack:
    """Load a stack by name or file, with the defaults of a version on a chip.

    Args:
        version: version such as "0.6.3.post1"; the newest if empty or not a number.
        chip: whose memory and name some defaults depend on.

    Raises:
        UnknownNameError, CatalogError: the stack is unknown, or its file is invalid.
    """
    return read_object("stacks", Stack, name).on(version, chip)


def known_stack(name: str) -> Stack | None:
    """A stack of the catalogue; None for any other name, such as one in a table of measurements."""
    return stack(name) if name in names("stacks") else None


def version_numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: (0, 5, 6) for "0.5.6.post2"."""
    found = re.match(r"v?(\d+(?:\.\d+)*)", version.strip())
    return tuple(int(part) for part in found.group(1).split(".")) if found else ()


def stack_of(calibration: Calibration, chip: Chip | None = None) -> Stack:
    """The stack whose kernels a calibration describes: "generic" for an unknown name, no overheads for the blackboard.

    Args:
        chip: whose memory and name some defaults depend on.
    """
    if calibration.name == "unit":
        return IDEAL
    if calibration.serving:
        return stack(calibration.serving, chip=chip)
    name = calibration.name if calibration.name in names("stacks") else "generic"
    return stack(name, version=calibration.version, chip=chip)


def stack_named(text: str | None, calibration: Calibration, chip: Chip) -> Stack:
    """A stack by NAME or NAME=VERSION, with its version's defaults on a chip; that of a calibration without a text.

    Args:
        chip: whose memory and name some defaults depend on.

    Raises:
        UnknownNameError, CatalogError: as the catalogue.
    """
    if text is None:
        return stack_of(calibration, chip)
    name, _, version = text.partition("=")
    return stack(name, version=version, chip=chip)
