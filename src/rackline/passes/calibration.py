"""Calibration: the efficiencies and overheads per operation class and data type that correct the ideal roofline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from rackline.passes.features import Array, FloatLike, as_array

StepPolicy = Literal["blackboard", "serial", "overlap"]
POLICIES: tuple[StepPolicy, ...] = get_args(StepPolicy)
_KERNEL_PARENT = {
    "mla": "attention",
    "sparse": "mla",
    "compressed": "mla",
    "compressed_sparse": "mla",
    "index": "attention",
    "compressed_index": "index",
    "block_index": "index",
    "block_sparse": "attention",
    "gated_delta": "attention",
    "kda": "attention",
    "encoder": "attention",
}
PARENT_CLASS = {
    **{f"{name}_{phase}": f"{of}_{phase}" for name, of in _KERNEL_PARENT.items() for phase in ("decode", "prefill")},
    **dict.fromkeys(("convolution_decode", "convolution_prefill", "hyper_connections", "quantise"), "elementwise"),
    "latent_product": "gemm",
    "padded_moe": "moe",
}
"""Class whose numbers one takes that was measured nowhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationCalibration:
    """The numbers of one kernel class.

    seconds = overhead + max_r t_r + exposed (sum_r t_r - max_r t_r)

    Args:
        overhead_s: per launch [s].
        eta_compute, eta_memory: share of the peak that is reached, 0 to 1.
        exposed: share of the shorter resource time that is not overlapped with the longer, 0 to 1.
        depth_s: per sequentially processed element (reduction, tokens of one sequence) [s].
        tile_s: per tile of work on one core [s].
        cached: share of the last-level cache that is warm in a repeated call, which passes leave out.
        quantise_s: a separate quantisation of the activations, which passes leave out [s].
        permute: passes of routed tokens through memory around the experts [count].
        evidence: kind of evidence for the numbers.
        origin: chip, stack and rule that they come from, as text.
        median_error: median error on held-out shapes; NaN if unknown [1].
        version: newest version of the stack that they were measured in; empty if unknown.
    """

    overhead_s: float = 0.0
    eta_compute: float = 1.0
    eta_memory: float = 1.0
    exposed: float = 0.0
    depth_s: float = 0.0
    tile_s: float = 0.0
    cached: float = 0.0
    quantise_s: float = 0.0
    permute: float = 0.0
    evidence: str = "derived"
    origin: str = "unit"
    median_error: float = float("nan")
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCalibration:
    """The numbers of one collective over group sizes.

    seconds = overhead + alpha steps + t + ramp sqrt(overhead t), t = bytes / (eta_link rate)

    Between measured sizes the numbers are interpolated in log2 of the size; beyond the largest, the overhead keeps
    growing as between the last two, and the efficiency is constant.

    Args:
        group_sizes: measured sizes, rising; (0,) for one set of numbers at every size [count].
        overheads_s, eta_links, ramps: one value per size.
        alpha_s: per message step [s].
    """

    group_sizes: tuple[int, ...] = (0,)
    overheads_s: tuple[float, ...] = (0.0,)
    eta_links: tuple[float, ...] = (1.0,)
    ramps: tuple[float, ...] = (0.0,)
    alpha_s: float = 0.0
    evidence: str = "derived"
    origin: str = "unit"

    def at(self, group_size: FloatLike) -> tuple[Array, Array, Array]:
        """(overhead [s], eta_link, ramp) of groups of this size; arrays of the shape of `group_size`."""
        log = np.log2(np.maximum(as_array(group_size), 1.0))
        if len(self.group_sizes) == 1:
            one = np.ones_like(log)
            return self.overheads_s[0] * one, self.eta_links[0] * one, self.ramps[0] * one
        known = np.log2(np.array(self.group_sizes, dtype=float))
        overhead = np.interp(log, known, self.overheads_s)
        slope = max(self.overheads_s[-1] - self.overheads_s[-2], 0.0) / (self.group_sizes[-1] - self.group_sizes[-2])
        return (
            overhead + slope * np.maximum(as_array(group_size) - self.group_sizes[-1], 0.0),
            np.interp(log, known, self.eta_links),
            np.interp(log, known, self.ramps),
        )


STAGED = "_staged"
"""Ending of collectives through the memory of the host."""
UNIT_OPERATION = OperationCalibration()
UNIT_COLLECTIVE = CollectiveCalibration()


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """All numbers of one stack on one chip.

    Args:
        step_policy: how rows combine into a pass.
        host_s_per_step: host time that is not overlapped with the device [s].
        separate_quantise: data types of products whose activations the stack quantises in a kernel of its own.
        padded_experts: data type of experts whose kernel pads each expert of a rank to whole tiles, chosen or not →
            chips that share an expert from which another kernel runs.
        reduces_in_host: whether the stack's own all-reduce kernels need all ranks in one host.
        operations: (class, data type) → numbers; data type "*" is the fallback of a class. Empty means unit.
        collectives: class → numbers; "collective" is the fallback.
        context_block: cached tokens of a sequence that attention reads are rounded up to a multiple of this [tokens].
        serving: serving stack around the kernels, by name or file; empty where it has the calibration's name.
        version: version of the stack that was asked for; empty for the newest that was measured.
        nearest: operations that have numbers of an older version then, each with the measured version.
    """

    name: str
    stack: str
    step_policy: StepPolicy
    host_s_per_step: float = 0.0
    evidence: str = "derived"
    description: str = ""
    separate_quantise: tuple[str, ...] = ()
    padded_experts: Mapping[str, float] = field(default_factory=dict[str, float])
    reduces_in_host: bool = False
    operations: Mapping[tuple[str, str], OperationCalibration] = field(
        default_factory=dict[tuple[str, str], OperationCalibration]
    )
    collectives: Mapping[str, CollectiveCalibration] = field(default_factory=dict[str, CollectiveCalibration])
    context_block: int = 1
    serving: str = ""
    version: str = ""
    nearest: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Name with the version that was asked for, if one was: `sglang=0.5.9`."""
        return f"{self.name}={self.version}" if self.version else self.name

    @property
    def of_versions(self) -> str:
        """Which versions its kernels are of, in words; empty where no version was asked for."""
        if not self.version:
            return ""
        if not self.nearest:
            return f"kernels as in the newest version measured, none known to differ in {self.version}"
        return f"{', '.join(self.nearest)} (nearest version measured), other kernels as in the newest"

    @property
    def is_unit(self) -> bool:
        """Whether it is the ideal roofline: every efficiency 1, no overhead and no latency."""
        return not self.operations and not self.collectives

    def lookup(self, op_class: str, dtype: str, compute_dtype: str = "") -> OperationCalibration:
        """Numbers of an operation class and data type; else of its compute type, of the class, of bf16; else unit.

        A class without numbers takes those of its parent class.
        """
        name = op_class
        while name:
            for key in (dtype, compute_dtype, "*", "bf16"):
                if (name, key) in self.operations:
                    return self.operations[name, key]
            name = PARENT_CLASS.get(name, "")
        return UNIT_OPERATION

    def collective(self, name: str, *, peer_access: bool = True) -> CollectiveCalibration | None:
        """Numbers of a collective; None if this stack does not have the kernel.

        Args:
            name: class of the collective.
            peer_access: whether the chips copy from each other's memory; else those of its staged kind, if there are.
        """
        if not self.collectives:
            return UNIT_COLLECTIVE
        if not peer_access and (staged := self.collectives.get(f"{name}{STAGED}")):
            return staged
        return self.collectives.get(name, self.collectives.get("collective"))


UNIT = Calibration(name="unit", stack="none", step_policy="blackboard", description="the lecture's roofline")
