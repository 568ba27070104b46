"""A serving stack: the work of an engine around its kernels, and the defaults of its scheduler."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Literal

from rackline.catalog import StackRecord, names, stack_record
from rackline.parallel.deployment import Routing
from rackline.parallel.server_memory import SERVER, FractionOf, ServerMemory
from rackline.passes import Calibration
from rackline.passes.features import FloatLike
from rackline.serving.workload import Admission, Mode, Workload, Workloads


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Numbers of a serving stack besides its kernels; see `rackline.catalog.StackRecord` for their meaning."""

    name: str = "ideal"
    admission: Admission = "chunked"
    max_batched_tokens: int = 8192
    max_num_seqs: int = 2048
    memory_fraction: float = 0.9
    fraction_of: FractionOf = "memory"
    reserve: Literal["chunk", "final"] = "chunk"
    context_bytes: float = SERVER.context_bytes
    runtime_bytes: float = SERVER.runtime_bytes
    communication_bytes: float = SERVER.communication_bytes
    graph_bytes: float = SERVER.graph_bytes
    logit_bytes: float = SERVER.logit_bytes
    rank_skew_s: float = 0.0
    prefill_slowdown: float = 1.0
    eager_s_per_layer: float = 0.0
    eager_decode: bool = False
    popular_experts: bool = False
    rearranged_from_ep: int | None = None
    redundant_experts: int = 0
    graph_tokens: int = 0
    prompt_graph_tokens: int = 0
    host_s_per_step: float = 0.0
    host_s_per_sequence: float = 0.0
    sample_bytes_per_logit: float = 0.0
    untuned_experts: tuple[str, ...] = ()
    untuned_slowdown: float = 1.0
    first_token_s: float = 0.0
    first_token_equal_s: float | None = None
    burst_share: float = 0.0
    synchrony: float = 0.0
    handover_s: float = 0.0
    pool_burst_share: float = 0.0
    neighbour_passes: bool = False

    @property
    def held_tokens(self) -> int:
        """Tokens of the largest pass with prompts that CUDA graphs hold; 0 where they hold none."""
        return max(self.graph_tokens, self.prompt_graph_tokens)

    def beyond_passes_s(self, workload: Workload | Workloads) -> float:
        """Time to first token outside of all passes, which depends on whether lengths are equal [s]."""
        if workload.equal_lengths and self.first_token_equal_s is not None:
            return self.first_token_equal_s
        return self.first_token_s

    def calibrated(self, numbers: Calibration, generation: str) -> Calibration:
        """Kernel calibration, adjusted for what this version of the stack adds.

        The host time per step is added; experts without a tuned configuration take `untuned_slowdown` times as long.

        Args:
            numbers: calibration of the stack's kernels.
            generation: chip generation.
        """
        if numbers.is_unit or not (self.host_s_per_step or self.untuned_experts):
            return numbers
        slower = 1.0 / self.untuned_slowdown
        operations = dict(numbers.operations)
        for of in self.untuned_experts:
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
                    origin=f"{found.origin}, × {self.untuned_slowdown:g}: no tuned configuration in this version",
                )
        host_s = numbers.host_s_per_step + self.host_s_per_step
        return replace(numbers, host_s_per_step=host_s, operations=operations)

    def prefill_pool(self) -> Stack:
        """The stack of prefill-only workers: as fast as the kernels, with a handover to a decode worker."""
        equal = self.first_token_equal_s
        return replace(
            self,
            prefill_slowdown=1.0,
            first_token_s=self.first_token_s + self.handover_s,
            first_token_equal_s=None if equal is None else equal + self.handover_s,
            burst_share=self.pool_burst_share,
            handover_s=0.0,
        )

    def memory(self, batched_tokens: FloatLike | None = None, memory_fraction: float | None = None) -> ServerMemory:
        """Memory of a chip that the server keeps besides weights and cache.

        Args:
            batched_tokens: token budget of a pass on one rank; the stack's by default [tokens].
            memory_fraction: memory fraction set by the operator; the stack's by default [1].
        """
        return ServerMemory(
            memory_fraction=self.memory_fraction if memory_fraction is None else memory_fraction,
            fraction_of=self.fraction_of,
            batched_tokens=float(self.max_batched_tokens) if batched_tokens is None else batched_tokens,
            max_num_seqs=float(self.max_num_seqs),
            context_bytes=self.context_bytes,
            runtime_bytes=self.runtime_bytes,
            communication_bytes=self.communication_bytes,
            graph_bytes=self.graph_bytes,
            logit_bytes=self.logit_bytes,
        )

    @property
    def routing(self) -> Routing:
        """Routing of tokens to experts by default: as measured, with experts rearranged if the stack does so."""
        if not self.popular_experts:
            return Routing(law="uniform")
        return Routing(
            law="log_normal",
            rearranged_from_ep=self.rearranged_from_ep,
            redundant_experts=self.redundant_experts,
        )

    def mode(self) -> Mode:
        """The stack's default scheduler."""
        return Mode(admission=self.admission, max_batched_tokens=self.max_batched_tokens)


IDEAL = Stack()
_BY_VERSION = (
    "admission", "max_batched_tokens", "max_num_seqs", "eager_decode", "eager_s_per_layer", "prefill_slowdown",
    "runtime_bytes", "graph_bytes", "logit_bytes", "graph_tokens", "prompt_graph_tokens", "host_s_per_step",
    "host_s_per_sequence", "sample_bytes_per_logit", "untuned_experts", "untuned_slowdown",
)  # fmt: skip


def stack(name: str, *, version: str = "", hbm_bytes: float | None = None) -> Stack:
    """Load a stack by name or file, with the defaults of a version on a chip.

    Args:
        version: version such as "0.6.3.post1"; the newest if empty or not a number.
        hbm_bytes: memory of the chip, which some defaults depend on [bytes].

    Raises:
        UnknownNameError, CatalogError: the stack is unknown, or its file is invalid.
    """
    record = stack_record(name)
    found = stack_from_record(record)
    given = version_numbers(version)
    for entry in record.defaults:
        if entry.before is not None and not (given and given < version_numbers(entry.before)):
            continue
        if entry.hbm_from_bytes is not None and not (hbm_bytes is not None and hbm_bytes >= entry.hbm_from_bytes):
            continue
        if entry.hbm_below_bytes is not None and not (hbm_bytes is not None and hbm_bytes < entry.hbm_below_bytes):
            continue
        changes: dict[str, Any] = {key: value for key in _BY_VERSION if (value := getattr(entry, key)) is not None}
        found = replace(found, **changes)
    return found


def version_numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: (0, 5, 6) for "0.5.6.post2"."""
    found = re.match(r"v?(\d+(?:\.\d+)*)", version.strip())
    return tuple(int(part) for part in found.group(1).split(".")) if found else ()


def stack_of(calibration: Calibration, hbm_bytes: float | None = None) -> Stack:
    """The stack whose kernels a calibration describes: "generic" for an unknown name, no overheads for the blackboard.

    Args:
        hbm_bytes: memory of the chip, which some defaults depend on [bytes].
    """
    if calibration.name == "unit":
        return IDEAL
    if calibration.serving:
        return stack(calibration.serving, hbm_bytes=hbm_bytes)
    name = calibration.name if calibration.name in names("stacks") else "generic"
    return stack(name, version=calibration.version, hbm_bytes=hbm_bytes)


def stack_named(text: str | None, calibration: Calibration, hbm_bytes: float) -> Stack:
    """A stack by NAME or NAME=VERSION, with its version's defaults on a chip; that of a calibration without a text.

    Args:
        hbm_bytes: memory of the chip, on which some defaults depend [bytes].

    Raises:
        UnknownNameError, CatalogError: as the catalogue.
    """
    if text is None:
        return stack_of(calibration, hbm_bytes)
    name, _, version = text.partition("=")
    return stack(name, version=version, hbm_bytes=hbm_bytes)


def stack_from_record(record: StackRecord) -> Stack:
    """Build the object of a validated record."""
    return Stack(
        name=record.name,
        admission=record.admission,
        max_batched_tokens=record.max_batched_tokens,
        max_num_seqs=record.max_num_seqs,
        memory_fraction=record.memory_fraction,
        fraction_of=record.fraction_of,
        reserve=record.reserve,
        context_bytes=record.context_bytes,
        runtime_bytes=record.runtime_bytes,
        communication_bytes=record.communication_bytes,
        graph_bytes=record.graph_bytes,
        logit_bytes=record.logit_bytes,
        rank_skew_s=record.rank_skew_s,
        prefill_slowdown=record.prefill_slowdown,
        eager_s_per_layer=record.eager_s_per_layer,
        eager_decode=record.eager_decode,
        popular_experts=True,
        rearranged_from_ep=record.rearranged_from_ep,
        redundant_experts=record.redundant_experts,
        graph_tokens=record.graph_tokens,
        prompt_graph_tokens=record.prompt_graph_tokens,
        host_s_per_step=record.host_s_per_step,
        host_s_per_sequence=record.host_s_per_sequence,
        sample_bytes_per_logit=record.sample_bytes_per_logit,
        untuned_experts=record.untuned_experts,
        untuned_slowdown=record.untuned_slowdown,
        first_token_s=record.first_token_s,
        first_token_equal_s=record.first_token_equal_s,
        burst_share=record.burst_share,
        synchrony=record.synchrony,
        handover_s=record.handover_s,
        pool_burst_share=record.pool_burst_share,
        neighbour_passes=record.neighbour_passes,
    )
