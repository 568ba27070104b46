"""Data types of training: matrix products, weights, gradients and optimiser states."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rackline.errors import PrecisionError, nearest_names
from rackline.hardware import Chip
from rackline.training.stack import IDEAL, TrainingStack


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainPrecision:
    """Data types of one training run.

    Args:
        label: label that it was made from.
        gemm: data type of the products of linear layers; the head, router and attention run in bf16.
        quantised: whether inputs of products are cast from bf16 first.
        weight_bytes: a weight as the forward pass reads it [bytes].
        master_bytes: the copy of a weight that the optimiser updates; 0 if it updates the weight itself [bytes].
        moment_bytes: both moments of a weight [bytes].
        gather_bytes: a weight on the wire when sharded weights are gathered [bytes].
        dispatch_bytes, combine_bytes: an element of a token on its way to its experts and back; in the backward pass,
            of its gradient [bytes].
        activation_input_bytes: an input element of an activation function, as stored [bytes].
        attention_output_bytes: an element of the output of attention, as stored [bytes].
        frozen_bytes: a frozen weight as it is kept beside adapters (QLoRA), None where it is kept as it is multiplied
            [bytes].
    """

    label: str
    gemm: str = "bf16"
    quantised: bool = False
    weight_bytes: float = 2.0
    master_bytes: float = 4.0
    moment_bytes: float = 8.0
    gather_bytes: float = 2.0
    dispatch_bytes: float = 2.0
    combine_bytes: float = 2.0
    activation_input_bytes: float = 2.0
    attention_output_bytes: float = 2.0
    frozen_bytes: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def gemm_bytes(self) -> float:
        """One element of a product's input [bytes]."""
        return {"bf16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "fp4": 0.5625}[self.gemm]

    @property
    def compute(self) -> str:
        """Peak that the products use."""
        return {"fp8_block": "fp8"}.get(self.gemm, self.gemm)

    @property
    def optimizer_bytes(self) -> float:
        """Master weight and moments of one weight [bytes]."""
        return self.master_bytes + self.moment_bytes


_LABELS = {
    "bf16": "bf16",
    "fp16": "bf16",
    "fp8": "fp8",
    "fp8-cs": "fp8",
    "fp8-tensor": "fp8",
    "fp8-mx": "mxfp8",
    "mxfp8": "mxfp8",
    "fp8-block": "fp8_block",
    "fp8_block": "fp8_block",
    "nvfp4": "fp4",
    "fp4": "fp4",
}
OPTIMIZERS = {"adam": 8.0, "adam-bf16": 4.0, "adam-8bit": 2.0, "momentum": 4.0, "muon": 4.0, "sgd": 0.0}
"""Bytes of the moments of one weight (ml-engineering, training/performance, section on memory)."""

FROZEN = {"nf4": 4.127 / 8.0}
"""Bytes of a frozen weight: NF4 in blocks of 64 with scales that are quantised again, 0.127 bits a weight (Dettmers et
al. 2023, QLoRA, arXiv:2305.14314, section 3)."""


def with_frozen(precision: TrainPrecision, frozen: str) -> TrainPrecision:
    """The precision with frozen weights kept in four bits: they are stored and gathered so, and products run in bf16.

    Args:
        frozen: of FROZEN.

    Raises:
        PrecisionError: the data type is unknown, or products do not run in bf16.
    """
    if frozen not in FROZEN:
        near = nearest_names(frozen, FROZEN, 1)
        raise PrecisionError(what="frozen", given=frozen, allowed=", ".join(FROZEN), nearest=near[0] if near else None)
    if precision.quantised:
        raise PrecisionError(what="frozen", given=f"{frozen} with {precision.label}", allowed=f"{frozen} with bf16")
    return replace(precision, frozen_bytes=FROZEN[frozen], gather_bytes=FROZEN[frozen])


def train_precision(
    label: str, chip: Chip, optimizer: str | None = None, stack: TrainingStack = IDEAL
) -> TrainPrecision:
    """Data types of a label on a chip.

    Args:
        label: bf16, fp8 (one scale per tensor), fp8-block, mxfp8, nvfp4.
        optimizer: of OPTIMIZERS; that of the stack by default.
        stack: training stack, which determines what is sent and stored in eight bits if products run in eight bits.

    Raises:
        PrecisionError: the label or optimiser is unknown.

    mxfp8 and fp8 run on the same units at the same rate; block-scaled types need Blackwell, else they run as fp8 with
    scales of 128 × 128 weights (Hopper), else as bf16.
    """
    name = label.strip().lower()
    if name not in _LABELS:
        near = nearest_names(name, _LABELS, 1)
        raise PrecisionError(
            what="precision", given=label, allowed=", ".join(_LABELS), nearest=near[0] if near else None
        )
    optimizer = optimizer or stack.optimizer
    if optimizer not in OPTIMIZERS:
        near = nearest_names(optimizer, OPTIMIZERS, 1)
        raise PrecisionError(
            what="optimizer", given=optimizer, allowed=", ".join(OPTIMIZERS), nearest=near[0] if near else None
        )
    base = TrainPrecision(label=name, moment_bytes=OPTIMIZERS[optimizer])
    wanted = _LABELS[name]
    notes: list[str] = []
    if wanted == "fp4" and not chip.supports("fp4"):
        notes.append(f"{chip.name} has no fp4 multiply: products run in fp8")
        wanted = "fp8"
    if wanted == "mxfp8":
        wanted = "fp8" if chip.supports("fp4") or not chip.supports("fp8") else "fp8_block"
    if wanted != "bf16" and not chip.supports("fp8"):
        notes.append(f"{chip.name} has no fp8 multiply: products run in bf16")
        return replace(base, notes=tuple(notes))
    if wanted == "bf16":
        return base
    # with one scale a tensor the weights themselves are kept and gathered in eight bits
    stored = 1.0 if wanted == "fp8" and not name.startswith("mx") and name != "fp8-mx" else 2.0
    gather = 1.0 if wanted == "fp8" else 2.0
    return replace(
        base,
        gemm=wanted,
        quantised=True,
        weight_bytes=stored,
        gather_bytes=gather,
        dispatch_bytes=stack.dispatch_bytes,
        activation_input_bytes=stack.activation_input_bytes,
        attention_output_bytes=stack.attention_output_bytes,
        notes=tuple(notes),
    )
