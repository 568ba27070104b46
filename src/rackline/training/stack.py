"""A training stack: the overheads of a framework around its kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from rackline.catalog import TrainingStackRecord, names, training_stack_record
from rackline.hardware import Chip
from rackline.hardware.host_link import has_grace
from rackline.training.runs import SCHEDULES

Key = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStack:
    """Numbers of a stack besides its kernels; see `rackline.catalog.TrainingStackRecord` for their meaning."""

    name: str = "ideal"
    kernels: str = "unit"
    flash_attention: bool = True
    gemm_slowdown: Mapping[Key, float] = field(default_factory=dict[Key, float])
    expert_slowdown: Mapping[Key, float] = field(default_factory=dict[Key, float])
    flash_forward: float = 1.0
    flash_backward: float = 1.0
    flash_since_hopper: float = 1.0
    sequence_parallel: bool = True
    elementwise: float = 1.0
    quantise: float = 1.0
    permute: float = 1.0
    unfused: float = 1.0
    state: float = 1.0
    tensor_exposed: float = 1.0
    context_exposed: float = 1.0
    expert_inside: float = 1.0
    expert_outside: float = 1.0
    pipeline_exposed: float = 1.0
    data_exposed: float = 1.0
    shard_exposed: float = 1.0
    host_dense_s: float = 0.0
    host_moe_s: float = 0.0
    host_expert_s: float = 0.0
    host_state_s: float = 0.0
    host_grace: float = 1.0
    fixed_s: float = 0.0
    gradient_bytes: float = 4.0
    zero: int = 1
    schedules: tuple[str, ...] = SCHEDULES
    forwards_tokens: bool = True
    optimizer: str = "adam"
    dispatch_bytes: float = 2.0
    activation_input_bytes: float = 2.0
    attention_output_bytes: float = 2.0
    numbers_of: str = ""
    stated: tuple[str, ...] = ()

    def gemm(self, chip: Chip, dtype: str) -> float:
        """Slowdown of products of a data type on a chip [1]."""
        return lookup(self.gemm_slowdown, chip.generation, dtype)

    def experts(self, chip: Chip) -> float:
        """Further slowdown of grouped products of experts [1]."""
        return lookup(self.expert_slowdown, chip.generation, "*")

    def flash(self, chip: Chip) -> float:
        """Fused attention in a step over the kernel alone, forward [1]."""
        return self.flash_of(chip.generation)

    def flash_of(self, generation: str) -> float:
        """The same by generation: FlashAttention-2 before Hopper under every stack, since Hopper where it still is."""
        if generation in BEFORE_HOPPER:
            return self.flash_forward
        return self.flash_forward * self.flash_since_hopper if self.flash_since_hopper > 1.0 else 1.0

    def host(self, chip: Chip) -> float:
        """Host time over that of a plain x86 host [1]."""
        return self.host_grace if has_grace(chip) else 1.0


BEFORE_HOPPER = ("volta", "ampere", "ada")
IDEAL = TrainingStack()
"""Every kernel at its peak, everything exposed: the roofline of a training step."""


def lookup(table: Mapping[Key, float], generation: str, dtype: str) -> float:
    """Most specific entry of a table by generation and data type; 1 if there is none."""
    family = generation.split("-")[0]
    for name in (generation, family, "*"):
        for key in ((name, dtype), (name, "*")):
            if key in table:
                return table[key]
    return 1.0


def training_stack(name: str) -> TrainingStack:
    """Load a stack by name or file. Raises UnknownNameError, CatalogError; "unit" is `IDEAL`."""
    return IDEAL if name == "unit" else training_stack_from_record(training_stack_record(name))


def default_training_stack() -> str:
    """Name of the default training stack."""
    return next(name for name in names("training_stacks") if training_stack_record(name).is_default)


def training_stack_from_record(record: TrainingStackRecord) -> TrainingStack:
    """Build the object of a validated record."""
    plain = {
        f.name: getattr(record, f.name)
        for f in fields(TrainingStack)
        if f.name not in ("gemm_slowdown", "expert_slowdown")
    }
    return TrainingStack(
        **plain,
        gemm_slowdown={(one.generation, one.dtype): one.ratio for one in record.gemm_slowdown},
        expert_slowdown={(one.generation, one.dtype): one.ratio for one in record.expert_slowdown},
    )
